"""Reads a run's comparisons of two images."""

from collections.abc import Mapping

from plumbline.operators.results.choices import READ_COLUMNS, ChoiceResults, Refusal, compare_each_metric
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.store.store import Store


def read_choice_results(store: Store, run_id: str, skills: Skills) -> Mapping[str, ChoiceResults | Refusal]:
    """Return the results of each pairwise judge of a run, by metric; nothing if the run has no comparisons."""
    path = f"runs/{run_id}/comparisons.parquet"
    return compare_each_metric(store.read_table(path, list(READ_COLUMNS)), skills) if store.exists(path) else {}
