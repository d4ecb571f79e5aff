"""Benchmarks, question packs, judges and human ratings that others released, besides those of the five papers."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
