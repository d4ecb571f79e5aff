"""Viewer of a store in a web browser: runs, scores, questions, images and notes."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
