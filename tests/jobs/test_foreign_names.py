"""Partition names, both Unicode forms of file names, and lists written by pandas are read correctly."""

import re
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest

from tests.bench_of import read_image_rows, read_prompt_rows, write_rows
from tests.commands import run_for_output, run_refused
from tests.operators.tiny import draw_image

SCORE_OPTIONS = ("metric=[edge_density]", "cluster=here")


def read_run(folder: Path, table: str) -> pd.DataFrame:
    (file,) = (folder / "store/runs").glob(f"*/{table}.parquet")
    return pd.read_parquet(file)


@pytest.mark.parametrize(("table_form", "file_form"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC")])
def test_a_table_may_name_files_in_either_form_of_unicode(table_form: str, file_form: str, tmp_path: Path) -> None:
    names = [f"{word} {number}" for number, word in enumerate(["café", "über", "plain", "ñandú", "한국"])]
    (tmp_path / "images").mkdir()
    for number, name in enumerate(names):
        draw_image(number).save(tmp_path / "images" / f"{normalize(file_form, name)}.png")
    rows = [{"file_name": f"{normalize(table_form, name)}.png", "prompt": f"prompt {name}"} for name in names]
    shuffled = [rows[place] for place in np.random.default_rng(2).permutation(len(rows))]
    pd.DataFrame(shuffled).to_csv(tmp_path / "images/metadata.csv", index=False)
    out = run_for_output("score", f"images={tmp_path}/images", *SCORE_OPTIONS, f"store={tmp_path}/store")
    assert "5 found = 5 ingested + 0 rejected + 0 skipped" in out
    assert read_run(tmp_path, "scores")["score"].notna().sum() == len(names)


@pytest.mark.parametrize(
    ("folders", "generators"),
    [
        (["generator=flux", "generator=sd%20xl"], ["flux", "sd xl"]),
        (["model=flux", "Model_Name=sdxl"], ["flux", "sdxl"]),
        (["generator=flux", "flux"], ["flux", "generator=flux"]),
        (["cfg=7.5", "generator="], ["cfg=7.5", "generator="]),
    ],
)
def test_a_partition_of_generators_is_named_by_its_value_unless_another_has_that_name(
    folders: list[str], generators: list[str], tmp_path: Path
) -> None:
    write_rows(tmp_path / "prompts.parquet", read_prompt_rows(4))
    for folder in folders:
        write_rows(tmp_path / f"tables/{folder}/0.parquet", read_image_rows("atlas", 4))
        (tmp_path / f"images/{folder}").mkdir(parents=True)
        for number in range(3):
            draw_image(number).save(tmp_path / f"images/{folder}/{number}.png")
    (tmp_path / "images/prompts.txt").write_text("a\nb\nc\n")
    of_tables = run_for_output(
        "sweep", "sweep=own_images", "models=shapes", "benchmark.name=small", *SCORE_OPTIONS, "dry_run=true",
        f"store={tmp_path}/tables store",
        f"benchmark.prompts={tmp_path}/prompts.parquet", f"benchmark.images={tmp_path}/tables",
    )  # fmt: skip
    of_files = run_for_output(
        "score", f"images={tmp_path}/images", *SCORE_OPTIONS, "dry_run=true", f"store={tmp_path}/store"
    )
    for out, count in ((of_tables, 4), (of_files, 3)):
        (line,) = [line for line in out.splitlines() if line.startswith("generators: ")]
        found = re.findall(rf"([^,]+) \({count} images\)", line.rpartition(": ")[2])
        assert sorted(name.strip() for name in found) == sorted(generators)


@pytest.mark.parametrize("array", [False, True])
def test_skills_that_pandas_wrote_as_a_list_are_split(array: bool, tmp_path: Path) -> None:
    lists = [["color", "shape"], ["color"], [], ["it's", 'a "b"']]
    cells = [np.array(one, dtype=object) for one in lists] if array else lists
    frame = pd.DataFrame(read_prompt_rows(4)).assign(skills=pd.Series(cells, dtype=object))
    frame.to_csv(tmp_path / "prompts.csv", index=False)
    write_rows(tmp_path / "images/atlas/0.parquet", read_image_rows("atlas", 4))
    run_for_output(
        "sweep", "sweep=own_images", "models=shapes", "benchmark.name=small", *SCORE_OPTIONS, f"store={tmp_path}/store",
        f"benchmark.prompts={tmp_path}/prompts.csv", f"benchmark.images={tmp_path}/images",
    )  # fmt: skip
    found = set(read_run(tmp_path, "summary")["skill"])
    assert found == {"overall", "color", "shape", "it's", 'a "b"'}


def test_a_workbook_is_refused_with_the_advice_to_save_it_as_csv(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").write_bytes(b"PK\x03\x04")
    write_rows(tmp_path / "images/atlas/0.parquet", read_image_rows("atlas", 4))
    words = (
        "sweep=own_images",
        "models=shapes",
        "benchmark.name=small",
        *SCORE_OPTIONS,
        f"benchmark.images={tmp_path}/images",
    )
    for line in (
        run_refused("sweep", *words, f"benchmark.prompts={tmp_path}/table.xlsx", f"store={tmp_path}/store"),
        run_refused(
            "metaeval", "protocol=long", f"protocol.path={tmp_path}/table.xlsx", f"scores={tmp_path}/table.xlsx"
        ),
    ):
        assert line.endswith("save the sheet as .csv") and "rename" not in line
