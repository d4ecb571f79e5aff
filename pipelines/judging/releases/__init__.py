"""Readers of what benchmarks release: one file per release, each from its own file format to our tables."""
