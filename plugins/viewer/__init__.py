"""A browser of a store: its runs, their rows, questions and images, as pages for this machine alone."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
