"""Places: files and folders on a disk or on S3, read and written one way, with errors that name the remedy."""

import errno
import mimetypes
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from random import random
from typing import IO, Annotated, Any, NamedTuple, cast

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from plumbline.operators.bounds import Bound
from plumbline.operators.errors import ConfigError, PlumblineError, without_secrets

CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or storage.key and storage.secret, "
    "or storage.anon=true for a public bucket"
)
SETTINGS = "correct AWS_ENDPOINT_URL (http://HOST:PORT), AWS_REGION and AWS_PROFILE, or storage.*"
CHECK_S3 = "check AWS_ENDPOINT_URL or storage.endpoint_url, and the network"
RENEW = "renew the credentials"
MAYBE_RENEW = f"where the credentials are those of a session it may have expired: {RENEW}; or {CHECK_S3}"
"""A HEAD is answered by a status alone, and S3 answers 400 both to an expired session and to a malformed call."""
ENDED_SESSION = ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired")
"""Error codes of S3 for credentials that have expired."""
CHECK_DISK = "check the path and the rights to it"
S3_RETRIES = 5
"""Retries of a call by botocore, with pauses that double; s3fs repeats them all five times for errors that may pass."""
PASSING_STATUS = (429, 500, 502, 503, 504)
"""Statuses of an S3 server that is busy or broken; the call itself may be right."""
TOO_MANY_REQUESTS = 429
DELETE_BATCH = 1000
"""Objects that S3 deletes with one call."""
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}")
"""How an address begins that is not a path; one slash is a typing error."""
REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EFBIG: "the file is larger than the system lets it be: raise the limit (ulimit -f)",
    errno.EROFS: "the disk is read-only: make it writable",
    errno.ELOOP: "its symbolic links lead in a circle: correct them",
    errno.ENAMETOOLONG: "its name is too long: shorten it",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}


LOCAL = LocalFileSystem()


def _may_be_root(address: str) -> bool:
    return bool(address) and ("://" not in address or address.startswith(("s3://", "file://")))


Roots = Annotated[tuple[str, ...], Bound("folders or s3:// prefixes", lambda roots: all(map(_may_be_root, roots)))]
"""Below which files may be read that a table or a request names."""


class WriteError(PlumblineError):
    """Something that a run computed cannot be written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageConfig:
    """How s3:// is reached; what is not set comes from the standard AWS variables."""

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

    def s3_options(self) -> dict[str, Any]:
        """What fsspec's S3 client is given."""
        return {
            "anon": self.anon,
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.endpoint_url,
            "client_kwargs": {"region_name": self.region} if self.region else {},
            "config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": S3_RETRIES, "mode": "standard"}},
            "use_listings_cache": False,
        }

    def locate(self, url: str) -> "Place":
        """The place of a local path or an s3:// address; raises ConfigError for any other address."""
        scheme = SCHEME.match(url)
        if scheme is None or scheme[0] == "file://":
            return Place(_absolute(url.removeprefix("file://"), url), self)
        if not scheme[0].endswith("://"):
            raise ConfigError(f"{url}: expected a local path or an s3:// URL, got one slash; write {scheme[1]}://")
        if scheme[1] != "s3":
            raise ConfigError(f"{url}: expected a local path or an s3:// URL, got {scheme[0]}")
        path = url.removeprefix("s3://").rstrip("/")
        if "@" in path.split("/")[0]:
            raise ConfigError(
                "s3://: expected an address without credentials; put them into storage.key and storage.secret"
            )
        if not path or path.startswith("/"):
            raise ConfigError(
                f"{url}: expected s3://BUCKET/PREFIX, got no bucket; name it, or set the variable that does"
            )
        _s3(self)  # settings that it refuses are told now
        return Place(f"s3://{path}", self)


