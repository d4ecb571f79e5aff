"""Later reward models of images, videos and edits, and the conversion of released checkpoints."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
