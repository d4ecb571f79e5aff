"""Compares the words that a prompt asks for in an image with the words that a model reads there."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
