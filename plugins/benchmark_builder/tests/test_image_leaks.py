"""Benchmark images are found in a training set even if they were resized or re-encoded, and no others are found."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.commands import run
from tests.operators.report.made import make_run

BROKEN_IMAGE_NUMBER = 106
"""Number of the damaged image by borealis."""
PLAIN_IMAGE_NUMBER = 107
"""Number of the plain image by borealis."""
SIZE_LIMIT_OPTION = "limits.max_pixels=100000"


def draw_scene(seed: int) -> Image.Image:
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((96, 96), Image.Resampling.BICUBIC)


def encode_image(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def encode_picture(number: int) -> bytes:
    if number == BROKEN_IMAGE_NUMBER:
        return b"no picture"
    return encode_image(draw_fine_pattern() if number == PLAIN_IMAGE_NUMBER else draw_scene(number))


def draw_fine_pattern() -> Image.Image:
    """Draw a chequerboard whose squares are smaller than the compared blocks, so all blocks have the same mean."""
    return Image.fromarray((np.indices((64, 64)) // 2).sum(axis=0).astype(np.uint8) % 2 * 255).convert("RGB")


def make_source(prompt: int) -> list[bytes]:
    return [encode_image(draw_scene(200 + prompt))]


def make_score(generator: str, metric: str, prompt: int) -> float:
    """Return a score that is higher for borealis than for atlas only on the two prompts whose images are leaked."""
    return 0.55 if generator == "atlas" else 0.9 if prompt in (1, 3) else 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("picture_leaks")
    prompts = [f"a red star beside {number} blue cups" for number in range(8)]
    make_run(folder, prompts=prompts, generators=("atlas", "borealis"), metrics=("gecko",), question_metrics=(),
             score=make_score, image=encode_picture, sources=make_source)  # fmt: skip
    training = folder / "training"
    training.mkdir()
    rows = [
        ("unrelated", encode_image(draw_scene(300))),
        ("again", encode_image(draw_scene(101).resize((150, 140)), "JPEG", quality=40)),
        ("grey", encode_image(draw_scene(2).convert("L"))),
        ("large", encode_image(draw_scene(102).resize((400, 400)))),
        ("broken", encode_image(draw_scene(104))[:-3000]),
        ("absent", None),
    ]
    table = {"id": [name for name, _ in rows], "image": [{"bytes": content, "path": None} for _, content in rows]}
    pq.write_table(pa.table(table), training / "a.parquet")
    with tarfile.open(training / "b.tar", "w") as tar:
        for name, content in (
            ("0001.txt", b"a cup"),
            ("0001.webp", encode_image(draw_scene(203).resize((48, 48)), "WEBP")),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    whole = io.BytesIO()
    pq.write_table(pa.table({"image": [encode_image(draw_scene(4))] * 2}), whole)
    (training / "c.parquet").write_bytes(whole.getvalue()[:-50])
    (training / "named.png").write_bytes(encode_image(draw_scene(301)))
    named = [str(training / "named.png"), str(folder / "bench/prompts.parquet")]
    pq.write_table(pa.table({"uri": named}), training / "d.parquet")
    return folder


class Leaks(NamedTuple):
    said: str
    content: dict[str, Any]
    leaks: pd.DataFrame


def find_leaks(folder: Path, *more: str) -> Leaks:
    ended = run("leaks", f"images={folder}/training", f"store={folder}/store", "cluster=here", SIZE_LIMIT_OPTION, *more)
    assert ended.code == 0, ended
    newest = max((folder / "store/leaks").iterdir())
    leaks = pd.read_parquet(newest / "leaks.parquet")
    return Leaks(ended.words, json.loads((newest / "leaks.json").read_text()), leaks)


@pytest.fixture(scope="module")
def report(folder: Path) -> Leaks:
    captions = folder / "captions.txt"
    captions.write_text("A red star beside 0 blue cups!\n")
    return find_leaks(folder, f"captions={captions}")


def test_only_copies_are_found_with_their_rows(report: Leaks) -> None:
    """Unrelated images, and images that differ only in colour, are not found."""
    columns = ["prompt_id", "kind", "generator", "image_id", "row", "text"]
    assert report.leaks[columns].to_numpy(dtype=object, na_value=None).tolist() == [
        ["p0000", "exact", None, None, "line 1", "A red star beside 0 blue cups!"],
        ["p0003", "source", None, None, "sample 0001", "0001"],
        ["p0001", "image", "borealis", "borealis-p0001", "row 1", "again"],
    ]
    assert report.leaks.similarity.between(0.95, 1).all()
    assert "3 of 8 prompts (37.5%) were found in 1 caption of 1 file and 5 images of 4 files" in report.said
    assert report.content["pictures"]["borealis"] == {"pictures": 6, "leaked": 1}
    assert report.content["pictures"]["sources"] == {"pictures": 8, "leaked": 1}


def test_unreadable_rows_are_counted_and_reported(report: Leaks) -> None:
    for line in (
        "a.parquet, row 3: 400x400 pixels is over limits.max_pixels=100000",
        "a.parquet, row 4: ",
        "a.parquet, row 5: the row has neither image bytes nor a uri",
        "c.parquet: ",
        "was refused: it lies outside of the table's folder",
        "5 rows of the training set could not be read",
        "00000.parquet, row 6, image: expected an image",
        "00000.parquet, row 7, image: it hardly varies in brightness",
        "2 images of the benchmark cannot be compared",
    ):
        assert line in report.said
    assert (report.content["rejected"], report.content["unread_pictures"]) == (5, 2)


def test_the_leaderboard_leaves_out_the_prompts_of_leaked_images(folder: Path) -> None:
    """The mean of borealis is (2 x 0.9 + 6 x 0.5) / 8 = 0.6, or 0.5 without the two leaked prompts.

    The mean of atlas is 0.55 in both cases.
    """
    alone = find_leaks(folder)
    assert alone.content["boards"]["gecko"] == [
        ["borealis", pytest.approx(0.6), pytest.approx(0.5)],
        ["atlas", pytest.approx(0.55), pytest.approx(0.55)],
    ]
    assert "gecko: the order changes to atlas, borealis." in alone.said
    assert set(find_leaks(folder, "kinds=[source]").leaks.prompt_id) == {"p0003"}


def test_source_images_are_found_for_a_benchmark_without_generated_images(folder: Path) -> None:
    rows = [{"prompt_id": str(at), "text": f"add {at} cups", "before": make_source(at)[0]} for at in range(2, 5)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "edits.parquet")
    named = (f"benchmark.prompts={folder}/edits.parquet", "benchmark=own", "benchmark.images=none")
    edits = find_leaks(folder, *named, "benchmark.columns.source=before", "kinds=[source]")
    assert edits.leaks[["prompt_id", "kind"]].to_numpy().tolist() == [["3", "source"]]


def test_source_images_are_found_in_the_image_tables_of_a_benchmark(folder: Path) -> None:
    named = (f"benchmark.prompts={folder}/bench/prompts.parquet", "benchmark=own")
    images = (f"benchmark.images={folder}/bench/images", "benchmark.columns.source=before", "kinds=[source]")
    assert set(find_leaks(folder, *named, *images).leaks.prompt_id) == {"p0003"}


def test_an_impossible_search_is_refused_in_one_line(folder: Path) -> None:
    for words, complaint in (
        ((), "captions, images: expected at least one of them"),
        (
            (f"images={folder}/training", "kinds=[near]"),
            "kinds: expected at least one of source, image for images, got near",
        ),
        ((f"images={folder}/captions.txt",), "expected files that end in .parquet, .tar"),
        (
            (f"images={folder}/training", "image_column=pic"),
            "expected a column pic, found id, image; set image_column=NAME",
        ),
    ):
        ended = run("leaks", f"store={folder}/store", "cluster=here", *words)
        assert ended.code and complaint in ended.line
