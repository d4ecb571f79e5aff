"""Each training row occurs once per epoch, and the order is the same for any number of workers."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from plugins.training.tests import taught
from plumbline.operators.base.errors import SourceError
from plumbline.operators.models.networks.clip_flant5 import AFTER_IMAGE
from plumbline.plugins.training.checkpoint import load_trainee
from plumbline.plugins.training.examples import Batches, RowOrder, RowReader
from plumbline.plugins.training.planning import plan_training

PLACES = (range(5), range(3), (1, 4), range(7))


def order(seed: int = 0, mixed: int = 2) -> RowOrder:
    return RowOrder(places=PLACES, seed=seed, mixed=mixed)


def test_every_row_comes_once_an_epoch_and_each_epoch_has_its_own_order() -> None:
    rows = order()
    epochs = [[rows.row_at(position) for position in range(first, first + rows.rows)] for first in (0, rows.rows)]
    for epoch in epochs:
        assert Counter(epoch) == Counter((shard, place) for shard, places in enumerate(PLACES) for place in places)
    assert epochs[0] != epochs[1]


def test_rows_of_no_more_than_so_many_shards_are_mixed() -> None:
    rows = order(mixed=2)
    shards = [rows.row_at(position).shard for position in range(rows.rows)]
    first = set(shards[: sum(len(PLACES[shard]) for shard in set(shards[:1]))])
    assert len(first) <= 2
    changes = [shard for shard, before in zip(shards, [None, *shards], strict=False) if shard != before]
    assert len(changes) > len(PLACES), "rows of a mix are shuffled"


def test_the_order_follows_from_the_seed() -> None:
    positions = range(40)
    assert [order().row_at(p) for p in positions] == [order().row_at(p) for p in reversed(positions)][::-1]
    assert [order().row_at(p) for p in positions] != [order(seed=1).row_at(p) for p in positions]


def batches(tmp_path: Path, kind: str, data: str, *, number: int = 0, count: int = 1, size: int = 4) -> Batches:
    task = plan_training(taught.stage_config(kind, data, tmp_path / "out")).task
    trainee = load_trainee(task.model, torch.device("cpu"))
    reader = RowReader(examples=task.examples, preprocess=trainee.likelihood.preprocess, keep=2)
    return Batches(reader, trainee, task.order, size=size, number=number, count=count)


def test_workers_share_a_batch_between_them(tmp_path: Path) -> None:
    data = taught.write(tmp_path / "data", taught.rows(12))
    whole = batches(tmp_path, "questions", data)
    halves = [batches(tmp_path, "questions", data, number=number, count=2) for number in (0, 1)]
    for step in (0, 1, 2, 3):
        pixels = [half.batch(step).pixels for half in halves]
        assert torch.equal(torch.cat(pixels), whole.batch(step).pixels)


def test_a_batch_holds_its_rows_texts(tmp_path: Path) -> None:
    taught_rows = taught.rows(4)
    made = batches(tmp_path, "questions", taught.write(tmp_path / "data", taught_rows))
    tokenizer = made.trainee.likelihood.tokenizer
    read = {tokenizer.decode(ids, skip_special_tokens=True) for ids in made.batch(0).after}
    questions = [tokenizer(AFTER_IMAGE.format(question=row["question"])).input_ids for row in taught_rows]
    assert read == {tokenizer.decode(ids, skip_special_tokens=True) for ids in questions}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"image": b"no image"}, "not a known image format|is no image|corrupt|not"),
        ({"caption": " "}, "no text in 'caption'"),
    ],
)
def test_a_row_that_cannot_be_read_is_left_out_by_file_and_row(
    tmp_path: Path, damage: dict[str, object], said: str
) -> None:
    taught_rows = taught.rows(4)
    taught_rows[2] |= damage
    made = batches(tmp_path, "captions", taught.write(tmp_path / "data", taught_rows, files=1))
    batch = made.batch(0)
    assert len(batch.pixels) == len(batch.labels) == 3
    (problem,) = made.problems
    assert "0.parquet, row 2: " in problem
    assert any(word in problem for word in said.split("|"))


def test_a_batch_of_which_no_row_can_be_read_ends_the_training(tmp_path: Path) -> None:
    damaged = [row | {"image": b"no image"} for row in taught.rows(4)]
    made = batches(tmp_path, "captions", taught.write(tmp_path / "data", damaged))
    with pytest.raises(
        SourceError, match=r"none of a worker's 4 rows in step 0 can be read; first problem: .*parquet, row"
    ):
        made.batch(0)
