"""Judges metrics: computes statistics from tables of ratings and scores, and states the convention of each."""
