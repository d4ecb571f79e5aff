"""Evaluates one checkpoint in one command: generates its images, scores them, reports, and applies a gate."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
