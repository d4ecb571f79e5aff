"""The trends page only needs manifests and summaries, even if everything else is gone or damaged."""

from pathlib import Path

import pandas as pd
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.report.trends import write_trends
from tests.commands import run_for_output, run_refused
from tests.operators.report.made import MadeRun, draw_noisy_score, make_run


def make_night(folder: Path, day: int, **manifest: object) -> MadeRun:
    options = {"began": f"2026-01-{day:02d}T02:00:00+00:00", **manifest}
    return make_run(folder, run_id=f"2026-01-{day:02d}", score=lambda *at: draw_noisy_score(*at) + day / 100, **options)  # type: ignore[arg-type]


def test_the_page_needs_no_scores_and_no_sources(tmp_path: Path) -> None:
    runs = [make_night(tmp_path, day) for day in (1, 2)]
    for run in runs:
        for name in ("scores", "cells", "errors"):
            (run.folder / f"{name}.parquet").unlink()
    (tmp_path / "bench" / "prompts.parquet").unlink()
    made, url = write_trends(runs[-1].store)
    assert url == f"{tmp_path}/store/trends/made/trends.html" and made.runs == 2
    means = pd.read_parquet(Path(url).with_suffix(".parquet"))
    assert len(means) == 2 * 3 * 2 * 3 and set(means.run_id) == {"2026-01-01", "2026-01-02"}
    own = means[(means.generator == "atlas") & (means.metric == "gecko") & (means.skill == "overall")]
    assert own["mean"].diff().iloc[-1] == pytest.approx(0.01, abs=0.002)


def test_unreadable_and_incomparable_runs_are_left_out_and_mentioned(tmp_path: Path) -> None:
    make_night(tmp_path, 1)
    make_night(tmp_path, 2, exit_code=1)
    make_night(tmp_path, 3, benchmark="another")
    (make_night(tmp_path, 4).folder / "summary.parquet").write_bytes(b"PAR1 damaged PAR1")
    (make_night(tmp_path, 5).folder / "manifest.json").write_text("{")
    store = make_night(tmp_path, 6, began=None).store
    made, _ = write_trends(store, benchmark="made")
    left_out, *damaged = made.page.warnings
    assert made.runs == 1 and left_out.startswith("1 run left out: ")
    named = (
        f"{store.place.url}/runs/2026-01-05/manifest.json",
        f"{store.place.url}/runs/2026-01-04/summary.parquet",
        "run 2026-01-06",
    )
    for warning, file in zip(damaged, named, strict=True):
        assert warning.startswith(f"A run cannot be read: {file}: ")
    with pytest.raises(
        ConfigError, match="benchmark=lost: the store has no run of this benchmark; it has another, made"
    ):
        write_trends(store, benchmark="lost")


def test_the_newest_runs_benchmark_is_used_and_its_name_is_not_a_path(tmp_path: Path) -> None:
    make_night(tmp_path, 1)
    store = make_night(tmp_path, 2, benchmark="../../<b>").store
    _, url = write_trends(store)
    assert url == f"{tmp_path}/store/trends/.._.._<b>/trends.html".replace("<b>", "_b_")


def test_the_command_prints_the_address_of_the_page(tmp_path: Path) -> None:
    store = make_night(tmp_path, 1).store
    assert f"trends of 1 run of made: {store.place.url}/trends/made/trends.html" in run_for_output(
        "trends", f"store={store.place.url}"
    )
    for given, complaint in (
        ("checkpoints='('", "checkpoints: expected a regular expression, got '('"),
        ("checkpoints='(?P<step>.)'", "checkpoints: expected groups (?P<family>...) and"),
        ("runs=0", "runs: expected at least 1, got 0"),
    ):
        assert complaint in run_refused("trends", given, f"store={store.place.url}", code=64)
