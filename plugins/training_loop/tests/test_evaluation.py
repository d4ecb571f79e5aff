"""Steps of a training run are scored and compared, despite restarts and failures of a pipeline or tracker."""

import json
import logging
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import diffusers
import numpy as np
import pandas as pd
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from transformers import Trainer, TrainingArguments

import plumbline
from plugins.training_loop.tests.drawn_shapes import make_pipeline
from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.plugins.training_loop.trackers.tracker import GuardedTracker, StepSender, StepUpdate
from plumbline.statistics import holm, signed_rank
from tests.environment import ROOT


def open_evaluation(folder: Path | str, limit: int = 32, **options: Any) -> plumbline.Evaluation:
    given = {"metrics": "clipscore", **options}
    return plumbline.Evaluation(benchmark="shapes", models="shapes", limit=limit, folder=str(folder), **given)


def read_scores(folder: Path, step: int) -> pd.DataFrame:
    return pd.read_parquet(folder / f"steps/{step:08d}/scores.parquet")


def test_a_step_is_compared_with_the_previous_and_the_best_one_by_the_reports_test(tmp_path: Path) -> None:
    evaluation = open_evaluation(tmp_path, metrics=["clipscore", "edge_density"])
    skills = {0: 0.0, 50: 1.0, 100: 0.3, 150: 1.0}
    results = {step: evaluation.step(make_pipeline(skill), step=step) for step, skill in skills.items()}
    assert results[0]["clipscore"].previous is None
    assert (results[50]["clipscore"].previous.verdict, results[50]["clipscore"].previous.step) == ("better", 0)
    assert results[100]["clipscore"].best.step == 50 and results[100]["clipscore"].best.verdict == "worse"
    last = results[150]["clipscore"]
    assert (last.previous.verdict, last.best.verdict, last.best.difference) == ("better", "no clear difference", 0.0)
    assert results[150]["edge_density"].previous is None  # it does not rank images
    scores = {step: read_scores(tmp_path, step).query("metric == 'clipscore'").score.to_numpy() for step in skills}
    expected = [signed_rank(scores[150], scores[other]).p_value for other in (100, 50)]
    assert [last.previous.p_value, last.best.p_value] == pytest.approx(holm(expected))
    assert last.mean == pytest.approx(scores[150].mean()) and last.low < last.mean < last.high
    assert str(results[50]).startswith("step 50: clipscore ") and "; better than step 0 (+" in str(results[50])
    page = (tmp_path / "report.html").read_text()
    assert "better than step 100" in page and page.count("<figure>") == evaluation.config.worst
    worst = json.loads((tmp_path / "steps/00000150/result.json").read_text())["metrics"][0]
    assert worst["metric"] == "clipscore"
    kept = sorted(file.name for file in (tmp_path / "steps/00000150/worst").iterdir())
    assert kept == [f"clipscore-{number}.png" for number in range(1, 7)]


def test_a_metric_whose_lower_scores_are_better_is_compared_in_its_direction(tmp_path: Path) -> None:
    @plumbline.metric(score_range=(0, 255), better="lower")
    def brightness(image: Image.Image, prompt: str) -> float:
        return float(np.asarray(image.convert("L")).mean())

    def make_grey_pipeline(grey: int) -> Any:
        return lambda prompts, seeds: [make_noise(seed, grey) for seed in seeds]

    def make_noise(seed: int, grey: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).integers(grey, grey + 50, (16, 16, 3)).astype(np.uint8)

    evaluation = open_evaluation(tmp_path, metrics=brightness)
    for step, grey in enumerate((200, 100, 150)):
        last = evaluation.step(make_grey_pipeline(grey), step=step)["brightness"]
    assert (last.previous.verdict, last.previous.step, last.best.step) == ("worse", 1, 1)


