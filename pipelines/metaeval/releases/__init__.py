"""Readers that convert benchmarks' released judgements from their file formats to our tables."""
