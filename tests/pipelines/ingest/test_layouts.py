"""Images get their own prompts in every common folder layout, and no prompt is guessed."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.ingest.image_folders import NUMBER_SUFFIX_PATTERN
from plumbline.pipelines.ingest.ingest import IngestResult, ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from tests.commands import open_store_at
from tests.files import write_files

PNG = b"\x89PNG, as far as anybody looks here"
CAT, DOG = "three cats", "a red dog"


def ingest_folder(folder: Path, **options: Any) -> IngestResult:
    output = str(folder.parent / "out")
    return ingest(IngestConfig(output=output, images=str(folder), **options), lambda record: None)


def read_prompts_by_id(ended: IngestResult) -> dict[str, tuple[str, str]]:
    """Return (generator, prompt) for each ingested image, keyed by image id."""
    rows = [row | {"generator": shard.generator} for shard in ended.shards
            for row in pq.read_table(f"{ended.url}/{shard.path}").to_pylist()]  # fmt: skip
    return {row["image_id"]: (row["generator"], row["prompt"]) for row in rows}


def read_skills(ended: IngestResult) -> dict[str, list[str]]:
    return {row["text"]: row["skills"] for row in pq.read_table(f"{ended.url}/prompts.parquet").to_pylist()}


LAYOUTS: dict[str, tuple[dict[str, str | bytes], dict[str, tuple[str, str]]]] = {
    "hugging face's imagefolder": (
        {
            "metadata.jsonl": "".join(
                json.dumps({"file_name": f"{n}.png", "text": text}) + "\n" for n, text in enumerate((CAT, DOG))
            ),
            "0.png": PNG,
            "1.png": PNG,
        },
        {"0.png": ("in", CAT), "1.png": ("in", DOG)},
    ),
    "a metadata.csv in each folder": (
        {"flux/metadata.csv": f"file_name,caption\na.png,{CAT}\n", "flux/a.png": PNG,
         "sdxl/metadata.csv": f"file_name,caption\na.png,{CAT}\n", "sdxl/a.png": PNG},
        {"flux/a.png": ("flux", CAT), "sdxl/a.png": ("sdxl", CAT)},
    ),
    "geneval's folder per prompt": (
        {"00000/metadata.jsonl": json.dumps({"tag": "counting", "prompt": CAT}), "00000/samples/0000.png": PNG,
         "00000/samples/0001.png": PNG, "00001/metadata.jsonl": json.dumps({"tag": "colors", "prompt": DOG}),
         "00001/samples/0000.png": PNG},
        {"00000/samples/0000.png": ("in", CAT), "00000/samples/0001.png": ("in", CAT),
         "00001/samples/0000.png": ("in", DOG)},
    ),
    "img2dataset's files": (
        {"00000/000000000.jpg": PNG, "00000/000000000.txt": f"{CAT}\n", "00000/000000000.json": "{}",
         "00000_stats.json": "{}", "00001/000010000.jpg": PNG, "00001/000010000.json": json.dumps({"caption": DOG})},
        {"00000/000000000.jpg": ("in", CAT), "00001/000010000.jpg": ("in", DOG)},
    ),
    "a list of prompts, counted from 0": (
        {"prompts.txt": f"{CAT}\n{DOG}\n", "flux/00000.png": PNG, "flux/00001_1.png": PNG,
         "sdxl/00001.png": PNG, "sdxl/00000.png": PNG},
        {"flux/00000.png": ("flux", CAT), "flux/00001_1.png": ("flux", DOG), "sdxl/00001.png": ("sdxl", DOG),
         "sdxl/00000.png": ("sdxl", CAT)},
    ),
    "a list of prompts, counted from 1, a folder each": (
        {"prompts.txt": f"{CAT}\n{DOG}\n", "images/1/0.png": PNG, "images/2/0.png": PNG},
        {"images/1/0.png": ("in", CAT), "images/2/0.png": ("in", DOG)},
    ),
    "a list whose prompts contain what Unicode calls line ends": (
        {"prompts.txt": "a\u2028red\x85cube\r\nthree\x0b\x0ccats\ra\x1cblue\u2029dog\n",
         **dict.fromkeys(("0.png", "1.png", "2.png"), PNG)},
        {"0.png": ("in", "a\u2028red\x85cube"), "1.png": ("in", "three\x0b\x0ccats"),
         "2.png": ("in", "a\x1cblue\u2029dog")},
    ),
    "the nearest list of prompts": (
        {"flux/prompts.txt": DOG, "prompts.txt": CAT, "flux/image-0.png": PNG, "sdxl/0.png": PNG},
        {"flux/image-0.png": ("flux", DOG), "sdxl/0.png": ("sdxl", CAT)},
    ),
    "hugging face's list of files for a row": (
        {"metadata.jsonl": json.dumps({"file_names": ["b.png", "a.png"], "text": CAT}) + "\n"
         + json.dumps({"file_names": ["c.png"], "text": DOG}), **dict.fromkeys(("a.png", "b.png", "c.png"), PNG)},
        {"b.png": ("in", CAT), "a.png": ("in", CAT), "c.png": ("in", DOG)},
    ),
    "hugging face's columns of files, one for each generator": (
        {"metadata.csv": f"text,sdxl_file_name,flux_file_name\n{DOG},s/1.png,f/1.png\n{CAT},s/0.png,f/0.png\n",
         **dict.fromkeys(("f/0.png", "f/1.png", "s/0.png", "s/1.png"), PNG)},
        {"f/0.png": ("flux", CAT), "f/1.png": ("flux", DOG), "s/0.png": ("sdxl", CAT), "s/1.png": ("sdxl", DOG)},
    ),
    "names whose last number is a seed": (
        {"prompts.txt": f"{CAT}\n{DOG}\n{CAT}s", "prompt0_seed7.png": PNG, "prompt1_seed7.png": PNG,
         "prompt2_seed7.png": PNG},
        {"prompt0_seed7.png": ("in", CAT), "prompt1_seed7.png": ("in", DOG), "prompt2_seed7.png": ("in", f"{CAT}s")},
    ),
    "a list of prompts beside geneval's folders": (
        {"prompts.txt": f"{CAT}\n{DOG}\n", "00000/samples/0000.png": PNG, "00000/samples/0001.png": PNG,
         "00001/samples/0000.png": PNG},
        {"00000/samples/0000.png": ("in", CAT), "00000/samples/0001.png": ("in", CAT),
         "00001/samples/0000.png": ("in", DOG)},
    ),
    "the nearest metadata file": (
        {"metadata.jsonl": json.dumps({"prompt": CAT}), "a.png": PNG, "b/c/d.png": PNG,
         "b/metadata.jsonl": json.dumps({"prompt": DOG})},
        {"a.png": ("in", CAT), "b/c/d.png": ("b", DOG)},
    ),
    "a script's table, whose columns are called otherwise": (
        {"images.csv": f"path,caption,model\nimg/Flux.1_dev_0.png,{CAT},Flux.1 dev\n./img/sdxl_0.png,{DOG},SDXL\n",
         "img/Flux.1_dev_0.png": PNG, "img/sdxl_0.png": PNG},
        {"img/Flux.1_dev_0.png": ("Flux.1 dev", CAT), "img/sdxl_0.png": ("SDXL", DOG)},
    ),
    "a script's table, with paths from where the script ran": (
        {"images.csv": f"file,prompt\nin/flux/a.png,{CAT}\n", "flux/a.png": PNG}, {"flux/a.png": ("flux", CAT)}
    ),
    "a table in a folder of its own, with paths from the whole": (
        {"lists/all.jsonl": json.dumps({"image_path": "flux/a.png", "prompt": CAT}), "flux/a.png": PNG},
        {"flux/a.png": ("flux", CAT)},
    ),
    "folders of prompts within a generator's": (
        {"flux/three big cats/0.png": PNG, "flux/three big cats/1.png": PNG, "flux/a_red_dog/0.png": PNG},
        {"flux/three big cats/0.png": ("flux", "three big cats"), "flux/a_red_dog/0.png": ("flux", "a red dog"),
         "flux/three big cats/1.png": ("flux", "three big cats")},
    ),
    "a table of prompts alone, whose rows are numbered": (
        {"prompts.csv": f"Prompt\n{CAT}\n{DOG}\n", "flux/0.png": PNG, "flux/1.png": PNG, "sdxl/1.png": PNG},
        {"flux/0.png": ("flux", CAT), "flux/1.png": ("flux", DOG), "sdxl/1.png": ("sdxl", DOG)},
    ),
    "usual names in capitals": (
        {"Metadata.CSV": f"Image,Prompt,Model\nimg/1.png,{CAT},Flux\n", "img/1.png": PNG},
        {"img/1.png": ("Flux", CAT)},
    ),
    "a metadata file with a column of files called otherwise": (
        {"metadata.csv": f"img_file,prompt\n1.png,{CAT}\n0.png,{DOG}\n", "0.png": PNG, "1.png": PNG},
        {"1.png": ("in", CAT), "0.png": ("in", DOG)},
    ),
    "ids in tables of each generator": (
        {"flux/prompts.csv": f"id,prompt\na,{CAT}\n", "sdxl/prompts.csv": f"id,prompt\na,{DOG}\n",
         "flux/a.png": PNG, "sdxl/a_1.png": PNG},
        {"flux/a.png": ("flux", CAT), "sdxl/a_1.png": ("sdxl", DOG)},
    ),
    "generators in names with the numbers of lines": (
        {"prompts.txt": f"{CAT}\n{DOG}\n", "sd3_1.png": PNG, "sdxl turbo-0.png": PNG, "sd3_0.png": PNG,
         "sdxl turbo-1.png": PNG, "grid-0000.png": PNG},
        {"sd3_0.png": ("sd3", CAT), "sd3_1.png": ("sd3", DOG), "sdxl turbo-0.png": ("sdxl turbo", CAT),
         "sdxl turbo-1.png": ("sdxl turbo", DOG)},
    ),
    "generators in names with ids that are numbers": (
        {"prompts.csv": f"id,prompt\n8,{DOG}\n7,{CAT}\n", "sdxl_007.png": PNG, "flux_008.png": PNG,
         "flux_007.png": PNG, "sdxl_008.png": PNG},
        {"flux_007.png": ("flux", CAT), "flux_008.png": ("flux", DOG), "sdxl_007.png": ("sdxl", CAT),
         "sdxl_008.png": ("sdxl", DOG)},
    ),
    "prompts as names": (
        {"three cats_000001.png": PNG, "a_red_dog (2).webp": PNG, ".hidden dog.png": PNG, "notes.md": "none"},
        {"three cats_000001.png": ("in", CAT), "a_red_dog (2).webp": ("in", DOG)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("files, expected", LAYOUTS.values(), ids=LAYOUTS)
def test_every_image_gets_its_prompt_and_its_generator(
    files: dict[str, str | bytes], expected: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    ended = ingest_folder(write_files(tmp_path / "in", files))
    assert read_prompts_by_id(ended) == expected and not ended.rejected
    before = pq.read_table(f"{ended.url}/prompts.parquet")
    again = ingest_folder(tmp_path / "in")
    assert not any(shard.written for shard in again.shards) and read_prompts_by_id(again) == expected
    assert pq.read_table(f"{ended.url}/prompts.parquet").equals(before)


REFUSED_LAYOUTS: dict[str, tuple[dict[str, str | bytes], str, str]] = {
    "a row without its image": (
        {"metadata.csv": f"file_name,text\ngone.png,{CAT}\na.png,{DOG}\n", "a.png": PNG},
        "missing_image", "no file at",
    ),
    "an image that no row names": (
        {"metadata.jsonl": json.dumps({"file_name": "a.png", "text": CAT}), "a.png": PNG, "b.png": PNG},
        "empty_prompt", "no row in metadata.jsonl has its prompt",
    ),
    "a prompt of which there is no image": (
        {"0/metadata.jsonl": json.dumps({"prompt": CAT}), "1/metadata.jsonl": json.dumps({"prompt": DOG}),
         "1/samples/0.png": PNG},
        "missing_image", "there is none in its folder",
    ),
    "a path out of the folder": (
        {"metadata.jsonl": json.dumps({"file_name": "../secret.png", "text": CAT}) + "\n"
         + json.dumps({"file_name": "a.png", "text": CAT}), "a.png": PNG, "../secret.png": PNG},
        "outside_folder", "make it relative",
    ),
    "an image without a file beside it": (
        {"a.png": PNG, "a.txt": CAT, "b.png": PNG}, "empty_prompt", "write b.txt",
    ),
    "a file beside an image that is no text": (
        {"a.png": PNG, "a.txt": CAT, "b.png": PNG, "b.txt": b"\xff\xfe"}, "not_utf8", "save it as UTF-8",
    ),
    "an empty line": ({"prompts.txt": f"{CAT}\n\n{DOG}", "0.png": PNG, "1.png": PNG, "2.png": PNG},
                      "empty_prompt", "the line is empty"),
    "a number beyond the list": ({"prompts.txt": CAT, "0.png": PNG, "7.png": PNG}, "empty_prompt", "1 lines"),
    "a name without a number": ({"prompts.txt": CAT, "0.png": PNG, "cat.png": PNG}, "empty_prompt", "no number"),
    "a name that is no prompt": ({"a_red_dog.png": PNG, "three_cats.png": PNG, "IMG_0042.png": PNG},
                                "empty_prompt", "no prompt"),
}  # fmt: skip


@pytest.mark.parametrize("files, kind, remedy", REFUSED_LAYOUTS.values(), ids=REFUSED_LAYOUTS)
def test_an_image_without_a_prompt_is_rejected_by_name(
    files: dict[str, str | bytes], kind: str, remedy: str, tmp_path: Path
) -> None:
    ended = ingest_folder(write_files(tmp_path / "in", files), max_failed=0.5)
    (rejection,) = ended.rejected
    assert rejection.kind == kind and remedy in rejection.message and rejection.file.startswith(str(tmp_path / "in"))
    assert ended.rows == len([name for name in files if name.endswith("png") and ".." not in name]) - (
        kind == "empty_prompt" or kind == "not_utf8"
    )


@pytest.mark.parametrize(
    "files, complaint",
    [
        ({"a.txt": CAT}, "expected image files, found 1 .txt"),
        (
            {"IMG_1.png": PNG, "IMG_2.png": PNG},
            "found no prompts for its 2 images. Add a table images.csv",
        ),
        (
            {"list.csv": f"picture,words\n1.png,{CAT}\n", "1.png": PNG},
            r"list.csv has the columns picture, words, .* in the image names, such as 1.png: set columns.image=NAME",
        ),
        ({"images.csv": f"file;prompt\n1.png;{CAT}\n", "1.png": PNG}, "images.csv.* semicolons"),
        (
            {"prompts.json": "[]", "1.png": PNG},
            r"numbers of \S+/in/prompts.json, run: plumbline score images=\S+/in prompts=\S+/in/prompts.json\. Add",
        ),
        ({"prompts.txt": f"{CAT}\n{DOG}\n{CAT}\n", "1.png": PNG}, "they may count from 0 or from 1"),
        ({"prompts.txt": b"\xff\xfe", "0.png": PNG}, "prompts.txt: not UTF-8 at byte 0"),
        ({"metadata.csv": "", "0.png": PNG}, "metadata.csv: the file is empty"),
    ],
)
def test_a_folder_without_any_prompts_is_refused(files: dict[str, str | bytes], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ingest_folder(write_files(tmp_path / "in", files))


LAYOUTS_WITHOUT_PROMPTS: dict[str, dict[str, str | bytes]] = {
    "a generator's name with numbers": {"sdxl_turbo_0001.png": PNG, "sdxl_turbo_0002.png": PNG},
    "a generator's name in its folder": {"a/sdxl_turbo_1.png": PNG, "b/flux_dev_1.png": PNG},
    "a table beside them that is not understood": {
        "list.csv": f"picture,words\na.png,{CAT}\n", "three_cats.png": PNG, "a_red_dog.png": PNG
    },
    "a sheet beside them": {"prompts.xlsx": b"PK", "three_cats.png": PNG, "a_red_dog.png": PNG},
}  # fmt: skip


@pytest.mark.parametrize("files", LAYOUTS_WITHOUT_PROMPTS.values(), ids=LAYOUTS_WITHOUT_PROMPTS)
def test_file_names_are_prompts_if_requested_or_if_they_differ_and_there_is_no_table(
    files: dict[str, str | bytes], tmp_path: Path
) -> None:
    folder = write_files(tmp_path / "in", files)
    with pytest.raises(
        ConfigError, match=r"prompts_from=names uses the images' names, such as '(sdxl turbo|a red dog)'"
    ):
        ingest_folder(folder)
    ended = ingest_folder(folder, prompts_from="names")
    assert ended.rows == sum(name.endswith(".png") for name in files)
    assert ended.origin_lines[0].startswith(f"prompts: {ended.prompts}, from the images' names")


UNMATCHED_LAYOUTS: dict[str, dict[str, str | bytes]] = {
    "numbers that count from 1, and images from 0": {
        "p.csv": f"id,prompt\n1,{CAT}\n2,{DOG}\n", "0.png": PNG, "1.png": PNG
    },
    "a column of numbers that is not called an id": {
        "p.csv": f"seed,prompt\n0,{CAT}\n1,{DOG}\n", "0.png": PNG, "1.png": PNG
    },
    "an id of two prompts": {"p.csv": f"id,prompt\na,{CAT}\na,{DOG}\n", "a.png": PNG},
    "a word of which most images have nothing": {
        "p.csv": f"style,prompt\nink,{CAT}\noil,{DOG}\n", "ink.png": PNG, "b.png": PNG, "c.png": PNG
    },
}  # fmt: skip


@pytest.mark.parametrize("files", UNMATCHED_LAYOUTS.values(), ids=UNMATCHED_LAYOUTS)
def test_no_image_gets_a_prompt_by_an_ambiguous_id(files: dict[str, str | bytes], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"found no prompts.*columns\.image=NAME or columns\.prompt_id=NAME"):
        ingest_folder(write_files(tmp_path / "in", files))


def test_contradictory_columns_are_named_and_one_can_be_chosen(tmp_path: Path) -> None:
    table = f"first,second,prompt\na,b,{CAT}\nb,a,{DOG}\n"
    folder = write_files(tmp_path / "in", {"p.csv": table, "a.png": PNG, "b.png": PNG})
    with pytest.raises(ConfigError, match=r"p.csv: .* columns 'first' and 'second', .*prompt_id=first or col"):
        ingest_folder(folder)
    assert read_prompts_by_id(ingest_folder(folder, columns=InputColumnsConfig(prompt_id="second"))) == {
        "a.png": ("in", DOG), "b.png": ("in", CAT)
    }  # fmt: skip


def test_rows_of_ids_without_an_image_give_a_warning(tmp_path: Path) -> None:
    table = f"id,prompt\nx,{CAT}\ny,{DOG}\nz,{DOG}\n"
    ended = ingest_folder(
        write_files(
            tmp_path / "in",
            {"p.csv": table, "x.png": PNG, "X.heic": PNG, "w.png": PNG},
        ),
        max_failed=1,
    )
    assert read_prompts_by_id(ended) == {"x.png": ("in", CAT)}
    assert "warning: 2 rows of p.csv belong to no image, such as id 'y'" in ended.origin_lines
    assert {Path(each.file).name: each.kind for each in ended.rejected} == {
        "w.png": "empty_prompt", "X.heic": "foreign_format"
    }  # fmt: skip


def test_the_source_of_prompts_can_be_chosen(tmp_path: Path) -> None:
    files = {
        "metadata.csv": f"file_name,text\na_red_dog.png,{CAT}\n",
        "a_red_dog.png": PNG,
        "a_red_dog.txt": DOG,
    }
    folder = write_files(tmp_path / "in", files)
    assert read_prompts_by_id(ingest_folder(folder)) == {"a_red_dog.png": ("in", CAT)}
    assert read_prompts_by_id(ingest_folder(folder, prompts_from="beside", on_change="replace")) == {
        "a_red_dog.png": ("in", DOG)
    }
    with pytest.raises(ConfigError, match=r"prompts_from=list expects a prompts.txt.*, found none"):
        ingest_folder(folder, prompts_from="list")
    with pytest.raises(ConfigError, match="expected null together with table or tars"):
        IngestConfig(output="x", tars="t.tar", prompts_from="names")


def test_every_file_of_a_folder_is_written_or_rejected_or_mentioned(tmp_path: Path) -> None:
    images = ("0.avif", "1.jfif", "2.PNG", "3.heic", "4.JXL")
    others = {"prompts.txt": "\n".join([CAT] * 5), "all.zip": CAT, "more/readme": CAT, "more/b.zip": CAT}
    files: dict[str, str | bytes] = {**dict.fromkeys(images, PNG), **others}
    ended = ingest_folder(write_files(tmp_path / "in", files), max_failed=1.0)
    assert sorted(read_prompts_by_id(ended)) == ["0.avif", "1.jfif", "2.PNG"]
    assert {(rejection.kind, Path(rejection.file).name) for rejection in ended.rejected} == {
        ("foreign_format", "3.heic"), ("foreign_format", "4.JXL")
    }  # fmt: skip
    assert ended.exit_code == 2 and all("convert it to PNG" in rejection.message for rejection in ended.rejected)
    assert ended.origin_lines[-1] == "files passed over: 2 .zip, 1 without an ending, such as all.zip"


def test_a_store_among_the_images_is_ignored(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"three cats.png": PNG, "a red dog.png": PNG})
    open_store_at(folder / "store").check()
    write_files(folder / "store", {"latest/two small birds.png": PNG})
    assert sorted(read_prompts_by_id(ingest_folder(folder))) == ["a red dog.png", "three cats.png"]


def test_a_row_of_a_table_that_names_no_image_is_rejected(tmp_path: Path) -> None:
    files = {"t.csv": f"file,prompt\na.png,{CAT}\n,{DOG}\n", "a.png": PNG}
    ended = ingest_folder(write_files(tmp_path / "in", files), max_failed=1.0)
    assert read_prompts_by_id(ended) == {"a.png": ("in", CAT)}
    assert [(rejection.kind, "names no image" in rejection.message) for rejection in ended.rejected] == [
        ("missing_image", True)
    ]


def test_skills_from_folders_and_tables_are_kept(tmp_path: Path) -> None:
    files, _ = LAYOUTS["geneval's folder per prompt"]
    assert read_skills(ingest_folder(write_files(tmp_path / "in", files))) == {CAT: ["counting"], DOG: ["colors"]}
    table = f"file,prompt,generator,skills\n0.png,{CAT},flux,counting; scene\n0.png,{CAT},sdxl,counting;style\n"
    write_files(tmp_path / "tables", {"0.png": PNG, "t.csv": f"{table}0.png,{DOG},other,\n"})
    config = IngestConfig(output=str(tmp_path / "two"), table=str(tmp_path / "tables/t.csv"))
    for _ in range(2):
        assert read_skills(ingest(config, lambda record: None)) == {CAT: ["counting", "scene", "style"], DOG: []}
    lines = '{"file": "0.png", "prompt": "a bird", "generator": "third", "skills": ["scene"]}\n'
    more = write_files(tmp_path / "more", {"0.png": PNG, "t.jsonl": lines + lines.replace('["scene"]', "7")})
    ended = ingest(IngestConfig(output=config.output, table=str(more / "t.jsonl")), lambda record: None)
    assert [rejection.kind for rejection in ended.rejected] == ["bad_value"]
    assert read_skills(ended) == {CAT: ["counting", "scene", "style"], DOG: [], "a bird": ["scene"]}


def test_image_files_may_be_left_in_place(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"three cats.png": PNG})
    ended = ingest_folder(folder, copy=False, prompts_from="names")
    (row,) = pq.read_table(f"{ended.url}/{ended.shards[0].path}").to_pylist()
    assert row["uri"] == str(folder / "three cats.png") and "image" not in row
    with pytest.raises(ConfigError, match="images in a tar have no addresses"):
        IngestConfig(output="x", tars="t.tar", copy=False)


UNNAMED_COLUMN_LAYOUTS: dict[str, dict[str, str | bytes]] = {
    "a column that nobody knows": {
        "metadata.csv": "img_file,prompt\n" + "".join(f"drawn-{n}.png,prompt {n}\n" for n in range(3))
    },
    "a column that nobody knows, and one row": {"metadata.csv": "img_file,prompt\n0.png,a cat\n"},
    "geneval's lines of prompts": {
        "metadata.jsonl": "".join(json.dumps({"tag": "counting", "prompt": f"prompt {n}"}) + "\n" for n in range(3))
    },
}


@pytest.mark.parametrize("tables", UNNAMED_COLUMN_LAYOUTS.values(), ids=UNNAMED_COLUMN_LAYOUTS)
def test_a_table_without_images_is_not_used_for_all_images(tables: dict[str, str | bytes], tmp_path: Path) -> None:
    images = dict.fromkeys([f"{n}.png" for n in range(3)], PNG)
    ended = ingest_folder(write_files(tmp_path / "in", {**tables, **images}))
    assert ended.rows == 0 and [Path(rejection.file).name for rejection in ended.rejected] == sorted(images)
    columns = "img_file, prompt" if "metadata.csv" in tables else "tag, prompt"
    assert all(f"(found {columns})" in rejection.message for rejection in ended.rejected)
    assert all("columns.image=NAME" in rejection.message for rejection in ended.rejected)


def list_skipped(ended: IngestResult) -> dict[str, str]:
    """Return why each skipped image was skipped, keyed by the image's path in the input folder."""
    return {image.file.removeprefix(f"{Path(ended.url).parent}/in/"): image.message for image in ended.skipped}