class Entry(NamedTuple):
    """A file, folder or anything else as its filesystem lists it."""

    type: str
    """`file`, `directory` or `other`: a pipe, a device, a link that leads nowhere."""
    size: int
    etag: str
    """Changes when the file does: the ETag of S3, or the modification time of a local file; empty for a folder."""
    modified: float
    """Time of the last write, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder on a disk or on S3, with all it takes to read and write it.

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
        return not self.url.startswith("s3://")

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """Its filesystem; all places of one configuration share the client."""
        return LOCAL if self.is_local else _s3(self.storage)

    @property
    def path(self) -> str:
        """How its filesystem names it."""
        return self.url.removeprefix("s3://")

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
        return _entry(self.fs.info(self.path))

    def read(self, most: int | None = None) -> bytes:
        """Its bytes, at most so many. Whole objects come with one call; s3fs would ask for the size first."""
        if most is None:
            return bytes(self.fs.cat_file(self.path, max_concurrency=1))
        return bytes(self.fs.cat_file(self.path, start=0, end=most))

    def open(self, **options: Any) -> IO[bytes]:
        """A stream of its bytes."""
        return cast(IO[bytes], self.fs.open(self.path, "rb", **options))

    def list(self) -> dict[str, Entry]:
        """The entries of a folder by name, or of the file itself; a local link counts as its target."""
        found = self.fs.ls(self.path, detail=True)
        names = (str(item["name"]).rstrip("/").rpartition("/")[2] for item in found)
        return {
            name: local_entry(item["name"]) if item.get("islink") else _entry(item)
            for name, item in zip(names, found, strict=True)
        }

    def files(self) -> Iterator[tuple[str, Entry]]:
        """The files below it by their paths from here, or the file itself by the empty path.

        Local links are followed, and a folder is read once however many links lead to it. The entries come one by one,
        because they take much memory, and S3 is asked for a further thousand of them only when these are wanted. Raises
        OSError for a folder that cannot be listed.
        """
        below = _s3_files(self) if not self.is_local else _local_files(self.path) if self.is_folder() else iter(())
        first = next(below, None)
        if first is not None:
            yield first
            yield from below
            return
        with suppress(FileNotFoundError):
            entry = self.entry()
            if entry.type == "file":
                yield "", entry

    def glob(self) -> Iterator[tuple["Place", Entry]]:
        """The files that its address matches, read as a pattern with *."""
        for path, item in self.fs.glob(self.path, detail=True).items():
            yield Place(path if self.is_local else f"s3://{path}", self.storage), _entry(item)

    def create(self, data: bytes) -> bool:
        """Writes a file only if there is none; False where another writer was first. Raises WriteError.

        One conditional PUT on S3; on a disk a finished file is linked into place. Readers never see a part.
        """
        with write_errors(self):
            if self.is_local:
                return _create_local(Path(self.path), data)
            return self._put_new(data) or self._is_ours(data)

    def create_mark(self, data: bytes) -> None:
        """Writes a file that always has the same content, unless it is there.

        Raises ConfigError for an S3 server that would replace existing objects.
        """
        if self.is_local:
            _create_local(Path(self.path), data)
        elif self._put_new(data) and self._put_new(data):
            raise ConfigError(
                f"{self.parent}: the S3 server ignores If-None-Match, so that sweeps would replace each other's "
                "results; name a bucket of one that honours it, as AWS, SeaweedFS, MinIO and R2 do, or a folder"
            )

    def _put_new(self, data: bytes) -> bool:
        """One conditional PUT on S3; False where it was refused because an object is there."""
        try:
            self.fs.pipe_file(self.path, data, mode="create")
        except OSError:
            if not self.exists():
                raise
            return False
        return True

    def _is_ours(self, data: bytes) -> bool:
        """Whether the object was written by a try of ours whose answer was lost, so that the next one was refused.

        SeaweedFS refuses with errno 22, where AWS says that the object exists.
        """
        return bool(self.fs.cat_file(self.path) == data)

    def write(self, data: bytes) -> None:
        """Writes a file, or replaces it; readers see the old one or the new one. Raises WriteError."""
        with write_errors(self):
            if not self.is_local:
                content_type = mimetypes.guess_type(self.path)[0] or "application/octet-stream"
                self.fs.pipe_file(self.path, data, ContentType=content_type)
                return
            with _written_beside(Path(self.path), data) as draft:
                draft.replace(self.path)

    def write_table(self, table: pa.Table, *, row_group_size: int | None = None) -> None:
        """Writes a table as Parquet, as `write` does."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
        self.write(sink.getvalue().to_pybytes())

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A local file to write, which replaces this one once it is finished; an unfinished one leaves nothing."""
        local = Path(self.path)
        if self.is_local:
            local.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=local.parent if self.is_local else None) as folder:
            draft = Path(folder) / "draft"
            yield draft
            if self.is_local:
                draft.replace(local)
            else:
                self.fs.put_file(str(draft), self.path)

    def copy_to(self, target: "Place") -> None:
        """Gives an unchanging file another name, without reading it: by a copy within S3, a hard link on a disk."""
        if not self.is_local:
            self.fs.cp_file(self.path, target.path)
            return
        Path(target.path).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(self.path, target.path)

    def remove(self) -> None:
        """Removes a file."""
        self.fs.rm_file(self.path)

    def remove_below(self, relatives: Sequence[str]) -> None:
        """Removes files below it, on S3 a thousand with one call; missing ones are no error.

        The names are taken as they are: fsspec's own `rm` would read a `*` or a `[` in them as a pattern.
        """
        paths = [(self / relative).path for relative in relatives]
        if self.is_local:
            for path in paths:
                Path(path).unlink(missing_ok=True)
            return
        for first in range(0, len(paths), DELETE_BATCH):
            buckets, keys, _ = zip(*map(self.fs.split_path, paths[first : first + DELETE_BATCH]), strict=True)
            objects = [{"Key": key} for key in keys]
            reply = self.fs.call_s3("delete_objects", Bucket=buckets[0], Delete={"Objects": objects, "Quiet": True})
            for refused in reply.get("Errors", ()):
                raise PermissionError(f"{refused['Key']}: {refused.get('Message') or refused.get('Code')}")


def _absolute(path: str, url: str) -> str:
    """The path without links and `..` before its last part, whose own name tells what it is, as in a hub's cache."""
    if not path.strip() or "\0" in path:
        raise ConfigError(f"{url!r}: expected a local path or an s3:// URL; write one, or set the variable that does")
    try:
        place = Path(path).expanduser()
        if place.name in ("", ".."):
            return os.path.realpath(place)
        return str(Path(os.path.realpath(place.parent)) / place.name)
    except RuntimeError as error:
        raise ConfigError(f"{url}: there is no such user's home folder; write the whole path") from error
    except UnicodeEncodeError as error:
        raise ConfigError(f"{url!r}: expected a path in UTF-8; correct it") from error


