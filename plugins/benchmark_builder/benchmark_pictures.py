"""The pictures that a benchmark has: those that are edited, and those that generators made."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_picture
from plumbline.operators.images.rows import SOURCES, identify, image_records
from plumbline.pipelines.base.storage import first_line
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.running.tasks import Tasks
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_columns import read_edit_columns
from plumbline.pipelines.sources.shards import read_shard, where
from plumbline.pipelines.sources.uris import Uris
from plumbline.plugins.benchmark_builder.leaks import Kind, Sought
from plumbline.plugins.benchmark_builder.picture_leaks import Fingerprint, fingerprint

TOO_PLAIN = RowError("blank_picture", "hardly varies in brightness, so that it cannot be told from others; replace it")


class Reading(NamedTuple):
    """What is read of every shard, and how."""

    limits: ImageLimits
    uris: Uris
    kinds: Sequence[Kind]
    prompts: Mapping[str, str]
    """The texts by id; pictures of other prompts are passed over."""


class Picture(NamedTuple):
    """A picture that is looked for, with what it is compared by."""

    sought: Sought
    kind: Kind
    fingerprint: Fingerprint


class BenchmarkPictures(NamedTuple):
    """Each picture once, and those that cannot be read or are too plain to be compared."""

    pictures: Sequence[Picture]
    rejections: Sequence[Rejection]


class _Shown(NamedTuple):
    """A picture as a row holds it."""

    sought: Sought
    kind: Kind
    row: int
    record: Mapping[str, Any]
    """With `image` and `uri`."""


def read_pictures(
    prompt_shards: Iterable[Shard], image_shards: Iterable[Shard], reading: Reading, tasks: Tasks
) -> BenchmarkPictures:
    """The pictures that the prompts' and the images' tables hold or name."""
    unique: dict[tuple[Sought, int], Picture] = {}  # the tables of several generators repeat a source
    rejections: list[Rejection] = []
    holders = [shard for shard in prompt_shards if shard.beside and not shard.holds_prompts]
    read = (
        tasks.map(_read_prompts_shard, holders, shared=reading),
        tasks.map(_read_images_shard, image_shards, shared=reading),
    )
    for of_shard in chain(*read):
        rejections += of_shard.rejections
        for picture in of_shard.pictures:
            unique.setdefault((picture.sought, picture.fingerprint.bits), picture)
    return BenchmarkPictures(list(unique.values()), rejections)


def _read_prompts_shard(reading: Reading, shard: Shard) -> BenchmarkPictures:
    def shown() -> Iterator[_Shown]:
        for row, record in enumerate(read_edit_columns(shard, shard.beside)):
            yield from _source(record, record["prompt_id"], row, reading)

    return _fingerprints(shown(), shard, reading)


def _read_images_shard(reading: Reading, shard: Shard) -> BenchmarkPictures:
    def shown() -> Iterator[_Shown]:
        for row, record in enumerate(image_records(read_shard(shard, (*IMAGE_COLUMNS, *SOURCES)))):
            ids = identify(record, shard.group)
            text = reading.prompts.get(ids.prompt_id or "")
            if text is not None and "image" in reading.kinds:
                sought = Sought(str(ids.prompt_id), text, ids.generator, ids.image_id)
                yield _Shown(sought, "image", row, record)
            yield from _source(record, ids.prompt_id, row, reading)

    return _fingerprints(shown(), shard, reading)


def _source(record: Mapping[str, Any], prompt_id: str | None, row: int, reading: Reading) -> Iterator[_Shown]:
    """What is edited, of a row that has it."""
    image, uri = (record.get(name) for name in SOURCES)
    text = reading.prompts.get(prompt_id or "")
    if text is not None and "source" in reading.kinds and (image or uri):
        yield _Shown(Sought(str(prompt_id), text), "source", row, {"image": image, "uri": uri})


def _fingerprints(every_shown: Iterator[_Shown], shard: Shard, reading: Reading) -> BenchmarkPictures:
    pictures: list[Picture] = []
    rejections: list[Rejection] = []
    try:
        for shown in every_shown:
            decoded = decode_picture(shown.record, reading.limits, reading.uris.read)
            own = decoded if isinstance(decoded, RowError) else fingerprint(decoded) or TOO_PLAIN
            if isinstance(own, RowError):
                name = f"{where(shard, shown.row)}, {shown.kind}"
                rejections.append(Rejection(name, None, own.kind, own.message))
            else:
                pictures.append(Picture(shown.sought, shown.kind, own))
    except SourceError as error:
        rejections.append(Rejection(shard.url, None, "broken_file", first_line(error)))
    return BenchmarkPictures(pictures, rejections)
