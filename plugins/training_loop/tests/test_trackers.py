"""Trackers selected by name get each step and its worst images; an unresponsive server does not stop the training."""

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
    pixels = np.asarray(image).astype(float)
    return float(np.abs(pixels[..., 0] - pixels[..., 2]).mean())


def run_steps(folder: Path | str, **options: Any) -> list[float | None]:
    evaluation = plumbline.Evaluation(
        benchmark="shapes", models="shapes", metrics=colourfulness, limit=16, folder=str(folder), **options
    )
    return [evaluation.step(make_pipeline(step / 2), step=step)["colourfulness"].mean for step in (1, 2)]


def test_tensorboard_receives_the_results_of_all_steps(place: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    means = run_steps(place, trackers="tensorboard")
    written = EventAccumulator(f"{place}/tensorboard")
    written.Reload()
    assert [(event.step, event.value) for event in written.Scalars(MEAN_NAME)] == [
        (step, pytest.approx(mean)) for step, mean in zip((1, 2), means, strict=True)
    ]
    assert {f"plumbline/colourfulness/worst/{number}" for number in range(1, 7)} == set(written.Tags()["images"])
    texts = [event.tensor_proto.string_val[0].decode() for event in written.Tensors("plumbline/verdicts/text_summary")]
    assert "no clear difference from step 1 (+" in texts[1]


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
    kept = [artifact.path for artifact in client.list_artifacts(run_id, "plumbline/00000002")]
    images = [f"plumbline/00000002/colourfulness-{number}.png" for number in range(1, 7)]
    assert kept == [*images, "plumbline/00000002/verdicts.txt"]
    text = Path(client.download_artifacts(run_id, kept[-1], str(tmp_path))).read_text()
    assert text.startswith("step 2: colourfulness ") and "no clear difference from step 1 (+" in text


@pytest.mark.parametrize("active", [True, False])
def test_wandb_gets_the_steps_in_the_active_run_or_in_one_of_its_own(
    active: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    if active:
        wandb.init(project="images").log({"loss": 1.0}, step=500)
    means = run_steps(tmp_path / "steps", trackers="wandb")
    run = wandb.run
    assert run is not None and run.project == ("images" if active else "plumbline")
    assert run.summary[MEAN_NAME] == pytest.approx(means[1]) and run.summary["plumbline/step"] == 2
    assert "no clear difference from step 1 (+" in run.summary["plumbline/verdicts"]
    run.finish()
    assert len(list(Path(run.dir).glob("media/images/plumbline/colourfulness/worst_*.png"))) == 12


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_an_accelerator_is_a_tracker(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    import wandb
    from accelerate import Accelerator
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for variable, value in {"WANDB_MODE": "offline", "MLFLOW_ALLOW_FILE_STORE": "true"}.items():
        monkeypatch.setenv(variable, value)
    mlflow.set_tracking_uri((tmp_path / "tracking").as_uri())
    accelerator = Accelerator(log_with=name, project_dir=str(tmp_path), cpu=True)
    accelerator.init_trackers("images", init_kwargs={"wandb": {"dir": str(tmp_path)}})
    means = run_steps(tmp_path / "steps", trackers=[accelerator, *([] if name == "tensorboard" else [name])])
    found = {1: means[0], 2: wandb.run.summary[MEAN_NAME]} if wandb.run is not None else {}
    accelerator.end_training()
    if name == "tensorboard":
        written = EventAccumulator(str(tmp_path / "images"))
        written.Reload()
        found = {event.step: event.value for event in written.Scalars(MEAN_NAME)}
    elif name == "mlflow":
        (run,) = mlflow.search_runs(experiment_names=["images"], output_format="list")
        client = mlflow.MlflowClient()
        found = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, MEAN_NAME)}
        assert len(client.list_artifacts(run.info.run_id, "plumbline/00000002")) == 7
    else:
        assert (
            len(list(tmp_path.glob("wandb/offline-run-*/files/media/images/plumbline/colourfulness/worst_*.png"))) == 12
        )
        assert wandb.run is None
    assert found == pytest.approx(dict(zip((1, 2), means, strict=True)))


def test_a_tracking_server_that_does_not_answer_causes_a_warning(
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
