"""Evaluation of one checkpoint: its images, their scores, a report and a gate in one command."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
