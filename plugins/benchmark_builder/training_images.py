"""The images of a training set, decoded within limits one after the other: Parquet tables and WebDataset tars."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from plumbline.operators.base.errors import RowError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_picture
from plumbline.operators.images.rows import FetchUri, id_text, image_records
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.ingest.input_rows import IMAGES
from plumbline.pipelines.ingest.tars import ENDINGS as TARS
from plumbline.pipelines.sources.uris import Uris
from plumbline.plugins.benchmark_builder.picture_leaks import TrainingImage, fingerprint
from plumbline.plugins.benchmark_builder.training_files import (
    TrainingFile,
    TrainingReader,
    choose_column,
    read_parquet,
    read_tar,
)

USUAL = ("image", "jpg", "png", "webp", "img", "uri")
"""What columns of images are called, bytes or {bytes, path}, and one of addresses; the first that is there is taken."""
IDS = ("image_id", "id", "key", "__key__")
"""What the column of the images' ids is called."""
ROWS_AT_ONCE = 16

Images = Iterator[TrainingImage | Rejection]


def image_reader(limits: ImageLimits, uri_roots: Sequence[str]) -> TrainingReader[TrainingImage]:
    """Reads images within the limits; at addresses only those below their table's own folder and `uri_roots`."""
    readers = {".parquet": partial(_parquet, limits, uri_roots), **dict.fromkeys(TARS, partial(_tar, limits))}
    return TrainingReader(key="images", readers=readers)


def _parquet(limits: ImageLimits, uri_roots: Sequence[str], file: TrainingFile) -> Images:
    """The images of a table's column, and the ids where it has some."""
    uris = Uris(
        roots=(file.place.parent.url, *uri_roots),
        storage=file.place.storage,
        max_bytes=limits.max_bytes,
        whose="the table's folder",
        option="uri_roots",
    )

    def columns(names: Sequence[str]) -> list[str]:
        return [choose_column(names, file, USUAL, "image_column"), *[name for name in IDS if name in names][:1]]

    row = 0
    for table in read_parquet(file, columns, ROWS_AT_ONCE):
        for value, *ids in (record.values() for record in image_records(table)):
            record = {"uri" if isinstance(value, str) else "image": value}
            yield _image(record, limits, uris.read, file, f"row {row}", "".join(id_text(one) or "" for one in ids))
            row += 1


def _tar(limits: ImageLimits, file: TrainingFile) -> Images:
    """Every image file of a tar; its sample's name is its id."""
    for member in read_tar(file, limits.max_bytes):
        if isinstance(member, Rejection):
            yield member
        elif isinstance(member.content, Refused):
            yield member.content.at(file.place.url)
        elif member.suffix.rpartition(".")[2] in IMAGES:
            where = f"sample {member.key}"
            yield _image({"image": member.content}, limits, _no_addresses, file, where, member.key)


def _image(
    record: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri, file: TrainingFile, row: str, name: str
) -> TrainingImage | Rejection:
    picture = decode_picture(record, limits, fetch)
    if isinstance(picture, RowError):
        return Rejection(f"{file.place.url}, {row}", None, picture.kind, picture.message)
    return TrainingImage(file.place.url, row, name, fingerprint(picture))


def _no_addresses(uri: str) -> bytes:
    raise FileNotFoundError(uri)
