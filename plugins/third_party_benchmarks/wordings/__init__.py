"""Releases whose own prompts the judges can send, one file each. A checkout is parsed but never run."""