CONTACT_SHEET_REASON = "contact sheet, by its name"
SKIPPED_FILES: dict[str, tuple[dict[str, str | bytes], dict[str, Any], dict[str, str], dict[str, str]]] = {
    "geneval's grids": (
        {f"{n:05d}/{name}": PNG if name.endswith("png") else json.dumps({"prompt": f"prompt {n}"})
         for n in range(2) for name in ("grid.png", "metadata.jsonl", "samples/0000.png", "all.png")},
        {},
        {"00000/samples/0000.png": "prompt 0", "00001/samples/0000.png": "prompt 1"},
        {"00000/grid.png": CONTACT_SHEET_REASON, "00001/grid.png": CONTACT_SHEET_REASON,
         **dict.fromkeys(("00000/all.png", "00001/all.png"), "next to samples/, which has the images of its prompt")},
    ),
    "geneval's samples, asked for": (
        {f"{n:05d}/{name}": PNG if name.endswith("png") else json.dumps({"prompt": f"prompt {n}"})
         for n in range(2) for name in ("grid.png", "metadata.jsonl", "samples/0000.png")},
        {"images_inside": "samples"},
        {"00000/samples/0000.png": "prompt 0", "00001/samples/0000.png": "prompt 1"},
        dict.fromkeys(("00000/grid.png", "00001/grid.png"), "outside images_inside=samples"),
    ),
    "stable diffusion's grids": (
        {"prompts.txt": f"{CAT}\n{DOG}\n", "00000.png": PNG, "00001.png": PNG, "grid-0000.png": PNG},
        {}, {"00000.png": CAT, "00001.png": DOG}, {"grid-0000.png": CONTACT_SHEET_REASON},
    ),
    "a grid that counts from 0 beside images that count from 1": (
        {"prompts.txt": f"{CAT}\n{DOG}\n", "1.png": PNG, "2.png": PNG, "grid-0000.png": PNG},
        {}, {"1.png": CAT, "2.png": DOG}, {"grid-0000.png": CONTACT_SHEET_REASON},
    ),
    "a contact sheet among prompts as names": (
        {"a red dog.png": PNG, "three cats.png": PNG, "contact_sheet.png": PNG},
        {}, {"a red dog.png": DOG, "three cats.png": CAT}, {"contact_sheet.png": CONTACT_SHEET_REASON},
    ),
    "a contact sheet with a prompt of its own": (
        {"a.png": PNG, "a.txt": CAT, "grid.png": PNG, "grid.txt": DOG, "b/grid.png": PNG},
        {}, {"a.png": CAT, "grid.png": DOG}, {"b/grid.png": CONTACT_SHEET_REASON},
    ),
    "a name that begins as a contact sheet's, with many digits": (
        {f"grid{'1' * 90} of cats.png": PNG, f"grid{'1' * 90} of cats.txt": CAT, f"grid_{'2' * 90}.png": PNG},
        {}, {f"grid{'1' * 90} of cats.png": CAT}, {f"grid_{'2' * 90}.png": CONTACT_SHEET_REASON},
    ),
    "hidden images, as macOS leaves them": (
        {"a.png": PNG, "a.txt": CAT, "._a.png": b"", "__MACOSX/a.png": b""},
        {}, {"a.png": CAT}, {"._a.png": "hidden", "__MACOSX/a.png": "hidden"},
    ),
    "sources of edits, and an editor's mask": (
        {"metadata.jsonl": json.dumps({"input_file_name": "i.png", "edited_file_name": "o.png", "text": CAT,
                                       "mask_file_name": "m.png"}),
         "i.png": PNG, "o.png": PNG, "m.png": PNG, "source/o.png": PNG},
        {}, {"o.png": CAT},
        {"source/o.png": "source of an edit",
         **{f"{column[0]}.png": f"named by the column '{column}'; columns.image={column} ingests it"
            for column in ("input_file_name", "mask_file_name")}},
    ),
}  # fmt: skip


