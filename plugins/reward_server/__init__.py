"""The reward service: computes metrics online, in the request formats ("wires") that trainers use."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
