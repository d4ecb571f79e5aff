"""Keeping a store: who is at work in it, which runs stay, and what nothing refers to any more."""
