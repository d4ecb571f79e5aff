"""A run's scores where people work: as a table that others query, in an experiment tracker, in a model's repository."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
