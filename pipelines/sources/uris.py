"""Reads images from addresses, limited to regular files below the benchmark's folders and other allowed folders."""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RefusedUriError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import ADDRESS_COLUMNS, list_image_records
from plumbline.pipelines.base.storage import Entry, Place, StorageConfig, is_remote, is_storage_error
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.prompt_files import PROMPT_FILE_SUFFIXES
from plumbline.pipelines.store.cells import digest


@dataclass(frozen=True, kw_only=True, slots=True)
class UriReader:
    """Reader for images at addresses, which refuses any address outside `roots`."""

    roots: tuple[str, ...]
    """Folders, or prefixes of other addresses."""
    storage: StorageConfig
    max_bytes: int
    """Maximum number of bytes per file; one more byte is read to detect larger files."""
    roots_name: str = "the benchmark's folders"
    """Name of the roots in messages."""
    option: str = "benchmark.uri_roots"
    """Option that adds roots, for messages."""

    def locate(self, uri: str) -> Place:
        """Return the file at an address; raise RefusedUriError without accessing it if it is outside the roots."""
        address = _resolve_address(uri)
        has_parents = ".." in unquote(address).split("/")
        below = (f"{address}/".startswith(root.rstrip("/") + "/") for root in _resolve_roots(self.roots))
        if has_parents or not any(below):
            remedy = f"move the image there, or add its folder to {self.option}"
            raise RefusedUriError(f"it lies outside of {self.roots_name}; {remedy}")
        return self.storage.locate(address) if is_remote(address) else Place(address, self.storage)

    def read(self, uri: str) -> bytes:
        """Return the file's bytes; raise RefusedUriError, or OSError if the file cannot be read."""
        place = self.locate(uri)
        if place.is_local:
            # without O_NONBLOCK, opening a pipe would wait for its writer
            flags = os.O_NONBLOCK | os.O_NOFOLLOW
            with open(place.path, "rb", opener=lambda path, mode: os.open(path, mode | flags)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError("expected a regular file, found a pipe or a device")
                return file.read(self.max_bytes + 1)
        try:
            return place.read(self.max_bytes + 1)
        except OSError:
            raise
        except Exception as error:  # the S3 client has its own errors for network failures
            raise OSError(str(error)) from error


LocateImage = Callable[[str], Place]


class ImageFileDigester:
    """Finds the sizes and ETags of the files at images' addresses, without reading the files.

    Local files are looked up individually; on S3, whole folders are listed.
    """

    def __init__(self, locate_image: LocateImage) -> None:
        self.locate_image = locate_image
        self.listings: dict[str, dict[str, str]] = {}

    def digest(self, images: pa.Table, column: str = "uri") -> str:
        """Return a digest of the objects at the rows' addresses; empty if the table has no such column."""
        if column not in images.column_names:
            return ""
        return digest([self.identify(record[column]) for record in list_image_records(images.select([column]))])

    def digest_edits(self, images: pa.Table, prompt_digests: Sequence[str] = ()) -> str:
        """Return a digest of the images' sources and masks and of `prompt_digests`; empty if there are none."""
        digests = [*(self.digest(images, name) for name in ADDRESS_COLUMNS[1:]), *prompt_digests]
        return digest(digests) if any(digests) else ""

    def identify(self, uri: Any) -> str | list[Any]:
        """Return the size and ETag of an object, or the size and modification time of a file; empty if unreadable.

        If a list of addresses is given, return a list.
        """
        if isinstance(uri, list):
            return [self.identify(each) for each in uri]
        if not isinstance(uri, str) or not uri:
            return ""
        try:
            place = self.locate_image(uri)
        except PlumblineError:
            return ""
        if place.is_local:
            return _identify_files(lambda: {place.name: place.get_entry()}).get(place.name, "")
        folder = place.parent
        if folder.url not in self.listings:
            self.listings[folder.url] = _identify_files(folder.list)
        return self.listings[folder.url].get(place.name, "")


def _identify_files(list_entries: Callable[[], Mapping[str, Entry]]) -> dict[str, str]:
    """Return the identity of every file by name; empty if the folder is missing or cannot be reached."""
    try:
        return {name: f"{entry.size} {entry.etag}" for name, entry in list_entries().items() if entry.type == "file"}
    except Exception as error:
        if not is_storage_error(error):
            raise
        return {}


def open_benchmark_uris(benchmark: BenchmarkConfig, storage: StorageConfig, limits: ImageLimits) -> UriReader:
    """Return a reader of a benchmark's images.

    The reader's roots are the image folders, `uri_roots` and, if prompts refer to sources or masks, the folder of the
    prompts.
    """
    generators = benchmark.generators.values() if isinstance(benchmark.generators, Mapping) else ()
    images = [benchmark.images] if benchmark.images is not None else list(generators)
    if benchmark.prompts is not None and {*ADDRESS_COLUMNS} & {*benchmark.columns.edit_columns}:
        images.append(benchmark.prompts)
    files = (".parquet", *PROMPT_FILE_SUFFIXES)
    folders = [url[: url.rfind("/") + 1] if url.lower().endswith(files) else url for url in images]
    roots = tuple(_make_absolute(url or ".") for url in (*folders, *benchmark.uri_roots))
    return UriReader(roots=roots, storage=storage, max_bytes=limits.max_bytes)


@lru_cache(maxsize=8)
def _resolve_roots(roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_resolve_address(root) for root in roots)


def _resolve_address(url: str) -> str:
    """Return an absolute address, with all links resolved if it is a local path."""
    place = _make_absolute(url)  # only its last component can be a link
    return os.path.realpath(place) if place.startswith("/") and os.path.islink(place) else place  # noqa: PTH114


def _make_absolute(url: str) -> str:
    return url if is_remote(url) else StorageConfig().locate(url).url
