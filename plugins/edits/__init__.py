"""Metrics for edited images: how well they follow the instruction, and how much of the source image they keep."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
