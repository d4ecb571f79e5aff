"""Whatever bytes an input has, its rows are written or counted as rejected, or a one-line error gives the reason."""

import gzip
import io
import json
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.filesystems import disk
from plumbline.pipelines.ingest.ingest import IngestResult, ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from tests.damage import FEW_EXAMPLES_SETTINGS, FOREIGN_BYTES, ByteEdit, apply_edits, draw_edits
from tests.histories.damage import ROT_WAYS, damage_file

N_ROWS = 12
TEXT_EDITS = draw_edits(st.sampled_from(FOREIGN_BYTES))
BYTE_EDITS = draw_edits(st.binary(max_size=600), longest=600)
"""Random edits; most of them change the length of a file, which misaligns the blocks of a tar."""


def count_written_rows(folder: Path, ended: IngestResult) -> int:
    return sum(pq.read_metadata(folder / record.path).num_rows for record in ended.shards)


def run_ingest(folder: Path, **options: Any) -> IngestResult | None:
    """Return the result of an ingest, or None after a one-line error; check its counts against the written rows."""
    try:
        ended = ingest(IngestConfig(output=str(folder / "out"), generator="flux", **options), lambda record: None)
    except PlumblineError as error:
        assert str(error).strip()
        return None
    assert ended.rows == count_written_rows(folder / "out", ended)
    assert len(pq.read_table(folder / "out/rejected.parquet")) == len(ended.rejected)
    assert (ended.exit_code == 0) == (ended.rejected == [])
    return ended


@pytest.fixture(scope="module", autouse=True)
def skip_disk_flushes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(N_ROWS):
        (folder / f"{number}.png").write_bytes(b"png %d" % number)
    return folder


def make_delimited(mark: str) -> bytes:
    rows = [[f"{n}.png", f"a cat number {n}", str(n)] for n in range(N_ROWS)]
    return "".join(mark.join(row) + "\n" for row in [["file", "prompt", "seed"], *rows]).encode()


def make_json_lines() -> bytes:
    rows = [
        {"file": f"{n}.png", "prompt": f"a cat {n}", "prompt_id": n, "tags": ["a"], "deep": {"n": n / 2}}
        for n in range(N_ROWS)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


TABLES = {
    "t.csv": make_delimited(","),
    "t.tsv": make_delimited("\t"),
    "t.jsonl": make_json_lines(),
    "t.ndjson": make_json_lines(),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_line_of_a_table_is_written_or_counted(name: str, images: Path) -> None:
    @FEW_EXAMPLES_SETTINGS
    @given(TEXT_EDITS)
    def check(changes: list[ByteEdit]) -> None:
        content = apply_edits(TABLES[name], changes)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(content)
            ended = run_ingest(Path(folder), table=f"{folder}/{name}", images=str(images))
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        if ended is not None and "json" in name:
            assert ended.rows + len(ended.rejected) == sum(bool(line.strip()) for line in lines)
        elif ended is not None and b'"' not in content:
            assert ended.rows + len(ended.rejected) == sum(bool(line.strip(b"\r")) for line in lines[1:])

    check()


def test_each_stray_quote_in_a_csv_costs_at_most_a_row(images: Path) -> None:
    header, body = TABLES["t.csv"].split(b"\n", 1)

    @FEW_EXAMPLES_SETTINGS
    @given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3))
    def check(quotes: list[float]) -> None:
        content = apply_edits(body, [ByteEdit(place, 0, b'"') for place in quotes])
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "t.csv").write_bytes(header + b"\n" + content)
            ended = run_ingest(Path(folder), table=f"{folder}/t.csv", images=str(images))
        assert ended is not None and ended.rows >= N_ROWS - len(quotes)
        assert ended.rows + len(ended.rejected) >= N_ROWS

    check()


def make_tar(format: int) -> bytes:
    """Return a tar of samples, each with an image, a JSON file and a text; `format` is a constant from `tarfile`.

    The images have 1, 511, 512 or 700 bytes; a block in a tar has 512.
    """
    stream, sizes = io.BytesIO(), random.Random(0)
    with tarfile.open(fileobj=stream, mode="w", format=format) as archive:
        for number in range(N_ROWS):
            for kind, content in (
                ("png", b"\x89" * sizes.choice([1, 511, 512, 700])),
                ("json", b'{"seed": 7}'),
                ("txt", b"a cat"),
            ):
                header = tarfile.TarInfo(
                    f"folder/{'long' * 40 if format != tarfile.USTAR_FORMAT else ''}{number}.{kind}"
                )
                header.size = len(content)
                archive.addfile(header, io.BytesIO(content))
    return stream.getvalue()


TARS = {
    "ustar": make_tar(tarfile.USTAR_FORMAT),
    "gnu": make_tar(tarfile.GNU_FORMAT),
    "pax": make_tar(tarfile.PAX_FORMAT),
}


