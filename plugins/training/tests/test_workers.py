"""Two workers on Ray can share the weights, and a killed worker does not change the result."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plugins.training.tests import taught
from plumbline.plugins.training.planning import plan_training
from plumbline.plugins.training.training import run_training
from tests.faults.hook import BAIT

FILES, STEPS, FATAL_STEP = 3, 6, 4
WEIGHTS = "model.safetensors"


pytestmark = pytest.mark.usefixtures("ray_cluster")


def weights(output: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in load_file(output / "checkpoint" / WEIGHTS).items()}


@pytest.mark.slow
def test_workers_that_share_the_weights_train_to_those_of_workers_that_hold_all(tmp_path: Path) -> None:
    data = taught.write(tmp_path / "data", taught.rows(24), FILES)
    settings = ("pace.steps=3", "pace.rate=1e-3", "save_every=1")
    run_training(
        plan_training(taught.stage_config("questions", data, tmp_path / "shared", *settings, "sharded=true")),
        lambda line: None,
    )
    taught.run_together(plan_training(taught.stage_config("questions", data, tmp_path / "all", *settings)).task)
    shared, whole, first = weights(tmp_path / "shared"), weights(tmp_path / "all"), load_file(taught.VQA / WEIGHTS)
    assert shared.keys() == whole.keys() == first.keys()
    moved = sum(float((whole[name] - first[name].float()).square().sum()) for name in whole)
    apart = sum(float((whole[name] - shared[name]).square().sum()) for name in whole)
    assert apart < 1e-4 * moved, (apart, moved)
    assert not list((tmp_path / "shared/states").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_killed_worker_changes_no_weight(sharded: bool, tmp_path: Path) -> None:
    rows, note, data = taught.rows(24), tmp_path / "note", tmp_path / "data"
    settings = (f"pace.steps={STEPS}", "pace.rate=1e-3", "save_every=1", "max_failed=1", f"sharded={sharded}")
    config = taught.stage_config("questions", str(data), tmp_path / "killed", *settings)
    deadly = rows_in_order(tmp_path, settings)[FATAL_STEP * config.pace.batch]
    rows[deadly] |= {"image": BAIT + str(note).encode()}
    taught.write(data, rows, FILES)
    killer = threading.Thread(target=kill_who_takes, args=(note,), daemon=True)
    killer.start()
    lines: list[str] = []
    run_training(plan_training(config), lines.append)
    assert note.exists()
    killer.join()
    assert [line for line in lines if line.startswith("resumed after step ")]
    undisturbed = taught.stage_config("questions", str(data), tmp_path / "undisturbed", *settings)
    if sharded:
        run_training(plan_training(undisturbed), lines.append)
    else:
        taught.run_together(plan_training(undisturbed).task)
    killed, whole = weights(tmp_path / "killed"), weights(tmp_path / "undisturbed")
    assert killed.keys() == whole.keys() and all(torch.equal(killed[name], whole[name]) for name in whole)


def rows_in_order(tmp_path: Path, settings: tuple[str, ...]) -> list[int]:
    """Return the row trained on at each position, determined from tables of the same shape."""
    plain = taught.write(tmp_path / "plain", taught.rows(24), FILES)
    task = plan_training(taught.stage_config("questions", plain, tmp_path / "planned", *settings)).task
    found = []
    for position in range(24):
        shard, place = task.order.row_at(position)
        source = task.examples.shards[shard].shard
        found.append((source.first_row + place) * FILES + int(Path(source.url).stem))
    return found


def kill_who_takes(note: Path) -> None:
    """Kill the process that writes its id to the note."""
    waiting = threading.Event()
    while not note.exists():
        waiting.wait(0.1)
    os.kill(int(note.read_text()), signal.SIGKILL)
