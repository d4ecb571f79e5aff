"""The store: committed cells, drafts and runs, as plain Parquet and JSON that anyone can open."""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from operators.errors import ConfigError, PlumblineError
from operators.models.calls import Usage
from operators.models.parts import digest_file
from operators.rows import count_errors, usage_of
from pipelines.cells.cells import Cell, Outcome
from pipelines.storage import (
    Location,
    StorageConfig,
    create,
    duplicate,
    first_line,
    is_storage_error,
    locate,
    modified,
    readable_errors,
    replace,
    write_errors,
)

DIGEST_MARK = "sha256:"
NO_DIGEST = DIGEST_MARK + "0" * 64
"""Stands in place of a cell's digest while that is made, and checked."""
DRAFT = ".draft.parquet"
LATEST = "runs/latest"
MARK = "store.json"
WORKING_FOLDERS = "/runtime_resources/working_dir_files/"
"""Where `ray job submit --working-dir` unpacks a job's files, and deletes them some time after the job."""


class StoreError(PlumblineError):
    """What stands in the store is not what its name says."""


class BrokenCell(StoreError):
    """A cell cannot be used and is to be computed anew: it is damaged, or stands on what is no more."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        """Of the cell, relative to the store."""


class StoredCell(NamedTuple):
    """A cell as it stands in the store."""

    table: pa.Table
    provenance: Mapping[str, Any]
    """Its key, the node that computed it, the cells it stands on, its errors, its model calls and its digest."""

    def outcome(self) -> Outcome:
        """What became of the cell, as it was told when it was committed."""
        return Outcome(
            state="committed",
            rows=len(self.table),
            errors=self.provenance["errors"],
            usage=Usage(**self.provenance["usage"]) if "usage" in self.provenance else None,
        )


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

    def listing(self, cells: Iterable[Cell]) -> dict[str, float]:
        """What stands in the folders of these cells, with the time it was written: one listing per stage and recipe."""
        paths = {cell.path: cell.path for cell in cells}  # a million of them are not to be held twice
        folders = sorted({"/".join(path.split("/")[:2]) for path in paths})
        return {paths.get(path, path): written for folder in folders for path, written in self._listing(folder)}

    def _listing(self, folder: str) -> Iterator[tuple[str, float]]:
        location = self.location
        prefix = location.at("")
        with readable_errors(location, "store"):
            try:
                entries = location.fs.find(location.at(folder), detail=True)
            except FileNotFoundError:
                return
        while entries:  # each is let go as it is read: what a storage tells of a file is longer than its path
            path, entry = entries.popitem()
            yield path.removeprefix(prefix), modified(entry)

    def save(self, cell: Cell, table: pa.Table, **provenance: Any) -> Outcome:
        """Commits a cell by one create-only PUT; the first writer wins and a later one is harmless.

        A cell with a retryable error is saved as a draft instead: this run reads it, the next one computes what it
        lacks. A cell to renew replaces what stands there. Raises WriteError where it cannot be written.
        """
        errors = count_errors(table)
        location = self.location
        usage = usage_of(table)
        provenance |= {"key": cell.key, "node": cell.node, "inputs": cell.upstream, "errors": errors}
        data = encode_cell(table, provenance | ({"usage": usage._asdict()} if usage is not None else {}))
        if count_errors(table, retryable_only=True):
            self._replace(draft_path(cell.path), data)
            return Outcome(state="draft", rows=len(table), errors=errors, usage=usage)
        with write_errors(location.at(cell.path)):
            (replace if cell.renew else create)(location, location.at(cell.path), data)
        return Outcome(state="committed", rows=len(table), errors=errors, usage=usage)

    def read(
        self, path: str, *, key: str | None = None, draft: bool = False, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """A cell's table, checked to the last bit; raises BrokenCell where it is damaged or another cell's."""
        cell = self.read_cell(draft_path(path) if draft else path, columns)
        if key is not None and cell.provenance["key"] != key:
            raise BrokenCell(path, f"{self.location.at(path)}: the cell is of another key; run again")
        return cell.table

    def read_cell(self, path: str, columns: Sequence[str] | None = None) -> StoredCell:
        """A cell or draft; raises BrokenCell where it is damaged, and StoreError where it is out of reach."""
        location = self.location
        try:
            return decode_cell(_content(location, path), columns)
        except DamagedError as error:
            cell = path.removesuffix(DRAFT) + ".parquet" if path.endswith(DRAFT) else path
            raise BrokenCell(cell, f"{location.at(path)}: the cell is damaged ({error}); run again") from error

    def read_table(self, path: str, columns: Sequence[str] | None = None, *, encoded: Sequence[str] = ()) -> pa.Table:
        """A run's output table, of one file or of a folder of parts; columns `encoded` hold each value once.

        Raises StoreError naming the file where it is damaged or out of reach.
        """
        parts = [self._read_part(part, columns, encoded) for part in self.files(path) or [path]]
        return pa.concat_tables(parts).unify_dictionaries()

    def _read_part(self, path: str, columns: Sequence[str] | None, encoded: Sequence[str]) -> pa.Table:
        location = self.location
        try:
            return _read_parquet(_content(location, path), columns, encoded).replace_schema_metadata(None)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            problem = first_line(error)
            raise StoreError(
                f"{location.at(path)}: the table is damaged ({problem}); delete it and run the sweep again"
            ) from error

    def write_table(self, path: str, table: pa.Table) -> str:
        """A run's output table; the SHA-256 of its file, by which `adopt` knows it."""
        data = _to_parquet(table)
        self._replace(path, data)
        return hashlib.sha256(data).hexdigest()

    def adopt(self, source: str, target: str, sha256: str) -> bool:
        """Takes a run's table into another run; False where its file is gone, or not the one that was written.

        What stands on S3 is not read for it: S3 keeps its own checksums.
        """
        location = self.location
        try:
            local = isinstance(location.fs, LocalFileSystem)
            if local and digest_file(Path(location.at(source))) != sha256:
                return False
            if source != target:
                duplicate(location, location.at(source), location.at(target))
        except Exception as error:
            if not is_storage_error(error):
                raise
            return False
        return True

    def files(self, path: str) -> list[str]:
        """The files of a folder, or the file itself, by name; none where nothing stands there."""
        location = self.location
        with readable_errors(location, "store"):
            try:
                entries = location.fs.find(location.at(path), detail=True)
            except FileNotFoundError:
                return []
        below = sorted(name.removeprefix(location.at("")) for name, entry in entries.items() if entry["type"] == "file")
        return [name for name in below if not name.rpartition("/")[2].startswith(".")]

    def remove(self, path: str) -> None:
        """Removes a file."""
        location = self.location
        with write_errors(location.at(path)):
            location.fs.rm_file(location.at(path))

    def write_tally(self, identity: str, table: pa.Table, **provenance: Any) -> None:
        """Keeps what was counted of a part of some run's scores."""
        self._replace(_tally_path(identity), encode_cell(table, provenance))

    def read_tally(self, identity: str) -> StoredCell | None:
        """What was counted of a part; None where it is not there or damaged."""
        try:
            return self.read_cell(_tally_path(identity))
        except StoreError:
            return None

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


