"""Metrics, stages, statistics and reports, in plain Python: tables are made from tables, without Ray or storage."""
