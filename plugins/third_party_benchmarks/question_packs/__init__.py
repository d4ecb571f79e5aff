"""Readers for benchmarks' question packs; packs with similar layouts are read in the same file."""
