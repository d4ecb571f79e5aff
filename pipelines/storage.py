"""One way to every file, local or s3://: filesystems, create-only writes, and errors that name the remedy."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from operators.errors import ConfigError

CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or storage.key and storage.secret, "
    "or storage.anon=true for a public bucket"
)


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

    def options(self, protocol: str) -> dict[str, Any]:
        """fsspec options for a protocol; only S3 has any."""
        if protocol != "s3":
            return {}
        return {
            "anon": self.anon,
            "key": self.key,
            "secret": self.secret,
            "endpoint_url": self.endpoint_url,
            "client_kwargs": {"region_name": self.region} if self.region else {},
            "config_kwargs": {"connect_timeout": 5, "retries": {"max_attempts": 3, "mode": "standard"}},
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


def locate(url: str, storage: StorageConfig) -> Location:
    """The filesystem and path of a local path or an s3:// URL."""
    protocol = url.split("://", 1)[0] if "://" in url else "file"
    if protocol == "file":
        path = str(Path(url.removeprefix("file://")).expanduser().absolute())
        return Location(fs=LocalFileSystem(), path=path, url=path)
    if protocol != "s3":
        raise ConfigError(f"{url}: expected a local path or an s3:// URL, got {protocol}://")
    return Location(fs=_s3(storage), path=url.removeprefix("s3://").rstrip("/"), url=url.rstrip("/"))


@lru_cache(maxsize=8)
def _s3(storage: StorageConfig) -> fsspec.AbstractFileSystem:
    if not storage.anon and storage.key is None and _no_credentials():
        raise ConfigError(f"s3://: no credentials found; {CREDENTIALS}")
    return fsspec.filesystem("s3", **storage.options("s3"))


def _no_credentials() -> bool:
    from botocore.session import Session  # takes 0.3 s, and only s3:// needs it

    return Session().get_credentials() is None


def create(location: Location, path: str, data: bytes) -> bool:
    """Writes an object only if none stands at `path`; False where another writer was first.

    One conditional PUT on S3; on a local disk a finished file is linked into place. Readers never see a part.
    """
    if isinstance(location.fs, LocalFileSystem):
        return _create_local(Path(path), data)
    try:
        location.fs.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    except OSError:
        if location.fs.exists(path):  # SeaweedFS answers a lost race with errno 22
            return False
        raise
    return True


def _create_local(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_bytes(data)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def replace(location: Location, path: str, data: bytes) -> None:
    """Writes an object whatever stood at `path`; readers see the old one or the new one."""
    if not isinstance(location.fs, LocalFileSystem):
        location.fs.pipe_file(path, data)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    draft = Path(path).with_name(f".{Path(path).name}.{uuid.uuid4().hex}")
    draft.write_bytes(data)
    draft.replace(path)


@contextmanager
def readable_errors(location: Location, what: str) -> Iterator[None]:
    """Turns what a storage client raises into a ConfigError that names the address and the remedy."""
    try:
        yield
    except PermissionError as error:
        raise ConfigError(f"{what} {location.url}: access denied ({error}); check the credentials' rights") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{what} {location.url}: not found; check the path and its bucket") from error
    except Exception as error:
        if not isinstance(error, OSError) and not _is_botocore(error):
            raise
        raise ConfigError(
            f"{what} {location.url}: cannot be reached ({_first_line(error)}); check AWS_ENDPOINT_URL or "
            "storage.endpoint_url, and the network"
        ) from error


def _is_botocore(error: Exception) -> bool:
    """Whether S3's client raised it, told without importing that client for a local store."""
    return type(error).__module__.startswith("botocore.")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
