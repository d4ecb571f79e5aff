"""What the ingests of an output ended with: a record each, and the tables and the manifest that tell of all of them."""

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.errors import ConfigError
from plumbline.operators.rows import table as make_table
from plumbline.pipelines.base.storage import Location, etag, readable_errors, write_file, written_whole
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.ingest.config import Identity
from plumbline.pipelines.ingest.ledger import Prompt
from plumbline.pipelines.ingest.rows import REJECTED, SKILLS, digest
from plumbline.pipelines.sources.origins import MANIFEST

RECORDS = ".ingest/records"
PROMPTS_AT_ONCE = 65_536
PROMPTS = pa.schema([("prompt_id", pa.string()), ("text", pa.string()), SKILLS])


class Record(NamedTuple):
    """How an ingest ended."""

    manifest: Mapping[str, Any]
    """What was made from what: the same after an interrupted run as after an undisturbed one."""
    rejected: Sequence[Rejection]

    @property
    def paths(self) -> set[str]:
        """Its shards."""
        return {shard["path"] for shard in self.manifest["shards"]}


class Records:
    """The records in an output, of which one is this ingest's own."""

    def __init__(self, output: Location, source: Identity) -> None:
        """Raises ConfigError where the manifest names an ingest of which there is no record."""
        self.output = output
        self.source = source
        self._own = _record_path(source)
        with readable_errors(output, "output"):
            missing = set(self._named()) - {self._own, *self.listing()}
        if missing:
            raise ConfigError(
                f"{output.at(RECORDS)}: an ingest that manifest.json names has no record there; "
                "copy .ingest along with its output, or choose another output"
            )

    def _named(self) -> Iterator[str]:
        """The records of the ingests in the manifest."""
        path = self.output.at(MANIFEST)
        if self.output.fs.exists(path):
            try:
                ingests = json.loads(self.output.fs.cat_file(path))["ingests"]
                yield from [_record_path(ingest["source"]) for ingest in ingests]
            except (ValueError, KeyError, TypeError) as error:
                remedy = "move it, or choose another output"
                raise ConfigError(f"{path}: not written by an ingest, or damaged; {remedy}") from error

    def listing(self) -> dict[str, str]:
        """Each record's path below the output with what changes when it does."""
        with readable_errors(self.output, "output"):
            try:
                entries = self.output.fs.find(self.output.at(RECORDS), detail=True)
            except FileNotFoundError:
                return {}
        return {path.removeprefix(self.output.at("")): etag(entry) for path, entry in sorted(entries.items())}

    def write(self, record: Record) -> None:
        """Says that this ingest has ended."""
        write_file(self.output, self.output.at(self._own), json.dumps(record._asdict()).encode())

    def forget(self) -> None:
        """Takes this ingest's end back, before a shard of it changes: a manifest stands beside what it names."""
        with readable_errors(self.output, "output"):
            if self._own in self.listing():
                self._write_manifest([record for path, record in self._read() if path != self._own], [])
                self.output.fs.rm_file(self.output.at(self._own))

    def publish(self, prompts: Iterator[Prompt], standing: Collection[str]) -> list[str]:
        """Writes the output's tables and manifest; the generators whose shards stand without a record."""
        with readable_errors(self.output, "output"):
            records = [record for _, record in self._read() if record.paths <= set(standing)]
            recorded = {path for record in records for path in record.paths}
            unfinished = sorted({path.partition("/")[0] for path in standing if path not in recorded})
            rejected = [rejection._asdict() for record in records for rejection in record.rejected]
            self._write_prompts(prompts)
            write_file(self.output, self.output.at("rejected.parquet"), _encode(make_table(rejected, REJECTED)))
            self._write_manifest(records, unfinished)
        return unfinished

    def _write_prompts(self, prompts: Iterator[Prompt]) -> None:
        """The prompts by their ids, a row group of them in memory at a time."""
        with (
            written_whole(self.output, self.output.at("prompts.parquet")) as draft,
            pq.ParquetWriter(draft, PROMPTS, compression="zstd") as writer,
        ):
            while part := list(islice(prompts, PROMPTS_AT_ONCE)):
                writer.write_table(make_table([prompt._asdict() for prompt in part], PROMPTS))

    def _read(self) -> Iterator[tuple[str, Record]]:
        """Every record that can be read, by its path: of another, the ingest counts as not ended."""
        for path in self.listing():
            try:
                values = json.loads(self.output.fs.cat_file(self.output.at(path)))
                yield path, Record(values["manifest"], [Rejection(*row) for row in values["rejected"]])
            except (ValueError, KeyError, TypeError):
                continue

    def _write_manifest(self, records: Sequence[Record], unfinished: Sequence[str]) -> None:
        path = self.output.at(MANIFEST)
        if records:
            values = {"ingests": [record.manifest for record in records], "unfinished": unfinished}
            write_file(self.output, path, (json.dumps(values, indent=1) + "\n").encode())
        elif self.output.fs.exists(path):
            self.output.fs.rm_file(path)


def _record_path(source: Identity) -> str:
    return f"{RECORDS}/{digest(source)[:32]}.json"


def _encode(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
