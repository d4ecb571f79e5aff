"""Studies: people rate the images of a run or a folder in a browser, and their answers are stored."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
