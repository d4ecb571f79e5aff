"""Human judgements that benchmarks of judges released."""