def test_a_restarted_loop_continues_with_the_earlier_steps(place: str, caplog: pytest.LogCaptureFixture) -> None:
    first = open_evaluation(place)
    results = [first.step(make_pipeline(skill), step=step) for step, skill in ((10, 0.0), (20, 1.0))]
    (first.folder.place / "steps/00000030/worst/clipscore-1.png").write(b"")  # stopped while it was written
    calls: list[int] = []
    again = open_evaluation(place)
    assert [again.step(make_pipeline(0.0, calls), step=step) for step in (10, 20)] == results and calls == []
    assert (
        f"step 20 was already evaluated, so the pipeline was not called; its result is in {place}/steps/00000020"
        in caplog.text
    )
    continued = again.step(make_pipeline(0.0, calls), step=30)["clipscore"]
    assert (continued.previous.step, continued.previous.verdict) == (20, "worse") and sum(calls) == 32
    worst = [f"worst/clipscore-{number}.png" for number in range(1, 7)]
    steps = [f"steps/{step:08d}/{name}" for step in (10, 20, 30) for name in ("result.json", "scores.parquet", *worst)]
    assert {name for name, _ in again.folder.place.files()} == {"evaluation.json", "report.html", *steps}
    page = (again.folder.place / "report.html").read().decode()
    assert "worse than step 20" in page and 'src="steps/00000030/worst/clipscore-1.png"' in page


def test_a_step_with_scores_but_without_a_result_is_not_generated_again(tmp_path: Path) -> None:
    first = open_evaluation(tmp_path)
    results = [first.step(make_pipeline(skill), step=step) for step, skill in ((1, 0.0), (2, 1.0))]
    (tmp_path / "steps/00000002/result.json").unlink()
    calls: list[int] = []
    assert open_evaluation(tmp_path).step(make_pipeline(0.0, calls), step=2) == results[1] and calls == []
    assert (tmp_path / "steps/00000002/result.json").is_file()


def test_two_processes_cannot_write_the_same_step(place: str) -> None:
    first, second = open_evaluation(place), open_evaluation(place)

    def draw_while_another_process_scores(prompts: list[str], seeds: list[int]) -> Any:
        if not second.folder.has_scores(1):
            second.step(make_pipeline(1.0), step=1)
        return make_pipeline(0.0)(prompts, seeds)

    message = (
        f"folder {place}: expected only steps of this training run, found step 1 from another process; two "
        "training runs cannot share a folder, so choose another one"
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match=re.escape(message)):
            first.step(draw_while_another_process_scores, step=1)
    with pytest.raises(ConfigError, match=re.escape(message)):  # a step that the other process does not have
        first.step(make_pipeline(0.0), step=2)
    again = second.step(make_pipeline(1.0), step=3)["clipscore"]
    assert (again.previous.step, again.previous.difference) == (1, 0.0)
    assert [result.step for result in open_evaluation(place).folder.read_results()] == [1, 3]


def test_steps_with_other_settings_are_refused(tmp_path: Path) -> None:
    open_evaluation(tmp_path)
    for changed in ({"limit": 16}, {"metrics": "edge_density"}, {"pipeline_options": {"num_inference_steps": 2}}):
        with pytest.raises(ConfigError, match=r"expected an evaluation with the same settings.*choose another folder"):
            open_evaluation(tmp_path, **changed)
    open_evaluation(tmp_path, batch=3, worst=1)  # these options do not affect scores


def test_black_and_missing_images_have_no_score_and_the_reason_is_shown(tmp_path: Path) -> None:
    evaluation = open_evaluation(tmp_path, limit=12)
    evaluation.step(make_pipeline(1.0), step=1)

    def draw_all_but_two(prompts: list[str]) -> list[Image.Image | None]:
        drawn = make_pipeline(1.0)(prompts, [*range(len(prompts))])
        return [*drawn[:-2], Image.new("RGB", (64, 64)), None]

    partly = evaluation.step(draw_all_but_two, step=2)["clipscore"]
    assert (partly.n, partly.n_null, partly.previous.n) == (8, 4, 8)  # 12 images in two calls
    kinds = read_scores(tmp_path, 2).error.dropna().map(lambda error: error["kind"])
    assert sorted(kinds) == ["blank_picture"] * 2 + ["missing_image"] * 2
    black = evaluation.step(lambda prompts: [Image.new("RGB", (64, 64)) for _ in prompts], step=3)
    assert black["clipscore"].mean is None and black["clipscore"].previous.verdict == "no shared scores"
    assert (
        "12 images without a score: the pipeline made an image that is entirely black, as after NaN values or a "
        "safety filter; check its weights, or use float32"
    ) in str(black)
    after = evaluation.step(make_pipeline(1.0), step=4)["clipscore"]
    assert (after.previous.verdict, after.best.step) == ("no shared scores", 1)


