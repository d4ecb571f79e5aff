"""Each image in any layout is scored against its own prompt, or rejected for the right reason.

Every supported layout is written with common libraries from random images: in any order, with any number of images per
prompt, prompts in any script, dots in names, unrelated files, columns under any of their usual names, and some images
without a prompt. Each image has unique bytes, so that a test can tell which prompt it belongs to.
"""

import csv
import io
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from plumbline.pipelines.base.filesystems import disk
from plumbline.pipelines.ingest.ingest import IngestResult
from plumbline.pipelines.ingest.score_input import ingest_images
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import make_score_config
from tests.commands import run
from tests.files import make_tar, write_files

GENERATORS = ("flux", "sdxl", "Flux.1 dev")
PROMPT_PIECES = ("a red cube", "two dogs", "猫が三匹", 'a "sign"', "it's, well; 50% off", "قطة", "é\u2028new",
                 "x\x0by\x85z", "[1]", "a.b.c", "cat 🐈", "O'Neil\tTab", "NaN", "7", "null")  # fmt: skip
FILE_COLUMNS = ("file_name", "file", "image", "filename", "image_path", "path")
PROMPT_COLUMNS = ("prompt", "text", "caption")
GENERATOR_COLUMNS = ("generator", "model", "model_name")
BYTES_COLUMNS = ("image", "jpg", "png", "webp")
FOUND_LINE_PATTERN = re.compile(r"^(\d+) found = (\d+) ingested \+ (\d+) rejected \+ (\d+) skipped$", re.MULTILINE)
PAIR_LINE_PATTERN = re.compile(r"^pair: (.*?) of (flux|sdxl|Flux\.1 dev|in|all): (.*)$", re.MULTILINE)


@cache
def make_png(number: int) -> bytes:
    """Return an image that is unique to this number."""
    encoded = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 256, number // 256, 77)).save(encoded, "PNG")
    return encoded.getvalue()


class DrawnImage(NamedTuple):
    """An image that a generator made for a prompt."""

    number: int
    generator: str
    line: int
    """Line number of the prompt."""
    sample: int
    """Index of the image among this generator's images for the prompt."""

    @property
    def content(self) -> bytes:
        return make_png(self.number)


