"""Nightly runs: one sweep at a time, compared with an earlier run, and reported."""
