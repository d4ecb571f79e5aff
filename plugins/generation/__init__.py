"""Generation of a benchmark's images by a local model or a service."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