def aws_variables() -> dict[str, str]:
    """What the environment says of S3, for processes elsewhere: as an argument, because Ray logs a runtime_env."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def s3_settings(storage: StorageConfig) -> dict[str, str]:
    """What other libraries' S3 clients are to be given: endpoint_url, region, key, secret and token, where known.

    What is not set comes from where the AWS tools look: variables, profiles, the machine's role.
    """
    from botocore.session import Session  # takes 0.3 s, and only s3:// needs it

    session = Session()
    found = session.get_credentials() if storage.key is None else None
    frozen = found.get_frozen_credentials() if found is not None else None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    settings = {
        "endpoint_url": storage.endpoint_url or endpoint,
        "region": storage.region or session.get_config_variable("region"),
        "key": frozen.access_key if frozen is not None else storage.key,
        "secret": frozen.secret_key if frozen is not None else storage.secret,
        "token": frozen.token if frozen is not None else None,
    }
    return {name: value for name, value in settings.items() if value}


@lru_cache(maxsize=8)
def _s3(storage: StorageConfig) -> fsspec.AbstractFileSystem:
    """The client, made ready without a call to the server; raises ConfigError for settings that it refuses."""
    from botocore.exceptions import BotoCoreError  # takes 0.3 s, and only s3:// needs it

    try:
        if not storage.anon and storage.key is None and _no_credentials():
            raise ConfigError(f"s3://: no credentials found; {CREDENTIALS}")
        from aiobotocore.session import AioSession
        from s3fs.core import set_custom_error_handler  # type: ignore[import-untyped]  # only s3:// needs it

        from plumbline.pipelines.base.credentials import renewing_session  # imports botocore

        set_custom_error_handler(_may_pass)
        session = AioSession() if storage.anon or storage.key is not None else renewing_session()
        session.register("needs-retry.s3", _pause_where_busy)
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
        client = fsspec.filesystem("s3", session=session, **storage.s3_options())
        client.connect()
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"s3://: {first_line(error)}; {SETTINGS}") from error
    return client


def _may_pass(error: Exception) -> bool:
    """Whether a refusal of the S3 server is its own fault, or one of two conditional PUTs that met (409), or its answer
    came garbled.
    """
    from botocore.exceptions import FlexibleChecksumError

    response = getattr(error, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    conflict = response.get("Error", {}).get("Code") == "ConditionalRequestConflict"
    return status in PASSING_STATUS or conflict or isinstance(error, FlexibleChecksumError)


def _pause_where_busy(response: tuple[Any, Any] | None, attempts: int, **_: Any) -> float | None:
    """Botocore's event after each try: the seconds to wait for the next one, or None where others decide.

    Botocore knows this answer by some of the names that servers give it, and of a HEAD, which has no name, not at all.
    """
    if response is None or response[0].status_code != TOO_MANY_REQUESTS or attempts > S3_RETRIES:
        return None
    return random() * 2.0 ** (attempts - 1)


def _parse_time(value: Any) -> datetime:
    """A time in an answer of S3. Botocore's own parser tries several forms, which takes four fifths of a listing."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        from botocore.utils import parse_timestamp

        return cast(datetime, parse_timestamp(value))


