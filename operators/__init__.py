"""Metrics, stages, statistics and reports: plain Python that computes tables from tables, without Ray or storage."""
