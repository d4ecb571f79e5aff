"""The metrics of a sweep in a notebook: the words of its command line make a scorer in this process."""

from jobs.command import load_values
from operators.scorer import Scorer, ScorerConfig
from pipelines.config import read_config


def open_scorer(*words: str) -> Scorer:
    """A scorer of what the words say, as `open_scorer("metric=[vqascore]", "models=shapes")`.

    Raises ConfigError for a word that cannot be understood, ModelError for a model that does not load.
    """
    return Scorer(read_config(load_values("scorer", words), ScorerConfig))
