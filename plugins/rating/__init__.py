"""Studies: what people are asked about the images of a run or a folder, served as pages, and their answers kept."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
