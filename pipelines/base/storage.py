"""One interface to files and folders on disks and in object stores, with errors that say what to do."""

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.bounds import Bound
from plumbline.operators.base.errors import ConfigError, PlumblineError, hide_secrets
from plumbline.pipelines.base.filesystems import OBJECT_STORE_SCHEMES, choose_filesystem
from plumbline.pipelines.base.filesystems.filesystem import (
    STORE_SCHEMES,
    AccessSettings,
    Filesystem,
    WritableFilesystem,
    make_entry,
)
from plumbline.pipelines.base.filesystems.filesystem import Entry as Entry

CLIENT_PACKAGES = ("botocore.", "aiobotocore.", "obstore.", "aiohttp.", "httpx.", "httpx2.", "huggingface_hub.")
"""Packages of storage clients; some of their errors are not OSErrors."""
SCHEME_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}")
"""Start of an address that is not a local path. A single slash also matches, because it must be a typing error."""
SCHEME_ALIASES = {"gcs://": "gs://", "abfs://": "az://", "abfss://": "az://", "azure://": "az://", "s3a://": "s3://"}
"""Scheme names used by other software, mapped to ours."""
REMEDIES_BY_ERRNO = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EFBIG: "the file is larger than the system allows: raise the limit (ulimit -f)",
    errno.EROFS: "the disk is read-only: make it writable",
    errno.ELOOP: "its symbolic links form a loop: correct them",
    errno.ENAMETOOLONG: "its name is too long: shorten it",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}


def is_remote(url: str) -> bool:
    scheme = SCHEME_PATTERN.match(url)
    return scheme is not None and scheme[0].endswith("://") and scheme[0] != "file://"


Roots = Annotated[tuple[str, ...], Bound("folders or s3:// prefixes", all)]
"""Folders whose files may be read if a table or a request refers to them."""


