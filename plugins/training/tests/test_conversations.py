"""LLaVA's conversations are split into turns. Unreadable conversations are left out and reported with file and row."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from plugins.training.tests import training_tables
from plumbline.operators.base.errors import SourceError
from plumbline.plugins.training import conversations
from plumbline.plugins.training.planning import plan_training
from tests.files import write_files


def make_conversation(rng: Random, image: str | None, turns: list[tuple[str, str]]) -> dict[str, Any]:
    (first, answer), *others = turns
    marked = f"<image>\n{first}" if rng.random() < 0.5 else f"{first}\n<image>"
    texts = [text for turn in [(marked, answer), *others] for text in turn]
    said = [{"from": ("human", "gpt")[place % 2], "value": text} for place, text in enumerate(texts)]
    return {"id": "x", **({} if image is None else {"image": image}), "conversations": said}


def write_conversations(folder: Path, seed: int, count: int = 12) -> tuple[Path, list[tuple[str, str, str]]]:
    rng, rows = Random(seed), training_tables.make_rows(count)
    records, turns = [], []
    for number, row in enumerate(rows):
        image = f"coco/train/{number}.png"
        write_files(folder, {image: row["image"]})
        asked = [(other["question"], other["answer"]) for other in rng.sample(rows, rng.randint(1, 5))]
        turns += [(f"{folder}/{image}", *turn) for turn in asked]
        records.append(make_conversation(rng, image, asked))
        if rng.random() < 0.3:
            records.append(make_conversation(rng, None, [("Hello \u2028 there", "Hi")]))
    write_files(
        folder, {"llava.json": json.dumps(records, indent=rng.choice([None, 2]), ensure_ascii=rng.random() < 0.5)}
    )
    return folder / "llava.json", turns


def read_rows(output: Path) -> list[tuple[str, ...]]:
    (folder,) = (output / "turns").iterdir()
    return [tuple(row.values()) for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("seed", range(3))
def test_conversations_are_split_into_single_turns(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result does not depend on how much of the file is read at a time, or on the number of rows per file."""
    monkeypatch.setattr(conversations, "MAX_RECORD_CHARACTERS", Random(seed).randint(3_000, 9_000))
    monkeypatch.setattr(conversations, "MAX_ROWS_PER_FILE", 7)
    file, turns = write_conversations(tmp_path / "llava", seed)
    planned = plan_training(training_tables.load_stage_config("questions", str(file), tmp_path / "out"))
    assert read_rows(tmp_path / "out") == turns
    assert sum(shard.shard.rows for shard in planned.task.examples.shards) == len(turns)
    assert f"split into {len(turns)} rows of one turn" in planned.summary
    again = plan_training(training_tables.load_stage_config("questions", str(file), tmp_path / "out"))
    assert again.recipe == planned.recipe
    training_tables.run_two_workers(planned.task)
    assert (tmp_path / "out/checkpoint/model.safetensors").is_file()


def test_stage_1_uses_the_answers_as_captions(tmp_path: Path) -> None:
    file, turns = write_conversations(tmp_path / "llava", 4)
    plan_training(training_tables.load_stage_config("captions", str(file), tmp_path / "out"))
    assert read_rows(tmp_path / "out") == [(image, answer) for image, _, answer in turns]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": 7}, "expected the image's path as image, found 7"),
        ({"conversations": []}, "expected conversations as a list of questions, each with its answer"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "expected conversations as a list of questions"),
        ({"conversations": [{"from": "gpt", "value": "a"}] * 2}, "expected a text from human as item 0 of conv"),
        (
            {"conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "a"}]},
            "item 0 .* found none",
        ),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": 3}]}, "from gpt as item 1"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}] * 1001}, "found 1,001"),
        ({"image": "\ud800.png"}, "not UTF-8"),
    ],
)
def test_unreadable_conversations_are_left_out_up_to_max_failed(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file, turns = write_conversations(tmp_path / "llava", 5)
    records = json.loads(file.read_text())
    bad = len(records) // 2
    file.write_text(json.dumps([*records[:bad], {**records[0], **change}, *records[bad:]]))
    planned = plan_training(
        training_tables.load_stage_config("questions", str(file), tmp_path / "out", "max_failed=0.5")
    )
    assert read_rows(tmp_path / "out") == turns and f"1 left out, first {file}, row {bad}: " in planned.summary
    with pytest.raises(
        SourceError, match=rf"row {bad}: .*{said}.*; 1 of {len(records) + 1} conversations cannot be re"
    ):
        plan_training(training_tables.load_stage_config("questions", str(file), tmp_path / "strict", "max_failed=0"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"image": "a"}', "expected a JSON list of conversations, found"),
        ('[{"image": "a"', "row 0: not JSON, cut off, or longer than 4,194,304 characters"),
        ("[1, 2", "row 2: not JSON, cut off"),
        ("[]", "no conversation is about an image"),
        ("[" * 100_000, "row 0: not JSON"),
        (b"[\xff]", "not UTF-8"),
    ],
)
def test_an_invalid_conversations_file_is_refused_in_one_line(content: str | bytes, said: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"llava.json": content})
    with pytest.raises(SourceError, match=said) as caught:
        plan_training(training_tables.load_stage_config("questions", str(tmp_path / "llava.json"), tmp_path / "out"))
    assert "\n" not in str(caught.value) and "llava.json" in str(caught.value)
