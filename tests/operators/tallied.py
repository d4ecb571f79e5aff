"""Computes the summary, comparisons and gallery of a run from a table of scores in memory."""

from collections.abc import Container, Mapping, Sequence

import pyarrow as pa

from plumbline.operators.report.metric_figures import MetricInputs, measure_metrics
from plumbline.operators.report.picked_images import PickedImages, compute_gallery_quotas, pick_images
from plumbline.operators.results.comparison import Duel, compare_generators, read_prompt_means
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import Skills, tally_tables


def summarise(scores: pa.Table, skills: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return the summary (schema SUMMARY) of scores (schema SCORES); `skills` are the skills of each prompt."""
    (tally,) = tally_tables([scores], Skills(skills.items()))
    return tally.make_summary()


def compare_pairs(
    scores: pa.Table,
    skills: Mapping[str, Sequence[str]] | None = None,
    lower_is_better: Container[str] = (),
    baseline: str = "",
) -> list[Duel]:
    """Compare all pairs of generators by every metric, overall and by skill; `scores` has the schema SCORES.

    If a `baseline` is named, only comparisons with it are returned.
    """
    of_run, of_prompts = wrap_scores(scores), Skills((skills or {}).items())
    return [
        duel
        for metric in of_run.metrics
        for duel in compare_generators(metric, read_prompt_means(of_run, metric), of_prompts, lower_is_better, baseline)
    ]


def pick_gallery_images(
    scores: RunScores, metrics: Sequence[str], max_images: int, lower_is_better: Container[str] = ()
) -> PickedImages:
    """Return at most `max_images` images that a report's gallery shows for these metrics."""
    quotas = compute_gallery_quotas(scores, metrics, max_images)
    inputs = MetricInputs(scores, Skills(()), quotas, lower_is_better=lower_is_better)
    seen = {metric: figures.seen for metric, figures in measure_metrics(inputs).items()}
    return pick_images(scores, {metric: seen.get(metric) for metric in metrics}, quotas, max_images, lower_is_better)


def wrap_scores(table: pa.Table) -> RunScores:
    """Return a table of scores (schema SCORES) as the RunScores that reports read."""
    return RunScores([lambda columns: table.select(list(columns))])
