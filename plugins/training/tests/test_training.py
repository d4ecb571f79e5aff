"""A configured training yields a checkpoint that production can load, even if the training is interrupted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from plugins.training.tests import taught
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.models.families import model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.plugins.training import worker
from plumbline.plugins.training.planning import PlannedTraining, plan_training
from plumbline.plugins.training.training import run_training
from plumbline.plugins.training.worker import Seat, work

CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path) -> str:
    return taught.write(tmp_path / "data", taught.rows(24))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in this process, so that no other process has to import the model."""

    def run_here(planned: PlannedTraining, report: Callable[[str], None]) -> None:
        work(planned.task, Seat(0, 1, CPU), report)

    monkeypatch.setattr("plumbline.plugins.training.training._run_workers", run_here)


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "checkpoint/model.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(second[name], first[name]) for name in first)


class Killed(BaseException):
    """Simulates the death of the process."""


def run(config: object, *, killed_after: int | None = None) -> list[str]:
    """Train, optionally stopping after a number of steps, and return the reported lines."""
    lines: list[str] = []
    planned = plan_training(config)  # type: ignore[arg-type]
    if killed_after is None:
        run_training(planned, lines.append)
        return lines
    saved = worker.save_state

    def save_and_die(*arguments: object) -> None:
        saved(*arguments)  # type: ignore[arg-type]
        if arguments[1].step == killed_after:  # type: ignore[attr-defined]
            raise Killed

    worker.save_state = save_and_die
    try:
        with pytest.raises(Killed):
            run_training(planned, lines.append)
    finally:
        worker.save_state = saved
    return lines


@pytest.mark.parametrize("kind", ["captions", "questions"])
def test_a_training_that_was_ended_goes_on_to_the_same_weights(
    tmp_path: Path, data: str, kind: str, alone: None
) -> None:
    steps = ("pace.steps=4", "save_every=1", "pace.rate=1e-3")
    run(taught.stage_config(kind, data, tmp_path / "whole", *steps))
    config = taught.stage_config(kind, data, tmp_path / "ended", *steps)
    run(config, killed_after=2)
    assert max(path.name for path in (tmp_path / "ended/states").iterdir()) == "step-000000002-1-of-1.safetensors"
    assert run(config)[0] == "resumed after step 2"
    assert same(weights(tmp_path / "ended"), weights(tmp_path / "whole"))
    changed = [name for name, tensor in load_file(taught.VQA / "model.safetensors").items()
               if not torch.equal(tensor, weights(tmp_path / "whole")[name])]  # fmt: skip
    assert {name.split(".")[0] for name in changed} == (
        {"mm_projector"} if kind == "captions" else {"mm_projector", "shared", "encoder", "decoder", "lm_head"}
    )
    assert not list((tmp_path / "whole/states").iterdir()), "nothing resumes from a finished training"


def test_a_finished_training_is_not_done_again_and_another_one_finds_its_place_taken(
    tmp_path: Path, data: str, alone: None
) -> None:
    config = taught.stage_config("captions", data, tmp_path / "out")
    run(config)
    assert run(config) == [f"{tmp_path}/out/checkpoint is already trained"]
    with pytest.raises(ConfigError, match="contains a training that differs in stage and seed; choose another output"):
        run(taught.stage_config("captions", data, tmp_path / "out", "seed=1", "pace.rate=0.1"))


def test_two_workers_take_the_mean_of_their_gradients_and_stay_the_same(tmp_path: Path, data: str) -> None:
    """The workers are threads here; test_workers.py shows that processes on Ray do the same."""
    tasks = {}
    for name in ("two", "again"):
        task = plan_training(taught.stage_config("questions", data, tmp_path / name, "pace.rate=1e-3")).task
        taught.run_together(task)
        tasks[name] = weights(tmp_path / name)
    assert same(tasks["two"], tasks["again"])


def test_rows_that_cannot_be_read_are_left_out_up_to_the_budget(tmp_path: Path, alone: None) -> None:
    taught_rows = taught.rows(8)
    taught_rows[3] |= {"image": b"no image"}
    data = taught.write(tmp_path / "data", taught_rows)
    lines = run(taught.stage_config("captions", data, tmp_path / "out", "max_failed=0.2"))
    assert json.loads((tmp_path / "out/outcome.json").read_text()) == {"steps": 2, "failed": 1}
    assert [line.startswith("left out: ") and "parquet, row 1: " in line for line in lines].count(True) == 1
    with pytest.raises(SourceError, match=r"1 rows could not be read, and max_failed allows 0"):
        run(taught.stage_config("captions", data, tmp_path / "strict", "max_failed=0"))


