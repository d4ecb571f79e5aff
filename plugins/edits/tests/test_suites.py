"""Benchmarks that run in one command give the same results as when each runs alone, and share a summary page."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from tests.commands import FinishedJob, load_job_config, open_store_at, run, run_for_output, run_refused

SMALL_OPTIONS = ("cluster=here", "limit=2", "shard_rows=4")
METRICS_OPTION = "metric=[clipscore,source_ssim]"
SUITE_OPTIONS = ("sweep=suite", "benchmarks=[shapes,shapes_edits]", "models=shapes", METRICS_OPTION, *SMALL_OPTIONS)
NO_SOURCES_MESSAGE = "source_ssim does not score shapes: it needs the source images of edits"


class SuiteRun(NamedTuple):
    store: Path
    ended: FinishedJob

    @property
    def runs(self) -> dict[str, str]:
        (suite,) = (self.store / "suites").iterdir()
        return dict(json.loads((suite / "suite.json").read_text())["runs"])


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    store = tmp_path_factory.mktemp("suite") / "store"
    return SuiteRun(store, run("sweep", *SUITE_OPTIONS, f"store={store}"))


def test_models_are_loaded_once_and_a_metric_is_left_out_of_benchmarks_it_cannot_score(suite: SuiteRun) -> None:
    assert suite.ended.code == 0, suite.ended
    assert NO_SOURCES_MESSAGE in suite.ended.out and "does not score shapes_edits" not in suite.ended.out
    done = [line for line in suite.ended.out.splitlines() if line.startswith("similarities:clip: 11/11 cells")]
    assert len(done) == 1, "one stage with one model scores the images of all generators and editors"
    assert "suite of 2 benchmarks, exit code 0" in suite.ended.out


@pytest.mark.slow
def test_a_suite_on_ray_has_the_same_scores_as_in_this_process(suite: SuiteRun, tmp_path: Path) -> None:
    ended = run("sweep", *SUITE_OPTIONS, "cluster=local", f"store={tmp_path}")
    assert ended.code == 0 and "similarities:clip: 11/11 cells" in ended.out, ended
    for benchmark, run_id in SuiteRun(tmp_path, ended).runs.items():
        folders = (tmp_path / "runs" / run_id, suite.store / "runs" / suite.runs[benchmark])
        for name in ("scores", "summary", "errors"):
            assert pq.read_table(folders[0] / f"{name}.parquet").equals(pq.read_table(folders[1] / f"{name}.parquet"))


@pytest.mark.parametrize(("benchmark", "metric"), [("shapes", "clipscore"), ("shapes_edits", "clipscore,source_ssim")])
def test_each_benchmark_of_a_suite_gives_the_same_run_as_alone(
    benchmark: str, metric: str, suite: SuiteRun, tmp_path: Path
) -> None:
    words = ("sweep=own_images", f"benchmark={benchmark}", "models=shapes", f"metric=[{metric}]", *SMALL_OPTIONS)
    run_for_output("sweep", *words, f"store={tmp_path}")
    (alone,) = (folder for folder in (tmp_path / "runs").iterdir() if folder.is_dir())
    together = suite.store / "runs" / suite.runs[benchmark]
    for name in ("scores", "summary", "errors", "cells", "usual_scores"):
        tables = [pq.read_table(folder / f"{name}.parquet") for folder in (alone, together)]
        assert tables[0].equals(tables[1]), name
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (alone, together)]
    for told in manifests:
        told["config"].pop("store")
        assert all(seconds > 0 for seconds in told["seconds"].values()) and set(told["seconds"]) >= {"scores"}
    assert {key for key in manifests[0] if manifests[0][key] != manifests[1].get(key)} <= {
        "run_id", "began", "ended", "seconds", "worked", "waited", "inputs_digest", "checksum", "command", "by_metric"
    }  # fmt: skip
    assert (together / "report.html").exists() and (together / "summary.csv").exists()


def test_the_page_of_the_suite_links_its_runs_and_is_reused_for_the_same_runs(suite: SuiteRun) -> None:
    (folder,) = (suite.store / "suites").iterdir()
    page = (folder / "report.html").read_text()
    for benchmark, run_id in suite.runs.items():
        assert f'href="../../runs/{run_id}/report.html"' in page and benchmark in page
    assert "source_ssim does not score shapes:" in page
    again = run_for_output("sweep", *SUITE_OPTIONS, f"store={suite.store}")
    assert again.count("nothing changed since run") == 4 and str(folder / "report.html") in again
    assert "model calls, about" not in again, "no benchmark is planned again"
    assert list((suite.store / "suites").iterdir()) == [folder], "the same runs have only one page"


def test_status_shows_a_suite(suite: SuiteRun) -> None:
    (folder,) = (suite.store / "suites").iterdir()
    shown = run_for_output("status", f"store={suite.store}")
    runs = ", ".join(f"{benchmark} {run_id}" for benchmark, run_id in suite.runs.items())
    assert f"suite {folder.name}: {runs}, exit 0" in " ".join(shown.split())
    assert f"{folder}/report.html" in "".join(shown.split())


def test_a_suite_is_deleted_when_none_of_its_runs_exists(suite: SuiteRun, tmp_path: Path) -> None:
    store = Path(shutil.copytree(suite.store, tmp_path / "store"))
    gone = ("gc", f"store={store}", "grace_days=0", "delete=true")
    for benchmark, left in (("shapes", True), ("shapes_edits", False)):
        shutil.rmtree(store / "runs" / suite.runs[benchmark])
        assert ("suites" in run_for_output(*gone)) is not left
        assert any(store.glob("suites/*/suite.json")) is left


def test_only_the_cells_of_an_added_benchmark_are_computed(suite: SuiteRun) -> None:
    more = [word.replace("shapes_edits]", "shapes_edits,shapes_counting]") for word in SUITE_OPTIONS]
    plan = run_for_output("sweep", *more, f"store={suite.store}", "dry_run=true").replace("│", " ")
    (row,) = (line.split() for line in plan.splitlines() if "similarities:clip" in line)
    assert row == ["similarities:clip", "18", "11", "7", "14", "14"]


def test_a_benchmark_with_missing_images_stops_the_suite_before_anything_is_computed(tmp_path: Path) -> None:
    missing = f"benchmarks.shapes_edits.images={tmp_path}/nowhere"
    line = run_refused("sweep", *SUITE_OPTIONS, missing, f"store={tmp_path}/store", code=1)
    assert line.startswith(f"error: benchmarks.shapes_edits: benchmark.images {tmp_path}/nowhere")
    store = open_store_at(tmp_path / "store")
    assert not store.files("scores") and not store.list_folders("runs")


def test_a_metric_that_cannot_score_a_requested_benchmark_or_any_benchmark_is_refused(tmp_path: Path) -> None:
    words = ("sweep=suite", "models=shapes", METRICS_OPTION, "dry_run=true", f"store={tmp_path}")
    asked = run_refused("sweep", *words, "benchmarks=[shapes,shapes_edits]", "metrics_of.shapes=[source_ssim]", code=1)
    assert asked.startswith("error: benchmarks.shapes: metrics.source_ssim: it needs the source images of edits")
    left_out = run_refused("sweep", "sweep=shapes_suite", "metric=[clipscore]", f"store={tmp_path}", code=64)
    assert left_out == (
        "error: metrics_of.shapes_edits: expected metrics of the sweep, clipscore, got 'dsg_1k'; "
        "metrics_of.shapes_edits=null uses all that fit"
    )
    nowhere = run_refused("sweep", *words, "benchmarks=[shapes,shapes_spatial]", code=1)
    assert nowhere.startswith("error: metrics.source_ssim: it scores no benchmark; it needs the source images")


def test_a_job_for_one_benchmark_refuses_several_benchmarks() -> None:
    line = run_refused("diagnose", "sweep=shapes_suite", code=64)
    assert line == (
        "error: benchmarks: jobs.diagnose takes a single benchmark, but the sweep has several: shapes_counting, "
        "shapes_spatial, shapes_edits; choose a sweep with a single benchmark"
    )


def test_a_benchmarks_own_limit_overrides_the_common_limit() -> None:
    words = ("sweep=shapes_suite", "benchmark.limit=3", "benchmarks.shapes_edits.limit=5")
    config = load_job_config("sweep", *words)
    metrics = {"clipscore": config.metrics["clipscore"]}
    limits = {key: config.make_sweep(key, metrics).benchmark.limit for key in config.benchmarks}
    assert limits == {"shapes_counting": 3, "shapes_spatial": 3, "shapes_edits": 5}
