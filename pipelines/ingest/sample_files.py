"""Files that hold images themselves, tars and tables, to shards: a row group of their samples in memory at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.images.embedded_settings import picture_settings
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.cells.checksums import DamagedError, decode_json, encode_json
from plumbline.pipelines.ingest.drafting import Begin, Source, SourceFile
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import COLUMNS, KEPT_SETTINGS, SKILLS, SOURCE, Candidate, digest
from plumbline.pipelines.ingest.placing import Shards
from plumbline.pipelines.ingest.shards import Drafted, DraftedShard, ShardDraft
from plumbline.pipelines.sources.origins import Origins, combine

RECEIPT_VERSION = 1
"""Raised when other images are rejected or skipped of the same file, so that it is read again for them."""
MOST_LOOKED_AT = 16
"""Of the files, for what people are told of where their prompts come from."""
EXTRAS = pa.schema([("sample", pa.string())])
"""A sample's JSON as it stands in a tar, or a row's other columns as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFile:
    """A file that holds images, as the listing shows it."""

    place: Place
    size: int
    etag: str
    name: str
    """Name without its ending, for the ids of images that have none."""

    def __str__(self) -> str:
        return self.place.url


class ImageSample(NamedTuple):
    """A sample that can be taken."""

    candidate: Candidate
    image: bytes
    sources: Sequence[bytes] = ()
    """Readable source images of an edit."""
    settings: Mapping[str, str] = MappingProxyType({})
    """Settings that it was generated with, from its fields."""


Read = Callable[[SampleFile, IngestConfig], Iterator[ImageSample | Rejection]]
"""Yields a file's samples in order, one in memory at a time; writes nothing to disk."""
Tell = Callable[[SampleFile, IngestConfig], Origins]
"""Returns the origins of a file's prompts and generators, by its columns or its first samples."""


def _nothing_unread(files: Sequence[SampleFile], config: IngestConfig) -> list[Rejection]:
    return []


@dataclass(frozen=True, kw_only=True)
class SampleSource(Source):
    """Sample files; each makes shards of its own."""

    sample_files: Sequence[SampleFile]
    read: Read
    tell: Tell
    edited: bool
    """True if samples have sources."""
    labelled: bool = False
    """True if columns contain class labels."""
    unread: Callable[[Sequence[SampleFile], IngestConfig], list[Rejection]] = _nothing_unread
    """Returns rejections of the images next to the files that belong to no sample."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*COLUMNS, SKILLS, *([SOURCE] if self.edited else []), *EXTRAS, KEPT_SETTINGS])

    @property
    def files(self) -> list[SourceFile]:
        return [SourceFile(file.place.url, file.size, file.etag) for file in self.sample_files]

    @property
    def origins(self) -> Origins:
        """Origins in the first files; the other files are assumed to be alike."""
        return combine([self.tell(file, self.config) for file in self.sample_files[:MOST_LOOKED_AT]])

    def units(self, rejected: list[Rejection]) -> Iterator[SampleFile]:
        """The files by name."""
        rejected += self.unread(self.sample_files, self.config)
        return iter(self.sample_files)

    def outline(self, file: SampleFile, shards: Shards) -> Drafted | None:
        """What a file became, where it was read to its end before."""
        key = self._key(file)
        with readable_errors(shards.output, "output"):
            try:
                encoded = (shards.output / _receipt_path(key)).read()
            except FileNotFoundError:
                return None
        try:
            receipt = decode_json(encoded.decode())
            if receipt["version"] != RECEIPT_VERSION:
                return None
            made = [DraftedShard(name, _content(key, index)) for index, name in enumerate(receipt["generators"])]
            return Drafted(made, [Rejection(*values) for values in receipt["rejected"]])
        except (DamagedError, ValueError, KeyError, TypeError):  # damaged: the file is read again
            return None

    def draft(self, file: SampleFile, begin: Begin) -> list[Rejection]:
        """Drafts a file's shards; its samples that are refused."""
        key = self._key(file)
        current: dict[str, ShardDraft] = {}
        begun = 0
        refused: list[Rejection] = []
        for sample in self.read(file, self.config):
            if isinstance(sample, Rejection):
                refused.append(sample)
                continue
            generator = sample.candidate.generator
            if generator not in current or current[generator].full:
                current[generator] = begin(generator, _content(key, begun))
                begun += 1
            settings = {**picture_settings(sample.image), **sample.settings}
            current[generator].add(sample.candidate, sample.image, sample.sources, settings)
        return refused

    def end(self, file: SampleFile, drafted: Drafted, output: Place) -> None:
        """Leaves a receipt that the file was read to its end, so that it need not be read again."""
        generators = [shard.generator for shard in drafted.shards]
        receipt = {"version": RECEIPT_VERSION, "generators": generators, "rejected": drafted.rejected}
        (output / _receipt_path(self._key(file))).write(encode_json(receipt).encode())

    def _key(self, file: SampleFile) -> str:
        return digest([self.config.recipe, file.place.url, file.size, file.etag, self.edited, self.labelled])


def _content(file_key: str, index: int) -> str:
    """What is in a file's shard of this number, counted in the order in which they begin."""
    return digest([file_key, index])


def _receipt_path(key: str) -> str:
    return f".ingest/{key[:32]}.json"


def stem(path: str, endings: Sequence[str]) -> str:
    """The name of a file without the longest of these endings."""
    name = path.rpartition("/")[2]
    return next((name.removesuffix(one) for one in sorted(endings, key=len, reverse=True) if name.endswith(one)), name)
