"""Exports runs as training data; an export is complete once its manifest exists."""
