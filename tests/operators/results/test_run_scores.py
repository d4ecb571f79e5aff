"""A run's scores are read in parts: results do not depend on the partition, and memory is bounded."""

import tracemalloc
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.report.changes import compare_runs
from plumbline.operators.report.metric_figures import MetricFigures, MetricInputs, measure_metrics
from plumbline.operators.report.picked_images import compute_gallery_quotas
from plumbline.operators.results import run_scores
from plumbline.operators.results.comparison import read_prompt_means
from plumbline.operators.results.run_scores import NO_ID_HASH, RunScores
from plumbline.operators.results.summary import Skills
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from tests.operators.tallied import pick_gallery_images, wrap_scores

GENERATORS = ("atlas", "borealis")
SKILLS = Skills((f"p{number}", ["counting", "colour"][: number % 3]) for number in range(60))


def make_part(metric: str, generator: str, prompts: int = 60) -> pa.Table:
    """Return one score per prompt: every seventh is missing, prompt 10 has no image, and prompt 3 was truncated."""
    scores = np.random.default_rng([*metric.encode(), *generator.encode()]).random(prompts)
    return rows.table(
        [
            {"image_id": None if at == 10 else f"{generator}-{at}", "prompt_id": f"p{at}", "generator": generator,
             "metric": metric, "score": None if at % 7 == 0 else scores[at], "truncated": at == 3}
            for at in range(prompts)
        ],
        schemas.SCORES,
    )  # fmt: skip


METRICS = ("gecko", "clipscore", "dsg")
WHOLE_TABLE = pa.concat_tables([make_part(metric, generator) for metric in METRICS for generator in GENERATORS])


def split_parts(sizes: Sequence[int]) -> RunScores:
    """Return the scores in WHOLE_TABLE, split into parts of these sizes and a last part with the remaining rows."""
    ends = np.cumsum([0, *sizes, len(WHOLE_TABLE) - sum(sizes)]).tolist()
    parts = [WHOLE_TABLE.slice(first, last - first) for first, last in pairwise(ends)]
    return RunScores([partial(_select, table) for table in parts])


def compute_figures(scores: RunScores) -> dict[str, MetricFigures]:
    return measure_metrics(MetricInputs(scores, SKILLS, compute_gallery_quotas(scores, METRICS, 12), rated=True))


def _select(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    return table.select(list(columns))


def test_a_metrics_rows_equal_those_of_the_table() -> None:
    scores = split_parts([60, 60, 60])
    assert scores.metrics == list(METRICS) and scores.generators == list(GENERATORS) and len(scores) == 360
    assert scores.n_null == 6 * 9 and scores.truncated == dict.fromkeys(METRICS, 2)
    assert scores.prompts.tolist() == sorted(hash_ids([f"p{at}" for at in range(60)]).tolist())
    columns = scores.select_rows("clipscore")
    own = WHOLE_TABLE.slice(120, 120)
    assert columns.row.tolist() == list(range(120, 240))
    np.testing.assert_array_equal(columns.score, own.column("score").to_numpy())
    np.testing.assert_array_equal(columns.prompt, hash_ids(own.column("prompt_id").to_pylist()))
    assert np.flatnonzero(columns.image == NO_ID_HASH).tolist() == [10, 70] and len(np.unique(columns.image)) == 119
    assert [whose.image_id for whose in scores.read_ids([121, 3, 190])] == ["atlas-1", "atlas-3", None]
    assert len(scores.select_rows("absent").row) == 0


@pytest.mark.parametrize("sizes", [[1, 2, 3], [50] * 7, [0, 360]])
@pytest.mark.parametrize("kept", [0, 2, 100])
def test_results_do_not_depend_on_how_scores_are_split_into_parts(
    sizes: list[int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_scores, "MAX_CACHED_PARTS", kept)
    whole, parts = wrap_scores(WHOLE_TABLE), split_parts(sizes)
    assert pick_gallery_images(parts, METRICS, 12) == pick_gallery_images(whole, METRICS, 12)
    for metric in METRICS:
        of_parts, of_whole = (compute_figures(scores)[metric] for scores in (parts, whole))
        assert str(of_parts.duels) == str(of_whole.duels), "as text, because nan is not equal to itself"
        assert of_parts.ratings == of_whole.ratings
        assert str(of_parts.spreads) == str(of_whole.spreads)
    assert str(compare_runs(parts, parts, SKILLS, ({}, {}))) == str(compare_runs(whole, whole, SKILLS, ({}, {})))


def test_a_cached_part_is_read_once_and_other_parts_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    def read_noted(number: int, columns: Sequence[str]) -> pa.Table:
        read.append(number)
        return WHOLE_TABLE.slice(60 * number, 60).select(list(columns))

    monkeypatch.setattr(run_scores, "MAX_CACHED_PARTS", 2)
    scores = RunScores([partial(read_noted, number) for number in range(6)])
    for metric in METRICS:
        scores.select_rows(metric)
    assert sorted(read) == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_memory_is_limited_to_one_metric_and_a_few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_scores, "MAX_CACHED_PARTS", 2)
    monkeypatch.setattr(run_scores, "MIN_COLLECTED_HASHES", 1000)
    ids = pa.array([f"{'long ' * 20}{at}" for at in range(500)])
    values = pa.array(np.random.default_rng(0).random(len(ids)))

    def select_metric(number: int) -> pa.Table:
        generator, metric, no = (pa.array([value] * len(ids)) for value in ("atlas", f"m{number:02d}", False))
        return pa.table([ids, ids, generator, metric, values, no], names=run_scores.READ_COLUMNS)

    tables = [select_metric(number) for number in range(24)]  # in Arrow's memory, which is not traced

    def measure_peak(n_metrics: int) -> int:
        tracemalloc.start()
        scores = RunScores([partial(_select, table) for table in tables[:n_metrics]])
        for metric in scores.metrics:
            read_prompt_means(scores, metric)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    measure_peak(1)
    few, many = measure_peak(4), measure_peak(24)
    assert many < 1.2 * few
