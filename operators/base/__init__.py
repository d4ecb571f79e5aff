"""Foundations of all other modules: errors, table schemas, rows, extensions, number formatting and model calls."""
