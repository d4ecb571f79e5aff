"""Metrics in this process, on images and prompts of a caller."""
