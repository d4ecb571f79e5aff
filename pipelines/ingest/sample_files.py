"""Tars and tables that contain images: their samples become shards, with one row group in memory at a time."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.images.embedded_settings import read_image_settings
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.ingest.draft_placement import PlacedShards
from plumbline.pipelines.ingest.draft_workers import Source, SourceFile, StartDraft
from plumbline.pipelines.ingest.input_rows import (
    SETTINGS_FIELD,
    SHARD_SCHEMA,
    SKILLS_FIELD,
    SOURCE_FIELD,
    Candidate,
    hash_json,
)
from plumbline.pipelines.ingest.shards import DraftedShard, DraftedUnit, ShardDraft
from plumbline.pipelines.sources.origins import Origins, combine_origins
from plumbline.pipelines.store.checksums import DamagedError, decode_json, encode_json

RECEIPT_VERSION = 1
"""Version of the receipts, which record that an ingest has read a file completely. Raise it when a file's rejected or
skipped images would change, so that the file is read again.
"""
MAX_INSPECTED_FILES = 16
"""Maximum number of files, and of samples per file, that are read to describe where prompts come from."""
SAMPLE_SCHEMA = pa.schema([("sample", pa.string())])
"""Column with the JSON of a sample as stored in its tar, or with the other columns of a row as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFile:
    """A listed file that contains images."""

    place: Place
    size: int
    etag: str
    name: str
    """File name without extension; images without an id get an id that contains it."""

    def __str__(self) -> str:
        return self.place.url


class ImageSample(NamedTuple):
    """One image from a tar or table, with the row that describes the image."""

    candidate: Candidate
    image: bytes
    sources: Sequence[bytes]
    """Readable source images of an edit."""
    settings: Mapping[str, str]
    """Settings that the image was generated with, from the sample's fields."""


@dataclass(frozen=True, kw_only=True)
class SampleSource(Source):
    """Input that consists of sample files; each file is converted to separate shards."""

    sample_files: Sequence[SampleFile]
    edited: bool
    """True if samples are edits with source images."""
    labelled: bool = False
    """True if columns contain class labels."""

    @abstractmethod
    def read(self, file: SampleFile) -> Iterator[ImageSample | Rejection]:
        """Yield a file's samples in order, one in memory at a time; write nothing to disk."""

    @abstractmethod
    def describe(self, file: SampleFile) -> Origins:
        """Return the origins of a file's prompts and generators, judging by its columns or first samples."""

    def reject_unnamed_images(self) -> list[Rejection]:
        """Return a rejection for each image file that is next to the sample files but belongs to no sample."""
        return []

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [*SHARD_SCHEMA, SKILLS_FIELD, *([SOURCE_FIELD] if self.edited else []), *SAMPLE_SCHEMA, SETTINGS_FIELD]
        )

    @property
    def files(self) -> list[SourceFile]:
        return [SourceFile(file.place.url, file.size, file.etag) for file in self.sample_files]

    @property
    def origins(self) -> Origins:
        """Origins of prompts and generators in the first files; the other files are assumed to have the same ones."""
        return combine_origins([self.describe(file) for file in self.sample_files[:MAX_INSPECTED_FILES]])

    def iterate_units(self, rejected: list[Rejection]) -> Iterator[SampleFile]:
        """Yield the files sorted by name."""
        rejected += self.reject_unnamed_images()
        return iter(self.sample_files)

    def find_existing_shards(self, file: SampleFile, shards: PlacedShards) -> DraftedUnit | None:
        """Return the shards that an earlier ingest made from a file, as listed in the receipt that it wrote at the end.

        Returns None if the file has no receipt, or an invalid one.
        """
        key = self._make_file_key(file)
        with convert_read_errors(shards.output, "output"):
            try:
                encoded = (shards.output / _make_receipt_path(key)).read()
            except FileNotFoundError:
                return None
        try:
            receipt = decode_json(encoded.decode())
            if receipt["version"] != RECEIPT_VERSION:
                return None
            made = [DraftedShard(name, hash_json([key, index])) for index, name in enumerate(receipt["generators"])]
            return DraftedUnit(made, [Rejection(*values) for values in receipt["rejected"]])
        except (DamagedError, ValueError, KeyError, TypeError):  # damaged: the file is read again
            return None

    def draft(self, file: SampleFile, start_draft: StartDraft) -> list[Rejection]:
        """Draft a file's shards, numbered by their first rows; return the rejections of its samples."""
        key = self._make_file_key(file)
        current: dict[str, ShardDraft] = {}
        n_begun = 0
        rejected: list[Rejection] = []
        for sample in self.read(file):
            if isinstance(sample, Rejection):
                rejected.append(sample)
                continue
            generator = sample.candidate.generator
            if generator not in current or current[generator].is_full:
                current[generator] = start_draft(generator, hash_json([key, n_begun]))
                n_begun += 1
            settings = {**read_image_settings(sample.image), **sample.settings}
            current[generator].add(sample.candidate, sample.image, sample.sources, settings)
        return rejected

    def record_finished_unit(self, file: SampleFile, drafted: DraftedUnit, output: Place) -> None:
        """Write a receipt to record that the whole file was read, so that a later ingest need not read it again."""
        generators = [shard.generator for shard in drafted.shards]
        receipt = {"version": RECEIPT_VERSION, "generators": generators, "rejected": drafted.rejected}
        (output / _make_receipt_path(self._make_file_key(file))).write(encode_json(receipt).encode())

    def _make_file_key(self, file: SampleFile) -> str:
        return hash_json([self.config.recipe, file.place.url, file.size, file.etag, self.edited, self.labelled])


def _make_receipt_path(key: str) -> str:
    return f".ingest/{key[:32]}.json"


def remove_ending(path: str, endings: Sequence[str]) -> str:
    """Return the file name in a path, without its ending if that is one of `endings`; the longest ending wins."""
    name = path.rpartition("/")[2]
    return next((name.removesuffix(one) for one in sorted(endings, key=len, reverse=True) if name.endswith(one)), name)
