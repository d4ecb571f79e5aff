"""Every kind of bad row and bad shard in a sweep is reported with its reason, and all other rows are scored."""

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.operators.base.errors import REMEDIES_BY_KIND, ConfigError
from plumbline.pipelines.base.filesystems import open_filesystem
from tests.bench_of import list_arguments, plan_bench, read_image_rows, read_prompt_rows, write_benchmark, write_rows
from tests.commands import find_newest_run_folder, run
from tests.operators.broken_images import ARITHMETIC_JPEG, INCOMPLETE_BMPS, drop_intervals, make_three_scans, make_tiff
from tests.operators.tiny import draw_image, encode_image
from tests.releases import is_older
from tests.s3 import S3Server

ROOT = Path(__file__).parent.parent.parent
DOCS_TEXT = (ROOT / "docs" / "failures.md").read_text()
VALID_ROWS = read_image_rows("atlas", 8)
PROMPT_ID = VALID_ROWS[0]["prompt_id"]
PNG_BYTES = VALID_ROWS[0]["image"]
PLAIN_IMAGE = draw_image(0)
JPEG_BYTES = encode_image(draw_image(0, width=200, height=200), "JPEG")
ROTATED_EXIF = Image.Exif()
ROTATED_EXIF[0x0112] = 6


def make_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def make_png(width: int, height: int, pixels: bytes, *, depth: int = 8, colour: int = 0, extra: bytes = b"") -> bytes:
    """Return a PNG assembled from its parts, so that its header can be wrong."""
    header = make_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + make_chunk(b"IDAT", zlib.compress(pixels)) + make_chunk(b"IEND", b"")


def flip_bits(content: bytes, start: float, stop: float) -> bytes:
    """Return the content with every bit flipped between two positions, which are fractions of its length."""
    first, last = int(len(content) * start), int(len(content) * stop)
    return content[:first] + bytes(byte ^ 0xFF for byte in content[first:last]) + content[last:]


def make_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("image.png", PNG_BYTES)
    return stream.getvalue()


def make_transparent_palette() -> bytes:
    image = PLAIN_IMAGE.quantize(8)
    image.info["transparency"] = bytes([0, 128, 255])
    return encode_image(image)


def make_two_frames(image_format: str) -> bytes:
    return encode_image(PLAIN_IMAGE, image_format, save_all=True, append_images=[draw_image(1)])


