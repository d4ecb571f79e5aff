"""What stands in an output: the shards of its ingests, a record of how each ended, the tables that tell of all."""

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.rows import table as make_table
from plumbline.pipelines.base.storage import Entry, Place, readable_errors
from plumbline.pipelines.base.tables import REJECTED, Refused, Rejection, printable
from plumbline.pipelines.cells.checksums import DamagedError, decode_json, encode_json
from plumbline.pipelines.ingest.ingest_config import Identity
from plumbline.pipelines.ingest.input_rows import SKILLS, digest
from plumbline.pipelines.ingest.taken_ids import OutputPrompt
from plumbline.pipelines.sources.origins import MANIFEST
from plumbline.pipelines.sources.shards import INGESTED

READERS = 16
"""Shards of an output that are read at once."""


class OutputError(ConfigError):
    """A file of an output is damaged, lost or not an ingest's own."""


class Footer(NamedTuple):
    """What an ingest writes into a shard besides its rows."""

    key: str
    """A hash of what it was made from, and how."""
    rejected: list[Rejection]
    source: Identity
    """What the ingest took in."""


class OutputShard(NamedTuple):
    """A shard in the output."""

    size: int
    tag: str
    footer: Footer


def read_output_shards(
    output: Place, known: Mapping[str, OutputShard] = MappingProxyType({})
) -> dict[str, OutputShard]:
    """The shards by their paths; those that are `known` and did not change are not read again.

    Raises ConfigError for a Parquet file in a generator's folder that is none, or is damaged.
    """

    def read(path: str, entry: Entry) -> OutputShard:
        size, tag = entry.size, entry.etag
        if path in known and (known[path].size, known[path].tag) == (size, tag):
            return known[path]
        return OutputShard(size, tag, read_footer(output, path, size))

    with readable_errors(output, "output"):
        listed = _listing(output)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(listed, pool.map(read, listed, listed.values()), strict=True))


def _listing(output: Place) -> dict[str, Entry]:
    try:
        entries = dict(output.files())
    except FileNotFoundError:
        return {}
    return {
        path: entry
        for path, entry in sorted(entries.items())
        if path.endswith(".parquet") and "/" in path and not any(part.startswith(".") for part in path.split("/"))
    }


def read_footer(output: Place, path: str, size: int | None = None) -> Footer:
    """Raises ConfigError for what is no shard, or a damaged one."""
    with damage_named(output, path), _opened(output, path, size) as stream:
        values = decode_json((pq.read_metadata(stream).metadata or {})[INGESTED].decode())
        return Footer(values["key"], [Rejection(*row) for row in values["rejected"]], dict(values["source"]))


@contextmanager
def damage_named(output: Place, path: str) -> Iterator[None]:
    """Turns what reading a file that is no shard, or a damaged one, raises into an OutputError that names it."""
    try:
        yield
    except (pa.ArrowException, DamagedError, ValueError, KeyError, TypeError, Refused) as error:
        raise OutputError(
            f"{output / path}: not written by an ingest, or damaged; move it, or choose another output"
        ) from error


def read_prompts(output: Place, paths: Sequence[str]) -> Iterator[tuple[str, list[OutputPrompt]]]:
    """These shards with their prompts; raises ConfigError where one is damaged."""
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(paths), READERS):
            part = paths[start : start + READERS]
            yield from zip(part, pool.map(lambda path: _prompts(output, path), part), strict=True)


def _prompts(output: Place, path: str) -> list[OutputPrompt]:
    rows = read_columns(output, path, ["prompt_id", "prompt", "skills"])
    return [
        OutputPrompt(row["prompt_id"], row["prompt"], row.get("skills") or ())
        for row in rows
        if row["prompt"] is not None
    ]


def read_columns(output: Place, path: str, names: list[str]) -> list[dict[str, Any]]:
    """Those of these columns that a shard has, row by row; raises ConfigError where it is damaged."""
    with damage_named(output, path), _opened(output, path) as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        rows: list[dict[str, Any]] = file.read(columns=names, use_threads=False).to_pylist()
        return rows


@contextmanager
def _opened(output: Place, path: str, size: int | None = None) -> Iterator[Any]:
    """A file opened for the few ranges of it that are read; what Arrow finds wrong with it is an ArrowException."""
    with readable_errors(output, "output"), (output / path).open(size=size, cache_type="none") as stream:
        try:
            yield stream
        except OSError as error:
            if error.errno is not None:  # Arrow's own have none
                raise
            raise pa.ArrowInvalid(str(error)) from error


def other_generators(standing: Mapping[str, OutputShard], own: Identity) -> dict[str, str]:
    """The generators of other ingests, with what those took in."""
    sources = {path.partition("/")[0]: shard.footer.source for path, shard in standing.items()}
    return {name: _words(source) for name, source in sources.items() if source != own}


