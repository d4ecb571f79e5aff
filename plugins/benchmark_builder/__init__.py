"""Builds the prompts of a benchmark (tagging, sampling and writing them), and looks for leaks into training sets."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
