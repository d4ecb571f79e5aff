"""Without Ray, a sweep in one process commits the same cells and shows the same progress as on a cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.running.errors import RunnerError
from plumbline.pipelines.running.session import open_ray_session
from tests.bench_of import read_image_rows, read_prompt_rows, write_rows
from tests.commands import run, run_for_output
from tests.environment import ROOT


@pytest.fixture(scope="module")
def sweep_words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write a benchmark with three rows per shard and a file that is not an image; return the sweep's arguments."""
    folder = tmp_path_factory.mktemp("bench")
    rows = read_image_rows("atlas", 7)
    rows[4]["image"] = b"no image"
    write_rows(folder / "prompts.parquet", read_prompt_rows(7))
    write_rows(folder / "images/atlas/00000.parquet", rows, row_group=3)
    return [
        "sweep=own_images", "models=shapes", "metric=[clipscore,gecko]", "shard_rows=3", "benchmark.name=small",
        f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images", "max_failed=0.2",
    ]  # fmt: skip


@pytest.mark.parametrize("metrics", ["edge_density", pytest.param("clipscore,gecko", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("ray_cluster")
def test_a_sweep_on_ray_finds_all_cells_of_this_process_complete(
    metrics: str, sweep_words: list[str], tmp_path: Path
) -> None:
    words = [*sweep_words, f"metric=[{metrics}]", f"store={tmp_path}/store"]
    stage = "similarities:clip" if "clipscore" in metrics else "image_statistics"
    assert f"{stage}: 3/3 cells" in run_for_output("sweep", *words, "cluster=here", code=2)
    assert "computed 0 cells" in run_for_output("sweep", *words, "cluster=local", code=2)
    assert run("sweep", *words, f"store={tmp_path}/other", "cluster=local").code == 2
    ours, rays = (
        pd.read_parquet(next((tmp_path / name / "runs").glob("*/scores.parquet"))).sort_values(
            ["metric", "image_id"], ignore_index=True
        )
        for name in ("store", "other")
    )
    pd.testing.assert_frame_equal(ours, rays, rtol=1e-5)
    assert ours["score"].isna().sum() == len(metrics.split(","))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_sweep_on_ray_starts_no_worker_for_questions_from_a_template(sweep_words: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [*sweep_words, "metric=[vqascore]", f"store={tmp_path}/store", "log.format=text", f"log.file={log}"]
    assert "questions: 2/2 cells" in run_for_output("sweep", *words, "cluster=local", code=2)
    waves = [
        line.partition("starting stages ")[2] for line in log.read_text().splitlines() if "starting stages " in line
    ]
    assert len(waves) == 1 and waves[0].startswith("answers:vqa, scores on 3 shards")


def test_a_run_reports_how_long_models_waited_for_images_and_names_the_key_to_change(
    sweep_words: list[str], tmp_path: Path
) -> None:
    assert run("sweep", *sweep_words, f"store={tmp_path}", "cluster=here").code == 2
    (folder,) = (tmp_path / "runs").glob("2*")
    manifest = json.loads((folder / "manifest.json").read_text())
    models = {"questions:llm", "entailment:nli", "answers:vqa", "similarities:clip"}
    assert manifest["worked"].keys() == manifest["waited"].keys() == models
    assert all(manifest["worked"][node] + manifest["waited"][node] <= manifest["seconds"][node] + 1 for node in models)
    report = (folder / "report.html").read_text()
    assert manifest["by_metric"].keys() == set(manifest["metrics"])
    spent = sum(manifest["worked"].values())
    assert sum(of["model_seconds"] for of in manifest["by_metric"].values()) == pytest.approx(spent)
    assert ">GPU-seconds</th>" in report
    assert "models waited" in report and "cluster.pools.STAGE.decoders" in report


def test_a_plan_for_gpus_shows_the_resources_of_their_workers(sweep_words: list[str], tmp_path: Path) -> None:
    options = [f"store={tmp_path}", "dry_run=true", "cluster=gpu8", "cluster.pools.similarities.decoders=20"]
    options += ["cluster.pools.questions.max_size=1"]
    lines = run_for_output("sweep", *sweep_words, *options).splitlines()
    cores = "a decoder for each of its CPU cores"
    assert "questions:llm: 1 worker with 1 GPU" in lines, "the model gets no images"
    assert f"answers:vqa: 1 to 7 workers, each with 1 GPU and {cores}" in lines
    assert "similarities:clip: 1 to 4 workers, each with 0.25 GPU and 20 decoders" in lines


HEAVY_PACKAGES = {"ray", "vllm", "sklearn", "matplotlib", "duckdb", "altair", "torchvision", "spacy", "uvicorn"}
"""Modules that a CLIPScore sweep in this process, including its report, does not need."""
MAX_MODULES = 4500
"""Maximum number of imported modules; 4,000 belong to torch, transformers and scipy.

Importing takes longer than computing in a small sweep.
"""


def test_a_small_sweep_is_computed_in_this_process_and_imports_no_more_than_it_needs(
    sweep_words: list[str], tmp_path: Path
) -> None:
    """No cluster is configured, and transformers shows no progress bars of its own."""
    arguments = [*sweep_words, f"store={tmp_path}/store", "metric=[clipscore]"]
    code = (
        "import sys\nfrom plumbline.jobs import sweep\nfrom plumbline.jobs.command import run_job\n"
        f"code = run_job(sweep.COMMAND, sweep.main, {arguments!r})\n"
        "print(code, len(sys.modules), *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "runs here, in this process (cluster=local runs it on Ray)" in done.stdout, done.stdout + done.stderr
    code, count, *modules = done.stderr.split()
    assert (code, HEAVY_PACKAGES & set(modules)) == ("2", set())
    assert int(count) <= MAX_MODULES


def test_options_that_need_ray_are_refused_with_that_reason() -> None:
    with (
        pytest.raises(RunnerError, match="this job runs only on Ray"),
        open_ray_session(ClusterConfig(executor="here", pools={})),
    ):
        pass