@dataclass(frozen=True)
class RandomInput:
    """Random prompts and images in any order, and the folder that a layout is written to."""

    folder: Path
    prompts: list[str]
    images: list[DrawnImage]
    chance: random.Random
    lost: dict[int, str] = field(default_factory=dict)
    """Images without a prompt, by number; the value is the end of the location that their rejection must name."""
    others: list[str] = field(default_factory=list)
    """Other images, and rows without an image; each of them is rejected or skipped."""

    def get_prompt(self, image: DrawnImage) -> str:
        return self.prompts[image.line]

    def choose(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def draw_prompt_loss(self, image: DrawnImage, place: str, odds: int = 6) -> bool:
        """Decide at random whether an image loses its prompt: with probability 1 / `odds`, but never the first image.

        If it does, return True and record `place`, the end of the location that the rejection must name.
        """
        lost = image.number != 0 and self.chance.randrange(odds) == 0
        if lost:
            self.lost[image.number] = place
        return lost

    def write_files(self, files: Mapping[str, bytes | str]) -> None:
        write_files(self.folder, files)

    def write_clutter(self, *image_names: str) -> None:
        """Write clutter, chosen at random: images with these names, and other files such as notes.md."""
        for name in (*image_names, "notes.md", "Thumbs.db", "all.zip", ".DS_Store"):
            if self.choose(True, False):
                self.write_files({name: make_png(60_000)})
                self.others.extend([name] if name in image_names else [])

    def write_text_file(self, name: str, text: str) -> None:
        """Write UTF-8 with or without a byte order mark, at random."""
        self.write_files({name: self.choose("", "\ufeff") + text})

    def shuffle_columns(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        names = list(rows[0])
        self.chance.shuffle(names)
        return [{name: row[name] for name in names} for row in rows]


IGNORED_FILES = ("grid.png", "grid-0000.png", "._0.png", "raw.heic")


class WrittenLayout(NamedTuple):
    """The files of a layout, and how to score them."""

    images: Path
    words: Sequence[str] = ()
    expected_generator: Callable[[DrawnImage], str] = lambda image: image.generator
    """Function that returns the generator to which a reader should assign an image."""


def write_table(world: RandomInput, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    rows = world.shuffle_columns(rows)
    if name.endswith("jsonl"):
        escaped = world.choose(True, False)
        world.write_text_file(name, "".join(json.dumps(row, ensure_ascii=escaped) + "\n" for row in rows))
        return
    sink = io.StringIO()
    separator, end = "\t" if name.endswith("tsv") else ",", world.choose("\n", "\r\n")
    writer = csv.DictWriter(sink, list(rows[0]), delimiter=separator, lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    world.write_text_file(name, sink.getvalue())


def choose_file_name(world: RandomInput, image: DrawnImage) -> str:
    """Return a random name for an image's file, in a random folder."""
    n, line = image.number, image.line
    name = world.choose(f"{n}", f"cfg7.5_{n}", f"猫 {n}.v2", f"p{line}-{n}", f"{line}_{n}")
    return f"{world.choose('out/', 'a.b/c/', 'ü/', '')}{name}.{world.choose('png', 'PNG')}"


def write_table_in_folder(world: RandomInput) -> WrittenLayout:
    """Write a table next to image files, with rows that lack a prompt or an image and images that lack a row."""
    image_name, prompt_name, generator_name = (
        world.choose(*names) for names in (FILE_COLUMNS, PROMPT_COLUMNS, GENERATOR_COLUMNS)
    )
    rows = []
    for image in world.images:
        file = choose_file_name(world, image)
        world.write_files({file: image.content})
        lost = world.draw_prompt_loss(image, file)
        if not lost or world.choose(True, False):
            rows.append({image_name: file, prompt_name: "" if lost else world.get_prompt(image),
                         generator_name: image.generator, "seed": "1"})  # fmt: skip
    if world.choose(True, False):
        rows.append({image_name: "gone.png", prompt_name: "a", generator_name: "flux", "seed": "1"})
        world.others.append("gone.png")
    write_table(world, world.choose("metadata.csv", "images.csv", "metadata.jsonl", "all.jsonl", "all.tsv"), rows)
    world.write_clutter(*IGNORED_FILES)
    return WrittenLayout(world.folder)


def write_table_alone(world: RandomInput) -> WrittenLayout:
    """Write a table with paths relative to its folder; the table, rather than the folder, is the input."""
    image_name, prompt_name, generator_name = (
        world.choose(*names) for names in (FILE_COLUMNS, PROMPT_COLUMNS, GENERATOR_COLUMNS)
    )
    rows = []
    for number, image in enumerate(world.images):
        world.write_files({(file := choose_file_name(world, image)): image.content})
        lost = world.draw_prompt_loss(image, f"all.csv:{number + 2}")
        rows.append({image_name: file, prompt_name: "" if lost else world.get_prompt(image),
                     generator_name: image.generator})  # fmt: skip
    write_table(world, "all.csv", rows)
    return WrittenLayout(world.folder / "all.csv")


def write_file_names_column(world: RandomInput) -> WrittenLayout:
    """Write rows with several files each, in the column `file_names`."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for image in world.images:
        world.write_files({(file := choose_file_name(world, image)): image.content})
        if world.draw_prompt_loss(image, file):
            continue
        row = {"file_names": [], "text": world.get_prompt(image), "model": image.generator}
        rows.setdefault((image.generator, image.line), row)["file_names"].append(file)
    write_table(world, "metadata.jsonl", list(rows.values()))
    world.write_clutter(*IGNORED_FILES)
    return WrittenLayout(world.folder)


def write_columns_by_generator(world: RandomInput) -> WrittenLayout:
    """Write a table with one column per generator, which contains the paths of the generator's images."""
    generators = sorted({image.generator for image in world.images})
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for image in world.images:
        world.write_files({(file := f"{image.generator}/{choose_file_name(world, image)}"): image.content})
        row = dict.fromkeys((f"{name}_file_name" for name in generators), "")
        rows.setdefault((image.line, image.sample), {**row, "text": world.get_prompt(image)})[
            f"{image.generator}_file_name"
        ] = file
    write_table(world, world.choose("metadata.csv", "metadata.jsonl"), list(rows.values()))
    world.write_clutter(*IGNORED_FILES)
    return WrittenLayout(world.folder)


def write_prompt_list(world: RandomInput) -> WrittenLayout:
    """Write one prompts.txt for all generators or one for each; images are numbered from 0 or from 1."""
    first, end = world.choose(0, 1), world.choose("\n", "\r\n", "\r")
    edge = 0 if first == 0 else len(world.prompts) - 1
    several = any(image.sample for image in world.images)
    style = world.choose(
        *("{n:05d}_{s}", "{n}/x{s}", "{n:05d}/samples/{s:04d}", "{n:03d}_cfg7.5_seed{s}"),
        *(() if several else ("{n}", "image-{n}", "猫 {n}", "prompt{n}_seed7", "v1.5 {n:04d}")),
    )
    for generator in sorted({image.generator for image in world.images}):
        own = [image for image in world.images if image.generator == generator]
        if edge not in [image.line for image in own]:
            number = max(image.number for image in world.images) + 1
            own.append(DrawnImage(number, generator, edge, 0))
            world.images.append(own[-1])
        for image in own:
            world.write_files({f"{generator}/{style.format(n=image.line + first, s=image.sample)}.png": image.content})
        stray = f"{generator}/{style.format(n=len(world.prompts) + 7, s=0)}.png"
        world.write_files({stray: make_png(60_001), f"{generator}/cover.png": make_png(60_002)})
        world.others.extend((stray, "cover.png"))
    text = end.join(world.prompts) + world.choose("", end)
    for place in world.choose([""], [f"{image.generator}/" for image in world.images]):
        world.write_text_file(f"{place}prompts.txt", text)
    world.write_clutter(*IGNORED_FILES)
    return WrittenLayout(world.folder)


def write_images_named_by_id(world: RandomInput) -> WrittenLayout:
    """Write a table of ids and prompts, and images whose names consist of the id and the sample number."""
    several = any(image.sample for image in world.images)
    scheme, numeric = world.choose(("p{n}", False), ("猫-{n}x", False), ("{n}", True), ("A_b{n}", False))
    ids = [scheme.format(n=line + 1) for line in range(len(world.prompts))]
    behind = world.choose("_{s}", "-{s}", "_seed{s}", " ({s})", *(() if several else ("",)))
    for image in world.images:
        name = ids[image.line].zfill(5) if numeric else world.choose(ids[image.line], ids[image.line].upper())
        name = f"{name}{behind.format(s=image.sample)}"
        lost = not numeric and world.draw_prompt_loss(image, f"{image.generator}/stray{image.number}.png")
        world.write_files({f"{image.generator}/{f'stray{image.number}' if lost else name}.png": image.content})
    prompt, column = world.choose(*PROMPT_COLUMNS, "Prompt"), world.choose("id", "ID", "prompt_id", "item_id", "Index")
    rows = [{column: name, prompt: text, "note": "x"} for name, text in zip(ids, world.prompts, strict=True)]
    world.chance.shuffle(rows)
    write_table(world, world.choose("prompts.csv", "All prompts.CSV", "prompts.jsonl", "p.tsv"), rows)
    world.write_clutter(*IGNORED_FILES)
    return WrittenLayout(world.folder)


def write_ids_as_folders(world: RandomInput) -> WrittenLayout:
    """Write a table of ids and prompts, and a folder of images for each id."""
    several = any(image.sample for image in world.images)
    place = world.choose("{p}/{g}/{s}.png", *(() if several else ("{p}/{g}.png",)))
    for image in world.images:
        world.write_files({place.format(p=f"p{image.line}", g=image.generator, s=image.sample): image.content})
    rows = [{"prompt": text, "id": f"p{line}"} for line, text in enumerate(world.prompts)]
    world.chance.shuffle(rows)
    write_table(world, "prompts.csv", rows)
    shared = len(world.images) > len({image.generator for image in world.images})
    return WrittenLayout(
        world.folder, expected_generator=(lambda image: image.generator) if shared else lambda image: "in"
    )


def write_table_without_folders(world: RandomInput) -> WrittenLayout:
    """Write a table with each image's generator, and the name of the image's file without its folder."""
    rows = []
    for image in world.images:
        name = f"{image.line}-{image.sample}.png"
        world.write_files({f"{image.generator}/{name}": image.content})
        rows.append({"filename": name, "model": image.generator, "prompt": world.get_prompt(image)})
    write_table(world, world.choose("results.csv", "metadata.csv", "all.jsonl"), rows)
    return WrittenLayout(world.folder)


def write_texts_next_to_images(world: RandomInput) -> WrittenLayout:
    """Write a .txt or .json file with the same name next to each image."""
    for image in world.images:
        name = f"{image.generator}/{world.choose('cfg7.5_', 'x', '猫.')}{image.number}"
        world.write_files({f"{name}.png": image.content})
        if world.draw_prompt_loss(image, f"{name}.png"):
            if world.choose(True, False):
                world.write_files({f"{name}.txt": b"\xff\xfe"})
                world.lost[image.number] = f"{name}.txt"
        elif world.choose(True, False):
            world.write_text_file(f"{name}.txt", world.get_prompt(image) + world.choose("", "\n", "\r\n"))
        else:
            world.write_files(
                {f"{name}.json": json.dumps({"seed": 1, world.choose(*PROMPT_COLUMNS): world.get_prompt(image)})}
            )
    world.write_clutter(*IGNORED_FILES)
    return WrittenLayout(world.folder)


def write_prompts_as_names(world: RandomInput) -> WrittenLayout:
    """Write images that are named after their prompts, as in T2I-CompBench."""
    texts = ("a red cube", "two dogs. 3d render", "l'été à Paris", "ein großes Haus, nachts", "a cat and v1.5 of it")
    world.prompts[:] = texts[: len(world.prompts)]
    for image in world.images:
        text = world.get_prompt(image)
        style = world.choose("{}_{:06d}", "{} ({})", "{}-{}")
        if world.choose(True, False):
            text, style = text.replace(" ", "_"), "{}_{:03d}"
        name = style.format(text, image.number)
        if world.draw_prompt_loss(image, f"{image.generator}/IMG_{image.number}.png"):
            name = f"IMG_{image.number}"
        world.write_files({f"{image.generator}/{name}.png": image.content})
    world.write_clutter(*IGNORED_FILES, "contact_sheet.png")
    return WrittenLayout(world.folder, ["benchmark.prompts_from=names"])


def write_geneval_folders(world: RandomInput) -> WrittenLayout:
    """Write a folder per prompt with samples, metadata and a grid; a single metadata file may cover all prompts."""
    for line, generator in sorted({(image.line, image.generator) for image in world.images}):
        base = f"{generator}/{line:05d}"
        own = [image for image in world.images if (image.line, image.generator) == (line, generator)]
        rows = [{"tag": "colors", "prompt": world.prompts[line]}]
        if all(image.number for image in own) and world.chance.randrange(5) == 0:
            rows *= 2
        for image in own:
            world.write_files({(file := f"{base}/samples/{image.sample:04d}.png"): image.content})
            world.lost.update({image.number: file} if len(rows) > 1 else {})
        world.write_files(
            {f"{base}/metadata.jsonl": "\n".join(map(json.dumps, rows)), f"{base}/grid.png": make_png(60_003)}
        )
        world.others.append(f"{base}/grid.png")
    return WrittenLayout(world.folder)


def write_tars(world: RandomInput) -> WrittenLayout:
    """Write WebDataset tars in any order, with a .txt or a .json for each image and dots in names."""
    generators = sorted({image.generator for image in world.images})
    for generator in generators:
        members: list[tuple[str, bytes]] = []
        for image in (image for image in world.images if image.generator == generator):
            key = f"{world.choose('', 'a.b/')}{world.choose('', '猫')}{image.number:04d}"
            told: dict[str, Any] = {"model": generator, "seed": 1}
            lost = world.draw_prompt_loss(image, f"{generator}.tar/{key}")
            ending = world.choose("png", "PNG")
            if lost and world.choose(True, False):
                ending = "5_1.png"
                world.lost[image.number] = f"{generator}.tar/{key}.{ending}"
            texts = {} if lost else {"txt": world.get_prompt(image).encode()}
            if texts and world.choose(True, False):
                told[world.choose(*PROMPT_COLUMNS)] = texts.pop("txt").decode()
            fields = {ending: image.content, "json": json.dumps(told).encode(), **texts}
            if not lost and world.choose(True, False):
                fields["depth.png"] = make_png(60_004)
                world.others.append(f"{key}.depth.png")
            endings = list(fields)
            world.chance.shuffle(endings)
            members += [(f"{key}.{each}", fields[each]) for each in endings]
        world.write_files({f"{generator}.tar": make_tar(members)})
    return WrittenLayout(world.folder)


def write_webdataset_tars(world: RandomInput) -> WrittenLayout:
    """Write tars with the webdataset library, shard by shard; the tars do not name a generator."""
    world.folder.mkdir(parents=True)
    with webdataset.ShardWriter(f"{world.folder}/%05d.tar", maxcount=world.choose(1, 2, 100), verbose=0) as writer:
        for image in world.images:
            writer.write({"__key__": f"{image.number:06d}", "png": image.content, "txt": world.get_prompt(image)})
    return WrittenLayout(world.folder, expected_generator=lambda image: "")


def write_hugging_face_rows(world: RandomInput) -> WrittenLayout:
    """Write a Hugging Face dataset with embedded images; its column of models contains class labels or strings."""
    generators = sorted({image.generator for image in world.images})
    labels, prompt = world.choose(True, False), world.choose(*PROMPT_COLUMNS)
    saved = world.choose(True, False)
    rows = [{"image": {"bytes": image.content, "path": world.choose(None, "x.png")}, "seed": 1,
             "model": generators.index(image.generator) if labels else image.generator,
             prompt: None if world.draw_prompt_loss(image, f":{row}") else world.get_prompt(image)}
            for row, image in enumerate(world.images, start=1)]  # fmt: skip
    model = datasets.ClassLabel(names=generators) if labels else datasets.Value("string")
    features = {"image": datasets.Image(), "seed": datasets.Value("int64"), "model": model,
                prompt: datasets.Value("string")}  # fmt: skip
    names = list(features)
    world.chance.shuffle(names)
    dataset = datasets.Dataset.from_list(
        [{name: row[name] for name in names} for row in rows],
        features=datasets.Features({name: features[name] for name in names}),
    )
    if saved:
        dataset.save_to_disk(world.folder)
    else:
        dataset.to_parquet(world.folder / "data/train-00000-of-00001.parquet")
    world.write_clutter("grid.png", "assets/logo.png")
    return WrittenLayout(world.folder)


def write_pandas(world: RandomInput, rows: list[dict[str, Any]], path: Path) -> None:
    frame = pd.DataFrame(rows)
    frame.index += world.choose(0, 7)
    frame.to_parquet(path, row_group_size=2)


def write_polars(world: RandomInput, rows: list[dict[str, Any]], path: Path) -> None:
    pl.DataFrame(rows).write_parquet(path, row_group_size=2, compression=world.choose("zstd", "snappy"))


def write_duckdb(world: RandomInput, rows: list[dict[str, Any]], path: Path) -> None:
    frame = pd.DataFrame(rows)
    duckdb.sql(f"COPY (SELECT * FROM frame) TO '{path}' (FORMAT parquet)")
    assert len(frame) == len(rows)


def write_spark(world: RandomInput, rows: list[dict[str, Any]], path: Path) -> None:
    """Write a folder of part files with checksums, a marker and timestamps, like Spark."""
    path.unlink(missing_ok=True)
    size = world.choose(1, 2, 100)
    for part in range(0, len(rows), size):
        name = f"part-{part:05d}-6cf3ab0d-c000.snappy.parquet"
        table = pa.Table.from_pylist([{**row, "made": datetime(2026, 1, 2)} for row in rows[part : part + size]])
        path.mkdir(exist_ok=True)
        pq.write_table(table, path / name, compression="snappy", use_deprecated_int96_timestamps=True)
        write_files(path, {f".{name}.crc": b"crc", "_SUCCESS": b"", "._SUCCESS.crc": b"crc"})


PARQUET_WRITERS = {"pandas": write_pandas, "polars": write_polars, "duckdb": write_duckdb, "spark": write_spark}


def make_parquet_rows(
    world: RandomInput, images: Sequence[DrawnImage], names: tuple[str, str], generator_column: str | None
) -> list[dict[str, Any]]:
    column, prompt = names
    rows = [{column: image.content, "steps": 4, prompt: world.get_prompt(image)} for image in images]
    for row, image in zip(rows, images, strict=True):
        row.update({generator_column: image.generator} if generator_column else {})
    return world.shuffle_columns(rows)


def make_parquet_writer(
    write: Callable[[RandomInput, list[dict[str, Any]], Path], None],
) -> Callable[[RandomInput], WrittenLayout]:
    """Return a function that writes one table for all generators, or one per generator; some prompts are missing."""

    def lay(world: RandomInput) -> WrittenLayout:
        world.folder.mkdir(parents=True)
        names = world.choose(*BYTES_COLUMNS), (prompt := world.choose(*PROMPT_COLUMNS))
        if world.choose(True, False):
            rows = make_parquet_rows(world, world.images, names, world.choose(*GENERATOR_COLUMNS))
            for row, image in enumerate(world.images):
                if write is not write_spark and world.draw_prompt_loss(image, f":{row + 1}"):
                    rows[row][prompt] = None
            write(world, rows, world.folder / "all.parquet")
            return WrittenLayout(world.folder)
        for generator in sorted({image.generator for image in world.images}):
            own = [image for image in world.images if image.generator == generator]
            rows = make_parquet_rows(world, own, names, None)
            for row, image in zip(rows, own, strict=True):
                row[prompt] = "" if world.draw_prompt_loss(image, "") else row[prompt]
            (world.folder / generator).mkdir()
            write(world, rows, world.folder / generator / "all.parquet")
        return WrittenLayout(world.folder)

    return lay


def write_parquet_paths(world: RandomInput) -> WrittenLayout:
    """Write a table of file paths, and other files that no row refers to."""
    rows = []
    for image in world.images:
        world.write_files({(file := choose_file_name(world, image)): image.content})
        if not world.draw_prompt_loss(image, file):
            rows.append({"image": file, "prompt": world.get_prompt(image), "model": image.generator})
    world.choose(write_pandas, write_polars)(world, world.shuffle_columns(rows), world.folder / "all.parquet")
    world.write_clutter("grid.png")
    return WrittenLayout(world.folder)


def write_prompts_by_id(world: RandomInput) -> WrittenLayout:
    """Write prompts to a separate file, and tables of images that refer to them; some rows refer to no prompt."""
    ids = [world.choose(f"p.{line}", f"{line}", f"猫{line}") for line in range(len(world.prompts))]
    order = list(range(len(ids)))
    world.chance.shuffle(order)
    rows = [{"prompt_id": ids[line], "text": world.prompts[line]} for line in order]
    folder = world.folder.parent
    folder.mkdir(exist_ok=True)
    pl.DataFrame(rows).write_parquet(folder / "prompts.parquet")
    for generator in sorted({image.generator for image in world.images}):
        own = [image for image in world.images if image.generator == generator]
        images = [
            {"prompt_id": "none" if world.draw_prompt_loss(image, "") else ids[image.line], "image": image.content}
            for image in own
        ]
        (world.folder / generator).mkdir(parents=True)
        world.choose(write_pandas, write_polars, write_duckdb)(world, images, world.folder / generator / "0.parquet")
    return WrittenLayout(world.folder, [f"benchmark.prompts={folder}/prompts.parquet"])


def write_files_by_id(world: RandomInput) -> WrittenLayout:
    """Write prompts to a separate file, and image files that are named after the prompt ids."""
    world.images[:] = [image for image in world.images if image.sample == 0 or image.number == 0]
    rows = [{"prompt_id": f"p.{line}", "text": text} for line, text in enumerate(world.prompts)]
    world.folder.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).sample(frac=1, random_state=world.chance.randrange(9)).to_csv(
        world.folder.parent / "prompts.csv", index=False
    )
    for image in world.images:
        name = "none" if world.draw_prompt_loss(image, "") else f"p.{image.line}"
        world.write_files({f"{image.generator}/{name}{image.number if name == 'none' else ''}.png": image.content})
    return WrittenLayout(world.folder, [f"benchmark.prompts={world.folder.parent}/prompts.csv"])


LAYOUTS: dict[str, Callable[[RandomInput], WrittenLayout]] = {
    "a table among image files": write_table_in_folder,
    "a table alone": write_table_alone,
    "Hugging Face's file_names": write_file_names_column,
    "Hugging Face's columns of files": write_columns_by_generator,
    "a list of prompts": write_prompt_list,
    "a table of ids that are in images' names": write_images_named_by_id,
    "a table of ids that are folders": write_ids_as_folders,
    "a table of files without their folders": write_table_without_folders,
    "a text beside each image": write_texts_next_to_images,
    "prompts as names": write_prompts_as_names,
    "GenEval's folders": write_geneval_folders,
    "tars": write_tars,
    "WebDataset's tars": write_webdataset_tars,
    "Hugging Face's rows": write_hugging_face_rows,
    **{f"Parquet by {name}": make_parquet_writer(write) for name, write in PARQUET_WRITERS.items()},
    "Parquet with paths": write_parquet_paths,
    "prompts by their ids": write_prompts_by_id,
    "image files by the ids of prompts": write_files_by_id,
}


@st.composite
def draw_contents(draw: st.DrawFn) -> tuple[list[str], list[DrawnImage], random.Random]:
    """Draw prompts, images in random order, and a source of random numbers.

    Each generator has made from 0 to 3 images for each prompt, and there is at least one image.
    """
    prompts = draw(
        st.lists(st.lists(st.sampled_from(PROMPT_PIECES), min_size=1, max_size=3).map(" ".join), min_size=1, max_size=5)
    )
    generators = draw(st.lists(st.sampled_from(GENERATORS), min_size=1, max_size=3, unique=True))
    counts = st.lists(st.integers(0, 3), min_size=len(prompts), max_size=len(prompts))
    triples = [(generator, line, sample) for generator in generators for line, count in enumerate(draw(counts))
               for sample in range(count)] or [(generators[0], 0, 0)]  # fmt: skip
    images = [DrawnImage(number, *triple) for number, triple in enumerate(triples)]
    return prompts, draw(st.permutations(images)), draw(st.randoms(use_true_random=False))


def list_pairs(sources: Sources) -> Iterator[tuple[bytes, str, str | None]]:
    """Yield every scored image with its generator and its prompt, or None in place of a missing prompt."""
    texts = dict(zip(*(sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True))
    for shard in sources.image_shards:
        for row in read_shard(shard, ("image_id", "prompt_id", "image", "uri")).to_pylist():
            image = row.get("image")
            content = image["bytes"] if isinstance(image, Mapping) else image
            yield content or Path(row["uri"]).read_bytes(), shard.group, texts.get(str(row["prompt_id"])) or None


def check_pairs(
    world: RandomInput, layout: WrittenLayout, sources: Sources | None, ingested: IngestResult | None
) -> None:
    """Check that each image has its own prompt or its own reason for rejection, and that nothing else was found."""
    by_content = {image.content: image for image in world.images}
    pairs = list(list_pairs(sources)) if sources is not None else []
    scored = {by_content[content].number: (generator, prompt) for content, generator, prompt in pairs}
    assert len(scored) == len(pairs), "no image is scored twice"
    for image in world.images:
        if image.number not in world.lost:
            generator = layout.expected_generator(image) or layout.images.name.removesuffix(".csv")
            assert scored[image.number] == (generator, world.get_prompt(image)), image
    reasons = [] if ingested is None else [*ingested.rejected, *ingested.skipped]
    places = [(one.file if one.line is None else f"{one.file}:{one.line}", f"/{one.image_id}") for one in reasons]
    for number, place in world.lost.items():
        if number in scored:  # the sweep fails its row, which has no text
            assert place == "" and scored[number][1] is None
        else:
            ends = place if place.startswith(":") else f"/{place}"
            assert sum(file.endswith(ends) or image.endswith(ends) for file, image in places) == 1, (place, places)
    if ingested is not None:
        assert ingested.rows == len(scored) and ingested.n_found == len(world.images) + len(world.others), reasons


def check_output(world: RandomInput, layout: WrittenLayout, out: str, ingested: IngestResult | None) -> None:
    """Check that the totals add up and that the displayed pairs are correct."""
    if ingested is not None:
        [(found, taken, rejected, skipped)] = [tuple(map(int, counts)) for counts in FOUND_LINE_PATTERN.findall(out)]
        assert found == taken + rejected + skipped == len(world.images) + len(world.others) and taken == ingested.rows
    true = {(layout.expected_generator(image) or layout.images.name.removesuffix(".csv"), repr(world.get_prompt(image)))
            for image in world.images if image.number not in world.lost}  # fmt: skip
    shown = PAIR_LINE_PATTERN.findall(out)
    assert 1 <= len(shown) <= 3
    for name, generator, text in shown:
        assert (generator, text) in true or text == "''" or "without a text" in text
        if (file := layout.images / name).is_file():
            [image] = [image for image in world.images if image.content == file.read_bytes()]
            assert text == repr(world.get_prompt(image)) or image.number in world.lost


@pytest.fixture(scope="module", autouse=True)
def skip_disk_flushes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.os, "fsync", lambda file: None)
        yield


@pytest.mark.parametrize("worlds", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_image_gets_its_own_prompt_or_its_own_rejection(layout: str, worlds: int) -> None:
    @settings(
        max_examples=worlds,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(draw_contents())
    def check(given_world: tuple[list[str], list[DrawnImage], random.Random]) -> None:
        prompts, images, chance = given_world
        with tempfile.TemporaryDirectory() as name:
            world = RandomInput(Path(name) / "in", list(prompts), list(images), chance)
            lay = LAYOUTS[layout](world)
            words = ["metric=[edge_density]", *lay.words]
            store = f"{name}/store"
            out = run("score", f"images={lay.images}", "models=shapes", f"store={store}", "dry_run=true",
                      "cluster=here", *words).out  # fmt: skip
            taken, ingested = ingest_images(make_score_config(lay.images, store, *words))
            check_pairs(world, lay, plan_sweep(taken).sources, ingested)
            check_output(world, lay, out, ingested)

    check()
