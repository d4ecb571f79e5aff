"""One way to every file, local or s3://: filesystems, create-only writes, and errors that name the remedy."""

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
from functools import lru_cache
from pathlib import Path
from random import random
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from plumbline.operators.errors import ConfigError, PlumblineError, without_secrets

CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or storage.key and storage.secret, "
    "or storage.anon=true for a public bucket"
)
SETTINGS = "correct AWS_ENDPOINT_URL (http://HOST:PORT), AWS_REGION and AWS_PROFILE, or storage.*"
CHECK_S3 = "check AWS_ENDPOINT_URL or storage.endpoint_url, and the network"
RENEW = "renew the credentials"
PERHAPS_RENEW = f"where the credentials are those of a session it may have expired: {RENEW}; or {CHECK_S3}"
"""S3 answers a HEAD with no more than a status, and an expired session with 400 as it does a malformed call."""
ENDED_SESSION = ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired")
"""What S3 calls credentials that were valid and are no more."""
CHECK_DISK = "check the path and the rights to it"
S3_RETRIES = 5
"""After a call's first try, with pauses that double; s3fs repeats all of them five times for what may pass."""
MAY_PASS = (429, 500, 502, 503, 504)
"""What an S3 server answers where it is busy or broken, and not the call."""
TOO_MANY_REQUESTS = 429
MOST_REMOVED = 1000
"""Objects that S3 takes off with one call."""
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}")
"""How an address begins that is no path; with one slash it is a slip of the pen."""
REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the quota is used up: free some space",
    errno.EFBIG: "the file is larger than the system lets it be: raise the limit (ulimit -f)",
    errno.EROFS: "the disk is read-only: make it writable",
    errno.ELOOP: "its symbolic links lead in a circle: correct them",
    errno.ENAMETOOLONG: "its name is too long: shorten it",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A folder or file on some filesystem."""

    fs: fsspec.AbstractFileSystem
    path: str
    url: str
    """The absolute address as a person writes it."""

    def at(self, relative: str) -> str:
        """The filesystem path of something below this location."""
        return f"{self.path.rstrip('/')}/{relative}"

    def relative(self, path: str) -> str:
        """The path of something at or below this location as it is from here; of the location itself, its name."""
        return path.removeprefix(self.path).lstrip("/") or path.rpartition("/")[2]

    def below(self, relative: str) -> "Location":
        """Something below this location."""
        return Location(fs=self.fs, path=self.at(relative), url=f"{self.url}/{relative}")


def locate(url: str, storage: StorageConfig) -> Location:
    """The filesystem and path of a local path or an s3:// URL; raises ConfigError for what is neither."""
    scheme = SCHEME.match(url)
    if scheme is None or scheme[0] == "file://":
        path = _absolute(url.removeprefix("file://"), url)
        return Location(fs=LocalFileSystem(), path=path, url=path)
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
        raise ConfigError(f"{url}: expected s3://BUCKET/PREFIX, got no bucket; name it, or set the variable that does")
    return Location(fs=_s3(storage), path=path, url=f"s3://{path}")


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


def etag(entry: Mapping[str, Any]) -> str:
    """What changes when an object does, from its entry in a listing: S3's ETag, or a local file's time."""
    return str(entry["ETag"]).strip('"') if "ETag" in entry else str(entry["mtime"])


def modified(entry: Mapping[str, Any]) -> float:
    """When an object was last written, in seconds since 1970, from its entry in a listing."""
    return float(entry["mtime"]) if "mtime" in entry else float(entry["LastModified"].timestamp())


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
    return status in MAY_PASS or conflict or isinstance(error, FlexibleChecksumError)


def _pause_where_busy(response: tuple[Any, Any] | None, attempts: int, **_: Any) -> float | None:
    """Botocore's event after each try: the seconds to wait for the next one, or None where others decide.

    Botocore knows this answer by some of the names that servers give it, and of a HEAD, which has no name, not at all.
    """
    if response is None or response[0].status_code != TOO_MANY_REQUESTS or attempts > S3_RETRIES:
        return None
    return random() * 2.0 ** (attempts - 1)


def _no_credentials() -> bool:
    from botocore.session import Session  # takes 0.3 s, and only s3:// needs it

    return Session().get_credentials() is None


def create(location: Location, path: str, data: bytes) -> bool:
    """Writes an object only if none stands at `path`; False where another writer was first.

    One conditional PUT on S3; on a local disk a finished file is linked into place. Readers never see a part. Raises
    WriteError.
    """
    with write_errors(path):
        if isinstance(location.fs, LocalFileSystem):
            return _create_local(Path(path), data)
        return _put_new(location, path, data) or _is_ours(location, path, data)


def create_mark(location: Location, path: str, data: bytes) -> None:
    """Writes an object that always has the same content, unless it stands; raises ConfigError where an S3 server would
    replace what stands.
    """
    if isinstance(location.fs, LocalFileSystem):
        _create_local(Path(path), data)
    elif _put_new(location, path, data) and _put_new(location, path, data):
        raise ConfigError(
            f"{location.url}: the S3 server ignores If-None-Match, so that sweeps would replace each other's results; "
            "name a bucket of one that honours it, as AWS, SeaweedFS, MinIO and R2 do, or a folder"
        )


def _put_new(location: Location, path: str, data: bytes) -> bool:
    """One conditional PUT on S3; False where it was refused because something stands there."""
    try:
        location.fs.pipe_file(path, data, mode="create")
    except OSError:
        if not location.fs.exists(path):
            raise
        return False
    return True


def _is_ours(location: Location, path: str, data: bytes) -> bool:
    """Whether what stands was written by a try of ours whose answer was lost, so that the next one was refused.

    SeaweedFS refuses with errno 22, where AWS says that the object exists.
    """
    return bool(location.fs.cat_file(path) == data)