def test_the_images_of_a_model_that_only_returns_nan_have_no_score(tmp_path: Path) -> None:
    class DivergedPipeline(diffusers.DiffusionPipeline):
        def __call__(self, prompt: list[str], generator: list[torch.Generator]) -> Any:
            latents = torch.full((len(prompt), 3, 16, 16), torch.nan, dtype=torch.bfloat16)
            return diffusers.ImagePipelineOutput(VaeImageProcessor().postprocess(latents.float()))

    evaluation = open_evaluation(tmp_path, limit=8)
    evaluation.step(make_pipeline(1.0), step=1)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        result = evaluation.step(DivergedPipeline(), step=2)
    assert (result["clipscore"].mean, result["clipscore"].n_null) == (None, 8)
    assert "an image that is entirely black, as after NaN values or a safety filter; check its weights" in str(result)


def test_a_step_whose_files_could_not_be_written_is_finished_later(tmp_path: Path) -> None:
    def draw(prompts: list[str], seeds: list[int]) -> list[np.ndarray[Any, Any]]:
        calls.append(len(prompts))
        return [np.random.default_rng(seed).integers(0, 255, (128, 128, 3), dtype=np.uint8) for seed in seeds]

    calls: list[int] = []
    evaluation = open_evaluation(tmp_path, limit=8)
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, allowed[1]))  # enough bytes for the scores, but not for an image
    try:
        with pytest.raises(PlumblineError, match=r"clipscore-1\.png: cannot be written .*raise the limit"):
            evaluation.step(draw, step=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert evaluation.step(draw, step=1)["clipscore"].n == 8 and calls == [8]
    assert evaluation.step(draw, step=2)["clipscore"].previous.difference == 0


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (lambda prompts: make_pipeline(1.0)(prompts, [*range(len(prompts))])[1:], "8 images for 8 prompts, found 7"),
        (lambda prompts: None, "8 images for 8 prompts, found 0"),
        (lambda prompts: [torch.zeros(3, 8, 8)] * 8, "found a Tensor; convert it"),
        (lambda prompts: np.zeros((8, 16, 16, 3)), "found an array of type float64; convert it"),
    ],
)
def test_a_pipeline_that_does_not_return_an_image_per_prompt_is_an_error(
    pipeline: Any, message: str, tmp_path: Path
) -> None:
    evaluation = open_evaluation(tmp_path, limit=8)
    with pytest.raises(ConfigError, match=message):
        evaluation.step(pipeline, step=1)
    assert not (tmp_path / "steps").exists()
    assert evaluation.step(make_pipeline(1.0), step=1)["clipscore"].n == 8


def test_prompts_can_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a red circle\na blue star\n\na green square\n")
    options = {"models": "shapes", "metrics": "clipscore", "folder": str(tmp_path / "steps")}
    with pytest.raises(ConfigError, match=r"benchmark\.prompts' is required"):
        plumbline.Evaluation(**options)
    evaluation = plumbline.Evaluation(prompts=str(tmp_path / "prompts.txt"), seeds=2, **options)
    assert evaluation.step(make_pipeline(1.0), step=0)["clipscore"].n == 6


@pytest.mark.parametrize("step", [-1, 1.5, "1", True])
def test_a_step_that_is_not_a_whole_number_is_refused(step: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="step: expected a whole number, 0 or more"):
        open_evaluation(tmp_path, limit=1).step(make_pipeline(1.0), step=step)


