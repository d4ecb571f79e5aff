"""Prompts and images of a benchmark, as shards."""
