"""A new user's commands score images in any layout, without converting or losing an image."""

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.maintenance.gc_config import RetentionRules
from plumbline.pipelines.maintenance.retention import drop_runs
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from tests.bench_of import list_sources, read_image_rows, read_prompt_rows
from tests.commands import FinishedJob, find_newest_run_folder, open_store_at, run
from tests.files import make_tar, write_files

PROMPT_TEXTS = [row["text"] for row in read_prompt_rows(3)]
PNG_FILES = [row["image"] for row in read_image_rows("atlas", 3)]
BOTH_GENERATORS = {(name, text): 1 for name in ("flux", "sdxl") for text in PROMPT_TEXTS}


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def format_json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def score_images(tmp_path: Path, *words: str, job: str = "score") -> FinishedJob:
    """Run a job that scores images with a metric that needs no model."""
    return run(job, f"store={tmp_path}/store", "metric=[entropy]", "models=shapes", "cluster=here", *words)


def read_manifest(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((find_newest_run_folder(tmp_path / "store") / "manifest.json").read_text()))


def count_scored(tmp_path: Path) -> Counter[tuple[str, str]]:
    """Count the images that have a score, by generator and prompt."""
    of_run = read_manifest(tmp_path)
    benchmark = read_config(of_run["config"]["benchmark"], BenchmarkConfig)
    known = list_sources(benchmark).prompts.to_pylist()
    texts = {row["prompt_id"]: row["text"] for row in known}
    rows = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
    return Counter((row["generator"], texts[row["prompt_id"]]) for row in rows if row["score"] is not None)


def write_paths_only(folder: Path) -> Path:
    """Write a Hugging Face dataset whose rows contain the paths of files in its folder, and return the folder."""
    write_files(folder, {f"files/{n}.png": png for n, png in enumerate(PNG_FILES)})
    rows = [{"image": {"bytes": None, "path": f"files/{n}.png"}, "text": text} for n, text in enumerate(PROMPT_TEXTS)]
    return write_parquet(folder / "train-00000-of-00001.parquet", rows).parent


def write_captions(folder: Path) -> Path:
    rows = [{"jpg": png, "caption": text} for png, text in zip(PNG_FILES, PROMPT_TEXTS, strict=True)]
    return write_parquet(folder / "0.parquet", rows).parent


