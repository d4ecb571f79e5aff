"""A night: one sweep at a time, compared with the night before."""