def test_stage_1_begins_with_a_language_model_and_a_tower(tmp_path: Path, data: str, alone: None) -> None:
    stored = load_file(taught.VQA / "model.safetensors")
    language = tmp_path / "t5"
    language.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (language / file).write_bytes((taught.VQA / file).read_bytes())
    fields = json.loads((taught.VQA / "config.json").read_text())
    t5 = {name: value for name, value in fields.items() if not name.startswith("mm_")} | {"model_type": "t5"}
    (language / "config.json").write_text(json.dumps(t5))
    from safetensors.torch import save_file

    save_file(
        {name: tensor for name, tensor in stored.items() if not name.startswith(("mm_", "vision_tower"))},
        language / "model.safetensors",
        metadata={"format": "pt"},
    )
    tower = taught.VQA.parent / "clip-shapes"
    parts = (f"begin.language_model={language}", f"begin.vision_tower={tower}")
    config = taught.training_config(
        "training=captions", f"data={data}", f"output={tmp_path}/out", "pace.batch=4", "pace.steps=1", *parts
    )
    run(config)
    trained, clip = weights(tmp_path / "out"), load_file(tower / "model.safetensors")
    assert trained.keys() == stored.keys()
    assert torch.equal(trained["encoder.final_layer_norm.weight"], stored["encoder.final_layer_norm.weight"])
    name = "vision_model.embeddings.patch_embedding.weight"
    assert torch.equal(trained[f"vision_tower.vision_tower.{name}"], clip[name])
    second = taught.stage_config("questions", data, tmp_path / "second", f"model.checkpoint={tmp_path}/out/checkpoint")
    run(second)
    assert weights(tmp_path / "second").keys() == stored.keys()


def test_data_output_and_states_may_be_on_s3(tmp_path: Path, bucket: str, alone: None) -> None:
    local = taught.write(tmp_path / "data", taught.rows(8))
    place = StorageConfig().locate(bucket)
    place.fs.put(local, (place / "data").path, recursive=True)
    config = taught.stage_config("captions", f"{bucket}/data", tmp_path / "out", "save_every=1")
    on_s3 = replace(config, output=f"{bucket}/out")
    run(config)
    run(on_s3, killed_after=1)
    assert run(on_s3)[0] == "resumed after step 1"
    place.fs.get((place / "out/checkpoint").path, str(tmp_path / "fetched/checkpoint"), recursive=True)
    assert same(weights(tmp_path / "fetched"), weights(tmp_path / "out"))


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finetune for a few steps on the ratings of the embedded benchmark's raters, and return the folder."""
    output = tmp_path_factory.mktemp("finetuned") / "out"
    planned = plan_training(
        taught.training_config("training=finetune", f"output={output}", "shard_rows=256", "pace.steps=8")
    )
    work(planned.task, Seat(0, 1, CPU), lambda line: None)
    return output


def test_a_finetuned_checkpoint_scores_in_production_as_it_did_in_training(finetuned: Path) -> None:
    scores = pq.read_table(finetuned / "held_out.parquet").to_pylist()
    after = {row["image_id"]: row["score"] for row in scores if row["metric"] == "after"}
    before = {row["image_id"]: row["score"] for row in scores if row["metric"] == "before"}
    assert before.keys() == after.keys() and before != after
    assets = taught.VQA.parent / "shapes"
    images = [
        row for file in sorted(assets.glob("images/*/*.parquet")) for row in pq.read_table(file).to_pylist()
        if row["image_id"] in after
    ][:16]  # fmt: skip
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(assets / "prompts.parquet").to_pylist()}
    model = model_config(family="clip_flant5", checkpoint=str(finetuned / "checkpoint"))
    scorer = Scorer(ScorerConfig(models={"vqa": model}, metrics={"vqascore": VqaScoreConfig()}))
    scored = scorer.score_table([row["image"] for row in images], [texts[row["prompt_id"]] for row in images])
    for row, score in zip(images, scored.column("score").to_pylist(), strict=True):
        assert score == pytest.approx(after[row["image_id"]], abs=1e-5)


def test_a_blend_lies_between_the_checkpoint_and_what_was_trained(tmp_path: Path) -> None:
    small = ("training=finetune", "shard_rows=256", "held_out=0.02", "pace.steps=2", "pace.batch=4", "pace.rate=0.01")
    for blend in ("0.5", "1"):
        config = taught.training_config(*small, f"blend={blend}", f"output={tmp_path}/{blend}")
        work(plan_training(config).task, Seat(0, 1, CPU), lambda line: None)
    name = "encoder.block.0.layer.0.SelfAttention.q.weight"
    before = load_file(taught.VQA / "model.safetensors")[name].float()
    half, whole = (weights(tmp_path / blend)[name].float() - before for blend in ("0.5", "1"))
    assert whole.abs().max() > 0.01
    assert torch.allclose(half, whole / 2, atol=1e-3)


def test_no_held_out_prompt_is_trained_on(finetuned: Path) -> None:
    planned = plan_training(taught.training_config("training=finetune", f"output={finetuned}", "shard_rows=256"))
    assert planned.task.held_out is not None
    trained, held_out = (
        {image.prompt_id for shard in examples.shards for image in (shard.rated or {}).values()}
        for examples in (planned.task.examples, planned.task.held_out)
    )
    assert not trained & held_out and len(trained | held_out) == 256
    scored = set(pq.read_table(finetuned / "held_out.parquet").column("prompt_id").to_pylist())
    assert scored == held_out
