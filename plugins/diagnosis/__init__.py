"""Diagnosis of metrics: correlations, questions, effects of missing inputs, and scores by kind of question."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
