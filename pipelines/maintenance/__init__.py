"""Maintains a store: which processes use it, which runs to keep, and which files nothing refers to any more."""
