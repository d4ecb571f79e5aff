"""Evaluation inside a training loop: generates images, scores them, and compares a step with earlier steps."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
