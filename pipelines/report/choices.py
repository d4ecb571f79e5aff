"""Reads the pairwise comparisons of a run, and people's choices between the same images."""

from collections.abc import Mapping

from plumbline.operators.metaeval.choice_agreement import PeopleChoices, compare_with_people
from plumbline.operators.results.choices import READ_COLUMNS, ChoiceResults, Refusal, compare_each_metric
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.metaeval.metaeval import PEOPLE_CHOICES_TABLE
from plumbline.pipelines.store.store import Store


def read_choice_results(store: Store, run_id: str, skills: Skills) -> Mapping[str, ChoiceResults | Refusal]:
    """Return the results of each pairwise judge of a run, by metric; empty if the run has no comparisons."""
    path = _locate_comparisons(run_id)
    return compare_each_metric(store.read_table(path, list(READ_COLUMNS)), skills) if store.exists(path) else {}


def read_people_choices(store: Store, run_id: str) -> Mapping[str, PeopleChoices]:
    """Return people's choices between a run's images, by template; nothing if only people or only judges compared."""
    paths = (_locate_comparisons(run_id), f"runs/{run_id}/metaeval/{PEOPLE_CHOICES_TABLE}.parquet")
    if not all(map(store.exists, paths)):
        return {}
    return compare_with_people(*(store.read_table(path, list(READ_COLUMNS)) for path in paths))


def _locate_comparisons(run_id: str) -> str:
    return f"runs/{run_id}/comparisons.parquet"
