"""Benchmarks, question packs, judges and human ratings released by others, beyond those of the five papers."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
