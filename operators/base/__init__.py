"""Foundations of all other modules: errors, table schemas and rows, extensions, wording of numbers, model calls."""
