"""What a metric measures: what it goes with, asks and does without, and what its questions of each kind come to."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
