"""Base classes of filesystems: reading via fsspec, the writes that a store needs, and object stores."""

import mimetypes
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import fsspec

from plumbline.operators.base.errors import ConfigError, hide_secrets

ETAG_KEYS = ("ETag", "e_tag", "blob_id", "etag", "mtime", "Last-Modified", "modified", "created")
"""Keys in the information about a file whose values change when its content does; the most reliable key is first."""
MODIFICATION_TIME_KEYS = ("LastModified", "last_modified", "mtime")
RENEW_CREDENTIALS_REMEDY = "renew the credentials"
STORE_SCHEMES = "s3://, gs:// or az://"
"""Address schemes that a store can have, in addition to a path on a disk."""
UPLOAD_BYTES = 16 * 2**20
"""Bytes per request when uploading a large file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessSettings:
    """Settings for access to object stores."""

    endpoint_url: str | None = None
    """Address of an S3-compatible server other than AWS."""
    region: str | None = None
    """The bucket's region."""
    key: str | None = field(default=None, repr=False)
    """Access key id."""
    secret: str | None = field(default=None, repr=False)
    """Secret access key; never printed or written to a manifest."""
    anon: bool = False
    """True to read public buckets without credentials."""


class Entry(NamedTuple):
    """A file, a folder or anything else in a listing."""

    type: str
    """`file`, `directory` or, for pipes, devices and broken links, `other`."""
    size: int
    etag: str
    """Value that changes when the file does: an object's ETag, or a local file's modification time; empty for a folder.
    """
    modified: float
    """Time of the last write, in seconds since 1970."""


class Filesystem:
    """A filesystem that can be read, with paths as in fsspec."""

    check = "the network"
    """Things for the user to check if the server cannot be reached."""
    rights = "the credentials' rights"
    """Things for the user to check if access is denied."""
    reads_one_version = False
    """True if reading a stream that was opened with an ETag fails as soon as the file has a different ETag."""

    def __init__(self, root: str, fs: fsspec.AbstractFileSystem) -> None:
        self.root = root
        """Prefix that addresses have before the path."""
        self.fs = fs

    def get_entry(self, path: str) -> Entry:
        """Return the entry at a path; raise FileNotFoundError if the path does not exist."""
        return make_entry(self.fs.info(path))

    def open(self, path: str, size: int | None, etag: str | None, **options: Any) -> IO[bytes]:
        """Open a file for reading; passing `size` and `etag` from a listing saves some clients a request.

        If the file has changed since then, reading fails only if `reads_one_version` is True.
        """
        return cast(IO[bytes], self.fs.open(path, "rb", **options))

    def read(self, path: str, limit: int | None) -> bytes:
        """Return the first `limit` bytes of a file, or all bytes.

        No further bytes are read, even if the server does not support ranges.
        """
        with self.fs.open(path, "rb") as stream:
            return bytes(stream.read() if limit is None else stream.read(limit))

    def list(self, path: str) -> dict[str, Entry]:
        entries = self.fs.ls(path, detail=True)
        return {
            str(item["name"]).rstrip("/").rpartition("/")[2]: self._read_entry(item["name"], item) for item in entries
        }

    def files(self, path: str) -> Iterator[tuple[str, Entry]]:
        """Yield the files below a folder with their relative paths, or a single file with an empty path."""
        below = self._iterate_below(path)
        first = next(below, None)
        if first is not None:
            yield first
            yield from below
            return
        with suppress(FileNotFoundError):
            entry = self.get_entry(path)
            if entry.type == "file":
                yield "", entry

    def _iterate_below(self, path: str) -> Iterator[tuple[str, Entry]]:
        """Yield the files below a folder, or nothing if it does not exist."""
        found = self.fs.find(path, detail=True)
        while found:
            file, item = found.popitem()
            yield file.removeprefix(path).lstrip("/"), self._read_entry(file, item)

    def _read_entry(self, path: str, listed: Mapping[str, Any]) -> Entry:
        # a web server's listing has only names, so the file itself is requested
        is_known = listed.get("size") is not None or listed.get("type") == "directory"
        return make_entry(listed) if is_known else self.get_entry(path)

    def prepare(self, path: str) -> None:
        """Prepare the client for a path without sending a request; raise ConfigError if it rejects the settings."""

    def find_renewal_remedy(self, error: Exception) -> str | None:
        """Return the remedy if an error may be due to expired credentials; otherwise None."""
        return None


