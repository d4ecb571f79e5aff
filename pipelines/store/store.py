"""The store contains committed cells, drafts and runs as plain Parquet and JSON files that anyone can open."""

import hashlib
import io
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.base.rows import count_error_kinds, count_errors, read_kept_count, read_usage
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.checkpoints.parts import digest_file
from plumbline.pipelines.base.storage import (
    Entry,
    Place,
    StorageConfig,
    convert_read_errors,
    convert_write_errors,
    get_first_line,
    is_storage_error,
)
from plumbline.pipelines.store.cells import Cell, Outcome, State
from plumbline.pipelines.store.checksums import (
    DIGEST_KEY,
    DIGEST_PLACEHOLDER,
    DamagedError,
    check_digest,
    check_table,
    decode_json,
    encode_json,
    insert_digest,
)

DRAFT_SUFFIX = ".draft.parquet"
LATEST_FILE = "runs/latest"
STORE_FILE = "store.json"
RERUN_REMEDY = "run the sweep again, which writes a new run, or delete the run's folder"
"""Remedy for a damaged file in a run."""
VERIFY_REMEDY = "run the sweep again with verify=true, which computes it again"
"""Remedy for a damaged cell. Without verify=true, a sweep that has nothing to compute reads no cells and so finds no
damage.
"""
COUNTED_KEY = "plumbline_counted"
"""Key in the metadata of a table's file, for counts of its rows. The counts are stored as base64-encoded Parquet."""
FILES_PER_PAGE = 999
"""Number of files in a page; a single S3 request can list one file more, which shows whether the folder has more."""
RAY_WORKING_FOLDER = "/runtime_resources/working_dir_files/"
"""Folder into which `ray job submit --working-dir` unpacks a job's files. Ray deletes them some time after the job."""


class StoreError(PlumblineError):
    """Raised if a file of the store is damaged, missing or unreachable."""


class BrokenCellError(StoreError):
    """Raised if a cell must be recomputed: it is damaged, or was computed from a cell that has changed since."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class MissingCellError(BrokenCellError):
    """Raised if a cell does not exist: it was deleted, or a run that refers to it was copied from another store."""


class StoredCell(NamedTuple):
    """A cell or draft as read from the store."""

    table: pa.Table
    provenance: Mapping[str, Any]
    """The cell's key, recipe, node and input cells, its error count and the usage of its model calls."""
    digest: str
    """SHA-256 recorded in the cell's file."""

    def to_outcome(self) -> Outcome:
        """Return the outcome that was reported when the cell was committed."""
        return Outcome(
            state="committed",
            rows=len(self.table),
            kinds=count_error_kinds(self.table),
            usage=Usage(**self.provenance["usage"]) if "usage" in self.provenance else None,
        )


class FolderPage(NamedTuple):
    """The first files of a folder."""

    written: Mapping[str, float]
    """Modification times by path, in seconds since 1970."""
    whole: bool
    """True if these are all files of the folder."""


class CellCount(NamedTuple):
    """Number of cells in a store, which may be a lower bound."""

    found: int
    all: bool
    """True if all cells were counted; False if the count is a lower bound."""


