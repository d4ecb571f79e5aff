"""Releases whose own prompts a metric can send, one file each. A checkout is parsed and never run."""
