"""A benchmark's prompts: tagged with skills, drawn, written from templates, and searched for in training sets."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
