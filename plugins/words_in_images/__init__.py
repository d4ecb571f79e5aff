"""Words that prompts want in images, compared with the words that a model reads there."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