def test_the_training_continues_with_the_same_modes_and_random_numbers(tmp_path: Path) -> None:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noise, self.frozen = torch.nn.Dropout(0.5), torch.nn.Dropout(0.5).eval()

        def forward(self, prompts: list[str]) -> list[Image.Image]:
            assert not self.noise.training and not torch.is_grad_enabled()
            made = torch.randint(0, 255, (len(prompts), 16, 16, 3), dtype=torch.uint8)
            return [Image.fromarray(image.numpy()) for image in made]

    network, evaluation = Network(), open_evaluation(tmp_path, limit=8)
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    results = [evaluation.step(network, step=step)["clipscore"] for step in (1, 2)]
    assert torch.equal(torch.rand(4), expected)
    assert network.noise.training and not network.frozen.training
    assert results[0].mean == results[1].mean  # the same seeds at each step


def test_a_diffusers_pipeline_gets_a_seed_for_each_image_and_the_options(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    class NoisePipeline(diffusers.DiffusionPipeline):
        def __init__(self, network: torch.nn.Module) -> None:
            super().__init__()
            self.register_modules(network=network)

        def __call__(self, prompt: list[str], generator: list[torch.Generator], num_inference_steps: int = 50) -> Any:
            assert not self.network.training
            calls.append((len(prompt), num_inference_steps))
            made = [torch.randint(0, 255, (16, 16, 3), generator=each, dtype=torch.uint8) for each in generator]
            return diffusers.ImagePipelineOutput(images=[Image.fromarray(image.numpy()) for image in made])

    pipeline, means = NoisePipeline(torch.nn.Dropout()), []
    for batch in (3, 8):
        evaluation = open_evaluation(
            tmp_path / str(batch), limit=7, batch=batch, pipeline_options={"num_inference_steps": 4}
        )
        means.append(evaluation.step(pipeline, step=1)["clipscore"].mean)
    assert calls == [(3, 4), (3, 4), (1, 4), (7, 4)] and pipeline.network.training
    assert means[0] == pytest.approx(means[1], abs=1e-5)


def test_the_example_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "plugins/training_loop/README.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0], {"pipeline": make_pipeline(0.5)})
    assert "step 600: clipscore " in capsys.readouterr().out and (tmp_path / "evaluation/report.html").is_file()


class Recorder:
    def __init__(self) -> None:
        self.logged: dict[int, dict[str, float]] = {}

    def log(self, values: dict[str, float], step: int | None = None, **options: Any) -> None:
        self.logged[step or 0] = values


class BrokenTracker(Recorder):
    def log(self, values: dict[str, float], step: int | None = None, **options: Any) -> None:
        raise ConnectionError("https://user:secret@host is down\nsince noon")


def test_trackers_get_the_numbers_and_a_failing_tracker_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    evaluation = open_evaluation(tmp_path, trackers=[BrokenTracker(), recorder])
    results = [evaluation.step(make_pipeline(skill), step=step) for step, skill in ((1, 0.0), (2, 1.0))]
    assert recorder.logged[2]["plumbline/clipscore/mean"] == results[1]["clipscore"].mean
    assert recorder.logged[2]["plumbline/clipscore/verdict_against_previous"] == 1
    assert recorder.logged[1].keys() == {f"plumbline/clipscore/{name}" for name in ("mean", "low", "high", "coverage")}
    (first, _) = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert first == (
        "tracker BrokenTracker: step 1 was not sent (ConnectionError: https://***@host is down); the folder still has "
        "its "
        "results"
    )
    with pytest.raises(ConfigError, match=r"trackers: expected one of mlflow, tensorboard, wandb, got 'wanddb'"):
        open_evaluation(tmp_path / "other", trackers="wanddb")
    with pytest.raises(ConfigError, match=r"objects with a method log\(values, step\), got a value of type object"):
        open_evaluation(tmp_path / "other", trackers=[object()])


def test_the_training_continues_without_a_tracker_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    answers, sent = Event(), list[int]()

    class UnresponsiveTracker(StepSender):
        def send(self, update: StepUpdate) -> None:
            sent.append(update.step)
            answers.wait()

    calls = GuardedTracker("silent", UnresponsiveTracker(""), timeout=0.01)
    for step in (1, 2):
        calls.send(StepUpdate(step, {}, "", ()))
    answers.set()
    assert sent == [1]  # step 2 is not sent while step 1 waits
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "tracker silent: step 1 was not sent (no answer within 0.01 seconds); the folder still has its results",
        "tracker silent: step 2 was not sent (it has not answered an earlier step yet); the folder still has its "
        "results",
    ]


