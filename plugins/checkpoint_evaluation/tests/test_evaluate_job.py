"""One command generates a checkpoint's images, compares it with an earlier checkpoint, and applies a gate."""

import base64
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from tests.commands import FinishedJob, find_newest_run_folder, run, run_refused
from tests.environment import ROOT
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server

pipelines: Any = pytest.importorskip("plugins.generation.tests.pipelines", reason="this plugin generates the images")
pytest.importorskip("plumbline.plugins.gates", reason="this plugin judges a run")

SHAPES_FOLDER = ROOT / "assets/shapes"
SMALL_OPTIONS = ("sweep=shapes", "limit=12", "metric=[clipscore]", "size=32x32", "steps=1", "cluster=here")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed, name in enumerate(("monday", "tuesday")):
        pipelines.save_pipeline(folder / name, seed=seed)
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    started = Server()
    yield started
    started.close()


def evaluate(folder: Path, checkpoint: Path | str, *more: str) -> FinishedJob:
    """Run `plumbline evaluate` for a checkpoint, with a small part of a benchmark and a store in this folder."""
    return run("evaluate", str(checkpoint), *SMALL_OPTIONS, f"store={folder}/store", *more)


def write_gate(folder: Path, **rule: Any) -> str:
    """Write a rules file with one rule, and return the command-line argument that selects the file."""
    (folder / "gate.yaml").write_text("rules:\n  rule:\n" + "".join(f"    {key}: {rule[key]}\n" for key in rule))
    return f"gate={folder}/gate.yaml"


def list_images(folder: Path, name: str) -> list[Path]:
    return sorted((folder / "store-images/shapes" / name).glob("*"))


def test_evaluate_prints_a_verdict_on_the_checkpoint_and_computes_nothing_when_repeated(
    tmp_path: Path, checkpoints: Path
) -> None:
    first = evaluate(tmp_path, checkpoints / "monday")
    assert first.code == 0 and "12 images, 12 of them new" in first.words
    gate = write_gate(tmp_path, metric="clipscore", at_least=-1)
    ended = evaluate(tmp_path, checkpoints / "tuesday", "baseline=monday", gate)
    assert ended.code == 0 and "12 images, 12 of them new" in ended.words, ended
    assert "monday (12 images), tuesday (12 images)" in ended.words and "2 of 4 cells to compute" in ended.words
    assert "tuesday shows no clear difference from monday by clipscore: " in ended.words
    assert "the gate passed" in ended.words
    report = find_newest_run_folder(tmp_path / "store") / "report.html"
    assert ended.out.splitlines()[-1] == f"report: {report}" and "tuesday" in report.read_text()
    again = evaluate(tmp_path, checkpoints / "tuesday", "baseline=monday", gate)
    assert "12 images, 0 of them new" in again.words and "computed 0 cells" in again.words
    assert again.out.splitlines()[-1] == f"report: {report}"
    failed = evaluate(
        tmp_path, checkpoints / "tuesday", "baseline=monday", write_gate(tmp_path, metric="clipscore", at_least=1)
    )
    assert failed.code == 7 and failed.out.splitlines()[-1] == f"report: {report}"


def test_a_dry_run_prints_the_costs_of_images_and_metrics_and_generates_nothing(
    tmp_path: Path, checkpoints: Path
) -> None:
    ended = evaluate(tmp_path, checkpoints / "monday", "dry_run=true")
    print(ended.out)
    assert ended.code == 0
    for line in (
        "to generate: 12 of 12 images of 32x32 pixels, about 22.1 kB",
        "download: nothing, because the checkpoint is a local folder",
        "weights in float32 (counted in the headers of the safetensors files)",
        "time: unknown until the first images",
        "then, to score these images:",
        "similarities:clip 1 0 1 12 12",
    ):
        assert line in ended.words, line
    assert not list_images(tmp_path, "monday") and not (tmp_path / "store").exists()


def read_images(generator: str) -> Mapping[str, str]:
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(SHAPES_FOLDER / "prompts.parquet").to_pylist()}
    rows = pq.read_table(SHAPES_FOLDER / "images" / generator).to_pylist()
    return {texts[row["prompt_id"]]: base64.b64encode(row["image"]).decode() for row in rows}


def list_service_arguments(server: Server, *more: str) -> tuple[str, ...]:
    return (
        "image_model=images_api", f"image_model.endpoint={server.url}", f"image_model.key_variable={KEY_VARIABLE}",
        "image_model.concurrency=1", "image_model.max_retries=0", "steps=null", *more,
    )  # fmt: skip


def test_the_better_of_two_checkpoints_is_called_better_and_the_worse_one_fails_the_gate(
    tmp_path: Path, server: Server
) -> None:
    images = {name: read_images(name) for name in ("atlas", "flint")}
    server.script = lambda number, body: Answer(body={"data": [{"b64_json": images[body["model"]][body["prompt"]]}]})
    job = list_service_arguments(server, "limit=40", "metric=[vqascore]")
    assert evaluate(tmp_path, "flint", *job).code == 0
    gate = write_gate(tmp_path, metric="vqascore", better_by=0)
    better = evaluate(tmp_path, "atlas", *job, "baseline=flint", gate)
    print(better.out)
    assert "atlas is better than flint by vqascore: " in better.words and better.code == 0, better
    worse = evaluate(tmp_path, "flint", *job, "baseline=atlas", gate)
    assert "flint is worse than atlas by vqascore: " in worse.words and worse.code == 7
    assert len(server.bodies) == 80


