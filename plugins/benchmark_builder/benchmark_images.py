"""Reads a benchmark's images: the source images of edits, and the generated images."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_row_image
from plumbline.operators.images.rows import SOURCE_COLUMNS, list_image_records, read_image_row
from plumbline.pipelines.base.storage import get_first_line
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.running.tasks import TaskRunner
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_columns import read_edit_columns
from plumbline.pipelines.sources.shards import describe_row, read_shard
from plumbline.pipelines.sources.uris import UriReader
from plumbline.pipelines.store.cells import Shard
from plumbline.plugins.benchmark_builder.image_leaks import Fingerprint, compute_fingerprint
from plumbline.plugins.benchmark_builder.leaks import LeakTarget, MatchKind

TOO_PLAIN_ERROR = RowError("blank_picture", "it hardly varies in brightness, so it cannot be compared; replace it")


class ImageOptions(NamedTuple):
    """Options for reading a benchmark's images."""

    limits: ImageLimits
    uris: UriReader
    kinds: Sequence[MatchKind]
    prompts: Mapping[str, str]
    """Prompt text by prompt_id; images of other prompts are skipped."""


class BenchmarkImage(NamedTuple):
    """A benchmark image to look for in the training set."""

    target: LeakTarget
    kind: MatchKind
    fingerprint: Fingerprint


class BenchmarkImages(NamedTuple):
    """The distinct images of a benchmark, and rejections for images that cannot be read or compared."""

    images: Sequence[BenchmarkImage]
    rejections: Sequence[Rejection]


class _RowImage(NamedTuple):
    target: LeakTarget
    kind: MatchKind
    row: int
    record: Mapping[str, Any]
    """The row's `image` and `uri` columns."""


def read_benchmark_images(
    prompt_shards: Iterable[Shard], image_shards: Iterable[Shard], options: ImageOptions, tasks: TaskRunner
) -> BenchmarkImages:
    """Return the distinct images listed in the prompt tables and the image tables."""
    unique: dict[tuple[LeakTarget, int], BenchmarkImage] = {}  # the tables of several generators repeat a source
    rejections: list[Rejection] = []
    with_sources = [shard for shard in prompt_shards if shard.edit_columns and not shard.contains_prompts]
    for found in chain(
        tasks.map(_read_prompts_shard, with_sources, shared=options),
        tasks.map(_read_images_shard, image_shards, shared=options),
    ):
        rejections += found.rejections
        for image in found.images:
            unique.setdefault((image.target, image.fingerprint.bits), image)
    return BenchmarkImages(list(unique.values()), rejections)


def _read_prompts_shard(options: ImageOptions, shard: Shard) -> BenchmarkImages:
    def read_row_images() -> Iterator[_RowImage]:
        for row, record in enumerate(read_edit_columns(shard, shard.edit_columns)):
            yield from _find_source(record, record["prompt_id"], row, options)

    return _compute_fingerprints(read_row_images(), shard, options)


def _read_images_shard(options: ImageOptions, shard: Shard) -> BenchmarkImages:
    def read_row_images() -> Iterator[_RowImage]:
        for row, record in enumerate(list_image_records(read_shard(shard, (*IMAGE_COLUMNS, *SOURCE_COLUMNS)))):
            ids = read_image_row(record, shard.group)
            text = options.prompts.get(ids.prompt_id or "")
            if text is not None and "image" in options.kinds:
                target = LeakTarget(str(ids.prompt_id), text, ids.generator, ids.image_id)
                yield _RowImage(target, "image", row, record)
            yield from _find_source(record, ids.prompt_id, row, options)

    return _compute_fingerprints(read_row_images(), shard, options)


def _find_source(
    record: Mapping[str, Any], prompt_id: str | None, row: int, options: ImageOptions
) -> Iterator[_RowImage]:
    image, uri = (record.get(name) for name in SOURCE_COLUMNS)
    text = options.prompts.get(prompt_id or "")
    if text is not None and "source" in options.kinds and (image or uri):
        yield _RowImage(LeakTarget(str(prompt_id), text), "source", row, {"image": image, "uri": uri})


def _compute_fingerprints(row_images: Iterator[_RowImage], shard: Shard, options: ImageOptions) -> BenchmarkImages:
    images: list[BenchmarkImage] = []
    rejections: list[Rejection] = []
    try:
        for row_image in row_images:
            decoded = decode_row_image(row_image.record, options.limits, options.uris.read)
            result = decoded if isinstance(decoded, RowError) else compute_fingerprint(decoded) or TOO_PLAIN_ERROR
            if isinstance(result, RowError):
                name = f"{describe_row(shard, row_image.row)}, {row_image.kind}"
                rejections.append(Rejection(name, None, result.kind, result.message))
            else:
                images.append(BenchmarkImage(row_image.target, row_image.kind, result))
    except SourceError as error:
        rejections.append(Rejection(shard.url, None, "broken_file", get_first_line(error)))
    return BenchmarkImages(images, rejections)
