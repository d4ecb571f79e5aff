"""Prompts are read from the benchmarks' released files; a malformed value is reported with its file and row."""

import json
import os
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.pipelines.sources import shards
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.prompt_files import read_prompt_file
from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.cells import Shard
from tests.bench_of import list_sources, read_image_rows, write_rows
from tests.commands import load_job_config

ROOT = Path(__file__).parents[3]
REFERENCE_FOLDER = Path(os.environ.get("REFERENCE_DATA", ROOT.parent / "shared" / "reference"))
NEEDS_REFERENCE_DATA = pytest.mark.skipif(not REFERENCE_FOLDER.is_dir(), reason="REFERENCE_DATA is not set or empty")

GENAI_PROMPTS = {
    "00007": {"id": "7", "prompt": "Two cubes.", "prompt in Chinese": "...", "models": {"One": [1, 2, 3]}},
    "00008": {"id": "00008", "prompt": "A red ball.", "models": {"One": [5, 5, 4]}},
}
GECKO_CSV = """dataset_id,prompt,prompt_type,prompt_id,reliable
att/count:additive_2,"One cup, two spoons",Gecko(S),0,True
tifa_45,a dog,Gecko(R),31,False
"""


def open_predefined(benchmark: str, prompts: Path, folder: Path, *overrides: str) -> Sources:
    """Open a predefined benchmark with this prompt file and one generator's images."""
    write_rows(folder / "images/atlas/0.parquet", read_image_rows("atlas", 1))
    given = [f"benchmark={benchmark}", f"benchmark.prompts={prompts}", f"benchmark.images={folder}/images"]
    config = load_job_config("sweep", "sweep=own_images", *given, *overrides)
    return list_sources(config.benchmark)


