"""Google Cloud Storage and Azure Blob Storage via obstore, with obstore's errors converted to OSErrors."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.fsspec import FsspecStore

from plumbline.operators.base.errors import ConfigError, hide_secrets
from plumbline.pipelines.base.filesystems.filesystem import UPLOAD_BYTES, AccessSettings, Entry, ObjectStore, make_entry

CLIENT_OPTIONS = {"allow_http": True, "connect_timeout": "5s", "read_timeout": "60s", "timeout": "10m"}
"""Client options. Plain http is allowed for servers given by an endpoint; the clouds themselves use https."""
MAX_RETRIES = 5
RETRY_OPTIONS = {"max_retries": MAX_RETRIES, "retry_timeout": timedelta(minutes=2)}
TRUNCATED_LISTING_ERROR = "Error getting list response body"
"""Text of obstore's error for a truncated listing, the only request that obstore does not retry."""
FILES_PER_LISTING = 1000
STREAM_BYTES = 2**20
"""Minimum number of bytes that a stream requests at a time."""
NO_CREDENTIALS_ERROR = "performing token request"
"""Text of obstore's error if no credentials are set and the machine has no role that provides credentials."""


class Cloud(ObjectStore):
    """Object store of a cloud, configured by the environment variables of the cloud's own tools."""

    rights = "the credentials' rights, or renew them if they have expired"

    def __init__(self, scheme: str, settings: AccessSettings, *, endpoint: str, credentials: str) -> None:
        options = {"skip_signature": True} if settings.anon else {}
        files = CloudFiles(scheme, config=options, client_options=CLIENT_OPTIONS, retry_config=RETRY_OPTIONS)
        super().__init__(f"{scheme}://", files)
        self.check = f"{endpoint}, and the network"
        self.credentials = credentials

    def prepare(self, path: str) -> None:
        try:
            self.fs.resolve(path)
        except (BaseError, ValueError) as error:
            raise ConfigError(f"{self.root}: {_format_message(error)}; {self.credentials}") from None

    def find_renewal_remedy(self, error: Exception) -> str | None:
        return self.credentials if NO_CREDENTIALS_ERROR in str(error) else None

    def _iterate_below(self, path: str) -> Iterator[tuple[str, Entry]]:
        store, key = self.fs.resolve(path)
        last, attempts = None, 0
        with convert_to_os_errors():
            while True:
                try:
                    for chunk in obstore.list(store, key or None, offset=last, chunk_size=FILES_PER_LISTING):
                        for found in chunk:
                            last = found["path"]
                            yield last.removeprefix(key).lstrip("/"), make_entry({**found, "type": "file"})
                    return
                except BaseError as error:
                    attempts += 1
                    _raise_unless_truncated(error, attempts)

    def remove_all(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        stores, keys = zip(*map(self.fs.resolve, paths), strict=True)
        with convert_to_os_errors():
            try:
                obstore.delete(stores[0], keys)
            except FileNotFoundError:  # one file is missing; others may exist
                for key in keys:
                    with suppress(FileNotFoundError):
                        obstore.delete(stores[0], key)


def open_google_storage(settings: AccessSettings) -> Cloud:
    """Return the filesystem of Google Cloud Storage: gs://BUCKET/PREFIX."""
    credentials = (
        "set GOOGLE_APPLICATION_CREDENTIALS, sign in by `gcloud auth application-default login`, "
        "or set storage.anon=true for a public bucket"
    )
    return Cloud("gs", settings, endpoint="GOOGLE_BASE_URL", credentials=credentials)


def open_azure_storage(settings: AccessSettings) -> Cloud:
    """Return the filesystem of Azure Blob Storage: az://CONTAINER/PREFIX."""
    credentials = (
        "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID "
        "with AZURE_CLIENT_SECRET and AZURE_TENANT_ID; or storage.anon=true for a public container"
    )
    endpoint = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT"
    return Cloud("az", settings, endpoint=endpoint, credentials=credentials)


OPENERS_BY_SCHEME = {"gs://": open_google_storage, "az://": open_azure_storage}


class CloudFiles(FsspecStore):  # type: ignore[misc]  # obstore may not be installed
    """Obstore's fsspec filesystem, with conditional writes, modification times in listings, and OSErrors."""

    cachable = False  # its settings come from the environment

    def resolve(self, path: str) -> tuple[Any, str]:
        bucket, key = self._split_path(path)
        return self._construct_store(bucket), key

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        store, key = self.resolve(path)
        with convert_to_os_errors():
            if key:
                with suppress(FileNotFoundError):
                    return {**await store.head_async(key), "name": path, "type": "file"}
            found = await _list_folder(store, key)
        if key and not found["objects"] and not found["common_prefixes"]:
            raise FileNotFoundError(path)
        return {"name": path, "size": 0, "type": "directory"}

    async def _ls(self, path: str, detail: bool = False, **_: Any) -> list[Any]:
        store, key = self.resolve(path)
        with convert_to_os_errors():
            found = await _list_folder(store, key)
        root = path.partition("/")[0]
        entries = [{**item, "name": f"{root}/{item['path']}", "type": "file"} for item in found["objects"]]
        entries += [{"name": f"{root}/{name}", "size": 0, "type": "directory"} for name in found["common_prefixes"]]
        if not entries:
            entries = [await self._info(path)]
        return entries if detail else [entry["name"] for entry in entries]

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        store, key = self.resolve(path)
        with convert_to_os_errors():
            found = await store.get_async(key)
            size = found.meta["size"]
            first, last = slice(start, end).indices(size)[:2]
            if (first, last) == (0, size):
                return bytes(await found.bytes_async())
            return bytes(await store.get_range_async(key, start=first, end=last)) if first < last else b""

    async def _pipe_file(
        self, path: str, value: bytes, mode: str = "overwrite", ContentType: str | None = None, **_: Any
    ) -> None:
        store, key = self.resolve(path)
        attributes = {"Content-Type": ContentType} if ContentType else None
        with convert_to_os_errors():
            await store.put_async(key, value, mode=mode, attributes=attributes, chunk_size=UPLOAD_BYTES)

    async def _put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        store, key = self.resolve(rpath)
        with convert_to_os_errors():
            await store.put_async(key, Path(lpath), mode=mode, chunk_size=UPLOAD_BYTES, max_concurrency=2)

    async def _get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        store, key = self.resolve(rpath)
        with convert_to_os_errors(), Path(lpath).open("wb") as file:
            async for chunk in (await store.get_async(key)).stream():
                file.write(chunk)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        with convert_to_os_errors():
            await super()._cp_file(path1, path2)

    async def _rm_file(self, path: str, **_: Any) -> None:
        with convert_to_os_errors():
            await super()._rm_file(path)

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, size: int | None = None, **_: Any
    ) -> io.BufferedReader:
        """Open a file for reading; writing through a stream is not supported."""
        store, key = self.resolve(path)
        with convert_to_os_errors():
            reader = obstore.open_reader(store, key, buffer_size=block_size or STREAM_BYTES, size=size)
        return io.BufferedReader(RangeStream(reader))


