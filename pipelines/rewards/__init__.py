"""Exports runs as training data; an export is visibly incomplete until its manifest exists."""
