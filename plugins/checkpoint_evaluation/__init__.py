"""Evaluates a checkpoint with one command: generates its images, scores them, writes a report, and applies a gate."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
