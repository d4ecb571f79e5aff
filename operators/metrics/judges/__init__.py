"""Metrics whose score is the verdict of a judge, with their base classes."""
