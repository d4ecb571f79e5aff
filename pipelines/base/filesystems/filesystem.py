"""What every filesystem does by fsspec, and what one that can hold a store does besides."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import fsspec

from plumbline.operators.base.errors import ConfigError, without_secrets

ETAGS = ("ETag", "e_tag", "blob_id", "etag", "mtime", "Last-Modified", "modified", "created")
"""How filesystems call what changes when a file does, the surest first."""
TIMES = ("LastModified", "last_modified", "mtime")
RENEW = "renew the credentials"
STORES = "s3://, gs:// or az://"
"""Where a store may lie, besides a disk."""


class Settings(Protocol):
    """What a configuration says of object stores."""

    def __hash__(self) -> int: ...

    @property
    def endpoint_url(self) -> str | None: ...

    @property
    def region(self) -> str | None: ...

    @property
    def key(self) -> str | None: ...

    @property
    def secret(self) -> str | None: ...

    @property
    def anon(self) -> bool: ...


class Entry(NamedTuple):
    """A file, folder or anything else as its filesystem lists it."""

    type: str
    """`file`, `directory` or `other`: a pipe, a device, a link that leads nowhere."""
    size: int
    etag: str
    """Changes when the file does: an object's ETag, or the modification time of a local file; empty for a folder."""
    modified: float
    """Time of the last write, in seconds since 1970."""


class Filesystem:
    """Reads files by their paths, as fsspec does."""

    check = "the network"
    """What to check where it cannot be reached."""
    rights = "the credentials' rights"
    """What to check where access is denied."""
    reads_one_version = False
    """Whether a stream of a file with an ETag fails once the file has another."""

    def __init__(self, root: str, fs: fsspec.AbstractFileSystem) -> None:
        self.root = root
        """What stands before the paths in an address."""
        self.fs = fs

    def entry(self, path: str) -> Entry:
        """Raises FileNotFoundError where there is nothing."""
        return entry_of(self.fs.info(path))

    def open(self, path: str, size: int | None, etag: str | None, **options: Any) -> IO[bytes]:
        """A stream of a file's bytes, with its size and ETag where a listing has told them.

        The size saves the call of a client that asks for it; what the ETag is for, `reads_one_version` says.
        """
        return cast(IO[bytes], self.fs.open(path, "rb", **options))

    def read(self, path: str, most: int | None) -> bytes:
        """A file's bytes, at most so many; a server that knows no ranges is not read further."""
        with self.fs.open(path, "rb") as stream:
            return bytes(stream.read() if most is None else stream.read(most))

    def list(self, path: str) -> dict[str, Entry]:
        """The entries of a folder by name, or of the file itself."""
        entries = self.fs.ls(path, detail=True)
        return {str(item["name"]).rstrip("/").rpartition("/")[2]: self._entry(item["name"], item) for item in entries}

    def files(self, path: str) -> Iterator[tuple[str, Entry]]:
        """The files below a folder by their paths from there, or the file itself by the empty path.

        They are listed as they are asked for, where the filesystem lists by pages.
        """
        below = self._below(path)
        first = next(below, None)
        if first is not None:
            yield first
            yield from below
            return
        with suppress(FileNotFoundError):
            entry = self.entry(path)
            if entry.type == "file":
                yield "", entry

    def _below(self, path: str) -> Iterator[tuple[str, Entry]]:
        """The files below a folder; none where there is no folder."""
        found = self.fs.find(path, detail=True)
        while found:
            file, item = found.popitem()
            yield file.removeprefix(path).lstrip("/"), self._entry(file, item)

    def _entry(self, path: str, listed: Mapping[str, Any]) -> Entry:
        """An entry of a listing; a web server's page tells names only."""
        return (
            self.entry(path) if listed.get("size") is None and listed.get("type") != "directory" else entry_of(listed)
        )

    def prepare(self, path: str) -> None:
        """Makes the client of a path ready without a call; raises ConfigError for settings that it refuses."""

    def renewal(self, error: Exception) -> str | None:
        """What to do about credentials that have expired, or may have; None for another error."""
        return None


class Writable(Filesystem, ABC):
    """A filesystem that can hold a store, since it writes a file only if there is none."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Writes a file only if there is none; False where another writer was first."""

    @abstractmethod
    def heeds_conditions(self, path: str, data: bytes) -> bool:
        """Writes a file that always has the same content; False where a second one would have replaced the first."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Writes a file, or replaces it; readers see the old one or the new one."""

    @abstractmethod
    def draft_folder(self, path: str) -> Path:
        """The local folder in which a file is drafted that is to be put in its place."""

    @abstractmethod
    def put(self, draft: Path, path: str, *, replace: bool) -> bool:
        """Puts a finished local file in its place; False where another was first."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Give an unchanging file another name, without reading it; replace any file of that name."""

    @abstractmethod
    def remove_all(self, paths: Sequence[str]) -> None:
        """Removes files by their names, taken as they are; missing ones are no error."""


def open_readable(root: str) -> Filesystem:
    """Whatever else fsspec reads, by how its addresses begin; raises ConfigError where fsspec or a library cannot."""
    try:
        fs, path = fsspec.core.url_to_fs(f"{root}/x")
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(
            f"{root}: {without_secrets(str(error).splitlines()[0])}; name a local path, or an address of {STORES}, "
            "hf:// or https://"
        ) from error
    return Filesystem(f"{root}/x".removesuffix(path), fs)


def entry_of(found: Mapping[str, Any]) -> Entry:
    """An entry of what fsspec says of a file."""
    etag = next((found[name] for name in ETAGS if found.get(name)), "")
    written = next((found[name] for name in TIMES if found.get(name)), 0.0)
    seconds = written.timestamp() if hasattr(written, "timestamp") else float(written)
    return Entry(found["type"], int(found["size"] or 0), str(etag).strip('"'), seconds)
