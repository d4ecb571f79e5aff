"""Prompts from any file get ids and skills, and errors are reported with the file and row."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.benchmark import PromptColumnsConfig
from plumbline.pipelines.sources.shards import hash_text
from plumbline.plugins.benchmark_builder.input_prompts import DraftPrompt, read_gecko, read_prompts

EXPECTED_PROMPTS = [
    DraftPrompt("a", "two cats", ("count", "count:simple"), "read"),
    DraftPrompt("b", "a dog", (), "read"),
]
RECORDS = [{"prompt_id": p.prompt_id, "text": p.text, "skills": [*p.skills]} for p in EXPECTED_PROMPTS]


def read_file(path: Path, **columns: str) -> list[DraftPrompt]:
    return read_prompts(StorageConfig().locate(str(path)), PromptColumnsConfig(**columns))


def test_the_same_prompts_are_read_from_every_file_format(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), tmp_path / "p.parquet")
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    (tmp_path / "p.json").write_text(json.dumps(RECORDS))
    (tmp_path / "p.csv").write_text("prompt_id,text,skills\na,two cats,count;count:simple\nb,a dog,\n")
    assert [read_file(tmp_path / f"p.{kind}") for kind in ("parquet", "jsonl", "json", "csv")] == [EXPECTED_PROMPTS] * 4


def test_each_line_of_a_text_file_is_a_prompt_with_a_hash_as_id(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("two cats\n\n  a dog \ntwo cats\n")
    cats, dog = hash_text("two cats"), hash_text("a dog")
    assert [(p.prompt_id, p.text) for p in read_file(tmp_path / "p.txt")] == [
        (cats, "two cats"),
        (dog, "a dog"),
        (f"{cats}-2", "two cats"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "p.csv",
            "prompt_id,text\na,two cats\nb,\n",
            "p.csv, row 1: expected a prompt in column text, found none; fill it in",
        ),
        (
            "p.csv",
            "prompt_id,text\na,two cats\na,a dog\n",
            "p.csv, row 1: prompt_id 'a' is not unique; make ids unique",
        ),
        ("p.csv", "id,title\na,two cats\n", "found id, title; set prompt_columns.text=COLUMN"),
        ("p.jsonl", '{"text": 3}\n', "p.jsonl, row 0: expected a prompt in column text, found 3"),
        (
            "p.jsonl",
            '{"text": "a", "skills": "x"}\n',
            "row 0: expected a list of strings in column skills, found 'x'",
        ),
        ("p.txt", "\n", "p.txt: the file is empty"),
        ("p.xlsx", "", "save the sheet as .csv"),
    ],
)
def test_an_invalid_prompt_is_reported_with_its_file_and_row(
    tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PlumblineError) as error:
        read_file(tmp_path / name)
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_repeated_prompts_are_read_once_and_only_line_feeds_and_carriage_returns_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("item_id,caption\na,two cats\na,two cats\nb,a dog\n")
    assert [prompt[:2] for prompt in read_file(tmp_path / "p.csv")] == [("a", "two cats"), ("b", "a dog")]
    (tmp_path / "p.txt").write_text("two\u2028cats\x0c!\r\na dog\ra\x85bird\n", newline="")
    assert [prompt.text for prompt in read_file(tmp_path / "p.txt")] == ["two\u2028cats\x0c!", "a dog", "a\x85bird"]


def test_column_names_can_be_configured(tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": ["two cats"], "n": [7]}), tmp_path / "p.parquet")
    assert read_file(tmp_path / "p.parquet", text="caption", prompt_id="n") == [
        DraftPrompt("7", "two cats", (), "read")
    ]


def test_prompts_of_gecko2k_have_their_sub_skills(tmp_path: Path) -> None:
    (tmp_path / "gecko_prompts.csv").write_text(
        "dataset_id,prompt,prompt_type,prompt_id,reliable\n"
        "att/count:additive_2,1 cat and 2 dogs,Gecko(S),0,True\ntifa_45,A bus,Gecko(R),1,True\n"
    )
    first, second = read_gecko(StorageConfig().locate(str(tmp_path / "gecko_prompts.csv")))
    assert first.skills == ("Gecko(S)", "att/count", "att/count:additive") and second.skills == ("Gecko(R)", "tifa")
