"""Judges metrics: takes tables of ratings and scores, and returns statistics together with their conventions."""