def test_a_killed_command_continues_with_the_missing_images(tmp_path: Path, server: Server) -> None:
    images, third, release = read_images("atlas"), threading.Event(), threading.Event()

    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        if number == 2:
            third.set()
            release.wait(60)
        return Answer(body={"data": [{"b64_json": images[body["prompt"]]}]})

    server.script = answer_request
    job = list_service_arguments(server, "limit=4", "image_model.image_batch=1")
    words = ["atlas", *SMALL_OPTIONS, *job, f"store={tmp_path}/store"]
    process = subprocess.Popen([sys.executable, "-m", "plumbline.jobs", "evaluate", *words], env=dict(os.environ))
    assert third.wait(240)
    process.send_signal(signal.SIGKILL)
    process.wait()
    release.set()
    asked = len(server.bodies)
    ended = evaluate(tmp_path, "atlas", *job)
    assert ended.code == 0 and len({body["prompt"] for body in server.bodies}) == 4
    assert len(server.bodies) <= asked + 4 and "report: " in ended.out.splitlines()[-1]


def blacken_images(folder: Path) -> None:
    weights = folder / "vae/diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    tensors["decoder.conv_out.weight"].zero_()
    tensors["decoder.conv_out.bias"].fill_(-9.0)
    save_file(tensors, weights, {"format": "pt"})


def test_black_images_are_reported_in_one_sentence_and_the_next_checkpoint_is_evaluated(
    tmp_path: Path, checkpoints: Path
) -> None:
    black = tmp_path / "black"
    shutil.copytree(checkpoints / "monday", black)
    blacken_images(black)
    ended = evaluate(tmp_path, black)
    assert ended.code == 1 and ended.line.startswith(
        "error: black: none of its images has a score: the generator made an image that is entirely black; check the "
    )
    ended = evaluate(tmp_path, checkpoints / "tuesday")
    assert ended.code == 0 and "tuesday: exit code 0" in ended.words


def remove_index(folder: Path) -> None:
    (folder / "model_index.json").unlink()


def pickle_weights(folder: Path) -> None:
    weights = folder / "unet/diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))


def test_an_unusable_checkpoint_is_reported_in_one_sentence(tmp_path: Path, checkpoints: Path) -> None:
    for damage, says in (
        (remove_index, "no model_index.json, so it is not a diffusers pipeline; name the folder that contains it"),
        (pickle_weights, "only pickled .bin weights, which are never loaded; if you trust them, load the"),
    ):
        bad = tmp_path / damage.__name__
        shutil.copytree(checkpoints / "monday", bad)
        damage(bad)
        line = run_refused("evaluate", str(bad), *SMALL_OPTIONS, f"store={tmp_path}/store", code=1)
        assert says in line and str(bad) in line
    line = run_refused("evaluate", f"{tmp_path}/none", *SMALL_OPTIONS, f"store={tmp_path}/store", code=1)
    assert f"model '{tmp_path}/none': expected a folder or a hub id of the form owner/name" in line
    line = run_refused("evaluate", *SMALL_OPTIONS, f"store={tmp_path}/store", code=64)
    assert "image_model.checkpoint" in line


def test_invalid_options_are_refused_before_the_first_image_is_generated(tmp_path: Path, checkpoints: Path) -> None:
    (tmp_path / "empty.yaml").write_text("rules: {}\n")
    bad = {
        "benchmark=shape": "benchmark=shape: no such choice; did you mean shapes",
        f"gate={tmp_path}/empty.yaml": "empty.yaml: rules: expected rules by name, got {}; write `rules:` and a rule",
        write_gate(tmp_path, metric="vqascore", at_least=0): "shapes is scored by clipscore, not by 'vqascore'",
        "baseline=sunday": f"baseline=sunday: expected a generator with images in {tmp_path}/store-images/shapes; ",
        f"models.clip.checkpoint={tmp_path}/none": f"model '{tmp_path}/none': expected a folder or a hub id",
        "baseline=monday": "baseline=monday is the checkpoint itself; name another generator",
        "size=99999x99999 seeds=5000": "60,000 images of 99999x99999 pixels need about 1,080.0 TB, but the disk has",
    }
    for words, says in bad.items():
        line = run_refused(
            "evaluate", f"image_model.checkpoint={checkpoints}/monday", *SMALL_OPTIONS, f"store={tmp_path}/store",
            *words.split(),
        )  # fmt: skip
        assert says in line
    assert not list_images(tmp_path, "monday")


def test_a_name_in_use_by_other_weights_is_refused(tmp_path: Path, checkpoints: Path) -> None:
    assert evaluate(tmp_path, checkpoints / "monday").code == 0
    before = list_images(tmp_path, "monday")
    ended = evaluate(tmp_path, checkpoints / "tuesday", "name=monday")
    assert ended.code == 1 and f"{tmp_path}/store-images/shapes/monday: the images of monday were" in ended.line
    assert ended.line.endswith("with name=NAME, or set pictures.replace=true to generate them again")
    assert list_images(tmp_path, "monday") == before


def test_a_file_of_prompts_can_be_the_benchmark_and_a_checkpoint_is_named_after_its_folder(
    tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signs.txt").write_text("a red circle\na blue square\n")
    monkeypatch.chdir(checkpoints / "monday")
    ended = run(
        "evaluate", ".", f"prompts={tmp_path}/signs.txt", "models=shapes", "metric=clipscore", "steps=1",
        "cluster=here", f"store={tmp_path}/store",
    )  # fmt: skip
    assert ended.code == 0 and f"2 images, 2 of them new: {tmp_path}/store-images/signs/monday/" in ended.out
