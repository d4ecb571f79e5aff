"""Decisions on finished runs: rules that a run must pass, and bridges, which map a metric's old scores to new ones."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
