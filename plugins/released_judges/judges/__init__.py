"""Metrics whose judge is always prompted with the wording from its release."""
