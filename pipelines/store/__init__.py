"""Cells and their keys, the store with its files, and the runs, suites and leases in it."""
