"""Tags, samples and writes the prompts of a benchmark, and searches training sets for its prompts and images."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
