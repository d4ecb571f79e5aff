"""Computes the summary, the comparisons and the gallery of a table of scores in memory."""

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
    falling: Container[str] = (),
    baseline: str = "",
) -> list[Duel]:
    """Return the comparison of every two generators by every metric, overall and by skill, from scores (schema SCORES).

    Lower is better for the metrics in `falling`. If a `baseline` is named, only comparisons with it are returned.
    """
    of_run, of_prompts = wrap_scores(scores), Skills((skills or {}).items())
    return [
        duel
        for metric in of_run.metrics
        for duel in compare_generators(metric, read_prompt_means(of_run, metric), of_prompts, falling, baseline)
    ]


def pick_gallery_images(
    scores: RunScores, metrics: Sequence[str], most: int, falling: Container[str] = ()
) -> PickedImages:
    """Return the images that a report's gallery shows for these metrics: at most `most`.

    Lower is better for the metrics in `falling`.
    """
    inputs = MetricInputs(scores, Skills(()), compute_gallery_quotas(scores, metrics, most), lower_is_better=falling)
    seen = {metric: figures.seen for metric, figures in measure_metrics(inputs).items()}
    return pick_images(scores, {metric: seen.get(metric) for metric in metrics}, inputs.quotas, most, falling)


def wrap_scores(table: pa.Table) -> RunScores:
    """Return a table of scores (schema SCORES) as the RunScores that reports read."""
    return RunScores([lambda columns: table.select(list(columns))])