def test_a_name_of_a_million_separators_has_its_number_removed_in_linear_time() -> None:
    name = "a_2" + " _-" * 1_000_000
    assert (
        NUMBER_SUFFIX_PATTERN.sub("", name + "b") == name + "b" and NUMBER_SUFFIX_PATTERN.sub("", name + "(3)") == "a_2"
    )


@pytest.mark.parametrize("files, options, expected, left_out", SKIPPED_FILES.values(), ids=SKIPPED_FILES)
def test_images_that_are_not_samples_are_skipped_with_their_reasons(
    files: dict[str, str | bytes],
    options: dict[str, Any],
    expected: dict[str, str],
    left_out: dict[str, str],
    tmp_path: Path,
) -> None:
    ended = ingest_folder(write_files(tmp_path / "in", files), **options)
    assert {image: prompt for image, (_, prompt) in read_prompts_by_id(ended).items()} == expected
    assert list_skipped(ended) == left_out and not ended.rejected and ended.exit_code == 0
    assert (
        ended.total_lines[0]
        == f"{ended.n_found} found = {len(expected)} ingested + 0 rejected + {len(left_out)} skipped"
    )
    assert ended.n_found == sum(name.endswith(".png") for name in files)
    manifest = json.loads(Path(ended.url, "manifest.json").read_text())["ingests"][0]
    assert sum(manifest["skipped"].values()) == len(left_out)


