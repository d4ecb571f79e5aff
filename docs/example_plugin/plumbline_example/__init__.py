"""One extension of each kind that Plumbline takes from other packages; docs/plugins.md explains them."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
"""Choices for the command line, in the groups of Plumbline's own `conf/`."""
