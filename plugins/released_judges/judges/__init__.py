"""Metrics whose judge is asked in its release's words only."""