def write_text(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def test_genai_bench_is_read_by_the_names_of_its_images(tmp_path: Path) -> None:
    sources = open_predefined("genai_bench", write_text(tmp_path / "g.json", json.dumps(GENAI_PROMPTS)), tmp_path)
    assert sources.prompts.select(["prompt_id", "text", "suite"]).to_pylist() == [
        {"prompt_id": "00007", "text": "Two cubes.", "suite": "genai_bench"},
        {"prompt_id": "00008", "text": "A red ball.", "suite": "genai_bench"},
    ]
    (shard,) = sources.prompt_shards
    assert (shard.row_groups, shard.rows) == ((), 2)


def read_skills(sources: Sources) -> dict[str, list[str]]:
    ids = sources.prompts.column("prompt_id").to_pylist()
    return {prompt_id: list(sources.skills.find(prompt_id)) for prompt_id in ids}


def test_gecko2k_is_read_with_its_skills(tmp_path: Path) -> None:
    sources = open_predefined("gecko2k", write_text(tmp_path / "prompts.csv", "\ufeff" + GECKO_CSV), tmp_path)
    assert sources.prompts.column("text").to_pylist() == ["One cup, two spoons", "a dog"]
    assert read_skills(sources) == {"0": ["Gecko(S)", "att/count"], "31": ["Gecko(R)", "tifa"]}


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_users_files_have_the_configured_columns(suffix: str, tmp_path: Path) -> None:
    listed = [{"key": 1, "caption": "a\ncat", "kind": ["pets", "at home"]}, {"key": 2, "caption": "", "kind": None}]
    text = 'key,caption,kind\n1,"a\ncat",pets; at home\n2,,\n' if suffix == "csv" else json.dumps(listed)
    names = [f"benchmark.prompt_columns.{name}" for name in ("prompt_id=key", "text=caption", "skills=kind")]
    sources = open_predefined("own", write_text(tmp_path / f"p.{suffix}", text), tmp_path, *names)
    assert read_skills(sources) == {"1": ["pets", "at home"], "2": []}
    assert sources.prompts.column("text").to_pylist() == ["a\ncat", ""]


def test_a_file_with_one_prompt_per_line_is_read_too(tmp_path: Path) -> None:
    rows = [{"prompt_id": 2**53 + 1, "text": "a\u2028b"}, {"prompt_id": 2.5, "text": None, "skills": [None, "x", 7]}]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + '\r\n{"prompt_id": "c", "text": NaN}'
    sources = open_predefined("own", write_text(tmp_path / "p.jsonl", text), tmp_path)
    assert sources.prompts.column("text").to_pylist() == ["a\u2028b", None, None]
    assert read_skills(sources) == {"9007199254740993": [], "2.5": ["x", "7"], "c": []}


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("p.csv", "prompt_id,text\n1,a\n2,b,c\n", r"p\.csv, row 1 \(line 3\): expected 2 fields, found 3; correct"),
        ("p.json", '["a", 7]', r"p\.json, row 1: expected text, found int; write it as text"),
        ("p.csv", "prompt_id,text\n", "found none; check the path"),
        ("p.csv", "prompt_id,text\n1,a\n1,b\n", r"p\.csv, row 1: prompt_id '1' occurs twice"),
        ("p.csv", "prompt_id,text,text\n1,a,b\n", r"p\.csv: 2 columns are called 'text'; rename or remove all but one"),
        ("p.csv", "prompt_id,text,skills,skills\n1,a,b,c\n", r"p\.csv: 2 columns are called 'skills'"),
        ("p.csv", "prompt_id,text\n,a\n", r"p\.csv, row 0: the prompt has no prompt_id"),
        ("p.json", '[{"prompt_id": NaN, "text": "a"}]', r"p\.json, row 0: the prompt has no prompt_id"),
        ("p.json", '[{"prompt_id": ["a"], "text": "a"}]', r"row 0: expected prompt_id as text or a number, found list"),
        ("p.json", '{"1": {"text": "a"}, "1": {"text": "b"}}', r"p\.json: the field '1' occurs twice; remove"),
        ("p.json", '[{"prompt_id": 1, "text": "a", "text": "b"}]', r"p\.json: the field 'text' occurs twice; remove"),
        (
            "p.json",
            '[{"prompt_id": 1, "text": "a"}, {"prompt_id": 2, "text": "\\ud800"}]',
            r"p\.json: not UTF-8 after .*2, \"text\": \"'; save the file as UTF-8",
        ),
        (
            "p.json",
            '[{"prompt_id": 1, "text": "a", "skills": [["b"]]}]',
            r"row 0: expected `skills` to contain text, found list",
        ),
        ("p.json", "[" * 100_000, r"p\.json: not JSON \(.*recursion"),
        (
            "p.jsonl",
            '{"prompt_id": 1, "text": "a"}\n{"prompt_id": 2\n',
            r"p\.jsonl, row 1 \(line 2\): not JSON .*; correct or remove it",
        ),
        (
            "p.jsonl",
            '{"prompt_id": 1, "text": "a"}\n7\n',
            r"p\.jsonl, row 1 \(line 2\): expected a JSON object, found int",
        ),
        ("p.json", '{"1": {"text": "a"', r"p\.json: not JSON .*; it may be truncated"),
        ("p.json", '{"1": 7}', r"p\.json, row 0 \('1'\): expected an object, found int"),
        ("p.json", '"a"', r"p\.json: expected an object that maps ids to prompts, or a list, found str"),
        ("p.json", '{"1": {"text": "a"}, "2": {}}', r"p\.json, row 1: expected column\(s\) text, found prompt_id"),
        ("p.json", '{"1": {"text": ["a"]}}', r"p\.json, row 0.*: expected the prompt as text, found list"),
    ],
)
def test_a_malformed_value_is_reported_by_name(name: str, content: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        open_predefined("own", write_text(tmp_path / name, content), tmp_path)


def test_text_that_is_not_utf8_is_reported_by_name() -> None:
    with pytest.raises(SourceError, match=r"p\.csv, row 0 \(line 2\): not UTF-8 after '1'; save the file as UTF-8"):
        read_prompt_file(b"prompt_id,text\n1,\xff\n", "p.csv")


@NEEDS_REFERENCE_DATA
def test_the_released_genai_bench_file_is_read_completely(tmp_path: Path) -> None:
    sources = open_predefined(
        "genai_bench", REFERENCE_FOLDER / "genai_bench/genai_bench_527_image_ratings.json", tmp_path
    )
    ids = sources.prompts.column("prompt_id").to_pylist()
    assert ids == [f"{number:05d}" for number in range(1, 528)]
    assert all(text.strip() for text in sources.prompts.column("text").to_pylist())


@NEEDS_REFERENCE_DATA
def test_the_released_gecko2k_file_is_read_completely(tmp_path: Path) -> None:
    sources = open_predefined("gecko2k", REFERENCE_FOLDER / "gecko/gecko_prompts.csv", tmp_path)
    assert len(sources.prompts) == 1485
    counts = Counter(skill for skills in read_skills(sources).values() for skill in skills)
    assert (counts["Gecko(S)"], counts["Gecko(R)"]) == (930, 555)
    assert counts["att/count"] == 128 and "stanford_paragraph" in counts


def test_a_file_of_prompts_is_opened_once_for_all_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's footer grows with its number of row groups, so opening the file per shard would take quadratic time."""
    opened_files: list[str] = []

    def count_opening(shard: Shard) -> AbstractContextManager[IO[bytes]]:
        opened_files.append(shard.url)
        return opens(shard)

    opens = shards.open_shard
    monkeypatch.setattr(shards, "open_shard", count_opening)
    records = [{"prompt_id": f"p{number}", "text": f"text {number}"} for number in range(12)]
    write_rows(tmp_path / "prompts.parquet", records, row_group=2)
    write_rows(tmp_path / "images/atlas/0.parquet", read_image_rows("atlas", 1))
    benchmark = BenchmarkConfig(name="b", prompts=str(tmp_path / "prompts.parquet"), images=str(tmp_path / "images"))
    sources = list_sources(benchmark, ShardSize(2))
    assert [shard.rows for shard in sources.prompt_shards] == [2] * 6
    assert sources.prompts.column("text").to_pylist() == [record["text"] for record in records]
    assert sum(url.endswith("/prompts.parquet") for url in opened_files) == 1
