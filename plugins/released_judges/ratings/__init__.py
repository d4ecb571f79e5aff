"""Human judgements that were released with benchmarks for judges."""
