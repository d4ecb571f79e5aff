"""Two workers on Ray, of which one is killed: the training goes on by itself, to the weights of an undisturbed one."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plumbline.pipelines.training.planning import plan_training
from plumbline.pipelines.training.training import run_training
from tests.faults.hook import BAIT
from tests.pipelines.training import taught

FILES, STEPS, FATAL_STEP = 3, 6, 4


@pytest.mark.slow
def test_a_killed_worker_changes_no_weight(tmp_path: Path, ray_cluster: None) -> None:
    rows, note, data = taught.rows(24), tmp_path / "note", tmp_path / "data"
    settings = (f"pace.steps={STEPS}", "pace.rate=1e-3", "save_every=1", "max_failed=1")
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
    taught.run_together(plan_training(undisturbed).task)
    killed, whole = (load_file(tmp_path / name / "checkpoint/model.safetensors") for name in ("killed", "undisturbed"))
    assert killed.keys() == whole.keys() and all(torch.equal(killed[name], whole[name]) for name in whole)


def rows_in_order(tmp_path: Path, settings: tuple[str, ...]) -> list[int]:
    """Which of the rows comes at each position, found in tables of the same shape."""
    plain = taught.write(tmp_path / "plain", taught.rows(24), FILES)
    task = plan_training(taught.stage_config("questions", plain, tmp_path / "planned", *settings)).task
    found = []
    for position in range(24):
        shard, place = task.order.at(position)
        source = task.examples.shards[shard].shard
        found.append((source.first_row + place) * FILES + int(Path(source.url).stem))
    return found


def kill_who_takes(note: Path) -> None:
    """Ends the process that writes its id into the note."""
    waiting = threading.Event()
    while not note.exists():
        waiting.wait(0.1)
    os.kill(int(note.read_text()), signal.SIGKILL)
