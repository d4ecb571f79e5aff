"""The reward service: metrics online, on the wires that trainers speak."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