AMBIGUOUS_NAMES: dict[str, tuple[list[str], dict[str, str], str]] = {
    "two numbers in a name": (["i0_1.png", "i1_0.png", "i1_1.png"], {}, "could each be its line"),
    "a name of other words with a number that is taken": (
        ["image-0.png", "image-1.png", "cover-1.png"], {"image-0.png": CAT, "image-1.png": DOG},
        "has the number 1 too, but other words",
    ),
    **{what: (names, {}, "put images of other kinds into other folders") for what, names in {
        "an image and its mask": ["flux_0.png", "flux_1.png", "mask_0.png", "mask_1.png"],
        "generators with images of other prompts": [
            "flux_0.png", "sdxl_0.png", "sdxl_1.png", "dalle_1.png", "dalle_0.png"
        ],
        "generators without images of the last prompt": ["flux_0.png", "sdxl_0.png"],
        "prompts with the numbers of samples": [
            "a_red_dog_0.png", "a_red_dog_1.png", "three_cats_0.png", "three_cats_1.png"
        ],
    }.items()},
    "prompts with the numbers of samples, by number": (
        ["p0_s0.png", "p0_s1.png", "p1_s0.png", "p1_s1.png"], {}, "could each be its line"
    ),
    "numbers at both ends": (
        ["0.png", "1_2.png", "best-1.png"], {"0.png": CAT, "1_2.png": DOG}, "does not begin with the number of its line"
    ),
}  # fmt: skip


