"""Sweeps: planned, computed, written as runs."""
