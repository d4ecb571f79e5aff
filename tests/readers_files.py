"""Makes the files that a reader of the docs might have, from the embedded benchmark, so that the docs' commands run."""

import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
from PIL import Image

from plugins.training.tests import training_tables
from tests.bench_of import SHAPES_FOLDER, read_image_rows, read_prompt_rows, write_rows
from tests.files import make_tar, write_files
from tests.pipelines.metaeval.releases.files import format_csv, format_parquet
from tests.question_packs import ANNOTATION_COLUMNS, make_proposition, make_propositions, write_csv

EMBEDDED_GENERATORS = {"flux": "atlas", "sdxl": "flint"}
"""Generators of the embedded benchmark whose images are used, by the name of the reader's generator."""
N_PROMPTS = 32
PROMPT_ROWS = read_prompt_rows(N_PROMPTS)
IMAGES_BY_GENERATOR = {name: read_image_rows(theirs, N_PROMPTS) for name, theirs in EMBEDDED_GENERATORS.items()}
TRAINING_ROWS = training_tables.make_rows(8)
TEXT_BY_PROMPT = {one["prompt_id"]: one["text"] for one in PROMPT_ROWS}


def write_readers_files(folder: Path) -> None:
    """Write images with tables, folders, prompts, ratings, scores and a checkpoint, named as in the docs."""
    _lay_out_images(folder)
    _lay_out_edits(folder)
    captions = "\n".join(TEXT_BY_PROMPT.values())
    keyed = {one["prompt_id"]: {"id": one["prompt_id"], "prompt": one["text"]} for one in PROMPT_ROWS}
    gecko = [
        {"dataset_id": f"att/count:{number}", "prompt": one["text"], "prompt_type": "Gecko(S)",
         "prompt_id": one["prompt_id"], "reliable": True}
        for number, one in enumerate(PROMPT_ROWS)
    ]  # fmt: skip
    ratings, scores = _make_ratings_and_scores()
    write_files(
        folder,
        {
            "captions.txt": captions,
            "genai_bench.json": json.dumps(keyed),
            "fifty.json": json.dumps(keyed),
            "prompts.csv": format_csv(gecko),
            "prompts.json": json.dumps(
                [{"id": f"{number:05d}", "prompt": text} for number, text in enumerate(TEXT_BY_PROMPT.values())]
            ),
            "PartiPrompts.tsv": "\n".join(
                ["Prompt\tCategory", *(f"{text}\tShapes" for text in TEXT_BY_PROMPT.values())]
            ),
            "ratings.csv": format_csv(ratings),
            "scores.csv": format_csv(scores),
            "export.json": json.dumps(_make_annotations()),
            "graphs.csv": format_csv(_make_error_graph()),
            "crowdflower_flickr8k.json": json.dumps(_make_captions()),
        },
    )
    asked = [row for one in PROMPT_ROWS for row in make_propositions(one["prompt_id"], one["text"])]
    passed_over = make_proposition(
        PROMPT_ROWS[0]["prompt_id"], PROMPT_ROWS[0]["text"], 4, "0", "Is it drawn?", "global - style"
    )
    write_csv(folder / "dsg-1k-anns.csv", ANNOTATION_COLUMNS, asked)
    write_csv(folder / "dpg_bench.csv", ANNOTATION_COLUMNS, [passed_over, *asked])  # DPG-Bench's code skips row 0
    write_files(
        folder / "llava",
        {**_make_conversations(), **{f"{number}.png": row["image"] for number, row in enumerate(TRAINING_ROWS)}},
    )
    for name in ("prompts.parquet", "data/prompts.parquet"):
        write_rows(folder / name, PROMPT_ROWS, row_group=N_PROMPTS)
    (folder / "images").symlink_to(folder / "data/images")
    for stage in (folder / "stage1", folder / "shared/stage1"):
        stage.mkdir(parents=True)
        (stage / "checkpoint").symlink_to(training_tables.VQA_FOLDER)


def _lay_out_images(folder: Path) -> None:
    listed = []
    for name, rows in IMAGES_BY_GENERATOR.items():
        own = []
        for number, row in enumerate(rows):
            file = f"{name}/{number:05d}.png"
            prompt = {"prompt": TEXT_BY_PROMPT[row["prompt_id"]], "prompt_id": row["prompt_id"]}
            listed.append({"file": file, "generator": name, **prompt})
            own.append({"file": f"{number:05d}.png", **prompt})
            write_files(folder, {file: row["image"]})
            write_files(folder / "outputs", {file: row["image"], f"{file[:-4]}.txt": prompt["prompt"]})
        write_files(folder, {f"{name}/images.csv": format_csv(own)})
        write_rows(folder / "data/images" / name / "00000.parquet", rows, row_group=N_PROMPTS)
    write_files(folder / "outputs", {"images.csv": format_csv(listed)})
    of_sdxl = [row for row in listed if row["generator"] == "sdxl"]
    write_files(folder, {"images.jsonl": "".join(json.dumps(row) + "\n" for row in of_sdxl)})
    words = [
        {"picture": row["image"], "words": TEXT_BY_PROMPT[row["prompt_id"]]} for row in IMAGES_BY_GENERATOR["flux"]
    ]
    write_rows(folder / "data/train/00000.parquet", words, row_group=N_PROMPTS)


