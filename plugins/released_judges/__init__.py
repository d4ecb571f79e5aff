"""Judges trained or released in 2025 and 2026, with their own prompts, and benchmarks that compare judges."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
