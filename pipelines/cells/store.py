"""The store: committed cells, drafts and runs, as plain Parquet and JSON that anyone can open."""

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
from plumbline.operators.base.rows import count_errors, error_kinds, kept_of, usage_of
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.checkpoints.parts import digest_file
from plumbline.pipelines.base.storage import (
    Entry,
    Place,
    StorageConfig,
    first_line,
    is_storage_error,
    readable_errors,
    write_errors,
)
from plumbline.pipelines.cells.cells import Cell, Outcome
from plumbline.pipelines.cells.checksums import (
    DIGEST_KEY,
    NO_DIGEST,
    DamagedError,
    check_digest,
    check_table,
    decode_json,
    encode_json,
    is_sound_page,
    with_digest,
    with_page_digest,
)

DRAFT = ".draft.parquet"
LATEST = "runs/latest"
MARK = "store.json"
ANEW = "run the sweep again, which makes the run anew, or delete the run's folder"
"""The remedy for a damaged file of a run."""
RENEW = "run the sweep again with verify=true, which computes it anew"
"""The remedy for a damaged cell: a sweep without news reads no cell, so that it would not see the damage."""
COUNTED_KEY = "plumbline_counted"
"""In the metadata of a table's file: what was counted of it, as Parquet in base64."""
PAGE = 999
"""Files of a folder that S3 lists with one request, which has room for one more to show that there are more."""
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


class GoneCell(BrokenCell):
    """A cell is not there: somebody deleted it, or a run of another store names it."""


class StoredCell(NamedTuple):
    """A cell as it stands in the store."""

    table: pa.Table
    provenance: Mapping[str, Any]
    """Its key and recipe, the node that computed it, the cells it was computed from, its errors and model calls."""
    digest: str
    """The SHA-256 that its file contains."""

    def outcome(self) -> Outcome:
        """What became of the cell, as it was told when it was committed."""
        return Outcome(
            state="committed",
            rows=len(self.table),
            kinds=error_kinds(self.table),
            usage=Usage(**self.provenance["usage"]) if "usage" in self.provenance else None,
        )


class DigestedTable(NamedTuple):
    """A file of a run's output, as it was read."""

    table: pa.Table
    sha256: str
    """Of the file."""


class CountedTable(NamedTuple):
    """A file of a run's output with what was counted of it."""

    table: pa.Table
    counted: pa.Table


class Page(NamedTuple):
    """What stands in a folder, up to some number of files."""

    written: Mapping[str, float]
    """By path, when it was written, in seconds since 1970."""
    whole: bool
    """Whether that is all."""


class CellCount(NamedTuple):
    """The number of cells in a store, up to where counting stopped."""

    found: int
    all: bool
    """Whether there are no others."""


class StoredFile(NamedTuple):
    """A file of the store, without its content."""

    path: str
    size: int
    """In bytes."""
    written: float
    """In seconds since 1970."""
    etag: str
    """Changes when the file does: the ETag of S3, or the modification time of a local file."""


