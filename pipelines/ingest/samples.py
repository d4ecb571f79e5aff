"""WebDataset tars to shards: a tar's samples, a row group of them in memory at a time."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.ingest.archives import Tar
from pipelines.ingest.rows import COLUMNS, InputColumnsConfig, digest
from pipelines.ingest.shards import Report, Shards, ShardWriter, SourceFile, next_key, shard_path
from pipelines.ingest.tars import EXTRAS, read_samples
from pipelines.storage import readable_errors, replace
from pipelines.tables import Rejection


@dataclass(frozen=True, kw_only=True, slots=True)
class TarSource:
    """Tars, each of which makes shards of its own."""

    tars: list[Tar]
    columns: InputColumnsConfig
    generator: str | None
    max_bytes: int
    recipe: Mapping[str, Any]
    """The options that change what is in the shards."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*COLUMNS, *EXTRAS])

    @property
    def files(self) -> list[SourceFile]:
        return [SourceFile(tar.location.url, tar.size, tar.etag) for tar in self.tars]

    def write(self, shards: Shards, report: Report) -> None:
        """Writes every shard that does not stand; a tar whose receipt and shards stand is not read again."""
        for tar in self.tars:
            key = digest([self.recipe, tar.location.url, tar.size, tar.etag])
            if not _restore(key, shards, report):
                self._write_tar(tar, key, shards, report)

    def _write_tar(self, tar: Tar, key: str, shards: Shards, report: Report) -> None:
        current: dict[str, ShardWriter] = {}
        begun: list[str] = []
        refused: list[Rejection] = []
        for sample in read_samples(tar, self.columns, generator=self.generator, max_bytes=self.max_bytes):
            if isinstance(sample, Rejection):
                refused.append(sample)
                continue
            generator = sample.candidate.generator
            if generator not in current:
                current[generator] = shards.begin(generator, _content(key, len(begun)))
                begun.append(generator)
            current[generator].add(sample.candidate, sample.image)
            if current[generator].full:
                report(current.pop(generator).close())
        for generator in sorted(current):
            report(current[generator].close())
        shards.rejected += refused
        receipt = json.dumps({"generators": begun, "rejected": refused})
        with readable_errors(shards.output, "output"):
            replace(shards.output, shards.output.at(_receipt_path(key)), receipt.encode())


def _content(tar_key: str, index: int) -> str:
    """What is in a tar's shard of this number, counted in the order in which they begin."""
    return digest([tar_key, index])


def _receipt_path(key: str) -> str:
    return f".ingest/{key[:32]}.json"


def _restore(key: str, shards: Shards, report: Report) -> bool:
    """Takes over the shards of a tar that was read to its end; False where any is missing."""
    path = shards.output.at(_receipt_path(key))
    with readable_errors(shards.output, "output"):
        if not shards.output.fs.exists(path):
            return False
        encoded = shards.output.fs.cat_file(path)
    try:
        receipt = json.loads(encoded)
        generators, rejected = receipt["generators"], [Rejection(*values) for values in receipt["rejected"]]
    except (ValueError, KeyError, TypeError):  # damaged: the tar is read again
        return False
    if not _stand(key, generators, shards):
        return False
    for index, generator in enumerate(generators):
        report(shards.begin(generator, _content(key, index)).close())
    shards.rejected += rejected
    return True


def _stand(tar_key: str, generators: list[str], shards: Shards) -> bool:
    """Whether each shard of a tar is there, in its place and after the same shards."""
    chain, numbers = shards.chain, Counter(shards.numbers)
    for index, generator in enumerate(generators):
        chain = next_key(chain, _content(tar_key, index))
        if not shards.has(shard_path(generator, numbers[generator]), chain):
            return False
        numbers[generator] += 1
    return True
