"""Files in the output of ingests: the shards, a record of each finished ingest, and the tables of all ingests."""

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
from plumbline.pipelines.base.storage import Entry, Place, convert_read_errors
from plumbline.pipelines.base.tables import REJECTED_SCHEMA, Refused, Rejection, escape_bytes
from plumbline.pipelines.ingest.ingest_config import InputAddresses
from plumbline.pipelines.ingest.input_rows import SKILLS_FIELD, hash_json
from plumbline.pipelines.sources.origins import MANIFEST_FILE
from plumbline.pipelines.sources.shards import INGEST_KEY
from plumbline.pipelines.store.checksums import DamagedError, decode_json, encode_json

N_READERS = 16
"""Number of shards that are read at once."""
RECORDS_FOLDER = ".ingest/records"
MAX_PROMPTS_AT_ONCE = 65_536
PROMPTS_SCHEMA = pa.schema([("prompt_id", pa.string()), ("text", pa.string()), SKILLS_FIELD])


class OutputError(ConfigError):
    """Raised if a file in the output is damaged or missing, or was not written by an ingest."""


class ShardFooter(NamedTuple):
    """The metadata that a shard has in addition to its rows."""

    key: str
    """Hash of the input and the options that the shard was made from."""
    rejected: list[Rejection]
    source: InputAddresses
    """The input of the ingest."""


class OutputShard(NamedTuple):
    """Size, ETag and footer metadata of a shard that exists in the output."""

    size: int
    etag: str
    footer: ShardFooter


class OutputPrompt(NamedTuple):
    prompt_id: str
    text: str
    skills: Sequence[str]
    """Skills of all rows with this prompt, across generators, sorted."""


def read_output_shards(
    output: Place, known: Mapping[str, OutputShard] = MappingProxyType({})
) -> dict[str, OutputShard]:
    """Return the shards by path; shards in `known` that have not changed are not read again.

    Raises ConfigError for a Parquet file in a generator's folder that is damaged or was not written by an ingest.
    """

    def read(path: str, entry: Entry) -> OutputShard:
        if path in known and (known[path].size, known[path].etag) == (entry.size, entry.etag):
            return known[path]
        return OutputShard(entry.size, entry.etag, read_footer(output, path, entry.size))

    shards = {
        path: entry
        for path, entry in _list_files(output).items()
        if path.endswith(".parquet") and "/" in path and not any(part.startswith(".") for part in path.split("/"))
    }
    with ThreadPoolExecutor(N_READERS) as pool:
        return dict(zip(shards, pool.map(read, shards, shards.values()), strict=True))


def _list_files(folder: Place) -> dict[str, Entry]:
    with convert_read_errors(folder, "output"):
        try:
            return dict(sorted(folder.files()))
        except FileNotFoundError:
            return {}


def read_footer(output: Place, path: str, size: int | None = None) -> ShardFooter:
    """Read a shard's metadata; raise ConfigError if the file is damaged, or was not written by an ingest."""
    with (
        convert_damage_errors(output, path),
        open_for_arrow(output / path, "output", size=size, cache_type="none") as stream,
    ):
        values = decode_json((pq.read_metadata(stream).metadata or {})[INGEST_KEY].decode())
        return ShardFooter(values["key"], [Rejection(*row) for row in values["rejected"]], dict(values["source"]))


@contextmanager
def convert_damage_errors(output: Place, path: str) -> Iterator[None]:
    """Convert errors about a damaged file, or a file that no ingest wrote, to an OutputError that names the file."""
    try:
        yield
    except (pa.ArrowException, DamagedError, ValueError, KeyError, TypeError, Refused) as error:
        raise OutputError(
            f"{output / path}: not written by an ingest, or damaged; move it, or choose another output"
        ) from error


def read_prompts(output: Place, paths: Sequence[str]) -> Iterator[tuple[str, list[OutputPrompt]]]:
    """Yield each shard's path with its prompts; raise ConfigError if a shard is damaged."""

    def read(path: str) -> list[OutputPrompt]:
        rows = read_columns(output, path, ["prompt_id", "prompt", "skills"])
        texts = (row for row in rows if row["prompt"] is not None)
        return [OutputPrompt(row["prompt_id"], row["prompt"], row.get("skills") or ()) for row in texts]

    with ThreadPoolExecutor(N_READERS) as pool:
        for start in range(0, len(paths), N_READERS):  # so that few prompts are in memory at once
            batch = paths[start : start + N_READERS]
            yield from zip(batch, pool.map(read, batch), strict=True)


def read_columns(output: Place, path: str, names: list[str]) -> list[dict[str, Any]]:
    """Return a shard's rows with the columns in `names`, if they exist; raise ConfigError if the shard is damaged."""
    with convert_damage_errors(output, path), open_for_arrow(output / path, "output", cache_type="none") as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        rows: list[dict[str, Any]] = file.read(columns=names, use_threads=False).to_pylist()
        return rows


