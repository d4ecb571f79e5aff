"""Web viewer for a store: runs, scores, questions, images and notes."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
