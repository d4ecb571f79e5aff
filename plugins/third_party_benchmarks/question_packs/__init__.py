"""Question packs of benchmarks; each file reads packs with similar layouts."""