class WriteError(PlumblineError):
    """Raised if a result of a run cannot be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageConfig(AccessSettings):
    """Settings for access to s3://; options that are not set are taken from the standard AWS variables.

    gs:// and az:// use the environment variables that their own tools read, or no credentials if `anon` is set.
    """

    def __post_init__(self) -> None:
        if self.endpoint_url is not None and ("@" in self.endpoint_url or "?" in self.endpoint_url):
            raise ConfigError(
                "storage.endpoint_url: expected an address without credentials or query, such as https://host:9000; "
                "put the credentials into storage.key and storage.secret"
            )

    def locate(self, url: str, *, writable: bool = False) -> "Place":
        """Return the file or folder at a local path or an address, and prepare its client.

        Raise ConfigError if the address or the settings are invalid, or if the filesystem is read-only although
        `writable` is set.
        """
        try:
            os.fsencode(url)
        except UnicodeEncodeError as error:
            raise ConfigError(f"{url!r}: expected a path or an address, found a lone surrogate; correct it") from error
        match = SCHEME_PATTERN.match(url)
        if match is None or match[0] == "file://":
            return Place(_make_absolute(url.removeprefix("file://"), url), self)
        scheme, address = match[0], url.removeprefix(match[0])
        if not scheme.endswith("://"):
            raise ConfigError(f"{url}: expected a local path or a URL, found a single slash; write {match[1]}://")
        if scheme in SCHEME_ALIASES:
            raise ConfigError(
                f"{scheme}: not a supported scheme; write {SCHEME_ALIASES[scheme]} instead (docs/cluster.md)"
            )
        # messages show addresses, so an address must not contain credentials
        host = address.partition("/")[0]
        if "@" in host:
            option = "storage.key and storage.secret" if scheme == "s3://" else "the variables that its own tools read"
            raise ConfigError(f"{scheme}: expected an address without credentials; put them into {option}")
        if "?" in address and scheme not in OBJECT_STORE_SCHEMES:
            problem = "expected an address without a query, which may contain credentials; remove it"
            raise ConfigError(f"{scheme}{host}: {problem}")
        if not host:
            part, rest = ("bucket", "PREFIX") if scheme in OBJECT_STORE_SCHEMES else ("host", "PATH")
            raise ConfigError(
                f"{scheme}{address}: expected {scheme}{part.upper()}/{rest}, got no {part}; "
                "add it, or set the variable that it comes from"
            )
        place = Place(url.rstrip("/"), self)
        if (
            writable and scheme not in OBJECT_STORE_SCHEMES
        ):  # checked before connecting to the server, which may not exist
            raise place.make_read_only_error()
        place.filesystem.prepare(place.path)
        return place


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder on a disk or in an object store, with the settings needed to read and write it.

    Printing, logging and hashing use only the address; only pickling includes the credentials.
    """

    url: str
    """Absolute path, or address with a scheme."""
    storage: StorageConfig = field(repr=False, hash=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, relative: str) -> "Place":
        return Place(f"{self.url.rstrip('/')}/{relative}", self.storage) if relative else self

    @property
    def is_local(self) -> bool:
        return self.url.startswith("/")

    @property
    def filesystem(self) -> Filesystem:
        return choose_filesystem(self.url, self.storage)

    def get_writable(self) -> WritableFilesystem:
        """Return the filesystem for writing; raise ConfigError if it is read-only."""
        filesystem = self.filesystem
        if not isinstance(filesystem, WritableFilesystem):
            raise self.make_read_only_error()
        return filesystem

    def make_read_only_error(self) -> ConfigError:
        return ConfigError(
            f"{self}: this storage is read-only; use a local folder, or an address that starts with {STORE_SCHEMES}"
        )

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        return self.filesystem.fs

    @property
    def path(self) -> str:
        """Path within the filesystem."""
        return self.url if self.is_local else self.url.removeprefix(self.filesystem.root)

    @property
    def uri(self) -> str:
        """Address with a scheme: file:// for a local path."""
        return f"file://{self.url}" if self.is_local else self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "Place":
        return Place(self.url.rpartition("/")[0] or "/", self.storage)

    def exists(self) -> bool:
        return bool(self.fs.exists(self.path))

    def is_file(self) -> bool:
        return bool(self.fs.isfile(self.path))

    def is_folder(self) -> bool:
        return bool(self.fs.isdir(self.path))

    def get_entry(self) -> Entry:
        """Return the size, ETag and modification time; raise FileNotFoundError if nothing is there."""
        return self.filesystem.get_entry(self.path)

    def read(self, limit: int | None = None) -> bytes:
        """Return the file's bytes, or only the first `limit` bytes."""
        return self.filesystem.read(self.path, limit)

    def open(self, *, size: int | None = None, etag: str | None = None, **options: Any) -> IO[bytes]:
        """Open the file for reading; passing a known `size` saves a request to some object stores.

        If an ETag is given and the filesystem `reads_one_version`, reading raises OSError as soon as the file has a
        different ETag.
        """
        return self.filesystem.open(self.path, size, etag, **options)

    def list(self) -> dict[str, Entry]:
        """Return the entries of a folder by name, or the entry of a file; a local link has the entry of its target."""
        return self.filesystem.list(self.path)

    def files(self) -> Iterator[tuple[str, Entry]]:
        """Yield the files below a folder with their relative paths, or a single file with an empty path.

        Local links are followed, and a folder is read once even if several links lead to it. On S3, the next thousand
        files are requested only when they are needed. Raise OSError if a folder cannot be listed.
        """
        return self.filesystem.files(self.path)

    def glob(self) -> Iterator[tuple["Place", Entry]]:
        """Yield each file or folder that matches this address, a pattern with *, together with its entry."""
        for path, found in self.fs.glob(self.path, detail=True).items():
            yield Place(self.filesystem.root + path, self.storage), make_entry(found)

    def create(self, data: bytes) -> bool:
        """Write a file unless it exists; return False if another writer was first.

        Raise WriteError if the file cannot be written.

        Readers never see a partial file: an object store gets one conditional write, and on a disk a complete file is
        linked to its name.
        """
        with convert_write_errors(self):
            return self.get_writable().create(self.path, data)

    def create_marker(self, data: bytes) -> None:
        """Write a file whose content is always the same, unless the file exists.

        Raise ConfigError if the server ignores this condition; sweeps would then overwrite each other's results.
        """
        if not self.get_writable().create_and_check_condition(self.path, data):
            raise ConfigError(
                f"{self.parent}: the S3 server ignores If-None-Match, so sweeps would overwrite each other's "
                "results; use a server that honours it, such as AWS, SeaweedFS, MinIO or R2, or a folder"
            )

    def write(self, data: bytes) -> None:
        """Write or replace a file; readers see either the old or the new content.

        Raise WriteError if the file cannot be written.
        """
        with convert_write_errors(self):
            self.get_writable().write(self.path, data)

    def write_table(self, table: pa.Table, *, row_group_size: int | None = None) -> None:
        """Write a table as Parquet, in the same way as `write`."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
        self.write(sink.getvalue().to_pybytes())

    @contextmanager
    def open_draft(self) -> Iterator[Path]:
        """Yield the path of a local draft; when the context ends without an exception, the draft replaces this file."""
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=self.get_draft_folder()) as folder:
            draft = Path(folder) / "draft"
            yield draft
            self.move_draft(draft, replace=True)

    def get_draft_folder(self) -> Path:
        return self.get_writable().get_draft_folder(self.path)

    def move_draft(self, draft: Path, *, replace: bool) -> bool:
        """Move a complete local file here; return False if another writer was first."""
        return self.get_writable().move_draft(draft, self.path, replace=replace)

    def copy_to(self, target: "Place") -> None:
        """Make an immutable file available under a second name, by copying it within the bucket or by a hard link.

        This process does not read the file. Any existing file with the second name is replaced.
        """
        self.get_writable().copy(self.path, target.path)

    def remove(self) -> None:
        self.get_writable().fs.rm_file(self.path)

    def remove_below(self, relatives: Sequence[str]) -> None:
        """Remove files below a folder, many per request if the server allows it; missing files are ignored."""
        # fsspec's own `rm` would read `*` and `[` in a name as a pattern
        self.get_writable().remove_all([(self / relative).path for relative in relatives])

    def remove_folder(self) -> None:
        """Remove a folder with its contents, or a file. Nothing may write to the folder at the same time."""
        self.remove_below([relative for relative, _ in self.files()])
        if self.is_local:
            for folder, _, _ in os.walk(self.path, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()


def _make_absolute(path: str, url: str) -> str:
    """Return the absolute path with links resolved, except in the last component.

    In a Hugging Face cache, the last component is a link that has the file's name, but its target is named by a hash.
    """
    if not path.strip() or "\0" in path:
        raise ConfigError(
            f"{url!r}: expected a local path or an address; enter one, or set the variable that it comes from"
        )
    try:
        place = Path(path).expanduser()
        if place.name in ("", ".."):
            return os.path.realpath(place)
        return str(Path(os.path.realpath(place.parent)) / place.name)
    except RuntimeError as error:
        raise ConfigError(f"{url}: the home folder of this user was not found; write the full path") from error
    except UnicodeEncodeError as error:
        raise ConfigError(f"{url!r}: the path is not valid UTF-8; correct the path") from error


def list_cloud_variables() -> dict[str, str]:
    """Return the environment variables that configure cloud access, for processes on other machines."""
    # callers pass them as an argument, because Ray would log them in a runtime_env
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))}


@contextmanager
def convert_write_errors(place: Place) -> Iterator[None]:
    """Convert errors of the storage client to a WriteError that names the file and says what to do."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        remedy = place.filesystem.find_renewal_remedy(error)
        if remedy is None and isinstance(error, PermissionError) and not place.is_local:
            remedy = f"check {place.filesystem.rights}"
        if remedy is None:
            code = error.errno if isinstance(error, OSError) else None
            remedy = REMEDIES_BY_ERRNO.get(code or 0, "check the store's server or disk and the rights to it")
        raise WriteError(f"{place}: cannot be written ({get_first_line(error)}); {remedy} and run again") from error