@pytest.mark.parametrize("images, expected, reason", AMBIGUOUS_NAMES.values(), ids=AMBIGUOUS_NAMES)
def test_an_image_with_an_ambiguous_number_is_rejected(
    images: list[str], expected: dict[str, str], reason: str, tmp_path: Path
) -> None:
    ended = ingest_folder(
        write_files(tmp_path / "in", {"prompts.txt": f"{CAT}\n{DOG}\n", **dict.fromkeys(images, PNG)})
    )
    assert {image: prompt for image, (_, prompt) in read_prompts_by_id(ended).items()} == expected
    assert len(ended.rejected) == len(images) - len(expected)
    assert all(one.kind == "empty_prompt" and reason in one.message for one in ended.rejected)


@pytest.mark.parametrize(
    "images",
    [["0.png", "1.png", "2.png"], ["flux/0.png", "flux/1.png", "sdxl/1.png", "sdxl/2.png"], ["1.png"]],
    ids=["both ends", "folders that disagree", "neither end"],
)
def test_numbers_that_could_count_from_0_or_from_1_are_refused(images: list[str], tmp_path: Path) -> None:
    files = {"prompts.txt": "".join(f"prompt {n}\n" for n in range(2 + (images == ["1.png"])))}
    with pytest.raises(ConfigError, match=r"count from 0.* from 1; add the first or the last image, or remove one"):
        ingest_folder(write_files(tmp_path / "in", {**files, **dict.fromkeys(images, PNG)}))


