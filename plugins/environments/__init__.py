"""Scorers with Python environments of their own, which uv makes."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
