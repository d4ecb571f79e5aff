"""The images of an export, copied from the run's sources as they are, and only those that were scored."""

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
from plumbline.operators.images.preparing import FETCHES
from plumbline.operators.images.rows import (
    SOURCES,
    ImageRow,
    digest_of,
    edit_error,
    identify,
    image_records,
    is_embedded,
    read_row_images,
    read_sources,
)
from plumbline.pipelines.base.parquet_reader import ParquetReader
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.rewards.scored_images import CHANGED, ScoredRun, ScoredShard, digests_of
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_columns import append_edit_columns
from plumbline.pipelines.sources.shards import opened, own_names

SEVERAL = "several_images"
SHARDS_REMEMBERED = 256
FOOTERS_REMEMBERED = 32


class Copied(NamedTuple):
    """An encoded image as its source has it."""

    content: bytes
    uri: str
    """Its address, where it has one."""
    verified: bool
    """Whether its digest is known to be that of the image that was scored; else its id alone is the same."""
    sources: Sequence[bytes] = ()
    """Those that it was edited from, where they are wanted."""


class Copier:
    """Reads images of a run by their numbers, each row group of the sources about once.

    What a row group holds for later shards waits in files on the local disk, until the last of them has had it.
    """

    def __init__(self, run: ScoredRun, store: Store, *, edited: bool) -> None:
        """Where `edited`, each image comes with its sources."""
        self.run, self.store, self.edited = run, store, edited
        self._digests = lru_cache(maxsize=SHARDS_REMEMBERED)(lambda number: digests_of(store, run.shards[number]))
        self._footers: dict[str, pq.FileMetaData] = {}
        """Of files that were read; parsing one takes longer than reading a row group of small images."""
        self._numbers = {scored.first: number for number, scored in enumerate(run.shards)}
        self._uses: Counter[int] = Counter()
        self._waiting: dict[int, Copied] = {}
        """Without their bytes, which are in files."""
        self._folder = TemporaryDirectory(prefix="plumbline-rewards-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def expect(self, shards: Iterable[Collection[int]]) -> None:
        """Says which images each of the shards to come will read."""
        self._uses = Counter(image for images in shards for image in images)

    def read(self, images: Collection[int]) -> dict[int, Copied | RowError]:
        """The images, or why one cannot be had."""
        self._uses.subtract(images)
        found: dict[int, Copied | RowError] = {image: self._take(image) for image in images if image in self._waiting}
        by_shard: dict[int, list[int]] = {}
        for image in sorted(set(images) - found.keys()):
            by_shard.setdefault(self.run.shard_of(image).first, []).append(image)
        for first, numbers in by_shard.items():
            found |= self._read_shard(self._numbers[first], numbers)
        return found

    def _take(self, image: int) -> Copied:
        """An image that waits; its file goes with its last use."""
        waiting = self._waiting[image]
        paths = [self._path(image, place) for place in range(len(waiting.sources) + 1)]
        content, *sources = (path.read_bytes() for path in paths)
        if self._uses[image] <= 0:
            del self._waiting[image]
            for path in paths:
                path.unlink()
        return waiting._replace(content=content, sources=sources)

    def _keep(self, image: int, copied: Copied | RowError) -> None:
        if isinstance(copied, Copied):
            for place, content in enumerate((copied.content, *copied.sources)):
                self._path(image, place).write_bytes(content)
            self._waiting[image] = copied._replace(content=b"", sources=[b""] * len(copied.sources))

    def _path(self, image: int, place: int) -> Path:
        return Path(self._folder.name) / f"{image}-{place}"

    def _read_shard(self, number: int, images: Sequence[int]) -> dict[int, Copied | RowError]:
        """The images of a shard that are wanted now; others of their row groups are kept for later shards."""
        scored = self.run.shards[number]
        records: dict[int, Mapping[str, Any]] = {}
        try:
            sources = self._sources_of_prompts(scored, images)
            for row, record in self._records(scored, [image - scored.first for image in images]):
                image = scored.first + row
                record = sources.get(int(self.run.prompts[image]), {}) | record
                if self._uses[image] > 0 and is_embedded(record):
                    self._keep(image, self._copy(image, record, number))
                if image in images:
                    records[image] = record
        except PlumblineError as error:
            return dict.fromkeys(images, RowError("broken_file", str(error)))
        if all(map(is_embedded, records.values())):
            return {image: self._copy(image, records.get(image), number) for image in images}
        with ThreadPoolExecutor(FETCHES) as pool:
            copied = pool.map(lambda image: self._copy(image, records.get(image), number), images)
            return dict(zip(images, copied, strict=True))

    def _sources_of_prompts(self, scored: ScoredShard, images: Collection[int]) -> dict[int, dict[str, Any]]:
        """By prompt, the sources that the prompts file has of the images of a shard that are wanted, now or later."""
        if not self.edited:
            return {}
        there = range(scored.first, scored.first + scored.shard.rows)
        rows = sorted({int(self.run.prompts[image]) for image in there if image in images or self._uses[image] > 0})
        ids = self.run.sources.prompts.column("prompt_id").take(pa.array(rows, pa.int64()))
        table = append_edit_columns(pa.table({"prompt_id": ids}), self.run.sources.prompt_shards)
        return dict(zip(rows, image_records(table.drop_columns(["prompt_id"])), strict=True))

    def _records(self, scored: ScoredShard, rows: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """These rows of a shard by our column names, and those of the same row groups that later shards want."""
        shard = scored.shard
        with opened(shard) as stream:
            file = ParquetReader(stream, shard.size, self._footers.get(shard.url))
            self._footers[shard.url] = file.footer
            while len(self._footers) > FOOTERS_REMEMBERED:
                del self._footers[next(iter(self._footers))]
            names = own_names(shard, (*IMAGE_COLUMNS, *SOURCES) if self.edited else IMAGE_COLUMNS)
            present = {ours: name for ours, name in names.items() if name in file.names}
            places = shard.picked or range(shard.rows)
            first = 0
            for group in shard.row_groups:
                end = first + file.footer.row_group(group).num_rows
                there = range(bisect_left(places, first), bisect_left(places, end))
                now = {row for row in rows if row in there}
                wanted = sorted(now.union(row for row in there if now and self._is_wanted(scored.first + row)))
                if wanted:
                    columns = list(dict.fromkeys(present.values()))
                    records = file.read_rows(group, [places[row] - first for row in wanted], columns)
                    for row, record in zip(wanted, records, strict=True):
                        yield row, {ours: record[name] for ours, name in present.items()}
                first = end

    def _is_wanted(self, image: int) -> bool:
        return self._uses[image] > 0 and image not in self._waiting

    def _copy(self, image: int, record: Mapping[str, Any] | None, number: int) -> Copied | RowError:
        """The image of a record, if it is the one that was scored."""
        scored, digests = self.run.shards[number], self._digests(number)
        generator = scored.shard.group
        scored_digest = str(digests[image - scored.first]) if digests is not None else ""
        image_id, prompt = self.run.image_id(image), int(self.run.prompts[image])
        prompt_id = self.run.sources.prompts.column("prompt_id")[prompt].as_py()
        if record is None or identify({**record, "prompt_id": prompt_id}, generator).image_id != image_id:
            return RowError("missing_image", f"another image stands in the place of {generator}/{image_id}: {CHANGED}")
        encoded = read_row_images(
            ImageRow(image_id, prompt_id, generator), record, self.run.limits.max_images, self.run.uris.read
        )
        if isinstance(encoded, RowError):
            return encoded
        if len(encoded) > 1:
            return RowError(
                SEVERAL, f"{generator}/{image_id} holds {len(encoded)} images; the format has a place for one"
            )
        (content,) = encoded
        if len(content) > self.run.limits.max_bytes:
            return RowError("image_too_large", f"a file of over limits.max_bytes={self.run.limits.max_bytes}")
        if scored_digest and digest_of(encoded) != scored_digest:
            return RowError("missing_image", f"{generator}/{image_id} is not the image that was scored: {CHANGED}")
        sources = read_sources(record, self.run.limits.max_images, self.run.uris.read) if self.edited else []
        if isinstance(sources, RowError):
            return sources
        if any(len(source) > self.run.limits.max_bytes for source in sources):
            return edit_error(
                RowError("image_too_large", f"a file of over limits.max_bytes={self.run.limits.max_bytes}"), "source"
            )
        uri = record.get("uri")
        return Copied(content, uri if isinstance(uri, str) else "", bool(scored_digest), sources)
