"""Makes a benchmark's prompts: tags, draws and writes them, and searches for them in training sets."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
