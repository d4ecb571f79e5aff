"""Opens scorers for notebooks. A scorer computes metrics, chosen by command-line arguments, in this process."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from plumbline.jobs.command import Command, load_values
from plumbline.jobs.overrides import expand_key, load_functions
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.rows import list_values
from plumbline.operators.metrics.function import GivenFunction
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.pipelines.plans.sweep_config import read_config

COMMAND = Command("scorer", "Score images and prompts in this process.", ScorerConfig, {"metrics": "metric"})
PLAIN_VALUE_PATTERN = re.compile(r"[\w./:@-]+")
"""Pattern of values that need no quotes on a command line."""
Metric = str | Callable[..., Any]
"""The name of a metric, or a function to use as a metric."""
Metrics = Metric | Iterable[Metric]


def open_scorer(*words: str, metrics: Metrics | None = None, metric: Metrics | None = None, **options: Any) -> Scorer:
    """Load models and return a scorer that keeps them loaded.

    Args:
        words: command-line arguments, such as `"metrics=[vqascore]"` and `"models=shapes"`.
        metrics: the name of a metric, a function of an image and its prompt (docs/plugins.md), or a list of these.
        metric: another name for `metrics`, as on the command line.
        options: other command-line keys, such as `models="shapes"`.

    Raises:
        ConfigError: an argument is invalid.
        ModelError: a model cannot be loaded.
    """
    chosen = choose_metrics(metrics, metric)
    return Scorer(read_config(compose_values(COMMAND, words, chosen, options), ScorerConfig))


def compose_values(
    command: Command, words: Sequence[str], metrics: Metrics | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of a command that is called from Python, with the code of the functions among `metrics`.

    Args:
        command: the command, whose file in conf/ has the defaults.
        words: command-line arguments.
        metrics: the metrics; None if `words` choose them.
        options: other command-line keys.

    Raises:
        ConfigError: an argument is invalid.
    """
    entries = [] if metrics is None else list_metrics(metrics)
    given = [GivenFunction(entry) for entry in entries if not isinstance(entry, str)]
    names = [entry for entry in entries if isinstance(entry, str)]
    named = options if metrics is None else {"metric": names, **options}
    all_words = [*require_text(words, "options"), *(f"{name}={_format_value(value)}" for name, value in named.items())]
    values = load_values(command, [expand_key(word, command.short, command.first) for word in all_words])
    return load_functions(values, given)


def require_text(values: Iterable[Any], name: str) -> tuple[str, ...]:
    """Return the values of an argument; raise ConfigError with its name if one of them is not text."""
    texts = tuple(values)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"{name}: expected text, got a value of type {type(text).__name__}; correct it")
    return texts


def choose_metrics(metrics: Metrics | None, metric: Metrics | None) -> Metrics | None:
    """Return the argument that is not None, or None if neither is given; raise ConfigError if both are given."""
    if metrics is not None and metric is not None:
        raise ConfigError("metrics, metric: both names mean the same option; give only one of them")
    return metric if metrics is None else metrics


def list_metrics(metrics: Metrics) -> list[Metric]:
    """Return the chosen metrics as a list; raise ConfigError for a value that is neither a name nor a function."""
    is_single = isinstance(metrics, str) or callable(metrics)
    entries: list[Any] = [metrics] if is_single else list_values(metrics, "metrics")
    for entry in entries:
        if not isinstance(entry, str) and not callable(entry):
            raise ConfigError(f"metrics: expected names and functions, got a value of type {type(entry).__name__}")
    return entries


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_format_value, value))}]"
    if isinstance(value, str) and PLAIN_VALUE_PATTERN.fullmatch(value):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
