"""Generation of a benchmark's images by a model that runs here, or by a service."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
