"""A sweep that stops once all comparisons are decided keeps its results, and if repeated, makes the same decisions."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from plumbline.jobs.sweep import main
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metaeval.decided_pairs import SweepProgress
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.rewards.scored_images import gather_scores
from plumbline.pipelines.running.events import ShardFinished, ShardStarted, Watch
from plumbline.pipelines.running.executor import Executor
from plumbline.pipelines.running.workload import Workload
from plumbline.pipelines.sources import adaptive_rounds
from plumbline.pipelines.store.cells import Outcome
from plumbline.pipelines.sweeps.adaptive import run_adaptive_sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import (
    make_sweep_config,
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    run_plan,
    write_benchmark,
    write_rows,
)

N_PROMPTS = 64
ADAPTIVE_OPTIONS = ("metric=[clipscore]", "adaptive=betting", "adaptive.range=[-1,1]", "adaptive.growth=1")
INDIFFERENCE_OPTIONS = (*ADAPTIVE_OPTIONS, "adaptive.indifference=0.4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"), count=N_PROMPTS)


@pytest.fixture(scope="module", autouse=True)
def small_rounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptive_rounds, "N_FIRST_PROMPTS", 16)
        yield


@contextmanager
def watch() -> Iterator[Watch]:
    yield lambda event: None


def sweep(
    config: SweepConfig, report: Callable[[SweepProgress], None] = lambda seen: None
) -> tuple[FinishedSweep, PlannedSweep]:
    return run_adaptive_sweep(plan_sweep(config), watch, report)


def get_progress(now: PlannedSweep) -> SweepProgress:
    assert now.seen is not None
    return now.seen


class SlowExecutor(Executor):
    """An executor in this process that reports two additional seconds of work per round."""

    def compute(self, workload: Workload, watch: Watch) -> dict[str, Outcome]:
        watch(ShardStarted("similarities:clip", at=1.0))
        watch(ShardFinished("similarities:clip", 0, 0, 0, at=3.0))
        return Executor.compute(self, workload, lambda event: None)


class StoppedSweep(NamedTuple):
    """A sweep that stopped early, and the prompts seen after each round; tests must not write to its store."""

    finished: FinishedSweep
    now: PlannedSweep
    told: list[SweepProgress]


@pytest.fixture(scope="module")
def stopped(folder: Path, small_rounds: None) -> StoppedSweep:
    told: list[SweepProgress] = []
    planned = plan_bench(folder, folder.parent / "stopped", *INDIFFERENCE_OPTIONS)
    planned = replace(planned, executor=SlowExecutor(planned.config.cluster, on_ray=False))
    return StoppedSweep(*run_adaptive_sweep(planned, watch, told.append), told)


def test_a_sweep_stops_after_enough_prompts_and_reports_the_remaining_ones(stopped: StoppedSweep) -> None:
    finished, now, told = stopped
    seen = get_progress(now)
    assert [one.is_done for one in told] == [False] * (len(told) - 1) + [True]
    assert 16 < seen.prompts < N_PROMPTS
    assert seen.decisions.column("verdict").to_pylist() == ["alike"]
    manifest = json.loads(now.store.read_text(f"runs/{finished.run_id}/manifest.json") or "")
    assert manifest["seconds"] == {"similarities:clip": 2.0 * len(told)}, "the total of all rounds"
    scores = finished.results.read_scores()
    assert len(scores) == 2 * seen.prompts and finished.exit_code == 0
    assert set(scores.column("prompt_id").to_pylist()) <= {row["prompt_id"] for row in read_prompt_rows(N_PROMPTS)}
    page = write_report(now.store, finished.run_id).page
    (warning, *_) = page.warnings
    assert warning.startswith(
        f"The scores are of a balanced random subsample: {seen.prompts} of 64 prompts, {2 * seen.prompts} of 128 images"
    )
    assert page.decided is not None and page.decided.rows[0][1:3] == ("atlas, flint", "alike")
    assert page.cards and all(card.image.url for card in page.cards), "its images are found by a later report too"
    with pytest.raises(
        ConfigError, match="expected scores for all prompts, found a subsample; run the sweep without adaptive"
    ):
        gather_scores(now.store, "latest", None)


def test_an_adaptive_sweep_without_a_range_warns_that_nothing_is_guaranteed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_sweep_config(folder, tmp_path, "metric=[clipscore]", "adaptive=asymptotic", "adaptive.growth=4")
    assert main(config) == 0
    terminal = " ".join("".join(capsys.readouterr()).split())
    (report,) = tmp_path.glob("runs/*/report.html")
    page = report.read_text("utf-8")
    for text in (terminal, page):
        assert "adaptive=asymptotic does not guarantee that at most 5% of such decisions are false" in text


def test_the_same_command_again_computes_nothing_and_names_the_same_run(stopped: StoppedSweep) -> None:
    write_report(stopped.now.store, stopped.finished.run_id)
    again, _ = sweep(stopped.now.config)
    assert (again.run_id, again.computed, again.unchanged) == (stopped.finished.run_id, 0, True)


def test_a_sweep_killed_after_a_round_continues_and_reaches_the_same_decisions(
    folder: Path, stopped: StoppedSweep, tmp_path: Path
) -> None:
    def die(seen: SweepProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(make_sweep_config(folder, tmp_path, *INDIFFERENCE_OPTIONS), die)
    resumed, now = sweep(make_sweep_config(folder, tmp_path, *INDIFFERENCE_OPTIONS))
    assert get_progress(now).decisions.equals(get_progress(stopped.now).decisions)
    assert resumed.results.read_scores().equals(stopped.finished.results.read_scores())
    assert 0 < resumed.computed < stopped.finished.computed


def test_a_later_full_sweep_only_computes_the_rest(folder: Path, stopped: StoppedSweep, tmp_path: Path) -> None:
    shutil.copytree(stopped.now.store.place.url, tmp_path / "store")
    planned = plan_bench(folder, tmp_path / "store", "metric=[clipscore]")
    full = run_plan(planned)
    assert full.results.rows == 2 * N_PROMPTS
    manifest = planned.store.read_text(f"runs/{full.run_id}/manifest.json") or ""
    kept = 2 * get_progress(stopped.now).prompts
    assert f'"rows_kept": {kept}' in manifest or f'"rows_kept": {2 * kept}' in manifest, "similarities and scores"


def test_the_number_of_prompts_that_a_pair_lacks_is_shown(tmp_path: Path) -> None:
    write_benchmark(tmp_path / "bench", count=N_PROMPTS)
    rows = read_image_rows("flint", N_PROMPTS)
    rows[5] = {**rows[5], "image": b"no image"}
    write_rows(tmp_path / "bench/images/flint/00000.parquet", [row for row in rows if row is not rows[9]])
    finished, now = sweep(
        make_sweep_config(tmp_path / "bench", tmp_path / "store", *ADAPTIVE_OPTIONS, "max_failed=0.1")
    )
    (decision,) = get_progress(now).decisions.to_pylist()
    assert decision["n"] + decision["n_missing"] == get_progress(now).prompts == N_PROMPTS, (
        "without an indifference margin it uses all prompts"
    )
    assert decision["n_missing"] == 2 == finished.results.n_null
    scores = finished.results.read_scores()
    means = {
        name: pc.mean(scores.filter(pc.equal(scores.column("generator"), name)).column("score")).as_py()
        for name in ("atlas", "flint")
    }
    assert decision["verdict"] == ("a" if decision["difference"] > 0 else "b")
    assert decision["difference"] == pytest.approx(means["atlas"] - means["flint"], abs=0.02)


def test_rows_with_their_own_prompts_are_split_into_rounds_too(tmp_path: Path) -> None:
    texts = {row["prompt_id"]: row["text"] for row in read_prompt_rows(N_PROMPTS)}
    for generator in ("atlas", "flint"):
        rows = [{**row, "prompt": texts[row["prompt_id"]]} for row in read_image_rows(generator, N_PROMPTS)]
        write_rows(tmp_path / f"images/{generator}/0.parquet", rows)
    _, now = sweep(make_sweep_config(tmp_path, tmp_path / "store", *INDIFFERENCE_OPTIONS, "benchmark.prompts=null"))
    assert 16 < get_progress(now).prompts < N_PROMPTS


def test_each_row_is_in_exactly_one_round(folder: Path, tmp_path: Path) -> None:
    planned = plan_bench(folder, tmp_path, *INDIFFERENCE_OPTIONS)
    assert planned.rounds is not None
    sizes = [len(planned.rounds.select_rounds_up_to(round).prompts) for round in range(len(planned.rounds.ends))]
    assert sizes == sorted(set(sizes)) and sizes[0] == 16 and sizes[-1] == N_PROMPTS
    assert [planned.rounds.find_round(size) for size in sizes] == list(range(len(sizes)))
    held = [
        (shard.group, shard.get_row_in_file(row)) for shard in planned.sources.image_shards for row in range(shard.rows)
    ]
    assert len(held) == len(set(held)) == 2 * N_PROMPTS
    of_file = pq.read_table(folder / "images/atlas/00000.parquet", columns=["prompt_id"]).column("prompt_id")
    first = {planned.rounds.prompt_ids[place] for place in planned.rounds.order[:2].ravel()}
    rows = [
        shard.get_row_in_file(row)
        for shard in planned.rounds.select_rounds_up_to(0).image_shards
        if shard.group == "atlas"
        for row in range(shard.rows)
    ]
    assert {of_file[row].as_py() for row in rows} == first


def test_scores_beyond_the_range_are_refused_with_the_remedy(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"adaptive.range: expected scores from 0.9 to 1, found clipscore from .*; set"
    ):
        sweep(make_sweep_config(folder, tmp_path, *INDIFFERENCE_OPTIONS, "adaptive.range=[0.9,1]"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("retry_failed=true", "adaptive: a sweep that stops early tries failed rows again anyway"),
        ("verify=true", "adaptive: a sweep that stops early reads its scores anyway; set verify=false"),
        ("metric=[entropy]", "adaptive: expected a metric that ranks generators"),
    ],
)
def test_impossible_adaptive_options_are_refused(folder: Path, tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sweep_config(folder, tmp_path, *INDIFFERENCE_OPTIONS, override)
