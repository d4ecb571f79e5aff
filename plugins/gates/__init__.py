"""Decisions on finished runs: rules that a run must pass, and bridges that join two versions of a metric."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
