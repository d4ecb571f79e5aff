"""A row's images: read, decoded within limits, sampled from videos, preprocessed once for all questions."""
