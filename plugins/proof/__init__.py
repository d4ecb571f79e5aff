"""Proofs with released checkpoints: our scores for public images are compared with published scores."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
