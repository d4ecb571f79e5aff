"""Each training row occurs once per epoch, and the order is the same for any number of workers."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from plugins.training.tests import training_tables
from plumbline.operators.base.errors import SourceError
from plumbline.operators.models.networks.clip_flant5 import TEXT_AFTER_IMAGE
from plumbline.plugins.training.checkpoint import load_trainee
from plumbline.plugins.training.examples import Batches, RowOrder, RowReader
from plumbline.plugins.training.planning import plan_training

ROW_INDICES = (range(5), range(3), (1, 4), range(7))


def make_order(seed: int = 0, mixed: int = 2) -> RowOrder:
    return RowOrder(row_indices=ROW_INDICES, seed=seed, mixed=mixed)


def test_every_row_occurs_once_per_epoch_in_a_new_order() -> None:
    rows = make_order()
    epochs = [[rows.find_row(position) for position in range(first, first + rows.rows)] for first in (0, rows.rows)]
    for epoch in epochs:
        assert Counter(epoch) == Counter((shard, place) for shard, places in enumerate(ROW_INDICES) for place in places)
    assert epochs[0] != epochs[1]


def test_only_rows_of_mixed_shards_are_shuffled_together() -> None:
    rows = make_order(mixed=2)
    shards = [rows.find_row(position).shard for position in range(rows.rows)]
    first = set(shards[: sum(len(ROW_INDICES[shard]) for shard in set(shards[:1]))])
    assert len(first) <= 2
    changes = [shard for shard, before in zip(shards, [None, *shards], strict=False) if shard != before]
    assert len(changes) > len(ROW_INDICES), "rows of mixed shards are shuffled together"


def test_the_order_depends_only_on_the_seed() -> None:
    positions = range(40)
    assert [make_order().find_row(p) for p in positions] == [make_order().find_row(p) for p in reversed(positions)][
        ::-1
    ]
    assert [make_order().find_row(p) for p in positions] != [make_order(seed=1).find_row(p) for p in positions]


def make_batches(tmp_path: Path, kind: str, data: str, *, number: int = 0, count: int = 1, size: int = 4) -> Batches:
    task = plan_training(training_tables.load_stage_config(kind, data, tmp_path / "out")).task
    trainee = load_trainee(task.model, torch.device("cpu"))
    reader = RowReader(examples=task.examples, preprocess=trainee.likelihood.preprocess, keep=2)
    return Batches(reader, trainee, task.order, size=size, number=number, count=count)


def test_workers_read_equal_parts_of_each_batch(tmp_path: Path) -> None:
    data = training_tables.write_rows(tmp_path / "data", training_tables.make_rows(12))
    whole = make_batches(tmp_path, "questions", data)
    halves = [make_batches(tmp_path, "questions", data, number=number, count=2) for number in (0, 1)]
    for step in (0, 1, 2, 3):
        pixels = [half.read_batch(step).pixels for half in halves]
        assert torch.equal(torch.cat(pixels), whole.read_batch(step).pixels)


def test_a_batch_contains_its_rows_questions(tmp_path: Path) -> None:
    rows = training_tables.make_rows(4)
    made = make_batches(tmp_path, "questions", training_tables.write_rows(tmp_path / "data", rows))
    tokenizer = made.trainee.likelihood.tokenizer
    read = {tokenizer.decode(ids, skip_special_tokens=True) for ids in made.read_batch(0).after}
    questions = [tokenizer(TEXT_AFTER_IMAGE.format(question=row["question"])).input_ids for row in rows]
    assert read == {tokenizer.decode(ids, skip_special_tokens=True) for ids in questions}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"image": b"no image"}, "expected an image"),
        ({"caption": " "}, "no text in 'caption'"),
    ],
)
def test_an_unreadable_row_is_left_out_and_reported_with_file_and_row(
    tmp_path: Path, damage: dict[str, object], said: str
) -> None:
    rows = training_tables.make_rows(4)
    rows[2] |= damage
    made = make_batches(tmp_path, "captions", training_tables.write_rows(tmp_path / "data", rows, files=1))
    batch = made.read_batch(0)
    assert len(batch.pixels) == len(batch.labels) == 3
    (problem,) = made.problems
    assert f"0.parquet, row 2: {said}" in problem


def test_a_batch_without_a_readable_row_ends_the_training(tmp_path: Path) -> None:
    damaged = [row | {"image": b"no image"} for row in training_tables.make_rows(4)]
    made = make_batches(tmp_path, "captions", training_tables.write_rows(tmp_path / "data", damaged))
    with pytest.raises(
        SourceError, match=r"none of a worker's 4 rows in step 0 can be read; first problem: .*parquet, row"
    ):
        made.read_batch(0)