def test_lines_without_an_image_give_a_warning(tmp_path: Path) -> None:
    files = {"prompts.txt": f"{CAT}\n{DOG}\n{CAT}\n{DOG}\n", "0.png": PNG, "1.png": PNG}
    ended = ingest_folder(write_files(tmp_path / "in", files))
    assert ended.origin_lines[-1] == (
        "warning: no image belongs to the last 2 lines of prompts.txt: it has 4 lines, and images have numbers up to 1"
    )


def test_a_name_that_is_not_utf8_only_costs_its_own_image(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"prompts.txt": f"{CAT}\n{DOG}\n", "0.png": PNG, "1.png": PNG})
    for name in (b"caf\xe9 2.png", b"m\xfcll.zip"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(PNG)
    for _ in range(2):
        ended = ingest_folder(folder, max_failed=0.5)
        assert sorted(read_prompts_by_id(ended)) == ["0.png", "1.png"]
        assert [(one.kind, one.file) for one in ended.rejected] == [("not_utf8", rf"{folder}/caf\xe9 2.png")]
        assert r"files passed over: 1 .zip, such as m\xfcll.zip" in ended.origin_lines
        assert pq.read_table(f"{ended.url}/rejected.parquet").to_pylist() == [one._asdict() for one in ended.rejected]


def test_every_kind_of_video_in_a_folder_is_ingested_or_rejected_by_name(tmp_path: Path) -> None:
    taken = ("0.mp4", "1.M4V", "2.mov", "3.3gp", "4.3g2", "5.webm", "6.mkv", "7.avi", "8.apng")
    files: dict[str, str | bytes] = dict.fromkeys((*taken, "9.ts"), PNG)
    ended = ingest_folder(write_files(tmp_path / "in", {**files, "prompts.txt": "\n".join([CAT] * 10)}), max_failed=1.0)
    assert sorted(read_prompts_by_id(ended)) == sorted(taken)
    (rejection,) = ended.rejected
    assert rejection.kind == "foreign_format" and "convert it to MP4" in rejection.message
