"""Copies scored images, unchanged, from the sources of the run."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.images.preparing import N_FETCH_THREADS
from plumbline.operators.images.rows import (
    SOURCE_COLUMNS,
    ImageRow,
    digest_images,
    is_embedded,
    list_image_records,
    name_edit_error,
    read_image_row,
    read_row_images,
    read_sources,
)
from plumbline.pipelines.base.parquet_reader import ParquetReader
from plumbline.pipelines.rewards.scored_images import SOURCES_CHANGED_MESSAGE, ScoredRun, ScoredShard, read_digests
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_columns import append_edit_columns
from plumbline.pipelines.sources.shards import map_file_columns, open_shard
from plumbline.pipelines.store.store import Store

SEVERAL_IMAGES_KIND = "several_images"
MAX_CACHED_SHARDS = 256
MAX_CACHED_FOOTERS = 32


class CopiedImage(NamedTuple):
    """An encoded image, copied unchanged from the sources of the run."""

    content: bytes
    uri: str
    """Address of the image in the run's sources; empty if the sources give no address."""
    verified: bool
    """True if the image has the digest of the scored image; False if it is only known to have the ids of the scored
    image.
    """
    sources: Sequence[bytes] = ()
    """Source images of this image, if it is an edit and the copier reads them."""


class ImageCopier:
    """Reads images of a run, given their indices; each row group of the sources is usually read only once.

    Images that later shards need are stored in files on the local disk until their last use.
    """

    def __init__(self, run: ScoredRun, store: Store, *, edited: bool) -> None:
        """Prepare to read images of a run; if `edited`, also read the sources of each image."""
        self.run, self.store, self.edited = run, store, edited
        self._digests = lru_cache(maxsize=MAX_CACHED_SHARDS)(lambda number: read_digests(store, run.shards[number]))
        self._footers: dict[str, pq.FileMetaData] = {}
        """Footers by file, cached because parsing one takes longer than reading a row group of small images."""
        self._numbers = {scored.first: number for number, scored in enumerate(run.shards)}
        self._uses: Counter[int] = Counter()
        """Number of remaining reads, by image."""
        self._kept: dict[int, CopiedImage] = {}
        """Images stored on disk, without their bytes."""
        self._folder = TemporaryDirectory(prefix="plumbline-rewards-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def register_shards(self, shards: Iterable[Collection[int]]) -> None:
        """Register which images each future shard will read."""
        self._uses = Counter(image for images in shards for image in images)

    def read(self, images: Collection[int]) -> dict[int, CopiedImage | RowError]:
        """Return the images by index, with an error in place of each image that cannot be read."""
        self._uses.subtract(images)
        found: dict[int, CopiedImage | RowError] = {
            image: self._read_from_disk(image) for image in images if image in self._kept
        }
        by_shard: dict[int, list[int]] = {}
        for image in sorted(set(images) - found.keys()):
            by_shard.setdefault(self.run.find_shard(image).first, []).append(image)
        for first, numbers in by_shard.items():
            found |= self._read_shard(self._numbers[first], numbers)
        return found

    def _read_from_disk(self, image: int) -> CopiedImage:
        """Read an image stored on disk; delete its files after the last use."""
        kept = self._kept[image]
        paths = [self._make_cache_path(image, part) for part in range(len(kept.sources) + 1)]
        content, *sources = (path.read_bytes() for path in paths)
        if self._uses[image] <= 0:
            del self._kept[image]
            for path in paths:
                path.unlink()
        return kept._replace(content=content, sources=sources)

    def _store_on_disk(self, image: int, copied: CopiedImage | RowError) -> None:
        if isinstance(copied, CopiedImage):
            for part, content in enumerate((copied.content, *copied.sources)):
                self._make_cache_path(image, part).write_bytes(content)
            self._kept[image] = copied._replace(content=b"", sources=[b""] * len(copied.sources))

    def _make_cache_path(self, image: int, part: int) -> Path:
        return Path(self._folder.name) / f"{image}-{part}"

    def _read_shard(self, number: int, images: Sequence[int]) -> dict[int, CopiedImage | RowError]:
        """Return images of a shard, or errors, by index.

        If later shards need other images from the same row groups, these images are stored on disk.
        """
        scored = self.run.shards[number]
        records: dict[int, Mapping[str, Any]] = {}
        try:
            sources = self._read_sources(scored, images)
            for row, record in self._read_records(scored, [image - scored.first for image in images]):
                image = scored.first + row
                record = sources.get(int(self.run.prompts[image]), {}) | record
                if self._uses[image] > 0 and is_embedded(record):
                    self._store_on_disk(image, self._copy_image(image, record, number))
                if image in images:
                    records[image] = record
        except PlumblineError as error:
            return dict.fromkeys(images, RowError("broken_file", str(error)))
        if all(map(is_embedded, records.values())):
            return {image: self._copy_image(image, records.get(image), number) for image in images}
        with ThreadPoolExecutor(N_FETCH_THREADS) as pool:
            copied = pool.map(lambda image: self._copy_image(image, records.get(image), number), images)
            return dict(zip(images, copied, strict=True))

    def _read_sources(self, scored: ScoredShard, images: Collection[int]) -> dict[int, dict[str, Any]]:
        """Return the sources, masks and captions that the prompts file has for edits, by row in the table of prompts.

        Only the prompts of images that are needed now or later are read; none if the run's images are not edits.
        """
        if not self.edited:
            return {}
        in_shard = range(scored.first, scored.first + scored.shard.rows)
        rows = sorted({int(self.run.prompts[image]) for image in in_shard if image in images or self._uses[image] > 0})
        ids = self.run.sources.prompts.column("prompt_id").take(pa.array(rows, pa.int64()))
        table = append_edit_columns(pa.table({"prompt_id": ids}), self.run.sources.prompt_shards)
        return dict(zip(rows, list_image_records(table.drop_columns(["prompt_id"])), strict=True))

    def _read_records(self, scored: ScoredShard, rows: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the index and content of the given rows of a shard, and of rows near them that later shards need.

        Rows are near each other if they are in the same row group. The contents are keyed by our column names.
        """
        shard = scored.shard
        with open_shard(shard) as stream:
            file = ParquetReader(stream, shard.size, self._footers.get(shard.url))
            self._footers[shard.url] = file.footer
            while len(self._footers) > MAX_CACHED_FOOTERS:
                del self._footers[next(iter(self._footers))]
            names = map_file_columns(shard, (*IMAGE_COLUMNS, *SOURCE_COLUMNS) if self.edited else IMAGE_COLUMNS)
            present = {ours: name for ours, name in names.items() if name in file.names}
            file_rows = shard.picked or range(shard.rows)
            first = 0
            for group in shard.row_groups:
                end = first + file.footer.row_group(group).num_rows
                in_group = range(bisect_left(file_rows, first), bisect_left(file_rows, end))
                now = {row for row in rows if row in in_group}
                if now:
                    later = (row for row in in_group if self._uses[scored.first + row] > 0)
                    needed = sorted(now.union(row for row in later if scored.first + row not in self._kept))
                    columns = list(dict.fromkeys(present.values()))
                    records = file.read_rows(group, [file_rows[row] - first for row in needed], columns)
                    for row, record in zip(needed, records, strict=True):
                        yield row, {ours: record[name] for ours, name in present.items()}
                first = end

    def _copy_image(self, image: int, record: Mapping[str, Any] | None, number: int) -> CopiedImage | RowError:
        """Return the image in a record, or an error if it is not the image that was scored."""
        scored, digests = self.run.shards[number], self._digests(number)
        generator = scored.shard.group
        scored_digest = str(digests[image - scored.first]) if digests is not None else ""
        image_id, prompt = self.run.get_image_id(image), int(self.run.prompts[image])
        prompt_id = self.run.sources.prompts.column("prompt_id")[prompt].as_py()
        if record is None or read_image_row({**record, "prompt_id": prompt_id}, generator).image_id != image_id:
            return RowError(
                "missing_image", f"{generator}/{image_id} is no longer at the same position: {SOURCES_CHANGED_MESSAGE}"
            )
        limits = self.run.limits
        encoded = read_row_images(
            ImageRow(image_id, prompt_id, generator), record, limits.max_images, self.run.uris.read
        )
        if isinstance(encoded, RowError):
            return encoded
        if len(encoded) > 1:
            return RowError(
                SEVERAL_IMAGES_KIND,
                f"{generator}/{image_id} has {len(encoded)} images; the format can only represent one",
            )
        (content,) = encoded
        too_large = RowError("image_too_large", f"the file is larger than limits.max_bytes={limits.max_bytes}")
        if len(content) > limits.max_bytes:
            return too_large
        if scored_digest and digest_images(encoded) != scored_digest:
            return RowError(
                "missing_image", f"{generator}/{image_id} is not the image that was scored: {SOURCES_CHANGED_MESSAGE}"
            )
        sources = read_sources(record, limits.max_images, self.run.uris.read) if self.edited else []
        if isinstance(sources, RowError):
            return sources
        if any(len(source) > limits.max_bytes for source in sources):
            return name_edit_error(too_large, "source")
        uri = record.get("uri")
        return CopiedImage(content, uri if isinstance(uri, str) else "", bool(scored_digest), sources)
