"""Places: files and folders on a disk or in a cloud, read and written one way, with errors that name the remedy."""

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
from plumbline.operators.base.errors import ConfigError, PlumblineError, without_secrets
from plumbline.pipelines.base.filesystems import OBJECT_STORES, filesystem_of
from plumbline.pipelines.base.filesystems.filesystem import STORES, Filesystem, Writable, entry_of
from plumbline.pipelines.base.filesystems.filesystem import Entry as Entry

CLIENTS = ("botocore.", "aiobotocore.", "obstore.", "aiohttp.", "httpx.", "huggingface_hub.")
"""Modules of the clients whose errors are not all OSErrors."""
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}")
"""How an address begins that is not a path; one slash is a typing error."""
OTHER_NAMES = {"gcs://": "gs://", "abfs://": "az://", "abfss://": "az://", "azure://": "az://", "s3a://": "s3://"}
"""Of schemes of object stores, elsewhere."""
REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EFBIG: "the file is larger than the system lets it be: raise the limit (ulimit -f)",
    errno.EROFS: "the disk is read-only: make it writable",
    errno.ELOOP: "its symbolic links lead in a circle: correct them",
    errno.ENAMETOOLONG: "its name is too long: shorten it",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}


def is_remote(url: str) -> bool:
    """Whether it is an address of another filesystem than a disk."""
    scheme = SCHEME.match(url)
    return scheme is not None and scheme[0].endswith("://") and scheme[0] != "file://"


Roots = Annotated[tuple[str, ...], Bound("folders or s3:// prefixes", all)]
"""Below which files may be read that a table or a request names."""


class WriteError(PlumblineError):
    """Something that a run computed cannot be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageConfig:
    """How s3:// is reached; what is not set comes from the standard AWS variables.

    gs:// and az:// are reached by the variables of their clouds' own tools, or by `anon`.
    """

    endpoint_url: str | None = None
    """The S3 server, where it is not AWS."""
    region: str | None = None
    """The bucket's region."""
    key: str | None = field(default=None, repr=False)
    """Access key id."""
    secret: str | None = field(default=None, repr=False)
    """Secret access key; never printed or written to a manifest."""
    anon: bool = False
    """Whether to read public buckets without credentials."""

    def __post_init__(self) -> None:
        if self.endpoint_url is not None and ("@" in self.endpoint_url or "?" in self.endpoint_url):
            raise ConfigError(
                "storage.endpoint_url: expected an address without credentials or query, such as https://host:9000; "
                "put the credentials into storage.key and storage.secret"
            )

    def locate(self, url: str, *, writable: bool = False) -> "Place":
        """The place of a local path or an address; raises ConfigError for one that cannot be, or be written if wanted.

        Its client is made ready: settings that it refuses are told now.
        """
        scheme = SCHEME.match(url)
        if scheme is None or scheme[0] == "file://":
            return Place(_absolute(url.removeprefix("file://"), url), self)
        if not scheme[0].endswith("://"):
            raise ConfigError(f"{url}: expected a local path or a URL, got one slash; write {scheme[1]}://")
        if scheme[0] in OTHER_NAMES:
            raise ConfigError(f"{scheme[0]}: is written {OTHER_NAMES[scheme[0]]} here, as in docs/cluster.md")
        _check_address(scheme[0], url.removeprefix(scheme[0]))
        place = Place(url.rstrip("/"), self)
        if writable and scheme[0] not in OBJECT_STORES:  # before its server is asked, which may not be there
            raise place.only_read()
        place.filesystem.prepare(place.path)
        return place


