"""WebDataset tars to shards: a tar's samples, a row group of them in memory at a time."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.ingest.archives import Tar
from pipelines.ingest.placing import Outline, Shards
from pipelines.ingest.rows import COLUMNS, InputColumnsConfig, digest
from pipelines.ingest.shards import Drafted, Drafts, ShardDraft, ShardSize, SourceFile
from pipelines.ingest.tars import EXTRAS, read_samples
from pipelines.storage import Location, readable_errors, replace
from pipelines.tables import Rejection


@dataclass(frozen=True, kw_only=True, slots=True)
class TarSource:
    """Tars, each of which makes shards of its own."""

    tars: list[Tar]
    columns: InputColumnsConfig
    generator: str | None
    max_bytes: int
    size: ShardSize
    recipe: Mapping[str, Any]
    """The options that change what is in the shards."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*COLUMNS, *EXTRAS])

    @property
    def files(self) -> list[SourceFile]:
        return [SourceFile(tar.location.url, tar.size, tar.etag) for tar in self.tars]

    def units(self, rejected: list[Rejection]) -> Iterator[Tar]:
        """The tars by name."""
        return iter(self.tars)

    def outline(self, tar: Tar, shards: Shards) -> Outline | None:
        """What a tar became, where it was read to its end before."""
        key = self._key(tar)
        path = shards.output.at(_receipt_path(key))
        with readable_errors(shards.output, "output"):
            if not shards.output.fs.exists(path):
                return None
            encoded = shards.output.fs.cat_file(path)
        try:
            receipt = json.loads(encoded)
            contents = [(generator, _content(key, index)) for index, generator in enumerate(receipt["generators"])]
            return Outline(contents, [Rejection(*values) for values in receipt["rejected"]])
        except (ValueError, KeyError, TypeError):  # damaged: the tar is read again
            return None

    def draft(self, tar: Tar, drafts: Drafts) -> list[Rejection]:
        """Drafts a tar's shards; its samples that are refused."""
        key = self._key(tar)
        current: dict[str, ShardDraft] = {}
        refused: list[Rejection] = []
        for sample in read_samples(tar, self.columns, generator=self.generator, max_bytes=self.max_bytes):
            if isinstance(sample, Rejection):
                refused.append(sample)
                continue
            generator = sample.candidate.generator
            if generator not in current or current[generator].full:
                current[generator] = drafts.begin(generator, _content(key, len(drafts.shards)))
            current[generator].add(sample.candidate, sample.image)
        return refused

    @property
    def urls(self) -> list[str]:
        """Where images are read."""
        return [self.tars[0].location.url]

    def name(self, tar: Tar) -> str:
        """What a tar is called in messages."""
        return tar.location.url

    def end(self, tar: Tar, drafted: Drafted, output: Location) -> None:
        """Leaves a receipt that the tar was read to its end, so that it need not be read again."""
        receipt = {"generators": [shard.generator for shard in drafted.shards], "rejected": drafted.rejected}
        with readable_errors(output, "output"):
            replace(output, output.at(_receipt_path(self._key(tar))), json.dumps(receipt).encode())

    def _key(self, tar: Tar) -> str:
        return digest([self.recipe, tar.location.url, tar.size, tar.etag])


def _content(tar_key: str, index: int) -> str:
    """What is in a tar's shard of this number, counted in the order in which they begin."""
    return digest([tar_key, index])


def _receipt_path(key: str) -> str:
    return f".ingest/{key[:32]}.json"
