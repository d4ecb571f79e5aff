"""Scorers that each run in their own Python environment, which uv creates."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
