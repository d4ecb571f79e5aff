"""Readers of what benchmarks release, by what people said: each from its own file format to our tables."""
