"""The store: cells and their keys, files, runs, suites and leases."""
