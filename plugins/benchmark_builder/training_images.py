"""Reads the images of a training set from Parquet tables and WebDataset tars, and decodes them within size limits."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from plumbline.operators.base.errors import RowError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_row_image
from plumbline.operators.images.rows import FetchUri, format_id, list_image_records
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.ingest.input_rows import IMAGE_SUFFIXES
from plumbline.pipelines.ingest.tars import TAR_SUFFIXES as TARS
from plumbline.pipelines.sources.uris import UriReader
from plumbline.plugins.benchmark_builder.image_leaks import TrainingImage, compute_fingerprint
from plumbline.plugins.benchmark_builder.training_files import (
    TrainingFile,
    TrainingReader,
    choose_column,
    read_parquet,
    read_tar,
)

COMMON_IMAGE_COLUMNS = ("image", "jpg", "png", "webp", "img", "uri")
"""Common names of columns with images (bytes or {bytes, path}) or their addresses; the first that exists is used."""
ID_COLUMNS = ("image_id", "id", "key", "__key__")
"""Common names of columns with image ids."""
ROWS_PER_BATCH = 16

ImagesAndRejections = Iterator[TrainingImage | Rejection]


def make_image_reader(limits: ImageLimits, uri_roots: Sequence[str]) -> TrainingReader[TrainingImage]:
    """Return a reader of images. Addresses must lie in the table's folder or below one of `uri_roots`."""
    readers = {".parquet": partial(_read_parquet, limits, uri_roots), **dict.fromkeys(TARS, partial(_read_tar, limits))}
    return TrainingReader(key="images", readers=readers)


def _read_parquet(limits: ImageLimits, uri_roots: Sequence[str], file: TrainingFile) -> ImagesAndRejections:
    uris = UriReader(
        roots=(file.place.parent.url, *uri_roots),
        storage=file.place.storage,
        max_bytes=limits.max_bytes,
        roots_name="the table's folder",
        option="uri_roots",
    )

    def choose_columns(names: Sequence[str]) -> list[str]:
        return [
            choose_column(names, file, COMMON_IMAGE_COLUMNS, "image_column"),
            *[name for name in ID_COLUMNS if name in names][:1],
        ]

    row = 0
    for table in read_parquet(file, choose_columns, ROWS_PER_BATCH):
        for value, *ids in (record.values() for record in list_image_records(table)):
            record = {"uri" if isinstance(value, str) else "image": value}
            name = "".join(format_id(image_id) or "" for image_id in ids)
            yield _read_image(record, limits, uris.read, file, f"row {row}", name)
            row += 1


def _read_tar(limits: ImageLimits, file: TrainingFile) -> ImagesAndRejections:
    for member in read_tar(file, limits.max_bytes):
        if isinstance(member, Rejection):
            yield member
        elif isinstance(member.content, Refused):
            yield member.content.to_rejection(file.place.url)
        elif member.suffix.rpartition(".")[2] in IMAGE_SUFFIXES:
            where = f"sample {member.key}"
            yield _read_image({"image": member.content}, limits, _raise_not_found, file, where, member.key)


def _read_image(
    record: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri, file: TrainingFile, row: str, name: str
) -> TrainingImage | Rejection:
    picture = decode_row_image(record, limits, fetch)
    if isinstance(picture, RowError):
        return Rejection(f"{file.place.url}, {row}", None, picture.kind, picture.message)
    return TrainingImage(file.place.url, row, name, compute_fingerprint(picture))


def _raise_not_found(uri: str) -> bytes:
    raise FileNotFoundError(uri)