@dataclass(frozen=True, slots=True)
class Store:
    """A folder or bucket prefix; a cell's existence in it is its commit."""

    place: Place

    def check(self) -> None:
        """Marks the folder as a store; raises ConfigError where it cannot be reached, or written create-only."""
        with readable_errors(self.place, "store"):
            (self.place / MARK).create_mark(b'{"plumbline_store": 2}\n')

    def keeps_cuts(self) -> bool:
        """Whether it has kept from its first sweep on how benchmarks are cut; earlier stores cut all alike."""
        mark = self.read_text(MARK)
        return mark is None or '"plumbline_store": 1' not in mark

    def listing(self, folder: str) -> dict[str, float]:
        """What stands in a folder, with the time it was written."""
        return {path: entry.modified for path, entry in self._below(folder)}

    def page(self, folder: str) -> Page:
        """The first files of a folder, as far as one request shows them."""
        below = self._below(folder)
        written = {path: entry.modified for path, entry in islice(below, PAGE)}
        return Page(written, next(below, None) is None)

    def count_cells(self, stages: Iterable[str]) -> CellCount:
        """Count the committed cells of these stages, as far as one request for each shows them."""
        pages = [self.page(stage) for stage in stages]
        found = sum(path.endswith(".parquet") and not path.endswith(DRAFT) for page in pages for path in page.written)
        return CellCount(found, all(page.whole for page in pages))

    def entries(self, folder: str) -> Iterator[StoredFile]:
        """The files of a folder, with their sizes and times."""
        for path, entry in self._below(folder):
            yield StoredFile(path, entry.size, entry.modified, entry.etag)

    def folders(self, folder: str) -> list[str]:
        """The folders right below a folder, by name; none where it is not there."""
        with readable_errors(self.place, "store"):
            try:
                entries = (self.place / folder).list()
            except FileNotFoundError:
                return []
        return sorted(name for name, entry in entries.items() if entry.type == "directory")

    def _below(self, path: str) -> Iterator[tuple[str, Entry]]:
        """The files of a folder, or the file itself, with their entries; none where nothing is there."""
        with readable_errors(self.place, "store"), suppress(FileNotFoundError):
            for relative, entry in (self.place / path).files():
                if entry.type == "file":  # an S3 server may keep a folder that has become empty
                    yield f"{path}/{relative}" if relative else path, entry

    def save(self, cell: Cell, table: pa.Table, **provenance: Any) -> Outcome:
        """Commits a cell by one create-only PUT; the first writer wins and a later one is harmless.

        A cell with a retryable error is saved as a draft instead: this run reads it, the next one computes what it
        lacks. A cell to renew replaces what stands there. Raises WriteError where it cannot be written.
        """
        kinds, kept, usage = error_kinds(table), kept_of(table), usage_of(table)
        if count_errors(table, retryable_only=True):
            self.save_draft(cell, table, **provenance)
            return Outcome(state="draft", rows=len(table), kinds=kinds, kept=kept, usage=usage)
        place = self.place / cell.path
        (place.write if cell.renew else place.create)(_encoded(cell, table, provenance))
        return Outcome(state="committed", rows=len(table), kinds=kinds, kept=kept, usage=usage)

    def save_draft(self, cell: Cell, table: pa.Table, **provenance: Any) -> None:
        """Saves what there is of a cell, for whoever computes it next; raises WriteError where it cannot be written."""
        (self.place / draft_path(cell.path)).write(_encoded(cell, table, provenance))

    def read(
        self, path: str, *, key: str | None = None, draft: bool = False, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """A cell's table, checked to the last bit; raises BrokenCell where it is damaged or another cell's."""
        cell = self.read_cell(draft_path(path) if draft else path, columns)
        if key is not None and cell.provenance["key"] != key:
            raise BrokenCell(path, f"{self.place / path}: the cell is of another key; run again")
        return cell.table

    def read_cell(self, path: str, columns: Sequence[str] | None = None) -> StoredCell:
        """A cell or draft; raises BrokenCell where it is damaged or another's, GoneCell where it is not there, and
        StoreError where it is out of reach."""
        cell = path.removesuffix(DRAFT) + ".parquet" if path.endswith(DRAFT) else path
        try:
            stored = decode_cell(_content(self.place / path), columns)
            _check_key(path, stored.provenance)
            return stored
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise GoneCell(cell, str(error)) from error
            raise
        except DamagedError as error:
            raise BrokenCell(cell, f"{self.place / path}: the cell is damaged ({error}); {RENEW}") from error

    def read_table(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A run's output table, of one file or of a folder of parts.

        Raises StoreError naming the file where it is damaged or out of reach.
        """
        return pa.concat_tables([self.read_file(part, columns) for part in self.files(path) or [path]])

    def read_file(self, path: str, columns: Sequence[str] | None = None, *, encoded: Sequence[str] = ()) -> pa.Table:
        """One file of a run's output table; columns `encoded` hold each value once."""
        return self._parsed(path, _content(self.place / path), columns, encoded)

    def _parsed(
        self, path: str, data: bytes, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()
    ) -> pa.Table:
        try:
            check_table(data)
            table = _read_parquet(data, columns, encoded)
            _check_subject(path, table)
            return table.replace_schema_metadata(None)
        except (DamagedError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
            problem = first_line(error)
            raise StoreError(f"{self.place / path}: the table is damaged ({problem}); {ANEW}") from error

    def read_part(self, path: str) -> DigestedTable:
        """One file of a run's output table; raises StoreError where it is damaged or out of reach."""
        data = _content(self.place / path)
        return DigestedTable(self._parsed(path, data), hashlib.sha256(data).hexdigest())

    def write_table(self, path: str, table: pa.Table, counted: pa.Table | None = None) -> None:
        """A run's output table, with what was counted of it in its file's metadata."""
        (self.place / path).write(encode_table(_subject(path), table, counted))

    def adopt(self, source: str, target: str, columns: Sequence[str]) -> CountedTable | None:
        """Takes a run's table into another run; None where its file is gone or damaged, or was not counted."""
        try:
            data = _content(self.place / source)
            table = self._parsed(source, data, columns)
            counted = _read_counted(data)
            if source != target and counted is not None:
                (self.place / source).copy_to(self.place / target)
        except Exception as error:
            if not isinstance(error, StoreError) and not is_storage_error(error):
                raise
            return None
        return None if counted is None else CountedTable(table, counted)

    def files(self, path: str) -> list[str]:
        """The files of a folder, or the file itself, by name; none where nothing stands there."""
        return sorted(name for name, _ in self._below(path) if not name.rpartition("/")[2].startswith("."))

    def remove(self, path: str) -> None:
        """Removes a file."""
        with write_errors(self.place / path):
            (self.place / path).remove()

    def remove_all(self, paths: Sequence[str]) -> None:
        """Removes files, many with one call where there is one for it."""
        with write_errors(self.place):
            self.place.remove_below(paths)

    def remove_folder(self, path: str) -> None:
        """Removes a folder that nobody writes to any more, with all that is in it."""
        with write_errors(self.place / path):
            (self.place / path).remove_folder()

    def written(self, path: str) -> float:
        """When a file was written, in seconds since 1970 by the clock that dates the store's files."""
        with readable_errors(self.place, "store"):
            return (self.place / path).entry().modified

    def is_sound(self, path: str) -> bool:
        """Whether a run's table is as it was written."""
        try:
            self.read_file(path, [])
        except StoreError:
            return False
        return True

    def write_json(self, path: str, content: Mapping[str, Any]) -> None:
        """A small JSON file, which holds its own digest."""
        self.write_text(path, encode_json(content))

    def read_json(self, path: str) -> dict[str, Any] | None:
        """The fields of a JSON file, without its digest; empty where it is damaged, None where there is none."""
        text = self.read_text(path)
        if text is None:
            return None
        with suppress(DamagedError, ValueError, RecursionError):
            content = decode_json(text)
            return content if isinstance(content, dict) else {}
        return {}

    def create_json(self, path: str, content: Mapping[str, Any]) -> bool:
        """As `write_json`, only if there is none; False where another was first."""
        return (self.place / path).create(encode_json(content).encode())

    def write_text(self, path: str, text: str) -> None:
        (self.place / path).write(text.encode())

    def write_page(self, path: str, html: str) -> int:
        """Write a page, with its digest in a comment at its end; return its bytes."""
        page = with_page_digest(html)
        self.write_text(path, page)
        return len(page.encode())

    def has_page(self, path: str) -> bool:
        """Return True if a page is there and is as it was written."""
        text = self.read_text(path)
        return text is not None and is_sound_page(text)

    def read_text(self, path: str) -> str | None:
        """A small text object, or None where there is none."""
        with readable_errors(self.place, "store"):
            try:
                return (self.place / path).read().decode(errors="replace")
            except FileNotFoundError:
                return None

    def exists(self, path: str) -> bool:
        """Whether an object stands there."""
        with readable_errors(self.place, "store"):
            return (self.place / path).exists()

    def digest_file(self, path: Path, *, remember: bool) -> str:
        """SHA-256 of a local file's content; what was remembered of its path, size and modification time is used."""
        state = path.stat()
        file = {"path": str(path.absolute()), "size": state.st_size, "modified_ns": state.st_mtime_ns}
        identity = "\0".join(map(str, file.values()))
        note = f"digests/{hashlib.sha256(identity.encode(errors='surrogateescape')).hexdigest()[:32]}"
        known = self.read_json(note)
        if known and known == {**file, "sha256": known.get("sha256")}:
            return str(known["sha256"])
        sha256 = digest_file(path)
        if remember:
            self.write_json(note, {**file, "sha256": sha256})
        return sha256


class StoreAddress(Protocol):
    """A configuration that names a store."""

    @property
    def store(self) -> str: ...

    @property
    def storage(self) -> StorageConfig: ...


def open_store(config: StoreAddress) -> Store:
    """The store that is configured; raises ConfigError for a bad address, or a folder that Ray deletes."""
    try:
        place = config.storage.locate(config.store, writable=True)
    except ConfigError as error:
        raise ConfigError(f"store: {error}") from error
    if WORKING_FOLDERS in place.path:
        raise ConfigError(
            f"store {place}: lies in the working folder of a Ray job, which Ray deletes; "
            "name a place that lasts, as in store=s3://BUCKET/PREFIX or store=/an/absolute/path"
        )
    return Store(place)


def open_existing_store(config: StoreAddress) -> Store:
    """As `open_store`, for a job that only reads it; raises ConfigError where there is none."""
    store = open_store(config)
    if not store.exists(MARK) and not store.folders("runs"):  # runs may have been copied alone
        scheme, separator, path = store.place.url.partition("://")
        bucket = config.storage.locate(f"{scheme}://{path.partition('/')[0]}") if separator else None
        with readable_errors(store.place, "store"):
            if bucket is not None and not bucket.exists():
                raise ConfigError(f"store {store.place}: there is no bucket {bucket.name}; correct store=...")
        raise ConfigError(
            f"store {store.place}: there is no store here; correct the address (store=...), or make one by a "
            "sweep: plumbline sweep"
        )
    return store


def is_store(folder: Place) -> bool:
    """Whether a folder is a store, as a file in it says."""
    mark = folder / MARK
    return mark.is_file() and b"plumbline_store" in mark.read()


def outside_stores(folder: Place, paths: Sequence[str]) -> list[str]:
    """Those of the files below a folder that are in no store."""
    marked = [path.removesuffix(MARK) for path in paths if path.rpartition("/")[2] == MARK]
    stores = tuple(path for path in marked if is_store(folder / path.rstrip("/")))
    return [path for path in paths if not path.startswith(stores)]


def draft_path(path: str) -> str:
    """Where the draft of a cell stands."""
    return path.removesuffix(".parquet") + DRAFT


def _content(place: Place) -> bytes:
    try:
        return place.read()
    except Exception as error:
        if not is_storage_error(error):
            raise
        renew = f"{remedy} and " if (remedy := place.filesystem.renewal(error)) else ""
        raise StoreError(f"{place}: the cell cannot be read ({first_line(error)}); {renew}run again") from error


def _encoded(cell: Cell, table: pa.Table, provenance: Mapping[str, Any]) -> bytes:
    usage = usage_of(table)
    of_cell = {"key": cell.key, "recipe": cell.recipe, "node": cell.node, "inputs": cell.upstream}
    counted = {"errors": sum(error_kinds(table).values())} | ({} if usage is None else {"usage": usage._asdict()})
    return encode_cell(table, {**provenance, **of_cell, **counted})


def encode_cell(table: pa.Table, provenance: Mapping[str, Any]) -> bytes:
    """A cell's file: Parquet with page checksums, its provenance, and the SHA-256 of all of its other bytes."""
    return with_digest(_to_parquet(table, {"plumbline": json.dumps(provenance), DIGEST_KEY: NO_DIGEST}))


def encode_table(name: str, table: pa.Table, counted: pa.Table | None = None) -> bytes:
    """The file of a run's table: as a cell's, with what it is in place of the provenance."""
    tally = {} if counted is None else {COUNTED_KEY: b64encode(_to_parquet(counted)).decode()}
    return with_digest(_to_parquet(table, {"plumbline": json.dumps({"table": name}), **tally, DIGEST_KEY: NO_DIGEST}))


def _read_counted(data: bytes) -> pa.Table | None:
    """What was counted of a table, as its file says; None where it does not."""
    tally = (pq.read_metadata(pa.BufferReader(data)).metadata or {}).get(COUNTED_KEY.encode())
    try:
        return None if tally is None else _read_parquet(b64decode(tally))
    except ValueError:  # Arrow's too
        return None


def decode_cell(data: bytes, columns: Sequence[str] | None = None) -> StoredCell:
    """A cell of its file; raises DamagedError, before anything is parsed, where a bit is not as it was written."""
    digest = check_digest(data)
    table = _read_parquet(data, columns)
    provenance = json.loads(table.schema.metadata[b"plumbline"])
    return StoredCell(table.replace_schema_metadata(None), provenance, digest)


def _check_key(path: str, provenance: Mapping[str, Any]) -> None:
    """Raises DamagedError where another cell stands at a path, which ends with the first digits of its cell's key."""
    digits = path.rpartition("/")[2].removesuffix(".parquet").removesuffix(".draft").rpartition("-")[2]
    if not str(provenance.get("key", "")).startswith(digits):
        raise DamagedError("another cell stands in its place")


def _subject(path: str) -> str:
    """What a run's table is, whichever run it stands in: its name, and of a part of the scores its identity, if any."""
    name = path.rpartition("/")[2].removesuffix(".parquet").rpartition("-")[2]
    return "" if name.isdigit() else name


def _check_subject(path: str, table: pa.Table) -> None:
    """Raises DamagedError where another table stands at a path; one that does not say what it is was written before."""
    said = json.loads((table.schema.metadata or {}).get(b"plumbline", b"{}")).get("table")
    if said not in (None, _subject(path)):
        raise DamagedError(f"it is the table {said}")


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
