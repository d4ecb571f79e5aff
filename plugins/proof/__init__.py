"""Proof with released checkpoints: compares our scores of public images with scores that others have published."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
