"""Reads images by address: only regular files below the benchmark's folders, and below folders that it allows."""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RefusedUri
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import ADDRESSES, image_records
from plumbline.pipelines.base.storage import Entry, Place, StorageConfig, is_remote, is_storage_error
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.prompt_files import SUFFIXES
from plumbline.pipelines.store.cells import digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Uris:
    """Reader of images by address; it reads nothing outside of `roots`, for any content of a table."""

    roots: tuple[str, ...]
    """Folders, and prefixes of other addresses."""
    storage: StorageConfig
    max_bytes: int
    """Bytes that are read of a file at most; one more byte shows that a file is larger."""
    whose: str = "the benchmark's folders"
    """Name of the roots in a refusal."""
    option: str = "benchmark.uri_roots"
    """The option that adds roots."""

    def locate(self, uri: str) -> Place:
        """Return the file at an address; raises RefusedUri, before touching it, if it is outside of the roots."""
        address = _resolve(uri)
        if not any(_is_below(address, root) for root in _resolved_roots(self.roots)):
            remedy = f"move the image there, or add its folder to {self.option}"
            raise RefusedUri(f"it lies outside of {self.whose}; {remedy}")
        return self.storage.locate(address)

    def read(self, uri: str) -> bytes:
        """Return the file's bytes; raises RefusedUri, or OSError if it cannot be read."""
        place = self.locate(uri)
        if place.is_local:
            return _read_regular(place.path, self.max_bytes + 1)
        try:
            return place.read(self.max_bytes + 1)
        except OSError:
            raise
        except Exception as error:  # the S3 client has errors of its own for a network that fails
            raise OSError(str(error)) from error


LocateImage = Callable[[str], Place]


class StoredObjects:
    """Identities of the objects at images' addresses, found without reading them.

    Local files are looked at one by one, folders on S3 are listed.
    """

    def __init__(self, locate_image: LocateImage) -> None:
        self.locate_image = locate_image
        self.listings: dict[str, dict[str, str]] = {}

    def digest(self, images: pa.Table, column: str = "uri") -> str:
        """Return the digest of the objects that the rows' addresses name now; empty if the table has no such column."""
        if column not in images.column_names:
            return ""
        return digest([self.identity(record[column]) for record in image_records(images.select([column]))])

    def digest_beside(self, images: pa.Table, of_prompts: Sequence[str] = ()) -> str:
        """Return the digest of the objects at addresses of sources, masks and prompts; empty if there are none."""
        parts = [*(self.digest(images, name) for name in ADDRESSES[1:]), *of_prompts]
        return digest(parts) if any(parts) else ""

    def identity(self, uri: Any) -> str | list[Any]:
        """Return an object's ETag, or a file's size and time; empty for an address without a readable object.

        A list of addresses gives a list.
        """
        if isinstance(uri, list):
            return [self.identity(part) for part in uri]
        if not isinstance(uri, str) or not uri:
            return ""
        try:
            place = self.locate_image(uri)
        except PlumblineError:
            return ""
        if place.is_local:
            return _identities(lambda: {place.name: place.entry()}).get(place.name, "")
        folder = place.parent
        if folder.url not in self.listings:
            self.listings[folder.url] = _identities(folder.list)
        return self.listings[folder.url].get(place.name, "")


def _identities(look: Callable[[], Mapping[str, Entry]]) -> dict[str, str]:
    """Return the identity of every file by name; none if a folder is missing or does not answer."""
    try:
        return {name: f"{entry.size} {entry.etag}" for name, entry in look().items() if entry.type == "file"}
    except Exception as error:
        if not is_storage_error(error):
            raise
        return {}


def benchmark_uris(benchmark: BenchmarkConfig, storage: StorageConfig, limits: ImageLimits) -> Uris:
    """Return the reader of images below the benchmark's images, `uri_roots`, and prompts that name sources or masks."""
    generators = benchmark.generators.values() if isinstance(benchmark.generators, Mapping) else ()
    images = [benchmark.images] if benchmark.images is not None else list(generators)
    if benchmark.prompts is not None and {*ADDRESSES} & {*benchmark.columns.edit_columns}:
        images.append(benchmark.prompts)
    files = (".parquet", *SUFFIXES)
    folders = [url[: url.rfind("/") + 1] if url.lower().endswith(files) else url for url in images]
    roots = tuple(_make_absolute(url or ".") for url in (*folders, *benchmark.uri_roots))
    return Uris(roots=roots, storage=storage, max_bytes=limits.max_bytes)


def _read_regular(path: str, limit: int) -> bytes:
    """Return at most `limit` bytes of a file; a pipe is opened without waiting for its writer, and refused."""
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("expected a regular file, found a pipe or a device")
        return file.read(limit)


@lru_cache(maxsize=8)
def _resolved_roots(roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_resolve(root) for root in roots)


def _resolve(url: str) -> str:
    """Return an address with all links of a local path followed."""
    return os.path.realpath(place) if (place := _make_absolute(url)).startswith("/") else place


def _make_absolute(url: str) -> str:
    return url if is_remote(url) else StorageConfig().locate(url).url


def _is_below(address: str, root: str) -> bool:
    return f"{address}/".startswith(root.rstrip("/") + "/") and ".." not in unquote(address).split("/")
