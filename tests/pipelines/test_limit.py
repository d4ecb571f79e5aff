"""A sweep limited to some prompts is marked as a trial, and the full sweep reuses its rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.plan_table import show_plan
from plumbline.jobs.report import show_report
from plumbline.jobs.status import show_runs
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.results.summary import describe_part
from plumbline.pipelines.nightly.regressions import find_baseline
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.report.trends import write_trends
from plumbline.pipelines.rewards.rewards import export_rewards
from plumbline.pipelines.rewards.rewards_config import RewardsConfig
from plumbline.pipelines.store.runs import list_runs
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import (
    list_captioned_images,
    make_score_config,
    make_sweep_config,
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    run_plan,
    write_benchmark,
    write_rows,
)

CLIPSCORE_OPTION = "metric=[clipscore]"
ENTROPY_OPTION = "metric=[entropy]"
"""A metric that needs no model."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_benchmark(tmp_path / "bench", count=12)


def run(config: SweepConfig) -> tuple[FinishedSweep, PlannedSweep, dict[str, Any]]:
    planned = plan_sweep(config)
    finished = run_plan(planned)
    return finished, planned, json.loads(planned.store.read_text(f"runs/{finished.run_id}/manifest.json") or "")


def list_ids(finished: FinishedSweep) -> list[str]:
    return finished.results.read_scores().column("prompt_id").to_pylist()


def test_only_the_first_prompts_and_their_images_are_scored_and_the_output_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished, planned, manifest = run(make_sweep_config(folder, tmp_path / "s", CLIPSCORE_OPTION, "benchmark.limit=5"))
    first = [row["prompt_id"] for row in read_prompt_rows(5)]
    assert list_ids(finished) == first * 2 and finished.exit_code == 0 and not finished.results.n_null
    assert manifest["limited"] == {"prompts": 5, "of_prompts": 12, "images": 10, "of_images": 24}
    show_plan(make_console(), planned)
    written = write_report(planned.store, finished.run_id)
    show_report(make_console(), written)
    show_runs(make_console(), list_runs(planned.store))
    assert describe_part(manifest) == "5 of 12 prompts"
    printed = capsys.readouterr().out
    assert "5 of 12 prompts x 2 generators = 10 images" in printed
    assert "warning Only the first 5 of 12 prompts (limit) and 10 of 24 images were scored" in printed
    assert "small (5 of 12" in printed
    assert written.page.cards and all(card.image.url for card in written.page.cards)


def test_a_later_full_sweep_only_asks_its_models_for_the_rest(folder: Path, tmp_path: Path) -> None:
    limited, *_ = run(make_sweep_config(folder, tmp_path / "s", ENTROPY_OPTION, "benchmark.limit=6"))
    whole, _, manifest = run(make_sweep_config(folder, tmp_path / "s", ENTROPY_OPTION))
    assert limited.results.rows == 12 and whole.results.rows == 24 and "limited" not in manifest
    assert whole.computed == 8, "the first shard of each generator is complete under the limit, and is kept"
    assert manifest["counts"]["rows_kept"] == 2 * 2, "the second shard keeps the similarity rows that it had"
    alone, *_ = run(make_sweep_config(folder, tmp_path / "other", ENTROPY_OPTION))
    assert whole.results.read_scores().equals(alone.results.read_scores())
    again, _, manifest = run(make_sweep_config(folder, tmp_path / "s", ENTROPY_OPTION, "benchmark.limit=7"))
    assert manifest["counts"]["rows_kept"] == 2 * 3 and again.results.rows == 14


def test_a_limit_above_the_number_of_prompts_has_no_effect(folder: Path, tmp_path: Path) -> None:
    planned = plan_bench(folder, tmp_path / "s", ENTROPY_OPTION, "benchmark.limit=12")
    whole = plan_bench(folder, tmp_path / "s", ENTROPY_OPTION)
    assert planned.sources.full_size is None
    assert {cell.key for cell in planned.plan.cells} == {cell.key for cell in whole.plan.cells}


def test_rows_with_their_own_prompts_are_limited_too(tmp_path: Path) -> None:
    for generator in ("atlas", "flint"):
        write_rows(tmp_path / f"images/{generator}/0.parquet", list_captioned_images(generator, 8))
    columns = ("benchmark.columns.image=picture", "benchmark.columns.prompt=caption", ENTROPY_OPTION)
    finished, planned, _ = run(make_score_config(tmp_path / "images", tmp_path / "s", "benchmark.limit=3", *columns))
    assert planned.sources.prompts.column("text").to_pylist() == [row["text"] for row in read_prompt_rows(3)]
    assert planned.sources.full_size == (8, 16) and finished.results.rows == 6 and not finished.results.n_null


