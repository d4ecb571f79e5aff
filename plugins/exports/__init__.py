"""Exports of a run's scores: to Iceberg and Lance tables, experiment trackers and model repositories."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