def write_saved_to_disk(folder: Path) -> Path:
    table = pa.Table.from_pylist(
        [
            {"image": {"bytes": png, "path": None}, "text": text}
            for png, text in zip(PNG_FILES, PROMPT_TEXTS, strict=True)
        ]
    )
    write_files(folder, {"state.json": "{}", "dataset_info.json": "{}"})
    place = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(place, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return folder


def write_prompt_list(folder: Path) -> Path:
    files = {f"{name}/{n:05d}.png": png for name in ("flux", "sdxl") for n, png in enumerate(PNG_FILES)}
    return write_files(folder, {**files, "prompts.txt": "\n".join(PROMPT_TEXTS)})


def write_metadata_in_each_folder(folder: Path) -> Path:
    """Write folders of images in the layout of GenEval's scripts; return the folder that contains them."""
    for n, (png, text) in enumerate(zip(PNG_FILES, PROMPT_TEXTS, strict=True)):
        write_files(folder, {f"{n:05d}/metadata.jsonl": json.dumps({"prompt": text}), f"{n:05d}/samples/0000.png": png})
    return folder


def write_metadata_per_generator(folder: Path) -> Path:
    rows = [{"file_name": f"{n}.png", "text": text} for n, text in enumerate(PROMPT_TEXTS)]
    for name in ("flux", "sdxl"):
        write_files(
            folder / name,
            {"metadata.jsonl": format_json_lines(rows), **{f"{n}.png": png for n, png in enumerate(PNG_FILES)}},
        )
    return folder


def write_generators_in_a_column(folder: Path) -> Path:
    rows = [{"image": png, "prompt": text, "generator": name}
            for name in ("flux", "sdxl") for png, text in zip(PNG_FILES, PROMPT_TEXTS, strict=True)]  # fmt: skip
    return write_parquet(folder / "all.parquet", rows)


def write_pick_a_pic(folder: Path) -> Path:
    rows = [{"caption": text, "jpg_0": png, "model_0": "flux", "jpg_1": png, "model_1": "sdxl", "label_0": 1.0}
            for png, text in zip(PNG_FILES, PROMPT_TEXTS, strict=True)]  # fmt: skip
    return write_parquet(folder / "pairs.parquet", rows)


def write_names_only(folder: Path) -> Path:
    return write_files(folder, {f"{text}.png": png for text, png in zip(PROMPT_TEXTS, PNG_FILES, strict=True)})


def write_models_in_a_dataset(folder: Path) -> Path:
    """Write a Hugging Face dataset in its downloaded layout, and return its folder.

    The column `model` names the generators, whose rows alternate.
    """
    rows = [{"image": {"bytes": png, "path": None}, "caption": text, "model": name, "steps": 4}
            for png, text in zip(PNG_FILES, PROMPT_TEXTS, strict=True) for name in ("sdxl", "flux")]  # fmt: skip
    return write_parquet(folder / "data/train-00000-of-00001.parquet", rows).parent.parent


def write_models_in_tars(folder: Path) -> Path:
    for name in ("flux", "sdxl"):
        samples = [(f"{n}{name}{ending}", content)
                   for n, (png, text) in enumerate(zip(PNG_FILES, PROMPT_TEXTS, strict=True))
                   for ending, content in ((".png", png), (".json", json.dumps({"model": name}).encode()),
                                           (".txt", text.encode()))]  # fmt: skip
        write_files(folder, {f"{name}.tar": make_tar(samples)})
    return folder


def write_table_next_to_images(folder: Path) -> Path:
    """Write a CSV, and folders of images whose names could be mistaken for prompts."""
    files = {f"img/{name}_dev_{n}.png": png for name in ("flux", "sdxl") for n, png in enumerate(PNG_FILES)}
    rows = [
        f'img/{name}_dev_{n}.png,"{text}",{name}' for n, text in enumerate(PROMPT_TEXTS) for name in ("flux", "sdxl")
    ]
    return write_files(folder, {**files, "images.csv": "\n".join(["filename,prompt,model_name", *rows])})


def write_unusual_extensions(folder: Path) -> Path:
    png = Image.open(io.BytesIO(PNG_FILES[0]))
    files = {}
    for n, ending in enumerate(("avif", "jfif", "PNG")):
        png.convert("RGB").save(encoded := io.BytesIO(), {"jfif": "JPEG"}.get(ending, ending))
        files[f"{n}.{ending}"] = encoded.getvalue()
    return write_files(folder, {**files, "prompts.txt": "\n".join(PROMPT_TEXTS)})


JOURNEYS: dict[str, tuple[Callable[[Path], Path], Mapping[tuple[str, str], int]]] = {
    "Hugging Face Parquet with paths only": (write_paths_only, {("mine", text): 1 for text in PROMPT_TEXTS}),
    "Hugging Face Parquet with bytes and captions": (write_captions, {("mine", text): 1 for text in PROMPT_TEXTS}),
    "the output of save_to_disk": (write_saved_to_disk, {("mine", text): 1 for text in PROMPT_TEXTS}),
    "plain folders with a list of prompts": (write_prompt_list, BOTH_GENERATORS),
    "a folder of */metadata.jsonl, one a prompt": (
        write_metadata_in_each_folder,
        {("mine", text): 1 for text in PROMPT_TEXTS},
    ),
    "a folder of */metadata.jsonl, one a generator": (write_metadata_per_generator, BOTH_GENERATORS),
    "several generators in one Parquet": (write_generators_in_a_column, BOTH_GENERATORS),
    "Pick-a-Pic's two images a row": (write_pick_a_pic, BOTH_GENERATORS),
    "a dataset's column model": (write_models_in_a_dataset, BOTH_GENERATORS),
    "the field model in the JSON of tars": (write_models_in_tars, BOTH_GENERATORS),
    "a CSV next to the images": (write_table_next_to_images, BOTH_GENERATORS),
    "AVIF, and other endings": (write_unusual_extensions, {("mine", text): 1 for text in PROMPT_TEXTS}),
    "prompts as names of images": (write_names_only, {("mine", text): 1 for text in PROMPT_TEXTS}),
}


EXPECTED_LINES: dict[str, list[str]] = {
    "a dataset's column model": [
        "prompts: 3, from the column 'caption' of {mine}/data/train-00000-of-00001.parquet",
        f"pair: data-train-00000-of-00001/2 of flux: {PROMPT_TEXTS[0]!r}",
        "generators: 2, from the column 'model' of {mine}/data/train-00000-of-00001.parquet: "
        "flux (3 images), sdxl (3 images)",
        "settings: those in the images' files and rows",
    ],
    "a CSV next to the images": [
        "prompts: 3, from the column 'prompt' of images.csv",
        f"pair: img/flux_dev_0.png of flux: {PROMPT_TEXTS[0]!r}",
        "generators: 2, from the column 'model_name' of images.csv: flux (3 images), sdxl (3 images)",
    ],
    "plain folders with a list of prompts": [
        "prompts: 3, from the lines of prompts.txt, by the numbers of images",
        f"pair: flux/00000.png of flux: {PROMPT_TEXTS[0]!r}",
        f"pair: sdxl/00002.png of sdxl: {PROMPT_TEXTS[2]!r}",
        "generators: 2, from the folders' names: flux (3 images), sdxl (3 images)",
    ],
    "the field model in the JSON of tars": [
        "prompts: 3, from each sample's .txt",
        f"pair: flux/0flux of flux: {PROMPT_TEXTS[0]!r}",
        "generators: 2, from 'model' in each sample's .json: flux (3 images), sdxl (3 images)",
    ],
    "prompts as names of images": [
        "prompts: 3, from the images' names",
        *(f"pair: {text}.png of mine: {text!r}" for text in PROMPT_TEXTS),
        "generators: 1, from the folders' names: mine (3 images)",
    ],
    "Hugging Face Parquet with bytes and captions": [
        "prompts: 3, from the column 'caption' of the images' tables",
        "generators: 1, from the name of {mine}: mine (3 images)",
    ],
}  # fmt: skip
"""Lines that a sweep must print for some of the journeys, keyed by the journey's name.

They say where prompts and generators were found, with counts and example pairs of image and prompt.
"""


@pytest.mark.parametrize("name", JOURNEYS)
def test_one_command_scores_images_in_any_layout_and_says_how_it_reads_them(name: str, tmp_path: Path) -> None:
    write, expected = JOURNEYS[name]
    folder = write(tmp_path / "mine")
    for again in ([], ["dry_run=true"])[: 1 + (name in EXPECTED_LINES)]:
        code, printed, _ = score_images(tmp_path, f"images={folder}", *again)
        assert code == 0
        assert all(line.format(mine=folder) in printed for line in EXPECTED_LINES.get(name, [])), printed
        assert printed.count("prompts: ") == printed.count("generators: ") == 1
    assert count_scored(tmp_path) == expected


def test_a_later_command_can_find_prompts_in_a_different_way(tmp_path: Path) -> None:
    folder = write_table_next_to_images(tmp_path / "mine")
    assert score_images(tmp_path, f"images={folder}", "prompts_from=names").code == 0
    assert count_scored(tmp_path) == {("img", "flux dev"): 3, ("img", "sdxl dev"): 3}
    assert score_images(tmp_path, f"images={folder}").code == 0
    assert count_scored(tmp_path) == BOTH_GENERATORS
    assert score_images(tmp_path, f"images={folder}", "benchmark.columns.generator=prompt").code == 0
    assert count_scored(tmp_path) == {(text, text): 2 for text in PROMPT_TEXTS}


def test_a_sweep_of_ingested_images_repeats_where_prompts_and_generators_were_found(tmp_path: Path) -> None:
    printed = ingest(tmp_path, "flux").out + ingest(tmp_path, "sdxl").out
    assert f"from the column 'prompt' of {tmp_path}/renders/flux.csv" in printed
    assert "generators: 1, from generator=flux: flux (3 images)" in printed
    printed = sweep_images(tmp_path, None, "dry_run=true").out
    assert "prompts: 3, from the column 'prompt' of " in printed and "renders/sdxl.csv" in printed
    assert "generators: 2, from generator=flux and generator=sdxl: flux (3 images), sdxl (3 images)" in printed


def test_a_sweep_of_image_files_is_refused_with_the_jobs_that_take_them(tmp_path: Path) -> None:
    for folder in (write_prompt_list(tmp_path / "both"), write_names_only(tmp_path / "flat")):
        where = [f"benchmark.prompts={tmp_path}/both/prompts.txt", f"benchmark.images={folder}"]
        code, _, complaint = score_images(tmp_path, "sweep=own_images", *where, job="sweep")
        kinds = "6 .png, 1 .txt" if folder.name == "both" else "3 .png"
        assert f"expected one folder per generator, or Parquet files, found {kinds}; " in complaint
        assert code == 1 and f"plumbline score images={folder}" in complaint and "plumbline ingest" in complaint
    assert not (tmp_path / "store/runs").exists()


def test_a_benchmarks_prompts_may_be_a_text_file(tmp_path: Path) -> None:
    assert ingest(tmp_path, "flux").code == 0
    listed = (
        write_files(tmp_path, {"prompts.txt": "\n".join(["", *PROMPT_TEXTS[1:], PROMPT_TEXTS[1], ""])}) / "prompts.txt"
    )
    assert sweep_images(tmp_path, listed, "benchmark.require_every_image=false").code == 0
    assert count_scored(tmp_path) == {("flux", text): 1 for text in PROMPT_TEXTS[1:]}


def test_a_sweep_refuses_to_read_several_generators_as_one(tmp_path: Path) -> None:
    known = write_files(
        tmp_path, {"prompts.csv": "\n".join(["prompt_id,text", *(f'{n},"{t}"' for n, t in enumerate(PROMPT_TEXTS))])}
    )
    rows = [{"image": png, "prompt_id": str(n), "model": name}
            for n, png in enumerate(PNG_FILES) for name in ("sdxl", "flux")]  # fmt: skip
    write_parquet(tmp_path / "mine/0.parquet", rows)
    where = ["sweep=own_images", f"benchmark.prompts={known}/prompts.csv"]
    code, _, complaint = score_images(tmp_path, *where, f"benchmark.images={tmp_path}/mine", job="sweep")
    assert code == 1 and "the column 'model' names several generators ('flux' to 'sdxl')" in complaint
    assert "benchmark.generators={mine: PATH}" in complaint
    one = [f"benchmark.generators={{mine: {tmp_path}/mine}}", "benchmark.images=null"]
    assert score_images(tmp_path, *where, *one, job="sweep").code == 0
    assert count_scored(tmp_path) == {("mine", text): 2 for text in PROMPT_TEXTS}
    write_parquet(tmp_path / "mine/0.parquet", [row for row in rows if row["model"] == "flux"])
    assert score_images(tmp_path, *where, f"benchmark.images={tmp_path}/mine", job="sweep").code == 0


def test_every_folder_is_a_separate_benchmark(tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert score_images(tmp_path, f"images={write_names_only(tmp_path / name)}").code == 0
        assert read_manifest(tmp_path)["benchmark"] == name
    store = open_store_at(f"{tmp_path}/store")
    assert not drop_runs(store, RetentionRules(last=1)), "the newest run of each folder is kept"
    with pytest.raises(ConfigError, match=r"cannot be compared with it \(its benchmark is 'first'"):
        write_report(store, compare="previous")
    assert score_images(tmp_path, f"images={tmp_path}/first", "name=renders").code == 0
    assert read_manifest(tmp_path)["benchmark"] == "renders"


def test_a_limit_scores_only_the_first_images(tmp_path: Path) -> None:
    folder = write_prompt_list(tmp_path / "mine")
    assert score_images(tmp_path, f"images={folder}", "limit=2").code == 0
    first = pq.read_table(next((tmp_path / "store/ingested").glob("*/prompts.parquet"))).column("text").to_pylist()[:2]
    assert count_scored(tmp_path) == {(name, text): 1 for name in ("flux", "sdxl") for text in first}
    assert read_manifest(tmp_path)["limited"] == {"prompts": 2, "of_prompts": 3, "images": 4, "of_images": 6}
    assert score_images(tmp_path, f"images={folder}").code == 0
    assert count_scored(tmp_path) == BOTH_GENERATORS and read_manifest(tmp_path)["counts"]["rows_kept"] == 4


def write_table(
    folder: Path, generator: str, pngs: Sequence[bytes] = PNG_FILES, texts: Sequence[str] = PROMPT_TEXTS
) -> Path:
    """Write images and a CSV as a user's script would, and return the CSV's path.

    The CSV has absolute paths, and skills separated by semicolons.
    """
    write_files(folder, {f"{generator}/{n}.png": png for n, png in enumerate(pngs)})
    rows = [f'{folder}/{generator}/{n}.png,"{text}",counting; colour' for n, text in enumerate(texts)]
    return write_files(folder, {f"{generator}.csv": "\n".join(["file,prompt,skills", *rows])}) / f"{generator}.csv"


def ingest(tmp_path: Path, generator: str, *arguments: str, **written: Any) -> FinishedJob:
    table = write_table(tmp_path / "renders", generator, **written)
    return run("ingest", f"table={table}", f"generator={generator}", f"output={tmp_path}/own", *arguments)


def sweep_images(tmp_path: Path, prompt_file: Path | None = None, *arguments: str) -> FinishedJob:
    where = [f"benchmark.prompts={prompt_file or tmp_path / 'own/prompts.parquet'}", f"benchmark.images={tmp_path}/own"]
    return score_images(tmp_path, "sweep=own_images", *where, *arguments, job="sweep")


def test_a_table_with_absolute_paths_keeps_its_skills(tmp_path: Path) -> None:
    assert ingest(tmp_path, "flux").code == 0 and sweep_images(tmp_path).code == 0
    assert count_scored(tmp_path) == {("flux", text): 1 for text in PROMPT_TEXTS}
    summary = pq.read_table(tmp_path / "store/runs" / read_manifest(tmp_path)["run_id"] / "summary.parquet").to_pylist()
    assert {row["skill"]: row["n"] for row in summary} == {"overall": 3, "counting": 3, "colour": 3}


def test_ingesting_adds_one_generator_and_refreshes_another(tmp_path: Path) -> None:
    assert ingest(tmp_path, "flux").code == 0 and sweep_images(tmp_path).code == 0
    assert ingest(tmp_path, "sdxl").code == 0 and sweep_images(tmp_path).code == 0
    counts = read_manifest(tmp_path)["counts"]
    assert count_scored(tmp_path) == BOTH_GENERATORS and (
        counts["cells_computed"],
        counts["cells_cached"],
    ) == (2, 2)
    others = [PNG_FILES[0], PNG_FILES[1], read_image_rows("flint", 3)[2]["image"]]
    assert ingest(tmp_path, "flux", "on_change=replace", pngs=others).code == 0 and sweep_images(tmp_path).code == 0
    counts = read_manifest(tmp_path)["counts"]
    assert count_scored(tmp_path) == BOTH_GENERATORS and (
        counts["cells_computed"],
        counts["cells_cached"],
    ) == (2, 2)
    assert counts["rows_kept"] == 2, "one of the three images was replaced"


def test_a_subset_of_the_prompts_is_a_benchmark(tmp_path: Path) -> None:
    assert ingest(tmp_path, "flux").code == 0
    known = pq.read_table(tmp_path / "own/prompts.parquet").to_pylist()[:1]
    few = (
        write_files(tmp_path, {"few.csv": f'prompt_id,text\n{known[0]["prompt_id"]},"{known[0]["text"]}"\n'})
        / "few.csv"
    )
    said = sweep_images(tmp_path, few, "dry_run=true").out
    assert "2 of 3 images belong to prompts that are not in benchmark.prompts" in said
    assert sweep_images(tmp_path, few, "benchmark.require_every_image=false").code == 0
    assert count_scored(tmp_path) == {("flux", known[0]["text"]): 1}