def repeat_scan(count: int) -> bytes:
    """Return a progressive JPEG whose last scan is repeated `count` times."""
    content = encode_image(PLAIN_IMAGE, "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * count + content[-2:]


class RowKind(NamedTuple):
    """A kind of row: either bad, or unusual but valid."""

    name: str
    """Name of the kind here and in docs/failures.md; also the image_id of its row."""
    row: Mapping[str, Any]
    error: str | None = None
    """Kind of the error, or None if the row is scored."""
    found: str = ""
    remedy: str = ""
    retried: bool = False
    file: str = "bytes"
    """Name of the file (and generator) whose column types allow this row."""
    prompt: Mapping[str, Any] | None = None
    copies: int = 1


def make_corrupt_image(name: str, image: Any, found: str, remedy: str = "generate it again", **more: Any) -> RowKind:
    """Return a kind of row whose image cannot be decoded; `found` and `remedy` are parts of its error message."""
    return RowKind(name, {"image": image}, "corrupt_image", found, remedy, **more)


def make_too_large_image(name: str, image: bytes, found: str, remedy: str) -> RowKind:
    """Return a kind of row whose image exceeds a limit; `found` and `remedy` are parts of its error message."""
    return RowKind(name, {"image": image}, "image_too_large", found, remedy)


def make_missing_image(
    name: str, row: Mapping[str, Any], found: str, remedy: str = "generate the image", **more: Any
) -> RowKind:
    """Return a kind of row that has no image; `found` and `remedy` are parts of its error message."""
    return RowKind(name, {"image": None, **row}, "missing_image", found, remedy, **more)


def make_unreadable_uri(name: str, uri: str, found: str) -> RowKind:
    """Return a kind of row whose image cannot be read from its address; `found` is part of its error message."""
    return RowKind(name, {"image": None, "uri": uri}, "unreadable_uri", found, "check the address", retried=True)


def make_refused_uri(name: str, uri: str) -> RowKind:
    """Return a kind of row whose image address lies outside the benchmark's folders."""
    found = "was refused: it lies outside of the benchmark's folders"
    return RowKind(name, {"image": None, "uri": uri}, "uri_refused", found, "benchmark.uri_roots", retried=True)


def make_bad_prompt(name: str, text: str | None, error: str | None = None, file: str = "bytes") -> RowKind:
    """Return a kind of row whose prompt text is missing or unusual; `error` is None if the row is scored."""
    found = "no text" if error else ""
    return RowKind(name, {"prompt_id": name}, error, found, "drop the prompt", file=file, prompt={"text": text})


def make_bad_id(name: str, prompt_id: Any, error: str | None, found: str, remedy: str, file: str = "bytes") -> RowKind:
    """Return a kind of row whose prompt id is missing, invalid or unusual.

    `error` is the kind of its error, or None if the row is scored; `found` and `remedy` are parts of its message.
    """
    return RowKind(name, {"prompt_id": prompt_id}, error, found, remedy, file=file)


NOT_BYTES_MESSAGE = "put bytes there, or addresses in `uri`"
ZIPPED_ZEROS = zlib.compress(b"\0" * 200_000_000)
ROW_KINDS = [
    make_corrupt_image("corrupt bytes", b"\x13\x37" * 50, "found something else"),
    make_corrupt_image("truncated PNG", PNG_BYTES[: len(PNG_BYTES) // 2], "does not decode"),
    make_corrupt_image("PNG that lacks rows", make_png(8, 8, b"\0" + b"\x55" * 8), "end before the last row"),
    make_corrupt_image("JPEG that lacks blocks", JPEG_BYTES[: len(JPEG_BYTES) // 2] + b"\xff\xd9",
                       "premature end of data segment"),
    make_corrupt_image("JPEG that lacks restart intervals", drop_intervals(2, 8), "found marker 0xd9 instead of RST3"),
    make_corrupt_image("JPEG that lacks scans", make_three_scans(kept=(0, 1, 1)), "the file lacks some of its scans"),
    make_corrupt_image("arithmetic-coded JPEG", ARITHMETIC_JPEG, "found an arithmetic-coded or lossless JPEG",
                  "save the image as PNG"),
    make_corrupt_image("TIFF of a fax", make_tiff("group3", 0.01), "a TIFF compressed as group3",
                       "save the image as PNG"),
    make_corrupt_image("BMP that skips pixels", INCOMPLETE_BMPS["it skips its pixels"],
                       "not enough image data" if is_older("12.3", "pillow") else "encoding leaves out some"),
    make_corrupt_image("PNG with damaged pixels", flip_bits(PNG_BYTES, 0.5, 0.51), "checksum"),
    make_corrupt_image("truncated JPEG", JPEG_BYTES[: len(JPEG_BYTES) // 2], "Premature end of JPEG file"),
    make_corrupt_image("truncated WebP", encode_image(PLAIN_IMAGE, "WEBP")[:200], "does not decode"),
    make_corrupt_image("zip archive", make_zip(), "found a zip archive"),
    make_corrupt_image("HTML page", b"<!DOCTYPE html><title>403</title>", "found a web page"),
    make_corrupt_image("PDF document", b"%PDF-1.7\n1 0 obj\n", "found a PDF document"),
    make_corrupt_image("unknown image format", encode_image(PLAIN_IMAGE, "PPM"), "expected an image (PNG, JPEG"),
    make_corrupt_image("zero-size image", make_png(0, 0, b""), "expected an image"),
    make_corrupt_image("32-bit pixels", encode_image(Image.new("F", (8, 8), 5.0), "TIFF"), "no fixed range",
                       "8-bit RGB"),
    make_corrupt_image("text in the image column", "outputs/a.png", "found text", NOT_BYTES_MESSAGE, file="texts"),
    make_corrupt_image("numbers in the image column", 7, "type int", NOT_BYTES_MESSAGE, file="numbers"),
    make_corrupt_image("lists in the image column", [0.5, 1.0], "type list", NOT_BYTES_MESSAGE, file="lists"),
    make_too_large_image("decompression bomb", make_png(60_000, 60_000, b""), "60000x60000 pixels",
                         "limits.max_pixels"),
    make_too_large_image("too many bytes", PNG_BYTES + bytes(2_000_000), "bytes is over limits.max_bytes=2000000",
                    "raise the limit"),
    make_too_large_image("too many scans", repeat_scan(90), "scans is over limits.max_scans=64", "raise the limit"),
    make_too_large_image("too elongated", encode_image(Image.new("L", (40_000, 1))), "40000x1 pixels is over 16 times",
                         "crop it"),
    make_missing_image("empty bytes", {"image": b""}, "neither image bytes nor a uri"),
    make_missing_image("null image", {}, "neither image bytes nor a uri"),
    RowKind("struct path without bytes", {"image": {"bytes": None, "path": "a.png"}}, "image_not_embedded",
         "only the path 'a.png'", "put the address in `uri`", file="structs"),
    make_missing_image("uri to nothing", {"uri": "FOLDER/images/nothing.png"}, "nothing at", retried=True),
    make_missing_image("uri to an empty file", {"uri": "FOLDER/images/empty.png"}, "empty.png' is empty", retried=True),
    make_refused_uri("uri outside of the benchmark", "/etc/passwd"),
    make_refused_uri("uri that a link leads outside", "FOLDER/images/outside.png"),
    make_unreadable_uri("uri to a pipe", "FOLDER/images/pipe.png", "expected a regular file"),
    make_unreadable_uri("uri to a directory", "FOLDER/images", "Is a directory"),
    make_unreadable_uri("uri denied", "s3://private/a.png", "cannot read 's3://private/a.png'"),
    make_refused_uri("uri of a place that is not named", "ftp://host/a.png"),
    make_bad_prompt("empty prompt", "", "empty_prompt"),
    make_bad_prompt("whitespace-only prompt", " \n\t ", "empty_prompt"),
    make_bad_prompt("null prompt", None, "empty_prompt"),
    make_bad_id("null prompt_id", None, "missing_prompt_id", "has no prompt_id", "fill it in"),
    make_bad_id("NaN prompt_id", math.nan, "missing_prompt_id", "has no prompt_id", "fill it in", "floats"),
    make_bad_id("prompt_id that became a float", 7.0, "unknown_prompt", "'7.0' is not in", "correct the id", "floats"),
    make_bad_id("unknown prompt_id", "nobody's", "unknown_prompt", "\"nobody's\" is not in", "add the prompt"),
    make_bad_id("prompt_id that is not UTF-8", b"caf\xe9", "unknown_prompt", "'caf\ufffd' is not in", "correct",
                "latin1"),
    # The rows from here on are unusual but are scored.
    make_bad_id("numeric prompt_id", 7, None, "", "", "integers"),
    make_bad_prompt("10,000-character prompt", "a red circle " * 770, file="long"),
    make_bad_prompt("control characters", "a red\x00 circle\x07 \x1b[31mleft of\u200b a blue square"),
    RowKind("animated GIF", {"image": make_two_frames("GIF")}),
    RowKind("animated WebP", {"image": make_two_frames("WEBP")}),
    RowKind("animated PNG", {"image": make_two_frames("PNG")}),
    RowKind("CMYK JPEG", {"image": encode_image(PLAIN_IMAGE.convert("CMYK"), "JPEG")}),
    RowKind("16-bit grey PNG", {"image": encode_image(Image.fromarray(np.full((8, 8), 40_000, np.uint16)))}),
    RowKind("16-bit RGB PNG", {"image": make_png(2, 2, (b"\0" + b"\xff\xff\x80\0\0\0" * 2) * 2, depth=16, colour=2)}),
    RowKind("palette with transparency", {"image": make_transparent_palette()}),
    RowKind("RGBA", {"image": encode_image(PLAIN_IMAGE.convert("RGBA"))}),
    RowKind("1-bit image", {"image": encode_image(PLAIN_IMAGE.convert("1"))}),
    RowKind("pixel data bomb", {"image": make_png(2, 2, bytes(50_000_000))}),
    RowKind("text chunk bomb", {"image": make_png(2, 2, bytes(6), extra=make_chunk(b"zTXt", b"a\0\0" + ZIPPED_ZEROS))}),
    RowKind("colour profile bomb",
            {"image": make_png(2, 2, bytes(6), extra=make_chunk(b"iCCP", b"a\0\0" + ZIPPED_ZEROS))}),
    RowKind("EXIF-rotated JPEG", {"image": encode_image(PLAIN_IMAGE, "JPEG", exif=ROTATED_EXIF)}),
    RowKind("wrong extension", {"image": {"bytes": PNG_BYTES, "path": "a.jpg"}}, file="structs"),
    RowKind("duplicate image_id", {}, copies=2),
    RowKind("several images of one prompt", {"prompt_id": VALID_ROWS[1]["prompt_id"]}, copies=2),
    RowKind("null image_id", {"image_id": None}, file="anonymous"),
]  # fmt: skip
BAD_ROW_KINDS = [kind for kind in ROW_KINDS if kind.error]
ODD_ROW_KINDS = [kind for kind in ROW_KINDS if not kind.error]

COLUMN_TYPES = {"image_id": pa.string(), "prompt_id": pa.string(), "image": pa.binary(), "uri": pa.string()}
UNUSUAL_TYPES_BY_FILE: Mapping[str, Mapping[str, pa.DataType]] = {
    "bytes": {},
    "anonymous": {},
    "long": {},
    "structs": {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())])},
    "texts": {"image": pa.string()},
    "numbers": {"image": pa.int64()},
    "lists": {"image": pa.list_(pa.float32())},
    "integers": {"prompt_id": pa.int64()},
    "floats": {"prompt_id": pa.float64()},
    "latin1": {"prompt_id": pa.binary()},
}
"""Columns with unusual types, by file (and generator) of bad rows."""


class BadShard(NamedTuple):
    """A file that is empty or cannot be read, next to an intact file of the same generator."""

    name: str
    spoil: Callable[[bytes], bytes]
    found: str
    """Part of the expected message, without the file; empty if no error is expected."""
    error: str = "broken_file"
    """Kind of the error; `shard_failed` if the ids of the lost rows can still be read."""


def make_parquet(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None = None, *, compression: str = "snappy"
) -> bytes:
    stream = io.BytesIO()
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    pq.write_table(table, stream, compression=compression)
    return stream.getvalue()


LOST_ROWS = [dict(row, image_id=f"lost-{n}") for n, row in enumerate(VALID_ROWS)]


def corrupt_page(_: bytes) -> bytes:
    """Return a Parquet file with flipped bits in the middle, which lie within a page of images.

    The argument is ignored; it is the content of the intact file.
    """
    return flip_bits(make_parquet(LOST_ROWS, compression="gzip"), 0.45, 0.5)


BAD_SHARDS = [
    BadShard("truncated Parquet", lambda content: content[:-100], "not a readable Parquet file"),
    BadShard("half a Parquet", lambda content: content[: len(content) // 2], "not a readable Parquet file"),
    BadShard("not Parquet", lambda content: b"prompt_id,image\n1,a.png\n", "not a readable Parquet file"),
    BadShard("empty file", lambda content: b"", "not a readable Parquet file"),
    BadShard("corrupt footer", lambda content: flip_bits(content, 0.98, 0.99), "not a readable Parquet file"),
    BadShard("corrupt page header", lambda content: content[:4] + b"\xff" * 2000 + content[2004:], "unreadable"),
    BadShard("corrupt data page", corrupt_page, "unreadable", error="shard_failed"),
    BadShard(
        "wrong schema", lambda content: make_parquet([{"prompt_id": "1", "picture": b""}]), "expected column(s) image"
    ),
    BadShard("empty shard", lambda content: make_parquet([], pa.schema(COLUMN_TYPES)), ""),
]


class SweepResults(NamedTuple):
    """Results of the sweep that all tests share."""

    scores: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    printed: str
    exit_code: int
    folder: Path

    def select_scores(self, generator: str, image_id: str | None) -> list[dict[str, Any]]:
        return [row for row in self.scores if row["generator"] == generator and image_id in (None, row["image_id"])]


def make_slug(name: str) -> str:
    return name.replace(" ", "-")


def write_bad_rows(folder: Path) -> None:
    """Write a generator for each name in UNUSUAL_TYPES_BY_FILE; only the one named `bytes` also has valid rows."""
    (folder / "images").mkdir()
    (folder / "images" / "empty.png").write_bytes(b"")
    (folder / "images" / "outside.png").symlink_to(folder / "prompts.parquet")
    os.mkfifo(folder / "images" / "pipe.png")
    for name, columns in UNUSUAL_TYPES_BY_FILE.items():
        types = {**COLUMN_TYPES, **columns}
        sound = [dict(row, image_id=f"sound-{n}") for n, row in enumerate(VALID_ROWS * 6)] if name == "bytes" else []
        mine = [
            row for kind in ROW_KINDS if kind.file == name for row in [make_bad_row(kind, folder, types)] * kind.copies
        ]
        mixed = [row for n in range(max(len(sound), len(mine))) for row in (*sound[n : n + 1], *mine[n : n + 1])]
        table = pa.Table.from_pylist(mixed, schema=pa.schema(types))
        if name == "latin1":
            table = table.set_column(1, "prompt_id", table.column("prompt_id").combine_chunks().view(pa.string()))
        target = folder / "images" / name / "00000.parquet"
        target.parent.mkdir(parents=True)
        pq.write_table(table, target, row_group_size=8)


def make_bad_row(kind: RowKind, folder: Path, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    prompt_id = PROMPT_ID if pa.types.is_string(types["prompt_id"]) else 7
    image = PNG_BYTES if pa.types.is_binary(types["image"]) else None
    row = {"image_id": kind.name, "prompt_id": prompt_id, "image": image, **kind.row}
    return row | ({"uri": row["uri"].replace("FOLDER", str(folder))} if "uri" in row else {})


def write_bad_shards(folder: Path) -> None:
    good = make_parquet(LOST_ROWS)
    for shard in BAD_SHARDS:
        target = folder / "images" / make_slug(shard.name)
        write_rows(target / "00001.parquet", [dict(row, image_id=f"sound-{n}") for n, row in enumerate(VALID_ROWS[:2])])
        (target / "00000.parquet").write_bytes(shard.spoil(good))


def list_prompts() -> list[dict[str, Any]]:
    odd = [{"prompt_id": kind.name, "skills": [], **kind.prompt} for kind in ROW_KINDS if kind.prompt is not None]
    return [*read_prompt_rows(8), {"prompt_id": "7", "text": "a red circle", "skills": []}, *odd]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> SweepResults:
    """Sweep over all bad rows and shards, with S3 credentials that give no access; return the results."""
    folder = tmp_path_factory.mktemp("bad")
    write_rows(folder / "prompts.parquet", list_prompts())
    write_bad_rows(folder)
    write_bad_shards(folder)
    options = ("benchmark.uri_roots=[s3://private]", "benchmark.require_every_prompt=false", "limits.max_bytes=2000000")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**s3_server.environment(), "AWS_SECRET_ACCESS_KEY": "wrong"}.items():
            environment.setenv(name, value)
        ended = run("sweep", *list_arguments(folder, folder / "store", *options, "shard_rows=32"))
    open_filesystem.cache_clear()
    made = find_newest_run_folder(folder / "store")
    scores, errors = (pq.read_table(made / f"{name}.parquet").to_pylist() for name in ("scores", "errors"))
    return SweepResults(scores, errors, ended.out, ended.code, folder)


@pytest.mark.parametrize("kind", BAD_ROW_KINDS, ids=lambda kind: kind.name)
def test_a_bad_row_becomes_an_error_row_with_its_kind_and_remedy(sweep: SweepResults, kind: RowKind) -> None:
    failed = [row for row in sweep.errors if (row["generator"], row["image_id"]) == (kind.file, kind.name)]
    assert sorted(row["metric"] for row in failed) == ["clipscore", "vqascore"]
    for row in failed:
        assert (row["kind"], row["retryable"]) == (kind.error, kind.retried), row["message"]
        assert kind.found in row["message"] and kind.remedy in row["message"], row["message"]
    assert [row["score"] for row in sweep.select_scores(kind.file, kind.name)] == [None, None]


@pytest.mark.parametrize("kind", ODD_ROW_KINDS, ids=lambda kind: kind.name)
def test_an_unusual_but_valid_row_is_scored(sweep: SweepResults, kind: RowKind) -> None:
    mine = sweep.select_scores(kind.file, kind.row.get("image_id", kind.name))
    assert len(mine) == 2 * kind.copies
    for row in mine:
        assert row["error"] is None and math.isfinite(row["score"])
        assert row["truncated"] == (kind.name == "10,000-character prompt" and row["metric"] == "clipscore")


@pytest.mark.parametrize("shard", BAD_SHARDS, ids=lambda shard: shard.name)
def test_a_bad_shard_is_named_and_its_neighbour_scored(sweep: SweepResults, shard: BadShard) -> None:
    rows = sweep.select_scores(make_slug(shard.name), None)
    failed = [row["error"] for row in rows if row["score"] is None]
    assert sorted(row["image_id"] for row in rows if row["score"] is not None) == ["sound-0"] * 2 + ["sound-1"] * 2
    lost = len(LOST_ROWS) if shard.error == "shard_failed" else len(list_prompts()) - 2
    assert len(failed) == (2 * lost if shard.found else 0)
    for error in failed:
        assert (error["kind"], error["retryable"]) == (shard.error, True)
        assert f"{make_slug(shard.name)}/00000.parquet" in error["message"] and shard.found in error["message"]
        assert "again" in error["message"] or "rename" in error["message"]


def test_all_other_rows_are_scored_and_no_failure_is_a_zero(sweep: SweepResults) -> None:
    sound = [row for row in sweep.select_scores("bytes", None) if row["image_id"].startswith("sound-")]
    assert len(sound) == 2 * 6 * len(VALID_ROWS) and all(row["score"] is not None for row in sound)
    assert all((row["score"] is None) == (row["error"] is not None) for row in sweep.scores)
    assert len(sweep.errors) == sum(row["score"] is None for row in sweep.scores)
    rows = sum(
        pq.read_metadata(sweep.folder / f"images/{name}/00000.parquet").num_rows for name in UNUSUAL_TYPES_BY_FILE
    )
    assert sum(row["generator"] in UNUSUAL_TYPES_BY_FILE for row in sweep.scores) == 2 * rows


def test_the_console_shows_the_coverage_and_every_kind_with_an_example_and_its_remedy(sweep: SweepResults) -> None:
    board = sweep.printed.split("rows without a score")[1]
    for kind in {row["kind"] for row in sweep.errors}:
        count = sum(row["kind"] == kind for row in sweep.errors)
        assert re.search(rf"{kind} +│ +{count} │ +{count / len(sweep.scores):.1%}", board), board
    assert "bytes, image corrupt bytes" in board and "generate the image again" in board
    assert re.search(rf"coverage [\d.]+%: {len(sweep.errors)} of {len(sweep.scores)} rows have no score", board)
    assert sweep.exit_code == 1


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("prompt without prompt_id", make_parquet([{"prompt_id": None, "text": "a"}, {"prompt_id": "b", "text": "b"}]),
         "row 0: the prompt has no prompt_id"),
        ("prompt_id that occurs twice",
         make_parquet([{"prompt_id": "a", "text": "a"}, {"prompt_id": "a", "text": "b"}]),
         "row 1: prompt_id 'a' occurs twice"),
        ("prompts without text column", make_parquet([{"prompt_id": "a"}]), r"expected column\(s\) text"),
        ("prompts that are numbers", make_parquet([{"prompt_id": "a", "text": 7}]),
         "expected the prompt as text, found int"),
        ("prompts that are bytes", make_parquet([{"prompt_id": "a", "text": b"caf\xe9"}]),
         "expected the prompt as text, found bytes"),
        ("truncated prompts", make_parquet([{"prompt_id": "a", "text": "a"}])[:-50], "not a readable Parquet file"),
    ],
)  # fmt: skip
def test_bad_prompts_are_refused_when_planning(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    (folder / "prompts.parquet").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"prompts\.parquet.*{problem}"):
        plan_bench(folder, tmp_path / "store")
    assert f"| {name} |" in DOCS_TEXT


def test_every_kind_of_failure_is_documented_with_its_remedy() -> None:
    sources = [file for room in ("operators", "pipelines") for file in (ROOT / room).rglob("*.py")]
    kinds = {kind for file in sources for kind in re.findall(r'RowError\(\s*"(\w+)"', file.read_text())}
    assert {kind for kind in kinds if f"| `{kind}` |" not in DOCS_TEXT} == set()
    assert kinds - REMEDIES_BY_KIND.keys() == set()


@pytest.mark.parametrize("kind", [*ROW_KINDS, *BAD_SHARDS], ids=lambda kind: kind.name)
def test_every_bad_row_and_shard_is_documented(kind: RowKind | BadShard) -> None:
    assert re.search(rf"^\| {re.escape(kind.name)} \|", DOCS_TEXT, re.MULTILINE)
