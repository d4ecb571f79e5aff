"""Studies: people rate the images of a run or folder in a browser, and the study stores their answers."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