def _check_address(scheme: str, address: str) -> None:
    """Raises ConfigError for an address with credentials, which would be shown, or without a bucket or host."""
    host = address.partition("/")[0]
    if "@" in host:
        where = "storage.key and storage.secret" if scheme == "s3://" else "the variables that its own tools read"
        raise ConfigError(f"{scheme}: expected an address without credentials; put them into {where}")
    if "?" in address and scheme not in OBJECT_STORES:
        raise ConfigError(f"{scheme}{host}: expected an address without a query, which may hold credentials; drop it")
    if not host:
        whole = f"{scheme}BUCKET/PREFIX" if scheme in OBJECT_STORES else f"{scheme}HOST/PATH"
        raise ConfigError(
            f"{scheme}{address}: expected {whole}, got no {whole[len(scheme) :].partition('/')[0].lower()}; "
            "name it, or set the variable that does"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder on a disk or in an object store, with all it takes to read and write it.

    It is shown, compared in dictionaries and logged by its address; only pickling takes its credentials along.
    """

    url: str
    """The absolute address as a person writes it."""
    storage: StorageConfig = field(repr=False, hash=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, relative: str) -> "Place":
        """What lies below this place."""
        return Place(f"{self.url.rstrip('/')}/{relative}", self.storage) if relative else self

    @property
    def is_local(self) -> bool:
        return self.url.startswith("/")

    @property
    def filesystem(self) -> Filesystem:
        return filesystem_of(self.url, self.storage)

    def writable(self) -> Writable:
        """Its filesystem, where that can hold a store; raises ConfigError for one that can only be read."""
        filesystem = self.filesystem
        if not isinstance(filesystem, Writable):
            raise self.only_read()
        return filesystem

    def only_read(self) -> ConfigError:
        """Why nothing is written there."""
        return ConfigError(f"{self}: files can only be read there; name a folder, or a prefix of {STORES}")

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """Its filesystem as fsspec has it, for libraries that read by one."""
        return self.filesystem.fs

    @property
    def path(self) -> str:
        """How its filesystem names it."""
        return self.url if self.is_local else self.url.removeprefix(self.filesystem.root)

    @property
    def uri(self) -> str:
        """Its address with a scheme, file:// for a local path."""
        return f"file://{self.url}" if self.is_local else self.url

    @property
    def name(self) -> str:
        """The last part of its address."""
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

    def entry(self) -> Entry:
        """Raises FileNotFoundError where there is nothing."""
        return self.filesystem.entry(self.path)

    def read(self, most: int | None = None) -> bytes:
        """Its bytes, at most so many."""
        return self.filesystem.read(self.path, most)

    def open(self, *, size: int | None = None, etag: str | None = None, **options: Any) -> IO[bytes]:
        """A stream of its bytes; a cloud is not asked for its size where a listing has told it.

        With an ETag it raises OSError once the file has another, where its filesystem `reads_one_version`.
        """
        return self.filesystem.open(self.path, size, etag, **options)

    def list(self) -> dict[str, Entry]:
        """The entries of a folder by name, or of the file itself; a local link counts as its target."""
        return self.filesystem.list(self.path)

    def files(self) -> Iterator[tuple[str, Entry]]:
        """The files below it by their paths from here, or the file itself by the empty path.

        Local links are followed, and a folder is read once however many links lead to it. The entries come one by one,
        because they take much memory, and S3 is asked for a further thousand of them only when these are wanted. Raises
        OSError for a folder that cannot be listed.
        """
        return self.filesystem.files(self.path)

    def glob(self) -> Iterator[tuple["Place", Entry]]:
        """The files that its address matches, read as a pattern with *."""
        for path, found in self.fs.glob(self.path, detail=True).items():
            yield Place(self.filesystem.root + path, self.storage), entry_of(found)

    def create(self, data: bytes) -> bool:
        """Writes a file only if there is none; False where another writer was first. Raises WriteError.

        One conditional write to an object store; on a disk a finished file is linked into place. Readers never see a
        part.
        """
        with write_errors(self):
            return self.writable().create(self.path, data)

    def create_mark(self, data: bytes) -> None:
        """Writes a file that always has the same content, unless it is there.

        Raises ConfigError for a server that would replace existing objects.
        """
        if not self.writable().heeds_conditions(self.path, data):
            raise ConfigError(
                f"{self.parent}: the S3 server ignores If-None-Match, so that sweeps would replace each other's "
                "results; name a bucket of one that honours it, as AWS, SeaweedFS, MinIO and R2 do, or a folder"
            )

    def write(self, data: bytes) -> None:
        """Writes a file, or replaces it; readers see the old one or the new one. Raises WriteError."""
        with write_errors(self):
            self.writable().write(self.path, data)

    def write_table(self, table: pa.Table, *, row_group_size: int | None = None) -> None:
        """Writes a table as Parquet, as `write` does."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
        self.write(sink.getvalue().to_pybytes())

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A local file to write, which replaces this one once it is finished; an unfinished one leaves nothing."""
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=self.draft_folder()) as folder:
            draft = Path(folder) / "draft"
            yield draft
            self.put(draft, replace=True)

    def draft_folder(self) -> Path:
        """The local folder in which a file is drafted that is to be put in this place."""
        return self.writable().draft_folder(self.path)

    def put(self, draft: Path, *, replace: bool) -> bool:
        """Puts a finished local file in this place; False where another was first."""
        return self.writable().put(draft, self.path, replace=replace)

    def copy_to(self, target: "Place") -> None:
        """Give an unchanging file another name, without reading it; replace any file of that name.

        A cloud copies the file within its bucket; on a disk it gets a hard link.
        """
        self.writable().copy(self.path, target.path)

    def remove(self) -> None:
        """Removes a file."""
        self.writable().fs.rm_file(self.path)

    def remove_below(self, relatives: Sequence[str]) -> None:
        """Removes files below it, many with one call where there is one for it; missing ones are no error.

        The names are taken as they are: fsspec's own `rm` would read a `*` or a `[` in them as a pattern.
        """
        self.writable().remove_all([(self / relative).path for relative in relatives])

    def remove_folder(self) -> None:
        """Removes a folder that nobody writes to any more, with all that is in it, or the file itself."""
        self.remove_below([relative for relative, _ in self.files()])
        if self.is_local:
            for folder, _, _ in os.walk(self.path, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()


def _absolute(path: str, url: str) -> str:
    """The path without links and `..` before its last part, whose own name tells what it is, as in a hub's cache."""
    if not path.strip() or "\0" in path:
        raise ConfigError(f"{url!r}: expected a local path or an address; write one, or set the variable that does")
    try:
        place = Path(path).expanduser()
        if place.name in ("", ".."):
            return os.path.realpath(place)
        return str(Path(os.path.realpath(place.parent)) / place.name)
    except RuntimeError as error:
        raise ConfigError(f"{url}: there is no such user's home folder; write the whole path") from error
    except UnicodeEncodeError as error:
        raise ConfigError(f"{url!r}: expected a path in UTF-8; correct it") from error


def cloud_variables() -> dict[str, str]:
    """What the environment says of clouds, for processes elsewhere: as an argument, because Ray logs a runtime_env."""
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))}