class StoredFile(NamedTuple):
    """A file of the store, as listed."""

    path: str
    size: int
    written: float
    """Modification time, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Store:
    """A folder or bucket prefix that contains cells and runs. A cell is committed if and only if its file exists."""

    place: Place

    def check(self) -> None:
        """Mark the folder as a store; raise ConfigError if it is unreachable or does not support create-only writes."""
        with convert_read_errors(self.place, "store"):
            (self.place / STORE_FILE).create_marker(b'{"plumbline_store": 1}\n')

    def list_files(self, folder: str) -> dict[str, float]:
        """Return the paths of a folder's files with their modification times."""
        return {path: entry.modified for path, entry in self._iterate_below(folder)}

    def list_first_page(self, folder: str) -> FolderPage:
        """Return as many of a folder's first files as a single request can list."""
        below = self._iterate_below(folder)
        written = {path: entry.modified for path, entry in islice(below, FILES_PER_PAGE)}
        return FolderPage(written, next(below, None) is None)

    def count_cells(self, stages: Iterable[str]) -> CellCount:
        """Count the committed cells of the given stages, up to the number that one request per stage can list."""
        pages = [self.list_first_page(stage) for stage in stages]
        found = sum(
            path.endswith(".parquet") and not path.endswith(DRAFT_SUFFIX) for page in pages for path in page.written
        )
        return CellCount(found, all(page.whole for page in pages))

    def walk_files(self, folder: str) -> Iterator[StoredFile]:
        """Yield the files of a folder with their sizes and modification times."""
        for path, entry in self._iterate_below(folder):
            yield StoredFile(path, entry.size, entry.modified)

    def list_folders(self, folder: str) -> list[str]:
        """Return the names of a folder's immediate subfolders; the list is empty if the folder does not exist."""
        with convert_read_errors(self.place, "store"):
            try:
                entries = (self.place / folder).list()
            except FileNotFoundError:
                return []
        return sorted(name for name, entry in entries.items() if entry.type == "directory")

    def _iterate_below(self, path: str) -> Iterator[tuple[str, Entry]]:
        """Yield the files below a path, or the file at the path itself; yield nothing if the path does not exist."""
        with convert_read_errors(self.place, "store"), suppress(FileNotFoundError):
            for relative, entry in (self.place / path).files():
                if entry.type == "file":  # an S3 server may list a folder that has become empty
                    yield f"{path}/{relative}" if relative else path, entry

    def save(self, cell: Cell, table: pa.Table, **provenance: Any) -> Outcome:
        """Commit a cell with one create-only PUT: the first writer wins, and later writers change nothing.

        A cell with a retryable error is saved as a draft instead: this run reads the draft, and the next run computes
        the missing rows. A cell that is being renewed replaces the existing file. Raises WriteError if the cell
        cannot be written.
        """
        state: State = "draft" if count_errors(table, retryable_only=True) else "committed"
        if state == "draft":
            self.save_draft(cell, table, **provenance)
        else:
            place = self.place / cell.path
            (place.write if cell.renew else place.create)(_encode_planned_cell(cell, table, provenance))
        kinds, kept, usage = count_error_kinds(table), read_kept_count(table), read_usage(table)
        return Outcome(state=state, rows=len(table), kinds=kinds, kept=kept, usage=usage)

    def save_draft(self, cell: Cell, table: pa.Table, **provenance: Any) -> None:
        """Save the finished rows of an incomplete cell for the next process that computes it.

        Raises WriteError if the draft cannot be written.
        """
        (self.place / get_draft_path(cell.path)).write(_encode_planned_cell(cell, table, provenance))

    def read(
        self, path: str, *, key: str | None = None, draft: bool = False, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return a cell's table after checking it; raise BrokenCellError if it is damaged or has another key."""
        cell = self.read_cell(get_draft_path(path) if draft else path, columns)
        if key is not None and cell.provenance["key"] != key:
            raise BrokenCellError(path, f"{self.place / path}: the cell has a different key; run again")
        return cell.table

    def read_cell(self, path: str, columns: Sequence[str] | None = None) -> StoredCell:
        """Read a cell or draft.

        Raises BrokenCellError if the file is damaged or contains another cell, MissingCellError if it does not exist,
        and StoreError if the store is unreachable.
        """
        cell = path.removesuffix(DRAFT_SUFFIX) + ".parquet" if path.endswith(DRAFT_SUFFIX) else path
        try:
            stored = decode_cell(_read_bytes(self.place / path), columns)
            # a cell's file name ends with the first digits of its key
            digits = path.rpartition("/")[2].removesuffix(".parquet").removesuffix(".draft").rpartition("-")[2]
            if not str(stored.provenance.get("key", "")).startswith(digits):
                raise DamagedError("the file contains a different cell")
            return stored
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise MissingCellError(cell, str(error)) from error
            raise
        except DamagedError as error:
            raise BrokenCellError(
                cell, f"{self.place / path}: the cell is damaged ({error}); {VERIFY_REMEDY}"
            ) from error

    def read_table(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a run's table from a file or folder; raise StoreError naming any file that is damaged or unreachable."""
        return pa.concat_tables([self.read_file(part, columns) for part in self.files(path) or [path]])

    def read_file(self, path: str, columns: Sequence[str] | None = None, *, encoded: Sequence[str] = ()) -> pa.Table:
        """Read one file of a run's table; read the columns in `encoded` as dictionary arrays."""
        return self._parse_table(path, _read_bytes(self.place / path), columns, encoded)

    def _parse_table(
        self, path: str, data: bytes, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()
    ) -> pa.Table:
        try:
            check_table(data)
            table = _read_parquet(data, columns, encoded)
            name = json.loads((table.schema.metadata or {}).get(b"plumbline", b"{}")).get("table")
            if name not in (None, _get_table_name(path)):  # tables written by other programs have no name
                raise DamagedError(f"the file contains the table {name}")
            return table.replace_schema_metadata(None)
        except (DamagedError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
            problem = get_first_line(error)
            raise StoreError(f"{self.place / path}: the table is damaged ({problem}); {RERUN_REMEDY}") from error

    def read_with_digest(self, path: str) -> tuple[pa.Table, str]:
        """Return one file of a run's table, and the SHA-256 of that file; raise StoreError like `read_table`."""
        data = _read_bytes(self.place / path)
        return self._parse_table(path, data), hashlib.sha256(data).hexdigest()

    def write_table(self, path: str, table: pa.Table, counted: pa.Table | None = None) -> None:
        """Write one file of a run's table; counts of its rows, if given, go into the file's metadata."""
        (self.place / path).write(encode_table(_get_table_name(path), table, counted))

    def copy_table(self, source: str, target: str, columns: Sequence[str]) -> tuple[pa.Table, pa.Table] | None:
        """Copy one file of an earlier run's table to another run, and return the table with its counts.

        Returns the requested columns of the table, and the counts in the file's metadata; None if the file is missing,
        damaged or has no counts.
        """
        try:
            data = _read_bytes(self.place / source)
            table = self._parse_table(source, data, columns)
            tally = (pq.read_metadata(pa.BufferReader(data)).metadata or {}).get(COUNTED_KEY.encode())
            counted = None
            if tally is not None:
                with suppress(ValueError):  # raised by base64 or Arrow
                    counted = _read_parquet(b64decode(tally))
            if source != target and counted is not None:
                (self.place / source).copy_to(self.place / target)
        except Exception as error:
            if not isinstance(error, StoreError) and not is_storage_error(error):
                raise
            return None
        return None if counted is None else (table, counted)

    def files(self, path: str) -> list[str]:
        """Return the sorted paths of a folder's files, or a single file's path; empty if the path does not exist."""
        return sorted(name for name, _ in self._iterate_below(path) if not name.rpartition("/")[2].startswith("."))

    def remove(self, path: str) -> None:
        with convert_write_errors(self.place / path):
            (self.place / path).remove()

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove files, in batches if the storage supports it."""
        with convert_write_errors(self.place):
            self.place.remove_below(paths)

    def remove_folder(self, path: str) -> None:
        """Remove a folder and its content; no process may still be writing to it."""
        with convert_write_errors(self.place / path):
            (self.place / path).remove_folder()

    def is_undamaged(self, path: str) -> bool:
        """Return True if a file of a run's table is undamaged."""
        try:
            self.read_file(path, [])
        except StoreError:
            return False
        return True

    def write_json(self, path: str, content: Mapping[str, Any]) -> None:
        self.write_text(path, encode_json(content))

    def read_json(self, path: str) -> dict[str, Any] | None:
        """Return the fields of a JSON file without its digest; {} if the file is damaged, None if it does not exist."""
        text = self.read_text(path)
        if text is None:
            return None
        with suppress(DamagedError, ValueError, RecursionError):
            content = decode_json(text)
            return content if isinstance(content, dict) else {}
        return {}

    def create_json(self, path: str, content: Mapping[str, Any]) -> bool:
        """Create a JSON file; return False, without writing, if it already exists."""
        return (self.place / path).create(encode_json(content).encode())

    def write_text(self, path: str, text: str) -> None:
        (self.place / path).write(text.encode())

    def write_page(self, path: str, html: str) -> int:
        """Write an HTML page with its digest in a comment at the end; return its size in bytes."""
        page = insert_digest(f"{html.rstrip()}\n<!-- {DIGEST_PLACEHOLDER} -->\n".encode())
        (self.place / path).write(page)
        return len(page)

    def has_page(self, path: str) -> bool:
        """Return True if there is an undamaged HTML page at the path."""
        text = self.read_text(path)
        with suppress(DamagedError):
            return text is not None and bool(check_digest(text.encode()))
        return False

    def read_text(self, path: str) -> str | None:
        """Return the content of a small text file, or None if it does not exist."""
        with convert_read_errors(self.place, "store"):
            try:
                return (self.place / path).read().decode(errors="replace")
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        with convert_read_errors(self.place, "store"):
            return (self.place / path).exists()

    def digest_file(self, path: Path, *, remember: bool) -> str:
        """Return a local file's SHA-256; reuse a digest remembered for the same path, size and modification time."""
        stat = path.stat()
        file = {"path": str(path.absolute()), "size": stat.st_size, "modified_ns": stat.st_mtime_ns}
        key = "\0".join(map(str, file.values()))
        note = f"digests/{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:32]}"
        known = self.read_json(note)
        if known and known == {**file, "sha256": known.get("sha256")}:
            return str(known["sha256"])
        sha256 = digest_file(path)
        if remember:
            self.write_json(note, {**file, "sha256": sha256})
        return sha256


class StoreAddress(Protocol):
    @property
    def store(self) -> str: ...

    @property
    def storage(self) -> StorageConfig: ...


def open_store(config: StoreAddress) -> Store:
    """Open the configured store; raise ConfigError if the address is invalid, or is a folder that Ray deletes."""
    try:
        place = config.storage.locate(config.store, writable=True)
    except ConfigError as error:
        raise ConfigError(f"store: {error}") from error
    if RAY_WORKING_FOLDER in place.path:
        raise ConfigError(
            f"store {place}: is in the working folder of a Ray job, which Ray deletes; "
            "choose a permanent location, such as store=s3://BUCKET/PREFIX or store=/an/absolute/path"
        )
    return Store(place)


def open_existing_store(config: StoreAddress) -> Store:
    """Open the configured store for a job that only reads it; raise ConfigError if it does not exist."""
    store = open_store(config)
    if not store.exists(STORE_FILE) and not store.list_folders("runs"):  # a copied store may contain only runs
        scheme, separator, path = store.place.url.partition("://")
        bucket = config.storage.locate(f"{scheme}://{path.partition('/')[0]}") if separator else None
        with convert_read_errors(store.place, "store"):
            if bucket is not None and not bucket.exists():
                raise ConfigError(f"store {store.place}: the bucket {bucket.name} does not exist; correct store=...")
        raise ConfigError(
            f"store {store.place}: there is no store here; correct the address (store=...), or create one "
            "with: plumbline sweep"
        )
    return store


def is_store(folder: Place) -> bool:
    mark = folder / STORE_FILE
    return mark.is_file() and b"plumbline_store" in mark.read()


def exclude_stores(folder: Place, paths: Sequence[str]) -> list[str]:
    """Return the paths, relative to a folder, that are not inside a store."""
    marked = [path.removesuffix(STORE_FILE) for path in paths if path.rpartition("/")[2] == STORE_FILE]
    stores = tuple(path for path in marked if is_store(folder / path.rstrip("/")))
    return [path for path in paths if not path.startswith(stores)]


def get_draft_path(path: str) -> str:
    return path.removesuffix(".parquet") + DRAFT_SUFFIX


def _read_bytes(place: Place) -> bytes:
    try:
        return place.read()
    except Exception as error:
        if not is_storage_error(error):
            raise
        renew = f"{remedy} and " if (remedy := place.filesystem.find_renewal_remedy(error)) else ""
        raise StoreError(f"{place}: the cell cannot be read ({get_first_line(error)}); {renew}run again") from error


def _encode_planned_cell(cell: Cell, table: pa.Table, provenance: Mapping[str, Any]) -> bytes:
    facts: dict[str, Any] = {"key": cell.key, "recipe": cell.recipe, "node": cell.node, "inputs": cell.upstream}
    facts |= {"errors": sum(count_error_kinds(table).values())}
    if (usage := read_usage(table)) is not None:
        facts |= {"usage": usage._asdict()}
    return encode_cell(table, {**provenance, **facts})


def encode_cell(table: pa.Table, provenance: Mapping[str, Any]) -> bytes:
    """Encode a cell as Parquet with page checksums, its provenance and the SHA-256 of all other bytes."""
    return insert_digest(_encode_parquet(table, {"plumbline": json.dumps(provenance), DIGEST_KEY: DIGEST_PLACEHOLDER}))


def encode_table(name: str, table: pa.Table, counted: pa.Table | None = None) -> bytes:
    """Encode one file of a run's table, like a cell but with the table's name instead of the provenance.

    `counted` is a small table of row counts, which is stored in the file's metadata.
    """
    tally = {} if counted is None else {COUNTED_KEY: b64encode(_encode_parquet(counted)).decode()}
    metadata = {"plumbline": json.dumps({"table": name}), **tally, DIGEST_KEY: DIGEST_PLACEHOLDER}
    return insert_digest(_encode_parquet(table, metadata))


def decode_cell(data: bytes, columns: Sequence[str] | None = None) -> StoredCell:
    """Parse a cell's file. If any bit has changed, raise DamagedError before parsing anything."""
    digest = check_digest(data)
    table = _read_parquet(data, columns)
    provenance = json.loads(table.schema.metadata[b"plumbline"])
    return StoredCell(table.replace_schema_metadata(None), provenance, digest)


def _get_table_name(path: str) -> str:
    """Return a table's name or, for a part of the scores, the part's key; neither depends on the run."""
    name = path.rpartition("/")[2].removesuffix(".parquet").rpartition("-")[2]
    return "" if name.isdigit() else name


def _encode_parquet(table: pa.Table, metadata: Mapping[str, str] | None = None) -> bytes:
    """Encode a table as Parquet, with the metadata in the footer only (schema metadata would be stored twice)."""
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
