"""Two workers on Ray can share the weights, and a killed worker does not change the result."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plugins.training.tests import training_tables
from plumbline.plugins.training.planning import plan_training
from plumbline.plugins.training.training import run_training
from tests.faults.hook import BAIT_MARK

FILE_COUNT, STEP_COUNT, FATAL_STEP = 3, 6, 4
WEIGHTS_FILE = "model.safetensors"


pytestmark = pytest.mark.usefixtures("ray_cluster")


def load_weights(output: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in load_file(output / "checkpoint" / WEIGHTS_FILE).items()}


@pytest.mark.slow
def test_training_ends_with_the_same_weights_whether_or_not_they_are_sharded(tmp_path: Path) -> None:
    data = training_tables.write_rows(tmp_path / "data", training_tables.make_rows(24), FILE_COUNT)
    settings = ("pace.steps=3", "pace.rate=1e-3", "save_every=1")
    run_training(
        plan_training(
            training_tables.load_stage_config("questions", data, tmp_path / "shared", *settings, "sharded=true")
        ),
        lambda line: None,
    )
    training_tables.run_two_workers(
        plan_training(training_tables.load_stage_config("questions", data, tmp_path / "all", *settings)).task
    )
    shared, whole, first = (
        load_weights(tmp_path / "shared"),
        load_weights(tmp_path / "all"),
        load_file(training_tables.VQA_FOLDER / WEIGHTS_FILE),
    )
    assert shared.keys() == whole.keys() == first.keys()
    moved = sum(float((whole[name] - first[name].float()).square().sum()) for name in whole)
    apart = sum(float((whole[name] - shared[name]).square().sum()) for name in whole)
    assert apart < 1e-4 * moved, (apart, moved)
    assert not list((tmp_path / "shared/states").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_killed_worker_does_not_change_the_result(sharded: bool, tmp_path: Path) -> None:
    rows, note, data = training_tables.make_rows(24), tmp_path / "note", tmp_path / "data"
    settings = (f"pace.steps={STEP_COUNT}", "pace.rate=1e-3", "save_every=1", "max_failed=1", f"sharded={sharded}")
    config = training_tables.load_stage_config("questions", str(data), tmp_path / "killed", *settings)
    deadly = list_row_order(tmp_path, settings)[FATAL_STEP * config.pace.batch]
    rows[deadly] |= {"image": BAIT_MARK + str(note).encode()}
    training_tables.write_rows(data, rows, FILE_COUNT)
    killer = threading.Thread(target=kill_noted_process, args=(note,), daemon=True)
    killer.start()
    lines: list[str] = []
    run_training(plan_training(config), lines.append)
    assert note.exists()
    killer.join()
    assert [line for line in lines if line.startswith("resumed after step ")]
    undisturbed = training_tables.load_stage_config("questions", str(data), tmp_path / "undisturbed", *settings)
    if sharded:
        run_training(plan_training(undisturbed), lines.append)
    else:
        training_tables.run_two_workers(plan_training(undisturbed).task)
    killed, whole = load_weights(tmp_path / "killed"), load_weights(tmp_path / "undisturbed")
    assert killed.keys() == whole.keys() and all(torch.equal(killed[name], whole[name]) for name in whole)


def list_row_order(tmp_path: Path, settings: tuple[str, ...]) -> list[int]:
    """Return the index of the row that is read at each position; it depends only on the shape of the tables."""
    plain = training_tables.write_rows(tmp_path / "plain", training_tables.make_rows(24), FILE_COUNT)
    task = plan_training(training_tables.load_stage_config("questions", plain, tmp_path / "planned", *settings)).task
    found = []
    for position in range(24):
        shard, place = task.order.find_row(position)
        source = task.examples.shards[shard].shard
        found.append((source.first_row + place) * FILE_COUNT + int(Path(source.url).stem))
    return found


def kill_noted_process(note: Path) -> None:
    waiting = threading.Event()
    while not note.exists():
        waiting.wait(0.1)
    os.kill(int(note.read_text()), signal.SIGKILL)
