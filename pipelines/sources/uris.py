"""What the rows' `uri` column may name: regular files below the benchmark's own folders, and below those it allows."""

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
from plumbline.pipelines.cells.cells import digest
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.prompt_files import SUFFIXES


@dataclass(frozen=True, kw_only=True, slots=True)
class Uris:
    """Reads images by their address, and nothing outside of `roots`, whatever a table says."""

    roots: tuple[str, ...]
    """Folders, and prefixes of other addresses."""
    storage: StorageConfig
    max_bytes: int
    """Of a larger file only this much is read, and one byte more."""
    whose: str = "the benchmark's folders"
    """What a refusal calls the roots."""
    option: str = "benchmark.uri_roots"
    """The setting that adds to them."""

    def locate(self, uri: str) -> Place:
        """The file that an address names; raises RefusedUri before touching one that lies outside of the roots."""
        address = _resolved(uri)
        if not any(_is_below(address, root) for root in _resolved_roots(self.roots)):
            remedy = f"move the image there, or add its folder to {self.option}"
            raise RefusedUri(f"it lies outside of {self.whose}; {remedy}")
        return self.storage.locate(address)

    def read(self, uri: str) -> bytes:
        """The file's bytes; raises RefusedUri, or OSError where it cannot be read."""
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
    """What stands at the addresses of images, known without reading any: one look at a local file, and one listing of a
    folder on S3.
    """

    def __init__(self, locate_image: LocateImage) -> None:
        self.locate_image = locate_image
        self.listings: dict[str, dict[str, str]] = {}

    def digest(self, images: pa.Table, column: str = "uri") -> str:
        """The digest of what the rows' addresses name now; empty where the table has no such column."""
        if column not in images.column_names:
            return ""
        return digest([self.identity(record[column]) for record in image_records(images.select([column]))])

    def beside(self, images: pa.Table, of_prompts: Sequence[str] = ()) -> str:
        """The digest of what addresses of sources and masks name, with those of prompts; empty where there are none."""
        parts = [*(self.digest(images, name) for name in ADDRESSES[1:]), *of_prompts]
        return digest(parts) if any(parts) else ""

    def identity(self, uri: Any) -> str | list[Any]:
        """An object's ETag, or a file's size and time; empty where nothing stands, or cannot be looked at.

        Of a row of several addresses, those of each.
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
    """The identity of every file by its name; none where a place is missing or does not answer."""
    try:
        return {name: f"{entry.size} {entry.etag}" for name, entry in look().items() if entry.type == "file"}
    except Exception as error:
        if not is_storage_error(error):
            raise
        return {}


def benchmark_uris(benchmark: BenchmarkConfig, storage: StorageConfig, limits: ImageLimits) -> Uris:
    """The addresses below the benchmark's images, of a single file below its folder, and below its `uri_roots`; below
    its prompts where these may name sources and masks."""
    generators = benchmark.generators.values() if isinstance(benchmark.generators, Mapping) else ()
    images = [benchmark.images] if benchmark.images is not None else list(generators)
    if benchmark.prompts is not None and {*ADDRESSES} & {*benchmark.columns.beside}:
        images.append(benchmark.prompts)
    files = (".parquet", *SUFFIXES)
    folders = [url[: url.rfind("/") + 1] if url.lower().endswith(files) else url for url in images]
    roots = tuple(_absolute(url or ".") for url in (*folders, *benchmark.uri_roots))
    return Uris(roots=roots, storage=storage, max_bytes=limits.max_bytes)


def _read_regular(path: str, most: int) -> bytes:
    """At most so many bytes of a file; a pipe is opened without waiting for its writer, and refused."""
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("expected a regular file, found a pipe or a device")
        return file.read(most)


@lru_cache(maxsize=8)
def _resolved_roots(roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_resolved(root) for root in roots)


def _resolved(url: str) -> str:
    """An address with nothing left to follow: a local path without links, another one as it stands."""
    return os.path.realpath(place) if (place := _absolute(url)).startswith("/") else place


def _absolute(url: str) -> str:
    return url if is_remote(url) else StorageConfig().locate(url).url


def _is_below(address: str, root: str) -> bool:
    return f"{address}/".startswith(root.rstrip("/") + "/") and ".." not in unquote(address).split("/")
