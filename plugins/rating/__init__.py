"""Studies in which people rate the images of a run or folder in a browser, and in which their answers are stored."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
