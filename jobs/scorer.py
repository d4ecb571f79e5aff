"""The metrics of a sweep in a notebook: the words of its command line make a scorer in this process."""

import json
import re
from typing import Any

from plumbline.jobs.command import Command, load_values
from plumbline.operators.scorer import Scorer, ScorerConfig
from plumbline.pipelines.plans.sweep_config import read_config

COMMAND = Command("scorer", "Score images and prompts in this process.", ScorerConfig)
PLAIN = re.compile(r"[\w./:@-]+")
"""A text that needs no quotes on a command line."""


def open_scorer(*words: str, **options: Any) -> Scorer:
    """A scorer of what the words or options say: `open_scorer("metric=[vqascore]", "models=shapes")` is
    `open_scorer(metric=["vqascore"], models="shapes")`.

    Raises ConfigError for a word that cannot be understood, ModelError for a model that does not load.
    """
    named = [f"{name}={_written(value)}" for name, value in options.items()]
    return Scorer(read_config(load_values(COMMAND, [*words, *named]), ScorerConfig))


def _written(value: Any) -> str:
    """A value as a command line has it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
