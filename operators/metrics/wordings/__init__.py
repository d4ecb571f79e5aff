"""Releases whose own prompts a metric can send, a file for each; a checkout is read as data, and never run."""
