"""A configured training run yields a checkpoint that production code can load, even if the run is interrupted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from plugins.training.tests import training_tables
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.models.families import make_model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.plugins.training import worker
from plumbline.plugins.training.planning import PlannedTraining, plan_training
from plumbline.plugins.training.training import run_training
from plumbline.plugins.training.worker import WorkerRank, run_worker

CPU_DEVICE = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path) -> str:
    return training_tables.write_rows(tmp_path / "data", training_tables.make_rows(24))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in this process, because Ray workers would have to import the model."""

    def run_in_this_process(planned: PlannedTraining, report: Callable[[str], None]) -> None:
        run_worker(planned.task, WorkerRank(0, 1, CPU_DEVICE), report)

    monkeypatch.setattr("plumbline.plugins.training.training._run_workers", run_in_this_process)


def load_weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "checkpoint/model.safetensors")


def have_same_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(second[name], first[name]) for name in first)


class SimulatedDeath(BaseException):
    """Exception that simulates the death of the process."""


def run(config: object, *, killed_after: int | None = None) -> list[str]:
    lines: list[str] = []
    planned = plan_training(config)  # type: ignore[arg-type]
    if killed_after is None:
        run_training(planned, lines.append)
        return lines
    saved = worker.save_state

    def save_and_die(*arguments: object) -> None:
        saved(*arguments)  # type: ignore[arg-type]
        if arguments[1].step == killed_after:  # type: ignore[attr-defined]
            raise SimulatedDeath

    worker.save_state = save_and_die
    try:
        with pytest.raises(SimulatedDeath):
            run_training(planned, lines.append)
    finally:
        worker.save_state = saved
    return lines


@pytest.mark.parametrize("kind", ["captions", "questions"])
def test_an_interrupted_training_resumes_and_ends_with_the_same_weights(
    tmp_path: Path, data: str, kind: str, in_process: None
) -> None:
    steps = ("pace.steps=4", "save_every=1", "pace.rate=1e-3")
    run(training_tables.load_stage_config(kind, data, tmp_path / "whole", *steps))
    config = training_tables.load_stage_config(kind, data, tmp_path / "ended", *steps)
    run(config, killed_after=2)
    assert max(path.name for path in (tmp_path / "ended/states").iterdir()) == "step-000000002-1-of-1.safetensors"
    assert run(config)[0] == "resumed after step 2"
    assert have_same_weights(load_weights(tmp_path / "ended"), load_weights(tmp_path / "whole"))
    changed = [name for name, tensor in load_file(training_tables.VQA_FOLDER / "model.safetensors").items()
               if not torch.equal(tensor, load_weights(tmp_path / "whole")[name])]  # fmt: skip
    assert {name.split(".")[0] for name in changed} == (
        {"mm_projector"} if kind == "captions" else {"mm_projector", "shared", "encoder", "decoder", "lm_head"}
    )
    assert not list((tmp_path / "whole/states").iterdir()), "nothing resumes from a finished training"


def test_a_finished_training_is_not_repeated_and_a_different_one_is_refused(
    tmp_path: Path, data: str, in_process: None
) -> None:
    config = training_tables.load_stage_config("captions", data, tmp_path / "out")
    run(config)
    assert run(config) == [f"{tmp_path}/out/checkpoint is already trained"]
    with pytest.raises(
        ConfigError, match="contains a training run that differs in stage and seed; choose another output"
    ):
        run(training_tables.load_stage_config("captions", data, tmp_path / "out", "seed=1", "pace.rate=0.1"))


def test_training_with_two_workers_is_reproducible(tmp_path: Path, data: str) -> None:
    """The workers are threads here; test_workers.py runs processes on Ray."""
    tasks = {}
    for name in ("two", "again"):
        task = plan_training(
            training_tables.load_stage_config("questions", data, tmp_path / name, "pace.rate=1e-3")
        ).task
        training_tables.run_two_workers(task)
        tasks[name] = load_weights(tmp_path / name)
    assert have_same_weights(tasks["two"], tasks["again"])


def test_unreadable_rows_are_left_out_up_to_max_failed(tmp_path: Path, in_process: None) -> None:
    rows = training_tables.make_rows(8)
    rows[3] |= {"image": b"no image"}
    data = training_tables.write_rows(tmp_path / "data", rows)
    lines = run(training_tables.load_stage_config("captions", data, tmp_path / "out", "max_failed=0.2"))
    assert json.loads((tmp_path / "out/outcome.json").read_text()) == {"steps": 2, "failed": 1}
    assert [line.startswith("left out: ") and "parquet, row 1: " in line for line in lines].count(True) == 1
    with pytest.raises(SourceError, match=r"1 rows could not be read, but max_failed allows only 0"):
        run(training_tables.load_stage_config("captions", data, tmp_path / "strict", "max_failed=0"))


