"""Trackers that are chosen by name get each step with its worst images; a server that never answers delays nothing."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import plumbline
from plugins.training_loop.tests.drawn_shapes import make_pipeline

pytestmark = pytest.mark.elsewhere
MEAN_NAME = "plumbline/colourfulness/mean"


@plumbline.metric(score_range=(0, 255))
def colourfulness(image: Image.Image, prompt: str) -> float:
    """Return the mean difference between the red and the blue channel."""
    pixels = np.asarray(image).astype(float)
    return float(np.abs(pixels[..., 0] - pixels[..., 2]).mean())


def run_steps(folder: Path, **options: Any) -> list[float | None]:
    """Evaluate two steps, and return their means."""
    evaluation = plumbline.Evaluation(
        benchmark="shapes", models="shapes", metrics=colourfulness, limit=16, folder=str(folder), **options
    )
    return [evaluation.step(make_pipeline(step / 2), step=step)["colourfulness"].mean for step in (1, 2)]


def test_tensorboard_gets_the_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    means = run_steps(tmp_path, trackers="tensorboard")
    written = EventAccumulator(str(tmp_path / "tensorboard"))
    written.Reload()
    assert [(event.step, event.value) for event in written.Scalars(MEAN_NAME)] == [
        (step, pytest.approx(mean)) for step, mean in zip((1, 2), means, strict=True)
    ]
    assert {f"plumbline/colourfulness/worst/{number}" for number in range(1, 7)} == set(written.Tags()["images"])


@pytest.mark.parametrize("active", [True, False])
def test_mlflow_gets_the_steps_in_the_active_run_or_in_one_of_its_own(
    active: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "tracking").as_uri())
    client = mlflow.MlflowClient()
    if active:
        with mlflow.start_run() as run:
            means = run_steps(tmp_path / "it's", trackers="mlflow")
        run_id = run.info.run_id
    else:
        means = run_steps(tmp_path / "it's", trackers="mlflow")
        (found,) = client.search_runs([client.get_experiment_by_name("plumbline").experiment_id])
        run_id = found.info.run_id
    history = {metric.step: metric.value for metric in client.get_metric_history(run_id, MEAN_NAME)}
    assert history == pytest.approx(dict(zip((1, 2), means, strict=True)))
    assert len(client.list_artifacts(run_id, "plumbline/00000002")) == 6


def test_wandb_gets_the_steps_in_the_active_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    with wandb.init(project="images") as run:
        run.log({"loss": 1.0}, step=500)
        means = run_steps(tmp_path / "steps", trackers="wandb")
        assert run.summary[MEAN_NAME] == pytest.approx(means[1]) and run.summary["plumbline/step"] == 2


def test_a_server_that_does_not_answer_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import mlflow

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mlflow.set_tracking_uri(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert len(run_steps(tmp_path, trackers="mlflow", tracker_timeout=0.5)) == 2
    assert (
        "tracker mlflow: step 1 was not sent (no answer within 0.5 seconds); the folder still has its results"
        in caplog.text
    )
