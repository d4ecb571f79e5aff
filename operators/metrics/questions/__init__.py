"""Metrics that ask questions about an image, written by a model, by a template or by the benchmark."""
