"""Benchmarks, question packs, judges and human ratings from sources other than the five papers."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
