"""Writes reports: the page of a run, the page of a suite, and the trends page."""