@contextmanager
def open_for_arrow(place: Place, what: str, **options: Any) -> Iterator[Any]:
    """Open a file for an Arrow reader, which raises ArrowException if the content is damaged.

    Raises ConfigError if the file cannot be reached; `what` names the file in the message.
    """
    with convert_read_errors(place, what), place.open(**options) as stream:
        try:
            yield stream
        except OSError as error:
            if error.errno is not None:  # Arrow's own errors have no number
                raise
            raise pa.ArrowInvalid(str(error)) from error


class IngestRecord(NamedTuple):
    manifest: Mapping[str, Any]
    """The input and the shards made from it. Interrupting and resuming an ingest does not change it."""
    rejected: Sequence[Rejection]

    @property
    def paths(self) -> set[str]:
        return {shard["path"] for shard in self.manifest["shards"]}


class IngestRecords:
    """The records of all ingests into an output, including this ingest's own."""

    def __init__(self, output: Place, source: InputAddresses) -> None:
        """Open the records; raise OutputError if the manifest names an ingest that has no record."""
        self.output = output
        self.source = source
        self._own = _make_record_path(source)
        manifest = output / MANIFEST_FILE
        named: list[str] = []
        with convert_read_errors(output, "output"):
            if manifest.exists():
                try:
                    ingests = decode_json(manifest.read().decode())["ingests"]
                    named = [_make_record_path(ingest["source"]) for ingest in ingests]
                except (DamagedError, ValueError, KeyError, TypeError) as error:
                    remedy = "move it, or choose another output"
                    raise OutputError(f"{manifest}: not written by an ingest, or damaged; {remedy}") from error
            missing = {*named} - {self._own, *self.list_etags()}
        if missing:
            raise OutputError(
                f"{output / RECORDS_FOLDER}: the record of an ingest that is listed in manifest.json is missing; "
                "copy .ingest together with its output, or choose another output"
            )

    def list_etags(self) -> dict[str, str]:
        """Return the ETag of each record by its path relative to the output."""
        return {
            f"{RECORDS_FOLDER}/{name}": entry.etag for name, entry in _list_files(self.output / RECORDS_FOLDER).items()
        }

    def write(self, record: IngestRecord) -> None:
        """Write the record of this ingest, which marks it as finished."""
        (self.output / self._own).write(encode_json(record._asdict()).encode())

    def forget(self) -> None:
        """Remove this ingest's record before any of its shards changes: no manifest may list a changed shard."""
        with convert_read_errors(self.output, "output"):
            if self._own in self.list_etags():
                self._write_manifest([record for path, record in self._read_records() if path != self._own], [])
                (self.output / self._own).remove()

    def publish(self, prompts: Iterator[OutputPrompt], shards: Collection[str]) -> list[str]:
        """Write the output's tables and manifest; return the generators whose shards have no record.

        `prompts` are sorted by id; `shards` are the paths of all shards in the output.
        """
        with convert_read_errors(self.output, "output"):
            records = [record for _, record in self._read_records() if record.paths <= set(shards)]
            recorded = {path for record in records for path in record.paths}
            unfinished = sorted({path.partition("/")[0] for path in shards if path not in recorded})
            with (
                (self.output / "prompts.parquet").open_draft() as draft,
                pq.ParquetWriter(draft, PROMPTS_SCHEMA, compression="zstd") as writer,
            ):
                while batch := list(islice(prompts, MAX_PROMPTS_AT_ONCE)):  # one row group in memory at a time
                    writer.write_table(make_table([prompt._asdict() for prompt in batch], PROMPTS_SCHEMA))
            rejected = [rejection._asdict() for record in records for rejection in record.rejected]
            buffer = io.BytesIO()
            pq.write_table(make_table(rejected, REJECTED_SCHEMA), buffer, compression="zstd")
            (self.output / "rejected.parquet").write(buffer.getvalue())
            self._write_manifest(records, unfinished)
        return unfinished

    def _read_records(self) -> Iterator[tuple[str, IngestRecord]]:
        """Yield every readable record with its path; an ingest with an unreadable record counts as unfinished."""
        for path in self.list_etags():
            try:
                values = decode_json((self.output / path).read().decode())
                rejected = [Rejection(escape_bytes(file), *row) for file, *row in values["rejected"]]
                yield path, IngestRecord(values["manifest"], rejected)
            except (DamagedError, ValueError, KeyError, TypeError):
                continue

    def _write_manifest(self, records: Sequence[IngestRecord], unfinished: Sequence[str]) -> None:
        manifest = self.output / MANIFEST_FILE
        if records:
            values = {"ingests": [record.manifest for record in records], "unfinished": unfinished}
            manifest.write(encode_json(values).encode())
        elif manifest.exists():
            manifest.remove()


def _make_record_path(source: InputAddresses) -> str:
    return f"{RECORDS_FOLDER}/{hash_json(source)[:32]}.json"
