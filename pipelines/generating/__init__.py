"""Generation of a benchmark's images by a model that runs here, or by a service."""