@contextmanager
def write_errors(place: Place) -> Iterator[None]:
    """Turns what a storage client raises at a write into a WriteError that names the file and the remedy."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise WriteError(
            f"{place}: cannot be written ({first_line(error)}); {_remedy(place, error)} and run again"
        ) from error


def _remedy(place: Place, error: Exception) -> str:
    if (renewal := place.filesystem.renewal(error)) is not None:
        return renewal
    if isinstance(error, PermissionError) and not place.is_local:
        return f"check {place.filesystem.rights}"
    code = error.errno if isinstance(error, OSError) else None
    return REMEDIES.get(code or 0, "check the store's server or disk and the rights to it")


@contextmanager
def readable_errors(place: Place, what: str) -> Iterator[None]:
    """Turns what a storage client raises into a ConfigError that names the address and the remedy."""
    try:
        yield
    except PermissionError as error:
        filesystem = place.filesystem
        remedy = filesystem.renewal(error) or f"check {filesystem.rights}"
        raise ConfigError(f"{what} {place}: access denied ({first_line(error)}); {remedy}") from error
    except FileNotFoundError as error:
        remedy = "check the path" if place.is_local else "check the path and its bucket"
        raise ConfigError(f"{what} {place}: not found; {remedy}") from error
    except Exception as error:
        if not is_storage_error(error):
            raise
        if isinstance(error, OSError) and error.errno in REMEDIES:
            raise ConfigError(f"{what} {place}: {REMEDIES[error.errno]}") from error
        remedy = place.filesystem.renewal(error) or f"check {place.filesystem.check}"
        raise ConfigError(f"{what} {place}: cannot be reached ({first_line(error)}); {remedy}") from error


def is_storage_error(error: Exception) -> bool:
    """Whether a disk or a client raised it, told without importing that client for a local store."""
    return isinstance(error, OSError) or type(error).__module__.startswith(CLIENTS)


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return without_secrets(str(error).splitlines()[0]) if str(error) else type(error).__name__
