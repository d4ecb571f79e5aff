"""A function with its own environment can serve as a model; it runs in a pool of workers, which may have GPUs."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from plugins.environments.tests.scorers import BAD_SCORERS_CODE, N_PROMPTS, TEXT_BY_PROMPT, read_scores
from tests.bench_of import Bench
from tests.commands import find_newest_run_folder, run_refused
from tests.environment import ROOT
from tests.ray_head import make_head_environment, run_head

METRIC_OPTIONS = (
    "metric=[edge_density]",
    "+metrics.one={kind: similarity, model: one, measure: reward}",
    "+metrics.two={kind: similarity, model: two, measure: reward}",
)
"""Arguments for a metric without a model, and two metrics with a model each."""


def make_role_option(role: str, function: str, folder: Path, package: str, *more: str) -> str:
    options = ", ".join(["family: package", f"checkpoint: {function}", *more])
    return f'+models.{role}={{{options}, environment: {{packages: ["{package}"], folder: {folder}, timeout: 60}}}}'


def test_two_models_with_conflicting_packages_score_the_same_images(environments: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import plumbline\nfrom tinyscorer import rate\n\n@plumbline.metric(batches=True)\n"
        "def many(images, prompts): return [rate(image, prompt) for image, prompt in zip(images, prompts)]\n"
    )
    old = make_role_option("one", f"{tmp_path}/mine.py:many", environments, "tinyscorer<2", "pair_batch: 2")
    new = make_role_option("two", "tinyscorer:rate", environments, "tinyscorer==2.0")
    bench = Bench(tmp_path, *METRIC_OPTIONS, old, new, generators=["atlas", "flint"], count=N_PROMPTS)
    assert bench.run().code == 0
    scores = read_scores(bench)
    for metric, version in (("one", 1), ("two", 2)):
        rows = scores[scores["metric"] == metric]
        assert len(rows) == 2 * N_PROMPTS
        assert [row.score for row in rows.itertuples()] == pytest.approx(
            [version + len(TEXT_BY_PROMPT[row.prompt_id]) / 1000 for row in rows.itertuples()]
        )
    models = json.loads((find_newest_run_folder(bench.store.place.url) / "manifest.json").read_text())["models"]
    assert "tinyscorer==1.0" in models["similarities:one"]["packages"]
    assert not bench.plan(new.replace("==2.0", ">1").replace("60", "50")).plan.missing, "the same packages"
    planned = bench.plan(new.replace("==2.0", "==1.0"))
    assert {cell.recipe.metric for cell in planned.plan.missing} == {"two"}


def test_only_the_rows_on_which_a_model_fails_have_no_score(environments: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD_SCORERS_CODE)
    dies = make_role_option("one", f"{tmp_path}/bad.py:dies", environments, "tinyscorer")
    loses = make_role_option("two", f"{tmp_path}/bad.py:loses", environments, "tinyscorer")
    bench = Bench(tmp_path, *METRIC_OPTIONS, dies, loses, generators=["atlas"], count=N_PROMPTS)
    assert bench.run("max_failed=1").code == 2
    scores = read_scores(bench)
    for metric, kind in (("one", "worker_died"), ("two", "function_failed")):
        for row in scores[scores["metric"] == metric].itertuples():
            length = len(TEXT_BY_PROMPT[row.prompt_id])
            assert pd.isna(row.score) if length % 3 == 0 else row.score == length
            assert (row.error and row.error["kind"]) == (kind if length % 3 == 0 else None)
            assert not row.error or row.error["retryable"]
    assert scores.query("metric == 'edge_density'")["score"].notna().all()


def test_the_worker_of_a_model_sees_the_gpus_of_its_pool(
    environments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pool on Ray, CUDA_VISIBLE_DEVICES is set by Ray; here it is set by hand."""
    (tmp_path / "gpu.py").write_text(
        "import os\n\ndef device(image, prompt): return int(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    role = make_role_option("one", f"{tmp_path}/gpu.py:device", environments, "tinyscorer")
    bench = Bench(tmp_path, *METRIC_OPTIONS[:2], role, generators=["atlas"], count=2)
    assert bench.run().code == 0
    assert set(read_scores(bench).query("metric == 'one'")["score"]) == {5.0}
    planned = bench.plan("cluster.pools.similarities.num_gpus=1")
    (node,) = (item.node for item in planned.plan.nodes if item.node.stage == "similarities")
    assert node.find_pool(planned.config.cluster).num_gpus == 1


@pytest.mark.slow
def test_on_ray_each_worker_of_a_model_has_its_own_gpu(environments: Path, tmp_path: Path) -> None:
    """The cluster claims two GPUs; each image is scored with the index of the GPU that its worker sees."""
    (tmp_path / "gpu.py").write_text(
        "import os\n\ndef device(image, prompt): return int(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    role = make_role_option("one", f"{tmp_path}/gpu.py:device", environments, "tinyscorer")
    pool = [
        f"cluster.pools.similarities.{option}"
        for option in ("num_gpus=1", "accelerator_type=A100", "num_cpus=0.5", "min_size=2", "max_size=2")
    ]
    bench = Bench(tmp_path, *METRIC_OPTIONS[:2], role, *pool, generators=["atlas", "drift"], count=N_PROMPTS)
    with run_head(
        tmp_path / "ray.log", "--num-cpus=4", "--num-gpus=2", '--resources={"accelerator_type:A100": 2}'
    ) as head:
        command = [
            sys.executable,
            "-m",
            "jobs.sweep",
            *bench.list_arguments("cluster=local", f"cluster.address={head.address}"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=make_head_environment() | {"PYTHONPATH": str(ROOT)}
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert set(read_scores(bench).query("metric == 'one'")["score"]) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("function", "package", "said"),
    [
        ("tinyscorer:rate", "tinyscorer==9", "there is no version of tinyscorer==9"),
        ("tinyscorer:raet", "tinyscorer", "no function 'raet'; did you mean rate?"),
        ("{folder}/lower.py:rate", "tinyscorer", 'expected a function that declares better="higher"'),
        ("tinyscorer", "tinyscorer", "expected FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_before_any_work(
    function: str, package: str, said: str, environments: Path, tmp_path: Path
) -> None:
    (tmp_path / "lower.py").write_text(
        "import plumbline\n\n@plumbline.metric(better='lower')\ndef rate(image, prompt): ...\n"
    )
    role = make_role_option("one", function.format(folder=tmp_path), environments, package)
    bench = Bench(tmp_path, *METRIC_OPTIONS[:2], role, generators=["atlas"], count=2)
    line = run_refused("sweep", *bench.list_arguments())
    assert said in line and line.startswith("error: model ")


def test_a_model_without_an_environment_or_without_a_metric_that_reads_rewards_is_refused(
    environments: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, generators=["atlas"], count=2)
    alone = bench.list_arguments(
        *METRIC_OPTIONS[:2], "+model@models.one=package", "models.one.checkpoint=tinyscorer:rate"
    )
    assert "model tinyscorer:rate: expected the packages of the function" in run_refused("sweep", *alone)
    role = make_role_option("one", "tinyscorer:rate", environments, "tinyscorer")
    cosine = bench.list_arguments(*METRIC_OPTIONS[:2], "metrics.one.measure=cosine", role)
    assert "returns reward, not cosine" in run_refused("sweep", *cosine)
