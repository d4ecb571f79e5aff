"""Metrics that ask questions about an image. The questions come from a model, a template or the benchmark."""
