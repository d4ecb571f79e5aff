"""Metrics whose score is a judge's verdict, with their base classes."""
