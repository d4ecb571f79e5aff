"""Metrics that compare an image, or a text about it, with the prompt or with captions."""
