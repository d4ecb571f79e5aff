"""More reward models for images, videos and edits, and the conversion of their released checkpoints."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
