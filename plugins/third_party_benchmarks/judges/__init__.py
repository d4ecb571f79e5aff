"""Judges of benchmarks, one file each."""