def _lay_out_edits(folder: Path) -> None:
    """Write two editors' results with their sources: as Parquet, as files with a table, and as folders."""
    world = SHAPES_FOLDER.parent / "shapes_edits"
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(world / "prompts.parquet").to_pylist()}
    listed = []
    for editor in ("tweezers", "scissors"):
        rows = pq.read_table(world / "images" / editor / "00000.parquet").to_pylist()[:N_PROMPTS]
        blank = io.BytesIO()
        Image.new("L", Image.open(io.BytesIO(rows[0]["source"])).size).save(blank, "png")
        told = [{"prompt": texts[row["prompt_id"]], "image": row["image"]} for row in rows]
        both = zip(told, rows, strict=True)
        tables = [{**one, "before": row["source"], "where": blank.getvalue()} for one, row in both]
        write_rows(folder / "edits" / editor / "00000.parquet", tables, row_group=N_PROMPTS)
        for number, row in enumerate(rows):
            names = f"edited/{editor}/result/{number}.png", f"edited/{editor}/source/{number}.png"
            write_files(folder, dict(zip(names, (row["image"], row["source"]), strict=True)))
            listed.append(
                {"image": names[0], "prompt": told[number]["prompt"], "before": names[1], "generator": editor}
            )
        write_files(folder, {"edited/prompts.txt": "\n".join(one["prompt"] for one in told)})
    write_files(folder, {"edits.csv": format_csv(listed)})


def _make_ratings_and_scores() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows with two raters' ratings, and rows with two metrics' scores for the same images."""
    ratings, scores = [], []
    for (place, one), (better, generator) in product(enumerate(PROMPT_ROWS), enumerate(reversed(EMBEDDED_GENERATORS))):
        image = {"prompt_id": one["prompt_id"], "generator": generator}
        ratings += [{**image, "rater": rater, "rating": 1 + 2 * better + (place + rater) % 3} for rater in (0, 1)]
        scores.append({**image, "vqascore": better / 2 + place % 5 / 10, "clipscore": place / N_PROMPTS})
    return ratings, scores


def _make_error_graph() -> list[dict[str, Any]]:
    """Return an error graph with a root and two nodes for one generator's images."""
    errors = {"0": "", "1": "missing object: star", "2": "missing object: star; wrong attribute: red"}
    return [
        {"graph_id": "g", "prompt": PROMPT_ROWS[0]["text"], "node": node, "parents": str(int(node) - 1) if its else "",
         "errors": its, "image": f"flux/{int(node):05d}.png", "generator": "flux"}
        for node, its in errors.items()
    ]  # fmt: skip


def _make_captions() -> dict[str, Any]:
    """Return captions with references and ratings, in the layout of Flickr8K in jmhessel/clipscore."""
    texts = [one["text"] for one in PROMPT_ROWS]
    return {
        f"{place}.jpg": {
            "image_path": f"{place}.jpg",
            "ground_truth": [text, f"a picture of {text}"],
            "human_judgement": [{"caption": texts[place - shift], "rating": 1.0 - shift} for shift in (0, 1)],
        }
        for place, text in enumerate(texts)
    }


def _make_conversations() -> dict[str, str]:
    """Return conversations of two turns about each image, in the layout of LLaVA's release."""
    asked = zip(TRAINING_ROWS, [*TRAINING_ROWS[1:], TRAINING_ROWS[0]], strict=True)
    said = [[f"<image>\n{one['question']}", one["answer"], other["question"], other["answer"]] for one, other in asked]
    records = [
        {"image": f"{number}.png",
         "conversations": [{"from": ("human", "gpt")[place % 2], "value": text} for place, text in enumerate(texts)]}
        for number, texts in enumerate(said)
    ]  # fmt: skip
    return {"llava_v1_5_mix665k.json": json.dumps(records)}


def _make_annotations() -> list[dict[str, Any]]:
    """Return grades for the embedded benchmark's images, in the layout of Label Studio's exports."""
    images = product(enumerate(PROMPT_ROWS), enumerate(EMBEDDED_GENERATORS.values()))
    grades = [
        ({"prompt_id": one["prompt_id"], "generator": generator}, 1 + (place + 2 * better) % 5)
        for (place, one), (better, generator) in images
    ]
    return [
        {
            "data": data,
            "annotations": [{"result": [{"from_name": "likert", "type": "rating", "value": {"rating": grade}}]}],
        }
        for data, grade in grades
    ]


def fill_bucket(filesystem: fsspec.AbstractFileSystem) -> None:
    """Fill the bucket named `bucket` with prompts, training data, and images as Parquet, files, pairs and tars."""
    pairs = [
        {"caption": TEXT_BY_PROMPT[first["prompt_id"]], "jpg_0": first["image"], "model_0": "flux",
         "jpg_1": second["image"], "model_1": "sdxl"}
        for first, second in zip(IMAGES_BY_GENERATOR["flux"], IMAGES_BY_GENERATOR["sdxl"], strict=True)
    ]  # fmt: skip
    samples = {}
    for number, row in enumerate(IMAGES_BY_GENERATOR["flux"]):
        samples |= {f"{number:05d}.png": row["image"], f"{number:05d}.txt": TEXT_BY_PROMPT[row["prompt_id"]].encode()}
    files = {
        "prompts.parquet": format_parquet(PROMPT_ROWS),
        **{f"images/{name}/00000.parquet": format_parquet(rows) for name, rows in IMAGES_BY_GENERATOR.items()},
        **{f"renders/sdxl/{number:05d}.png": row["image"] for number, row in enumerate(IMAGES_BY_GENERATOR["sdxl"])},
        "pairs/00000.parquet": format_parquet(pairs),
        "tars/00000.tar": make_tar([*samples.items()]),
        "vqa/00000.parquet": format_parquet(training_tables.make_rows(N_PROMPTS)),
    }
    filesystem.mkdir("bucket")
    for name, content in files.items():
        filesystem.pipe(f"bucket/{name}", content)
