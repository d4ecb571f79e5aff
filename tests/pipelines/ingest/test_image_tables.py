"""An ingest reads published tables with several generators, several images per row, file paths, or Arrow files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.ingest.ingest import IngestResult, ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.score_input import ingest_images
from plumbline.pipelines.sources.benchmark import BenchmarkConfig, PromptColumnsConfig
from tests.bench_of import list_sources
from tests.commands import load_job_config

PNG = b"\x89PNG, as far as anybody looks here"
CAT, DOG = "three cats", "a red dog"


def ingest_table(table: Path, **options: Any) -> IngestResult:
    return ingest(IngestConfig(output=str(table.parent / "out"), table=str(table), **options), lambda record: None)


def read_ingested(ended: IngestResult) -> list[tuple[str, str, str, bytes]]:
    return [
        (shard.generator, row["image_id"], row["prompt"], row["image"])
        for shard in ended.shards
        for row in pq.read_table(f"{ended.url}/{shard.path}").to_pylist()
    ]


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, row_group_size=2)
    return path


def write_arrow(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write a stream of record batches as `save_to_disk` does, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([dict(row) for row in rows])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def test_one_table_has_the_images_of_several_generators(tmp_path: Path) -> None:
    rows = [{"image": {"bytes": PNG, "path": None}, "text": text, "generator": name, "seed": 7, "skills": ["pets"]}
            for text in (CAT, DOG) for name in ("flux", "sdxl")]  # fmt: skip
    ended = ingest_table(write_parquet(tmp_path / "all.parquet", rows))
    assert read_ingested(ended) == [
        ("flux", "all/1", CAT, PNG), ("flux", "all/3", DOG, PNG),
        ("sdxl", "all/2", CAT, PNG), ("sdxl", "all/4", DOG, PNG),
    ]  # fmt: skip
    shard = pq.read_table(f"{ended.url}/{ended.shards[0].path}").to_pylist()
    assert '"seed": 7' in shard[0]["sample"] and shard[0]["skills"] == ["pets"]
    assert not any(record.written for record in ingest_table(tmp_path / "all.parquet").shards)


def test_tables_whose_shortened_names_collide_keep_all_their_rows(tmp_path: Path) -> None:
    names = ["a/b.parquet", "a-b.parquet", "a-b.arrow", "a/b/c.parquet", "a-b/c.parquet", "a__b.parquet"]
    for name in names:
        rows = [{"image": PNG, "text": f"{name} {number}", "generator": "flux"} for number in range(3)]
        (write_arrow if name.endswith("arrow") else write_parquet)(tmp_path / "tables" / name, rows)
    ended = ingest_table(tmp_path / "tables")
    ids = [image_id for _, image_id, _, _ in read_ingested(ended)]
    prompts = [prompt for _, _, prompt, _ in read_ingested(ended)]
    assert len(ids) == len(set(ids)) == 18 and sorted(prompts) == sorted(
        f"{n} {row}" for n in names for row in range(3)
    )
    assert {"a-b/1", "a__b/1", "a-b-c/1"} <= {*ids}


LABEL_FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "text": datasets.Value("string"),
        "model": datasets.ClassLabel(names=["flux", "sdxl"]),
        "skills": datasets.List(datasets.ClassLabel(names=["counting", "colors"])),
    }
)


@pytest.mark.parametrize("saved", ["parquet", "arrow"])
def test_class_labels_of_hugging_face_are_read_as_names(saved: str, tmp_path: Path) -> None:
    rows = [{"image": {"bytes": PNG, "path": None}, "text": text, "model": model, "skills": skills}
            for model in (1, 0, -1) for text, skills in ((CAT, [0]), (DOG, [1, 0]))]  # fmt: skip
    dataset = datasets.Dataset.from_list(rows, features=LABEL_FEATURES)
    if saved == "parquet":
        dataset.to_parquet(tmp_path / "mine/all.parquet")
    else:
        dataset.save_to_disk(tmp_path / "mine")
    ended = ingest_table(tmp_path / "mine")
    assert [(row[0], row[2]) for row in read_ingested(ended)] == [
        (name, text) for name in ("flux", "sdxl") for text in (CAT, DOG)
    ]
    assert [(one.kind, one.line) for one in ended.rejected] == [("no_generator", 5), ("no_generator", 6)]
    prompts = pq.read_table(f"{ended.url}/prompts.parquet").to_pylist()
    assert {row["text"]: row["skills"] for row in prompts} == {CAT: ["counting"], DOG: ["colors", "counting"]}


def test_class_labels_of_a_prompts_file_are_read_as_skills(tmp_path: Path) -> None:
    features = datasets.Features(
        {"prompt_id": datasets.Value("string"), "text": datasets.Value("string"), "skills": LABEL_FEATURES["skills"]}
    )
    rows = [
        {"prompt_id": str(number), "text": CAT, "skills": skills} for number, skills in enumerate(([0], [1, 0], []))
    ]
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "prompts.parquet")
    write_parquet(tmp_path / "images/flux/0.parquet", [{"prompt_id": "1", "image": PNG}])
    benchmark = BenchmarkConfig(name="mine", prompts=f"{tmp_path}/prompts.parquet", images=f"{tmp_path}/images")
    skills = list_sources(benchmark).prompts.column("skills").to_pylist()
    assert skills == [["counting"], ["colors", "counting"], []]
    some = replace(benchmark, prompt_columns=PromptColumnsConfig(where=("skills:colors",)))
    assert list_sources(some).prompts.column("prompt_id").to_pylist() == ["1"]


def test_a_row_of_pick_a_pic_has_two_images(tmp_path: Path) -> None:
    row = {
        "caption": CAT,
        "jpg_0": PNG,
        "model_0": "flux",
        "jpg_1": PNG + b"1",
        "model_1": "sdxl",
        "label_0": 1.0,
    }
    ended = ingest_table(write_parquet(tmp_path / "pairs.parquet", [row, {**row, "jpg_1": None}]))
    assert read_ingested(ended) == [
        ("flux", "pairs/1-0", CAT, PNG),
        ("flux", "pairs/2-0", CAT, PNG),
        ("sdxl", "pairs/1-1", CAT, PNG + b"1"),
    ]
    assert [(one.kind, one.line) for one in ended.rejected] == [("missing_image", 2)]


def test_the_output_of_save_to_disk_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    for split, text in (("train", CAT), ("test", DOG)):
        write_arrow(
            folder / split / "data-00000-of-00001.arrow",
            [{"image": {"bytes": PNG, "path": "a"}, "text": text}] * 3,
        )
        (folder / split / "state.json").write_text("{}")
    ended = ingest_table(folder, generator="flux")
    assert sorted(row[1:3] for row in read_ingested(ended)) == [
        *((f"test-data-00000-of-00001/{n}", DOG) for n in (1, 2, 3)),
        *((f"train-data-00000-of-00001/{n}", CAT) for n in (1, 2, 3)),
    ]


def test_a_cell_may_name_a_file_but_none_outside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    paths = ["a.png", f"{folder}/a.png", "../secret.png", "/etc/hostname", "gone.png"]
    write_parquet(folder / "t.parquet", [{"image": {"bytes": None, "path": path}, "prompt": CAT} for path in paths])
    (folder / "a.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(b"secret")
    ended = ingest_table(folder / "t.parquet", generator="flux", max_failed=1)
    assert [row[3] for row in read_ingested(ended)] == [PNG, PNG]
    assert [one.kind for one in ended.rejected] == ["outside_folder", "outside_folder", "missing_image"]


@pytest.mark.parametrize("write, name", [(write_parquet, "t.parquet"), (write_arrow, "t.arrow")])
def test_a_damaged_table_is_named_and_its_unknown_losses_exceed_every_budget(
    write: Any, name: str, tmp_path: Path
) -> None:
    table = write(tmp_path / name, [{"image": PNG * 50, "prompt": CAT, "generator": "flux"}] * 8)
    whole = table.read_bytes()
    table.write_bytes(whole[: len(whole) - 700])
    ended = ingest_table(table, max_failed=1)
    (rejection,) = ended.rejected
    assert (rejection.kind, rejection.file, ended.exit_code) == ("damaged_table", str(table), 1)
    assert ended.damaged == [str(table)]


def test_flipped_bits_in_a_table_only_lose_rows(tmp_path: Path) -> None:
    rows = [{"image": PNG, "prompt": f"prompt {number}", "generator": "flux"} for number in range(6)]
    whole = write_arrow(tmp_path / "t.arrow", rows).read_bytes()
    for place in range(8, len(whole), 131):
        (tmp_path / "t.arrow").write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            ended = ingest_table(tmp_path / "t.arrow", on_change="replace", max_failed=1)
        except ConfigError:
            continue
        assert ended.rows + len(ended.rejected) >= 1


@pytest.mark.parametrize(
    "row, complaint",
    [
        ({"pixels": PNG, "prompt": CAT}, "expected a column of image files"),
        ({"image": PNG, "words": CAT}, "expected a column of prompts"),
        ({"image": PNG, "prompt": CAT}, "no column contains the generator"),
    ],
)
def test_a_table_that_lacks_a_column_is_refused(row: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ingest_table(write_parquet(tmp_path / "t.parquet", [row]))


def test_tables_that_sweeps_can_read_are_refused_with_that_hint(tmp_path: Path) -> None:
    for name in ("flux", "sdxl"):
        write_parquet(tmp_path / f"in/{name}/0.parquet", [{"image": PNG, "prompt": CAT, "generator": name}])
    given = [f"benchmark.images={tmp_path}/in", "models=shapes", f"store={tmp_path}/store"]
    config = load_job_config("score", *given)
    assert ingest_images(config) == (config, None)
