"""Scores images and prompts that a caller passes to this process."""
