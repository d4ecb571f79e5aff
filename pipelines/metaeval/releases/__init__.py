"""Readers that convert benchmarks' released judgements from their own file formats to our tables."""
