"""Edited images: how they follow the instruction, and how much of their sources they keep."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
