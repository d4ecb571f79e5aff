"""Nightly runs: sweep a benchmark (one process at a time), compare the run with an earlier one, and report it."""