RANK_SCRIPT = """
import json, sys, torch.distributed as dist, plumbline
from pathlib import Path
from plugins.training_loop.tests.drawn_shapes import make_pipeline
from plumbline.operators.base.errors import PlumblineError
dist.init_process_group("gloo")
calls = []
evaluation = plumbline.Evaluation(
    benchmark="shapes", models="shapes", metrics="clipscore", limit=9, folder=sys.argv[1], batch=4)
result = evaluation.step(make_pipeline(1.0, calls), step=1)
good = make_pipeline(1.0)
try:
    evaluation.step(good if dist.get_rank() == 0 else lambda prompts: [], step=2)
except PlumblineError as error:
    failure = str(error)
found = {"calls": calls, "mean": result["clipscore"].mean, "failure": failure}
Path(f"{sys.argv[1]}-{dist.get_rank()}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


def test_each_rank_generates_a_part_and_all_return_the_same_result(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK_SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*launch, str(tmp_path / "two")], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"two-{rank}.json").read_text()) for rank in range(2)]
    alone = open_evaluation(tmp_path / "one", limit=9).step(make_pipeline(1.0), step=1)["clipscore"].mean
    assert [rank["calls"] for rank in ranks] == [[4, 1], [4, 1]]
    assert [rank["mean"] for rank in ranks] == pytest.approx([alone, alone])
    assert ranks[0]["failure"].startswith("another process failed: ConfigError: pipeline: expected 4 images")
    assert ranks[1]["failure"].startswith("pipeline: expected 4 images for 4 prompts, found 0")
    columns = ["image_id", "prompt_id", "generator", "metric", "score"]
    together, apart = (read_scores(tmp_path / name, 1)[columns] for name in ("two", "one"))
    pd.testing.assert_frame_equal(together, apart)


class Painter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.colour = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.colour * x - labels) ** 2).mean(), "logits": self.colour * x}


@pytest.mark.parametrize(("every", "steps"), [(2, [2, 4, 6]), (None, [3, 6])])
def test_a_callback_evaluates_inside_transformers_trainer(every: int | None, steps: list[int], tmp_path: Path) -> None:
    @plumbline.metric(score_range=(0, 255))
    def redness(image: Image.Image, prompt: str) -> float:
        return float(np.asarray(image)[..., 0].mean())

    def make(model: Painter) -> Any:
        assert not model.training
        value = int(255 * float(model.colour.detach()[0].clamp(0, 1)))
        return lambda prompts, seeds: [_make_noise(value, seed) for seed in seeds]

    evaluation = open_evaluation(tmp_path / "steps", limit=12, metrics=redness)
    row = {"x": torch.ones(3), "labels": torch.tensor([1.0, 0.0, 0.0])}
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3} if every is None else {}
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=6, learning_rate=0.1, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    model = Painter()
    trainer = Trainer(
        model=model, args=arguments, train_dataset=[row] * 64, eval_dataset=[row] * 2,
        callbacks=[evaluation.make_callback(make, every)],
    )  # fmt: skip
    trainer.train()
    results = evaluation.folder.read_results()
    assert [result.step for result in results] == steps
    assert model.training == (every is not None)  # the trainer's own evaluation leaves the last model in this mode
    assert [result["redness"].previous.verdict for result in results[1:]] == ["better"] * (len(steps) - 1)


def _make_noise(value: int, seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 20, (8, 8, 3)).astype(np.uint8)
    pixels[..., 0] = np.minimum(pixels[..., 0].astype(int) + value, 255)
    return Image.fromarray(pixels)
