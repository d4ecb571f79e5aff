"""Every metric of the plugin scores images of shapes with tiny checkpoints, both in a sweep and with a scorer."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from plugins.third_party_benchmarks.tests.packs import PACK_WRITERS, write_pack
from plugins.third_party_benchmarks.tests.ratings import RATING_BY_NAME
from plumbline.plugins.third_party_benchmarks import CONF
from tests.bench_of import run_bench, write_benchmark
from tests.jobs.test_every_metric import Rows, assert_scorer_equals_sweep
from tests.operators.tiny.judges import save_seeing_judge

METRIC_NAMES = sorted(file.stem for file in (CONF / "metric").glob("*.yaml"))
PACK_BY_VARIANT = {
    "arena_t2i_hard": "dpg_bench",
    "dpg_bench_levels": "dpg_bench",
    "geneval2_am": "geneval2",
    "wegenbench_qa": "wegenbench",
}
PACK_BY_METRIC = {name: pack for name in METRIC_NAMES if (pack := PACK_BY_VARIANT.get(name, name)) in PACK_WRITERS}
"""Question packs by metric, for the metrics that score by a benchmark's own questions."""
SweepFunction = Callable[[str | None], Mapping[str, Rows]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    judge = save_seeing_judge(tmp_path_factory.mktemp("judge"), RATING_BY_NAME)
    return [f"+models.vlm={{family: captioner, checkpoint: '{judge}'}}"]


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory, models: Sequence[str]) -> SweepFunction:
    bench = write_benchmark(tmp_path_factory.mktemp("bench"), ["atlas"], count=4)

    @cache
    def sweep(pack: str | None) -> Mapping[str, Rows]:
        folder = tmp_path_factory.mktemp(str(pack))
        given = [f"metric=[{','.join(name for name in METRIC_NAMES if PACK_BY_METRIC.get(name) == pack)}]", *models]
        if pack is None:
            given.append("metrics.prism_bench.track=composition")
        else:
            given += [f"benchmark.question_pack={pack}", f"benchmark.questions={write_pack(pack, folder)}"]
        rows = defaultdict(list)
        for row in run_bench(bench, folder / "store", *given).results.read_scores().to_pylist():
            rows[row["metric"]].append(row)
        return rows

    return sweep


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_a_metric_scores_images(name: str, scores: SweepFunction) -> None:
    rows = scores(PACK_BY_METRIC.get(name))[name]
    assert len(rows) == 4 and all((row["score"] is None) == (row["error"] is not None) for row in rows)
    assert any(row["score"] is not None for row in rows), rows[0]["error"]


@pytest.mark.parametrize("pack", PACK_WRITERS)
def test_a_scorer_with_a_pack_returns_the_sweeps_scores(
    pack: str, scores: SweepFunction, models: Sequence[str], tmp_path: Path
) -> None:
    assert_scorer_equals_sweep(scores(pack), pack, write_pack(pack, tmp_path), models)
