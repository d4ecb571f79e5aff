"""An example of each kind of extension that Plumbline loads from other packages; docs/plugins.md explains them."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
"""Choices for the command line, in the same groups as in Plumbline's own `conf/`."""