def draft_path(path: str) -> str:
    """Where the draft of a cell stands."""
    return path.removesuffix(".parquet") + DRAFT


def _tally_path(identity: str) -> str:
    return f"tallies/{identity}.parquet"


def _content(location: Location, path: str) -> bytes:
    try:
        return bytes(location.fs.cat_file(location.at(path)))
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise StoreError(f"{location.at(path)}: the cell cannot be read ({first_line(error)}); run again") from error


class DamagedError(Exception):
    """Bytes are not those of a cell that was written."""


def encode_cell(table: pa.Table, provenance: Mapping[str, Any]) -> bytes:
    """A cell's file: Parquet with page checksums, its provenance, and the SHA-256 of all of its other bytes."""
    data = _to_parquet(table, {"plumbline": json.dumps(provenance), "plumbline_digest": NO_DIGEST})
    before, _, after = _around_digest(data)
    return before + _digest(before, after) + after


def decode_cell(data: bytes, columns: Sequence[str] | None = None) -> StoredCell:
    """A cell of its file; raises DamagedError, before anything is parsed, where a bit is not as it was written."""
    before, digest, after = _around_digest(data)
    if _digest(before, after) != digest:
        raise DamagedError(f"its {len(data)} bytes are not those that were written")
    table = _read_parquet(data, columns)
    provenance = json.loads(table.schema.metadata[b"plumbline"])
    return StoredCell(table.replace_schema_metadata(None), provenance)


def _around_digest(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The bytes before the digest, the digest itself and the bytes after it."""
    place = max(data.rfind(DIGEST_MARK.encode()), 0)
    end = place + len(NO_DIGEST)
    return data[:place], data[place:end], data[end:]


def _digest(before: bytes, after: bytes) -> bytes:
    return DIGEST_MARK.encode() + hashlib.sha256(before + NO_DIGEST.encode() + after).hexdigest().encode()


def _to_parquet(table: pa.Table, metadata: Mapping[str, str] | None = None) -> bytes:
    """Parquet bytes; the metadata stand in the footer, and once."""
    plain = table.replace_schema_metadata(None)
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, plain.schema, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(plain)
        writer.add_key_value_metadata(dict(metadata or {}))
    return buffer.getvalue()


def _read_parquet(data: bytes, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()) -> pa.Table:
    source = pa.BufferReader(data)
    file = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True, read_dictionary=list(encoded))
    return file.read(columns=None if columns is None else list(columns), use_threads=False)