def _create_local(path: Path, data: bytes) -> bool:
    with _written_beside(path, data) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    return True


def write_file(location: Location, path: str, data: bytes) -> None:
    """Writes an object whatever stood at `path`; readers see the old one or the new one. Raises WriteError."""
    with write_errors(path):
        if not isinstance(location.fs, LocalFileSystem):
            location.fs.pipe_file(path, data, ContentType=mimetypes.guess_type(path)[0] or "application/octet-stream")
            return
        with _written_beside(Path(path), data) as draft:
            draft.replace(path)


def write_table(location: Location, path: str, table: pa.Table, *, row_group_size: int | None = None) -> None:
    """Writes a table as Parquet, as `write_file`."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
    write_file(location, path, sink.getvalue().to_pybytes())


def duplicate(location: Location, source: str, target: str) -> None:
    """Another name for an object that never changes: a copy within S3, a hard link on a disk; no byte passes here."""
    if not isinstance(location.fs, LocalFileSystem):
        location.fs.cp_file(source, target)
        return
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.link(source, target)


def remove_all(location: Location, paths: Sequence[str]) -> None:
    """Removes files, on S3 by a thousand with one call; those that are gone already are none to it.

    The paths are taken as they are: fsspec's own `rm` would read a `*` or a `[` in them as a pattern.
    """
    if isinstance(location.fs, LocalFileSystem):
        for path in paths:
            Path(path).unlink(missing_ok=True)
        return
    for first in range(0, len(paths), MOST_REMOVED):
        buckets, keys, _ = zip(*map(location.fs.split_path, paths[first : first + MOST_REMOVED]), strict=True)
        objects = [{"Key": key} for key in keys]
        reply = location.fs.call_s3("delete_objects", Bucket=buckets[0], Delete={"Objects": objects, "Quiet": True})
        for refused in reply.get("Errors", ()):
            raise PermissionError(f"{refused['Key']}: {refused.get('Message') or refused.get('Code')}")


@contextmanager
def written_whole(location: Location, path: str) -> Iterator[Path]:
    """A local file to write, which takes the place of `path` once it is finished; nothing is left of one that is
    not.
    """
    local = isinstance(location.fs, LocalFileSystem)
    if local:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=Path(path).parent if local else None) as folder:
        draft = Path(folder) / "draft"
        yield draft
        if local:
            draft.replace(path)
        else:
            location.fs.put_file(str(draft), path)


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
def write_errors(path: str) -> Iterator[None]:
    """Turns what a storage client raises at a write into a WriteError that names the file and the remedy."""
    try:
        yield
    except Exception as error:
        if not is_storage_error(error):
            raise
        raise WriteError(f"{path}: cannot be written ({first_line(error)}); {_remedy(error)} and run again") from error


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
            return PERHAPS_RENEW
    return None


def list_folder(location: Location) -> list[Mapping[str, Any]]:
    """What stands in a folder, or the file itself; a local link is taken for what it leads to."""
    return [_followed(entry) for entry in location.fs.ls(location.path, detail=True)]


def list_below(location: Location) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The files at or below a location; local links are followed, and a folder is read once whatever leads to it.

    They come one by one, for an entry takes much more memory than its path. Raises OSError for a folder that cannot be
    listed.
    """
    if not isinstance(location.fs, LocalFileSystem) or not location.fs.isdir(location.path):
        entries = location.fs.find(location.path, detail=True)
        while entries:
            yield entries.popitem()
        return
    seen: set[str] = set()
    for folder, folders, files in os.walk(location.path, onerror=_raise, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in files:
            yield f"{folder}/{name}", _info(f"{folder}/{name}")


def _raise(error: OSError) -> None:
    raise error


def _followed(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _info(entry["name"]) if entry.get("islink") else entry


def _info(path: str) -> Mapping[str, Any]:
    """A local file's entry, of what is asked of it; a link that leads nowhere is neither file nor folder."""
    try:
        found = Path(path).stat()
    except OSError:
        return {"name": path, "type": "other", "size": 0, "mtime": 0.0}
    kind = "file" if stat.S_ISREG(found.st_mode) else "directory" if stat.S_ISDIR(found.st_mode) else "other"
    return {"name": path, "type": kind, "size": found.st_size, "mtime": found.st_mtime}


@contextmanager
def readable_errors(location: Location, what: str) -> Iterator[None]:
    """Turns what a storage client raises into a ConfigError that names the address and the remedy."""
    try:
        yield
    except PermissionError as error:
        local = isinstance(location.fs, LocalFileSystem)
        remedy = CHECK_DISK if local else session_remedy(error) or "check the credentials' rights"
        raise ConfigError(f"{what} {location.url}: access denied ({first_line(error)}); {remedy}") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{what} {location.url}: not found; check the path and its bucket") from error
    except Exception as error:
        if not is_storage_error(error):
            raise
        if isinstance(error, OSError) and error.errno in REMEDIES:
            raise ConfigError(f"{what} {location.url}: {REMEDIES[error.errno]}") from error
        check = CHECK_DISK if isinstance(location.fs, LocalFileSystem) else session_remedy(error) or CHECK_S3
        raise ConfigError(f"{what} {location.url}: cannot be reached ({first_line(error)}); {check}") from error


def is_storage_error(error: Exception) -> bool:
    """Whether a disk or S3's client raised it, told without importing that client for a local store."""
    return isinstance(error, OSError) or type(error).__module__.startswith(("botocore.", "aiobotocore."))


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return without_secrets(str(error).splitlines()[0]) if str(error) else type(error).__name__
