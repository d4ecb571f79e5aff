"""The store: committed cells, drafts and runs, as plain Parquet and JSON that anyone can open."""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from operators.errors import ConfigError, PlumblineError
from operators.models.checkpoints import digest_file
from operators.rows import count_errors, usage_of
from pipelines.cells import Cell, Outcome
from pipelines.storage import (
    Location,
    StorageConfig,
    create,
    first_line,
    is_storage_error,
    locate,
    readable_errors,
    replace,
    write_errors,
    written_whole,
)

METADATA = b"plumbline"
ROWS_OF_A_GROUP = 1 << 16
"""Of a table that is written part by part."""
LATEST = "runs/latest"
MARK = "store.json"
WORKING_FOLDERS = "/runtime_resources/working_dir_files/"
"""Where `ray job submit --working-dir` unpacks a job's files, and deletes them some time after the job."""


class StoreError(PlumblineError):
    """What stands in the store is not what its name says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """A folder or bucket prefix; a cell's existence in it is its commit."""

    url: str
    storage: StorageConfig

    @property
    def location(self) -> Location:
        return locate(self.url, self.storage)

    def check(self) -> None:
        """Marks the folder as a store; raises ConfigError where it cannot be reached or written."""
        location = self.location
        with readable_errors(location, "store"):
            create(location, location.at(MARK), b'{"plumbline_store": 1}\n')

    def committed(self, cells: Iterable[Cell]) -> set[str]:
        """The paths among `cells` that are committed: one listing per stage and recipe."""
        folders = {"/".join(cell.path.split("/")[:2]) for cell in cells}
        found: set[str] = set()
        for folder in folders:
            found |= self._listing(folder)
        return {cell.path for cell in cells} & found

    def _listing(self, folder: str) -> set[str]:
        location = self.location
        prefix = location.at("")
        with readable_errors(location, "store"):
            try:
                return {path.removeprefix(prefix) for path in location.fs.find(location.at(folder))}
            except FileNotFoundError:
                return set()

    def save(self, cell: Cell, table: pa.Table) -> Outcome:
        """Commits a cell by one create-only PUT; the first writer wins and a later one is harmless.

        A cell with a retryable error is saved as a draft instead: this run reads it, the next one computes it anew.
        Raises WriteError where neither can be written.
        """
        errors = count_errors(table)
        location = self.location
        usage = usage_of(table)
        provenance = {"key": cell.key, "node": cell.node, "inputs": cell.inputs, "errors": errors}
        data = _encode(table, provenance | ({"usage": usage._asdict()} if usage is not None else {}))
        if count_errors(table, retryable_only=True):
            self._replace(_draft(cell.path), data)
            return Outcome(state="draft", rows=len(table), errors=errors, usage=usage)
        with write_errors(location.at(cell.path)):
            create(location, location.at(cell.path), data)
        return Outcome(state="committed", rows=len(table), errors=errors, usage=usage)

    def read(self, path: str, *, key: str | None = None, draft: bool = False) -> pa.Table:
        """A cell's table; raises StoreError naming the file where it is damaged, another cell's or out of reach."""
        location = self.location
        where = _draft(path) if draft else path
        try:
            data = pa.BufferReader(_content(location, where))
            table = pq.ParquetFile(data, pre_buffer=False).read(use_threads=False)
        except pa.ArrowInvalid as error:
            raise StoreError(f"{location.at(where)}: the cell is damaged ({error}); delete it and run again") from error
        metadata = (table.schema.metadata or {}).get(METADATA)
        if key is not None and (metadata is None or json.loads(metadata)["key"] != key):
            raise StoreError(f"{location.at(where)}: the cell is of another key; delete it and run again")
        return table.replace_schema_metadata(None)

    def write_table(self, path: str, table: pa.Table) -> None:
        """A run's output table."""
        self._replace(path, _encode(table, {}))

    def write_parts(self, path: str, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
        """A run's output table that comes part by part; of it only a row group is in memory at a time."""
        location = self.location
        waiting: list[pa.Table] = []
        with (
            write_errors(location.at(path)),
            written_whole(location, location.at(path)) as draft,
            pq.ParquetWriter(draft, schema, compression="zstd") as writer,
        ):
            for part in parts:
                waiting.append(part)
                if sum(map(len, waiting)) >= ROWS_OF_A_GROUP:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            writer.write_table(pa.concat_tables([schema.empty_table(), *waiting]))

    def write_text(self, path: str, text: str) -> None:
        self._replace(path, text.encode())

    def _replace(self, path: str, data: bytes) -> None:
        location = self.location
        with write_errors(location.at(path)):
            replace(location, location.at(path), data)

    def read_text(self, path: str) -> str | None:
        """A small text object, or None where there is none."""
        location = self.location
        with readable_errors(location, "store"):
            try:
                return str(location.fs.cat_file(location.at(path)).decode(errors="replace"))
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        """Whether an object stands there."""
        with readable_errors(self.location, "store"):
            return bool(self.location.fs.exists(self.location.at(path)))

    def digest_file(self, path: Path, *, remember: bool) -> str:
        """SHA-256 of a local file's content; what was remembered of its path, size and modification time is used."""
        state = path.stat()
        identity = f"{path.absolute()}\0{state.st_size}\0{state.st_mtime_ns}"
        note = f"digests/{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
        remembered = self.read_text(note)
        if remembered is None:
            remembered = digest_file(path)
            if remember:
                self.write_text(note, remembered)
        return remembered


def open_store(url: str, storage: StorageConfig) -> Store:
    """The store at a path or s3:// URL; raises ConfigError for what is no address, or a place that Ray empties."""
    try:
        location = locate(url, storage)
    except ConfigError as error:
        raise ConfigError(f"store: {error}") from error
    if WORKING_FOLDERS in location.path:
        raise ConfigError(
            f"store {location.url}: lies in the working folder of a Ray job, which Ray deletes; "
            "name a place that lasts, as in store=s3://BUCKET/PREFIX or store=/an/absolute/path"
        )
    return Store(url=location.url, storage=storage)


def is_mark(location: Location, path: str) -> bool:
    """Whether a file says that its folder is a store."""
    return path.rpartition("/")[2] == MARK and b"plumbline_store" in location.fs.cat_file(path)


def _draft(path: str) -> str:
    return path.removesuffix(".parquet") + ".draft.parquet"


def _content(location: Location, path: str) -> bytes:
    try:
        return bytes(location.fs.cat_file(location.at(path)))
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise StoreError(f"{location.at(path)}: the cell cannot be read ({first_line(error)}); run again") from error


def _encode(table: pa.Table, provenance: Mapping[str, Any]) -> bytes:
    """Parquet bytes with the provenance in the file's metadata."""
    written = datetime.now(UTC).isoformat(timespec="seconds")
    metadata = {METADATA: json.dumps({**provenance, "written": written})}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd")
    return buffer.getvalue()
