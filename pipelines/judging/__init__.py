"""Metrics beside people: protocols, what benchmarks release, and the reproduction of published numbers."""