@pytest.mark.parametrize("pack", [bytes, lambda content: gzip.compress(content, mtime=0)], ids=["plain", "gz"])
@pytest.mark.parametrize("format", TARS)
def test_every_sample_of_a_tar_is_written_or_counted_or_the_tar_is_reported(
    format: str, pack: Callable[[bytes], bytes]
) -> None:
    @FEW_EXAMPLES_SETTINGS
    @given(BYTE_EDITS, st.floats(0.1, 1.0))
    def check(changes: list[ByteEdit], kept: float) -> None:
        content = apply_edits(pack(TARS[format]), changes)
        content = content[: int(kept * len(content))] if kept < 0.5 else content
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "t.tar").write_bytes(content)
            ended = run_ingest(Path(folder), tars=f"{folder}/t.tar", max_failed=1.0)
        if ended is not None and ended.exit_code == 1:
            assert [Path(file).name for file in ended.damaged] == ["t.tar"]
        elif ended is not None:
            assert ended.rows + len(ended.rejected) >= N_ROWS

    check()


def add_checksum(header: bytes) -> bytes:
    plain = header[:148] + b" " * 8 + header[156:]
    return plain[:148] + b"%06o\0 " % sum(plain) + plain[156:]


TAR_HEADERS = st.builds(
    lambda name, size, kind, rest: add_checksum(
        name.ljust(100, b"\0")[:100]
        + b"0000644\0" * 3
        + size.ljust(12, b"\0")[:12]
        + b"0" * 12
        + b" " * 8
        + kind
        + rest
    )[:512].ljust(512, b"\0"),
    st.sampled_from([b"a.png", b"a.json", b"a.txt", b"b.png", b".hidden", b"..", b"a/../b.png", b"\xff.png", b""]),
    st.sampled_from([b"00000000012\0", b"00000001000\0", b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"x"]),
    st.sampled_from([b"0", b"\0", b"1", b"2", b"3", b"5", b"7", b"K", b"L", b"S", b"x", b"X", b"g", b"D", b"Z"]),
    st.binary(min_size=355, max_size=355),
)
TAR_CONTENTS = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([
        b"15 size=1000000\n", b"11 size=-5\n", b"19 path=../../etc\0\n", b"0 path=x\n", b"26 GNU.sparse.map=1,2,3,x\n",
        b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n", b"99999999999999999999 path=x\n", b"20 hdrcharset=BINARY\n",
    ]),
)  # fmt: skip


@FEW_EXAMPLES_SETTINGS
@given(st.lists(st.tuples(TAR_HEADERS, TAR_CONTENTS), min_size=1, max_size=6))
def test_any_headers_give_rows_or_an_error_that_names_the_tar(members: list[tuple[bytes, bytes]]) -> None:
    content = b"".join(header + content.ljust(512, b"\0") for header, content in members) + bytes(1024)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.tar").write_bytes(content)
        run_ingest(Path(folder), tars=f"{folder}/t.tar")


@FEW_EXAMPLES_SETTINGS
@given(st.sampled_from(["shard", "record", "receipt", "manifest"]), BYTE_EDITS)
def test_a_damaged_output_is_repaired_or_refused(file: str, changes: list[ByteEdit]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "t.tar").write_bytes(TARS["ustar"])
        assert run_ingest(folder, tars=str(folder / "t.tar")) is not None
        [receipt] = (folder / "out/.ingest").glob("*.json")
        [record] = (folder / "out/.ingest/records").iterdir()
        files = {"shard": folder / "out/flux/00000.parquet", "manifest": folder / "out/manifest.json",
                 "receipt": receipt, "record": record}  # fmt: skip
        files[file].write_bytes(apply_edits(files[file].read_bytes(), changes))
        ended = run_ingest(folder, tars=str(folder / "t.tar"))
        assert ended is None or ended.rows + len(ended.rejected) == N_ROWS


@FEW_EXAMPLES_SETTINGS
@given(st.sampled_from(["record", "receipt", "manifest"]), st.integers(0, 2**32 - 1))
def test_a_flipped_bit_in_an_ingests_records_changes_none_of_its_messages(file: str, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "t.tar").write_bytes(TARS["ustar"])
        first = run_ingest(folder, tars=str(folder / "t.tar"))
        assert first is not None
        rejected = pq.read_table(folder / "out/rejected.parquet")
        [receipt] = (folder / "out/.ingest").glob("*.json")
        [record] = (folder / "out/.ingest/records").iterdir()
        files = {"receipt": receipt, "record": record, "manifest": folder / "out/manifest.json"}
        before = (folder / "out/manifest.json").read_bytes()
        assert damage_file(files[file], chance.choice([*ROT_WAYS, "truncate"]), chance)
        ended = run_ingest(folder, tars=str(folder / "t.tar"))
        if ended is None:
            assert file == "manifest"
            return
        assert (ended.rows, ended.rejected) == (first.rows, first.rejected)
        assert pq.read_table(folder / "out/rejected.parquet").equals(rejected)
        assert (folder / "out/manifest.json").read_bytes() == before
