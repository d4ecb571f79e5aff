"""Checks the objects that a prompt mentions by rules about detected boxes, as GenEval and T2I-CompBench do."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