def test_stage_1_can_start_from_a_language_model_and_a_vision_tower(
    tmp_path: Path, data: str, in_process: None
) -> None:
    stored = load_file(training_tables.VQA_FOLDER / "model.safetensors")
    language = tmp_path / "t5"
    language.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (language / file).write_bytes((training_tables.VQA_FOLDER / file).read_bytes())
    fields = json.loads((training_tables.VQA_FOLDER / "config.json").read_text())
    t5 = {name: value for name, value in fields.items() if not name.startswith("mm_")} | {"model_type": "t5"}
    (language / "config.json").write_text(json.dumps(t5))
    from safetensors.torch import save_file

    save_file(
        {name: tensor for name, tensor in stored.items() if not name.startswith(("mm_", "vision_tower"))},
        language / "model.safetensors",
        metadata={"format": "pt"},
    )
    tower = training_tables.VQA_FOLDER.parent / "clip-shapes"
    parts = (f"begin.language_model={language}", f"begin.vision_tower={tower}")
    config = training_tables.load_training_config(
        "training=captions", f"data={data}", f"output={tmp_path}/out", "pace.batch=4", "pace.steps=1", *parts
    )
    run(config)
    trained, clip = load_weights(tmp_path / "out"), load_file(tower / "model.safetensors")
    assert trained.keys() == stored.keys()
    assert torch.equal(trained["encoder.final_layer_norm.weight"], stored["encoder.final_layer_norm.weight"])
    name = "vision_model.embeddings.patch_embedding.weight"
    assert torch.equal(trained[f"vision_tower.vision_tower.{name}"], clip[name])
    second = training_tables.load_stage_config(
        "questions", data, tmp_path / "second", f"model.checkpoint={tmp_path}/out/checkpoint"
    )
    run(second)
    assert load_weights(tmp_path / "second").keys() == stored.keys()


def test_data_output_and_states_may_be_on_s3(tmp_path: Path, bucket: str, in_process: None) -> None:
    local = training_tables.write_rows(tmp_path / "data", training_tables.make_rows(8))
    place = StorageConfig().locate(bucket)
    place.fs.put(local, (place / "data").path, recursive=True)
    config = training_tables.load_stage_config("captions", f"{bucket}/data", tmp_path / "out", "save_every=1")
    on_s3 = replace(config, output=f"{bucket}/out")
    run(config)
    run(on_s3, killed_after=1)
    assert run(on_s3)[0] == "resumed after step 1"
    place.fs.get((place / "out/checkpoint").path, str(tmp_path / "fetched/checkpoint"), recursive=True)
    assert have_same_weights(load_weights(tmp_path / "fetched"), load_weights(tmp_path / "out"))


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finetuned") / "out"
    planned = plan_training(
        training_tables.load_training_config("training=finetune", f"output={output}", "shard_rows=256", "pace.steps=8")
    )
    run_worker(planned.task, WorkerRank(0, 1, CPU_DEVICE), lambda line: None)
    return output


def test_a_finetuned_checkpoint_has_the_same_scores_in_production_as_in_training(finetuned: Path) -> None:
    scores = pq.read_table(finetuned / "held_out.parquet").to_pylist()
    after = {row["image_id"]: row["score"] for row in scores if row["metric"] == "after"}
    before = {row["image_id"]: row["score"] for row in scores if row["metric"] == "before"}
    assert before.keys() == after.keys() and before != after
    assets = training_tables.VQA_FOLDER.parent / "shapes"
    images = [
        row for file in sorted(assets.glob("images/*/*.parquet")) for row in pq.read_table(file).to_pylist()
        if row["image_id"] in after
    ][:16]  # fmt: skip
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(assets / "prompts.parquet").to_pylist()}
    model = make_model_config(family="clip_flant5", checkpoint=str(finetuned / "checkpoint"))
    scorer = Scorer(ScorerConfig(models={"vqa": model}, metrics={"vqascore": VqaScoreConfig()}))
    scored = scorer.score_table([row["image"] for row in images], [texts[row["prompt_id"]] for row in images])
    for row, score in zip(images, scored.column("score").to_pylist(), strict=True):
        assert score == pytest.approx(after[row["image_id"]], abs=1e-5)


def test_a_blend_is_a_weighted_mean_of_initial_and_trained_weights(tmp_path: Path) -> None:
    small = ("training=finetune", "shard_rows=256", "held_out=0.02", "pace.steps=2", "pace.batch=4", "pace.rate=0.01")
    for blend in ("0.5", "1"):
        config = training_tables.load_training_config(*small, f"blend={blend}", f"output={tmp_path}/{blend}")
        run_worker(plan_training(config).task, WorkerRank(0, 1, CPU_DEVICE), lambda line: None)
    name = "encoder.block.0.layer.0.SelfAttention.q.weight"
    before = load_file(training_tables.VQA_FOLDER / "model.safetensors")[name].float()
    half, whole = (load_weights(tmp_path / blend)[name].float() - before for blend in ("0.5", "1"))
    assert whole.abs().max() > 0.01
    assert torch.allclose(half, whole / 2, atol=1e-3)


def test_no_held_out_prompt_is_trained_on(finetuned: Path) -> None:
    planned = plan_training(
        training_tables.load_training_config("training=finetune", f"output={finetuned}", "shard_rows=256")
    )
    assert planned.task.held_out is not None
    trained, held_out = (
        {image.prompt_id for shard in examples.shards for image in (shard.rated or {}).values()}
        for examples in (planned.task.examples, planned.task.held_out)
    )
    assert not trained & held_out and len(trained | held_out) == 256
    scored = set(pq.read_table(finetuned / "held_out.parquet").column("prompt_id").to_pylist())
    assert scored == held_out