class RangeStream(io.RawIOBase):
    """Readable stream of a file that fetches only the requested ranges."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with convert_to_os_errors():
            data = memoryview(self._reader.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())


async def _list_folder(store: Any, key: str) -> Any:
    for attempt in count(1):
        try:
            return await store.list_with_delimiter_async(key or None)
        except BaseError as error:
            _raise_unless_truncated(error, attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _raise_unless_truncated(error: BaseError, attempts: int) -> None:
    """Raise the error unless it is due to a truncated listing and another attempt is left."""
    if TRUNCATED_LISTING_ERROR not in str(error) or attempts > MAX_RETRIES:
        raise error


@contextmanager
def convert_to_os_errors() -> Iterator[None]:
    """Convert obstore's errors to OSErrors, removing addresses from messages because they may be signed."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(_format_message(error)) from None
    except (FileNotFoundError, BaseError, ValueError) as error:
        raise _find_error_class(error)(_format_message(error)) from None


def _find_error_class(error: Exception) -> type[OSError]:
    """Return the OSError class for an error; a refused listing is recognised only by the status in its message."""
    status = re.search(r"status code: (\d+)", str(error))
    if isinstance(error, FileNotFoundError) or (status and status[1] == "404"):
        return FileNotFoundError
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError) or (status and status[1] in ("401", "403"))
    return PermissionError if denied and NO_CREDENTIALS_ERROR not in str(error) else OSError


def _format_message(error: Exception) -> str:
    """Return the first line of an error message, with the error code that the server sent."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    line = re.sub(r": (<.*)?$", "", hide_secrets(str(error).splitlines()[0]))
    return f"{line}: {code[1]}" if code else line