@contextmanager
def convert_read_errors(place: Place, what: str) -> Iterator[None]:
    """Convert errors of the storage client to a ConfigError that names the address and says what to do.

    `what` describes the file or folder in the message.
    """
    try:
        yield
    except PermissionError as error:
        filesystem = place.filesystem
        remedy = filesystem.find_renewal_remedy(error) or f"check {filesystem.rights}"
        raise ConfigError(f"{what} {place}: access denied ({get_first_line(error)}); {remedy}") from error
    except FileNotFoundError as error:
        remedy = "check the path" if place.is_local else "check the path and its bucket"
        raise ConfigError(f"{what} {place}: not found; {remedy}") from error
    except Exception as error:
        if not is_storage_error(error):
            raise
        if isinstance(error, OSError) and error.errno in REMEDIES_BY_ERRNO:
            raise ConfigError(f"{what} {place}: {REMEDIES_BY_ERRNO[error.errno]}") from error
        remedy = place.filesystem.find_renewal_remedy(error) or f"check {place.filesystem.check}"
        raise ConfigError(f"{what} {place}: cannot be reached ({get_first_line(error)}); {remedy}") from error


def is_storage_error(error: Exception) -> bool:
    """Return True if the error comes from a disk or a storage client."""
    # recognised by package name, so that no client is imported
    return isinstance(error, OSError) or type(error).__module__.startswith(CLIENT_PACKAGES)


def get_first_line(error: Exception) -> str:
    """Return the first line of an error's message, without secrets."""
    return hide_secrets(str(error).splitlines()[0]) if str(error) else type(error).__name__