def _words(source: Identity) -> str:
    """What an ingest takes in, as its command says it."""
    return " ".join(f"{name}={value}" for name, value in source.items() if value is not None)


RECORDS = ".ingest/records"
PROMPTS_AT_ONCE = 65_536
PROMPTS = pa.schema([("prompt_id", pa.string()), ("text", pa.string()), SKILLS])


class Record(NamedTuple):
    """How an ingest ended."""

    manifest: Mapping[str, Any]
    """What was made from what: the same after an interrupted run as after an undisturbed one."""
    rejected: Sequence[Rejection]

    @property
    def paths(self) -> set[str]:
        """Its shards."""
        return {shard["path"] for shard in self.manifest["shards"]}


class Records:
    """The records in an output, of which one is this ingest's own."""

    def __init__(self, output: Place, source: Identity) -> None:
        """Raises OutputError where the manifest names an ingest of which there is no record."""
        self.output = output
        self.source = source
        self._own = _record_path(source)
        with readable_errors(output, "output"):
            missing = set(self._named()) - {self._own, *self.listing()}
        if missing:
            raise OutputError(
                f"{output / RECORDS}: an ingest that manifest.json names has no record there; "
                "copy .ingest along with its output, or choose another output"
            )

    def _named(self) -> Iterator[str]:
        """The records of the ingests in the manifest."""
        manifest = self.output / MANIFEST
        if manifest.exists():
            try:
                ingests = decode_json(manifest.read().decode())["ingests"]
                yield from [_record_path(ingest["source"]) for ingest in ingests]
            except (DamagedError, ValueError, KeyError, TypeError) as error:
                remedy = "move it, or choose another output"
                raise OutputError(f"{manifest}: not written by an ingest, or damaged; {remedy}") from error

    def listing(self) -> dict[str, str]:
        """Each record's path below the output with what changes when it does."""
        with readable_errors(self.output, "output"):
            try:
                entries = dict((self.output / RECORDS).files())
            except FileNotFoundError:
                return {}
        return {f"{RECORDS}/{name}": entry.etag for name, entry in sorted(entries.items())}

    def write(self, record: Record) -> None:
        """Says that this ingest has ended."""
        (self.output / self._own).write(encode_json(record._asdict()).encode())

    def forget(self) -> None:
        """Takes this ingest's end back, before a shard of it changes: a manifest stands beside what it names."""
        with readable_errors(self.output, "output"):
            if self._own in self.listing():
                self._write_manifest([record for path, record in self._read() if path != self._own], [])
                (self.output / self._own).remove()

    def publish(self, prompts: Iterator[OutputPrompt], standing: Collection[str]) -> list[str]:
        """Writes the output's tables and manifest; the generators whose shards stand without a record."""
        with readable_errors(self.output, "output"):
            records = [record for _, record in self._read() if record.paths <= set(standing)]
            recorded = {path for record in records for path in record.paths}
            unfinished = sorted({path.partition("/")[0] for path in standing if path not in recorded})
            rejected = [rejection._asdict() for record in records for rejection in record.rejected]
            self._write_prompts(prompts)
            (self.output / "rejected.parquet").write(_encode(make_table(rejected, REJECTED)))
            self._write_manifest(records, unfinished)
        return unfinished

    def _write_prompts(self, prompts: Iterator[OutputPrompt]) -> None:
        """The prompts by their ids, a row group of them in memory at a time."""
        with (
            (self.output / "prompts.parquet").writing() as draft,
            pq.ParquetWriter(draft, PROMPTS, compression="zstd") as writer,
        ):
            while part := list(islice(prompts, PROMPTS_AT_ONCE)):
                writer.write_table(make_table([prompt._asdict() for prompt in part], PROMPTS))

    def _read(self) -> Iterator[tuple[str, Record]]:
        """Every record that can be read, by its path: of another, the ingest counts as not ended."""
        for path in self.listing():
            try:
                values = decode_json((self.output / path).read().decode())
                rejected = [Rejection(printable(file), *row) for file, *row in values["rejected"]]
                yield path, Record(values["manifest"], rejected)
            except (DamagedError, ValueError, KeyError, TypeError):
                continue

    def _write_manifest(self, records: Sequence[Record], unfinished: Sequence[str]) -> None:
        manifest = self.output / MANIFEST
        if records:
            values = {"ingests": [record.manifest for record in records], "unfinished": unfinished}
            manifest.write(encode_json(values).encode())
        elif manifest.exists():
            manifest.remove()


def _record_path(source: Identity) -> str:
    return f"{RECORDS}/{digest(source)[:32]}.json"


def _encode(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