def test_an_adaptive_sweep_may_have_a_limit(folder: Path, tmp_path: Path) -> None:
    options = ("adaptive=betting", "adaptive.range=[-1,1]", "benchmark.limit=6")
    planned = plan_bench(folder, tmp_path / "s", CLIPSCORE_OPTION, *options)
    assert planned.rounds is not None and len(planned.sources.prompts) == 6
    rows = {
        (shard.group, shard.get_row_in_file(row)) for shard in planned.sources.image_shards for row in range(shard.rows)
    }
    assert rows == {(generator, row) for generator in ("atlas", "flint") for row in range(6)}


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_limit_below_one_prompt_is_refused(folder: Path, tmp_path: Path, limit: str) -> None:
    with pytest.raises(ConfigError, match=f"benchmark.limit: expected at least 1 or null, got {limit}"):
        make_sweep_config(folder, tmp_path / "s", f"benchmark.limit={limit}")


def test_training_data_only_contains_the_scored_images(folder: Path, tmp_path: Path) -> None:
    _, planned, _ = run(make_sweep_config(folder, tmp_path / "s", CLIPSCORE_OPTION, "benchmark.limit=6"))
    config = RewardsConfig(store=planned.config.store, format="rewards", output=str(tmp_path / "out"))
    exported = export_rewards(config, lambda record: None)
    assert sum(split["examples"] for split in exported.splits.values()) == 12 and not exported.unverified


def test_a_trial_is_left_out_of_trends_and_is_never_a_baseline(folder: Path, tmp_path: Path) -> None:
    whole, planned, _ = run(make_sweep_config(folder, tmp_path / "s", ENTROPY_OPTION))
    trial, *_ = run(make_sweep_config(folder, tmp_path / "s", ENTROPY_OPTION, "benchmark.limit=6"))
    last, _, manifest = run(make_sweep_config(folder, tmp_path / "s", ENTROPY_OPTION, "max_failed=0.02"))
    trends, _ = write_trends(planned.store)
    assert trends.runs == 2
    assert trends.page.warnings == ["1 run left out: only some of the prompts were scored (limit or adaptive sweep)."]
    assert find_baseline(planned.store, last.run_id, manifest, "previous").run_id == whole.run_id
    reason = find_baseline(planned.store, last.run_id, manifest, trial.run_id).reason
    assert reason == f"nightly.compare={trial.run_id}: it only scored 6 of 12 prompts"


def test_images_of_prompts_outside_a_subset_are_reported_in_one_line_with_the_remedy(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two generators have images of 12 prompts, two of which are in the benchmark; one more image names no prompt."""
    write_rows(folder / "prompts.parquet", read_prompt_rows(12)[3:5])
    rows = [
        *read_image_rows("atlas", 12),
        {**read_image_rows("atlas", 1)[0], "prompt_id": None, "image_id": "nobody's"},
    ]
    write_rows(folder / "images/atlas/00000.parquet", rows)
    config = make_sweep_config(folder, tmp_path / "s", CLIPSCORE_OPTION, "max_failed=1")
    planned = plan_sweep(config)
    show_plan(make_console(), planned)
    first = read_prompt_rows(1)[0]["prompt_id"]
    assert (
        f"warning 20 of 25 images belong to prompts that are not in benchmark.prompts, such as '{first}', and will "
        "fail for every metric that reads the prompt; set benchmark.require_every_image=false to leave them out"
    ) in capsys.readouterr().out
    every, *_ = run(config)
    assert every.results.n_null == 21
    own, planned, manifest = run(
        make_sweep_config(
            folder, tmp_path / "s", CLIPSCORE_OPTION, "max_failed=1", "benchmark.require_every_image=false"
        )
    )
    assert own.results.read_errors().column("kind").to_pylist() == ["missing_prompt_id"], (
        "a row without a prompt_id does not belong to another prompt"
    )
    assert own.results.rows == 5 and "limited" not in manifest
    show_plan(make_console(), planned)
    assert "warning" not in capsys.readouterr().out


def test_a_manifest_counts_the_answered_calls_and_none_for_reused_rows(folder: Path, tmp_path: Path) -> None:
    words = ("metric=[clipscore,gecko]", "sweep=own_images", "models=shapes")
    _, trial, before = run(make_sweep_config(folder, tmp_path / "s", *words, "benchmark.limit=5"))
    _, whole, after = run(make_sweep_config(folder, tmp_path / "s", *words))
    _, _, alone = run(make_sweep_config(folder, tmp_path / "alone", *words))
    for node in ("questions:llm", "answers:vqa", "similarities:clip"):  # equal statements in a shard are one call
        assert before["calls"][node] + after["calls"][node] == alone["calls"][node]
    planned = {item.node.name: item.steps for item in whole.plan.nodes if item.node.models}
    assert set(planned) == set(after["calls"]) and after["calls"]["similarities:clip"] < planned["similarities:clip"]
    for manifest, sweep in ((before, trial), (after, whole)):
        assert manifest["counts"]["cells_computed"] == len(sweep.plan.missing)