class WritableFilesystem(Filesystem, ABC):
    """A filesystem that can contain a store, because it can write a file only if the file does not exist."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists; return False if another writer was first."""

    @abstractmethod
    def create_and_check_condition(self, path: str, data: bytes) -> bool:
        """Write a file with fixed content unless it exists; return False if the server ignores this condition."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write or replace a file; readers see either the old or the new content."""

    @abstractmethod
    def get_draft_folder(self, path: str) -> Path:
        """Return the local folder for drafts of a file."""

    @abstractmethod
    def move_draft(self, draft: Path, path: str, *, replace: bool) -> bool:
        """Move a complete local file to its path; return False if another writer was first."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Make an immutable file available at a second path without reading it; replace any file that exists there."""

    @abstractmethod
    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove files by their literal names; missing files are ignored."""


class ObjectStore(WritableFilesystem):
    """Object store whose fsspec client supports `mode="create"`, so that a single conditional write commits a file."""

    def open(self, path: str, size: int | None, etag: str | None, **options: Any) -> IO[bytes]:
        return cast(IO[bytes], self.fs.open(path, "rb", size=size, **options))

    def read(self, path: str, limit: int | None) -> bytes:
        # a single request; s3fs would ask for the size first
        options = {"max_concurrency": 1} if limit is None else {"start": 0, "end": limit}
        return bytes(self.fs.cat_file(path, **options))

    def create(self, path: str, data: bytes) -> bool:
        # an equal object may come from our own attempt whose response was lost, so that our retry was refused
        return self._create(path, data) or bool(self.fs.cat_file(path) == data)

    def create_and_check_condition(self, path: str, data: bytes) -> bool:
        return not (self._create(path, data) and self._create(path, data))

    def _create(self, path: str, data: bytes) -> bool:
        try:
            self.fs.pipe_file(path, data, mode="create")
        except OSError:  # after a lost race SeaweedFS replies errno 22; other servers reply that the object exists
            if not self.fs.exists(path):
                raise
            return False
        return True

    def write(self, path: str, data: bytes) -> None:
        content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        self.fs.pipe_file(path, data, ContentType=content_type)

    def get_draft_folder(self, path: str) -> Path:
        return Path(tempfile.gettempdir())

    def move_draft(self, draft: Path, path: str, *, replace: bool) -> bool:
        mode = "overwrite" if replace else "create"
        try:
            self.fs.put_file(str(draft), path, mode=mode, chunksize=UPLOAD_BYTES, max_concurrency=2)
        except OSError:
            if replace or not self.fs.exists(path):
                raise
            return False
        return True

    def copy(self, source: str, target: str) -> None:
        self.fs.cp_file(source, target)


def open_for_reading(root: str) -> Filesystem:
    """Return a read-only fsspec filesystem; raise ConfigError if fsspec cannot open it."""
    try:
        fs, path = fsspec.core.url_to_fs(f"{root}/x")
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(
            f"{root}: {hide_secrets(str(error).splitlines()[0])}; use a local path, or an address that starts with "
            f"{STORE_SCHEMES}, hf:// or https://"
        ) from error
    return Filesystem(f"{root}/x".removesuffix(path), fs)


def make_entry(found: Mapping[str, Any]) -> Entry:
    """Return the entry of a file, given fsspec's information."""
    etag = next((found[name] for name in ETAG_KEYS if found.get(name)), "")
    written = next((found[name] for name in MODIFICATION_TIME_KEYS if found.get(name)), 0.0)
    seconds = written.timestamp() if hasattr(written, "timestamp") else float(written)
    return Entry(found["type"], int(found["size"] or 0), str(etag).strip('"'), seconds)