def _no_credentials() -> bool:
    from botocore.session import Session  # takes 0.3 s, and only s3:// needs it

    return Session().get_credentials() is None


def _create_local(path: Path, data: bytes) -> bool:
    with _written_beside(path, data) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    return True


@contextmanager
def _written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A finished file in the folder of `path`, which is gone afterwards, however writing it ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_new(draft, data)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def write_new(path: Path, data: bytes) -> None:
    """Writes a file that was not there."""
    with path.open("xb") as file:
        file.write(data)


@contextmanager
def write_errors(place: Place) -> Iterator[None]:
    """Turns what a storage client raises at a write into a WriteError that names the file and the remedy."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise WriteError(f"{place}: cannot be written ({first_line(error)}); {_remedy(error)} and run again") from error


def _remedy(error: Exception) -> str:
    if (session := session_remedy(error)) is not None:
        return session
    code = error.errno if isinstance(error, OSError) else None
    return REMEDIES.get(code or 0, "check the store's server or disk and the rights to it")


def session_remedy(error: Exception) -> str | None:
    """What to do about credentials that have expired, or may have; None for another error."""
    for source in (error, error.__cause__, error.__context__):
        code = (getattr(source, "response", None) or {}).get("Error", {}).get("Code")
        if code in ENDED_SESSION:
            return RENEW
        if code == "400":
            return MAYBE_RENEW
    return None


def _s3_files(place: Place) -> Iterator[tuple[str, Entry]]:
    bucket, key, _ = place.fs.split_path(place.path)
    prefix, further = f"{key}/" if key else "", dict[str, str]()
    while True:
        page = place.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **further)
        for found in page.get("Contents", ()):
            if not found["Key"].endswith("/"):  # by which S3 consoles mark folders
                etag, written = found["ETag"].strip('"'), found["LastModified"].timestamp()
                yield found["Key"].removeprefix(prefix), Entry("file", found["Size"], etag, written)
        if not page.get("IsTruncated"):
            return
        further = {"ContinuationToken": page["NextContinuationToken"]}


def _local_files(root: str) -> Iterator[tuple[str, Entry]]:
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, onerror=_raise, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in files:
            path = f"{folder}/{name}"
            yield path.removeprefix(root).lstrip("/"), local_entry(path)


def _raise(error: OSError) -> None:
    raise error


def _entry(found: Mapping[str, Any]) -> Entry:
    """An entry of what fsspec says of a file."""
    if "ETag" in found:
        written = found["LastModified"].timestamp() if "LastModified" in found else 0.0
        return Entry(found["type"], found["size"], str(found["ETag"]).strip('"'), written)
    written = found.get("mtime", "")
    return Entry(found["type"], found["size"], str(written), float(written or 0))


def local_entry(path: str) -> Entry:
    """A local file's entry; a link that leads nowhere is neither file nor folder."""
    try:
        found = Path(path).stat()
    except OSError:
        return Entry("other", 0, "0.0", 0.0)
    entry_type = "file" if stat.S_ISREG(found.st_mode) else "directory" if stat.S_ISDIR(found.st_mode) else "other"
    return Entry(entry_type, found.st_size, str(found.st_mtime), found.st_mtime)


@contextmanager
def readable_errors(place: Place, what: str) -> Iterator[None]:
    """Turns what a storage client raises into a ConfigError that names the address and the remedy."""
    try:
        yield
    except PermissionError as error:
        remedy = CHECK_DISK if place.is_local else session_remedy(error) or "check the credentials' rights"
        raise ConfigError(f"{what} {place}: access denied ({first_line(error)}); {remedy}") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{what} {place}: not found; check the path and its bucket") from error
    except Exception as error:
        if not is_storage_error(error):
            raise
        if isinstance(error, OSError) and error.errno in REMEDIES:
            raise ConfigError(f"{what} {place}: {REMEDIES[error.errno]}") from error
        check = CHECK_DISK if place.is_local else session_remedy(error) or CHECK_S3
        raise ConfigError(f"{what} {place}: cannot be reached ({first_line(error)}); {check}") from error


def is_storage_error(error: Exception) -> bool:
    """Whether a disk or S3's client raised it, told without importing that client for a local store."""
    return isinstance(error, OSError) or type(error).__module__.startswith(("botocore.", "aiobotocore."))


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return without_secrets(str(error).splitlines()[0]) if str(error) else type(error).__name__
