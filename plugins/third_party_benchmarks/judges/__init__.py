"""Judges that belong to benchmarks, one file each."""
