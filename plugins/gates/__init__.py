"""Decisions on finished runs: rules that a run must pass, and bridges, which convert a metric's old scores to new."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
