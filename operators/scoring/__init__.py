"""Scores a caller's images and prompts in this process."""
