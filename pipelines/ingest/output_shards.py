"""What stands in an output already: the shards of this ingest, and those of the others that share it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.base.storage import Entry, Place, readable_errors
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.ingest.ingest_config import Identity
from plumbline.pipelines.ingest.taken_ids import OutputPrompt
from plumbline.pipelines.sources.sources import INGESTED

METADATA = INGESTED
READERS = 16
"""Shards of an output that are read at once."""


class Footer(NamedTuple):
    """What an ingest writes into a shard besides its rows."""

    key: str
    """A hash of what it was made from, and how."""
    rejected: list[Rejection]
    source: Identity
    """What the ingest took in."""


class OutputShard(NamedTuple):
    """A shard in the output."""

    size: int
    tag: str
    footer: Footer


def read_output_shards(
    output: Place, known: Mapping[str, OutputShard] = MappingProxyType({})
) -> dict[str, OutputShard]:
    """The shards by their paths; those that are `known` and did not change are not read again.

    Raises ConfigError for a Parquet file in a generator's folder that is none, or is damaged.
    """

    def read(path: str, entry: Entry) -> OutputShard:
        size, tag = entry.size, entry.etag
        if path in known and (known[path].size, known[path].tag) == (size, tag):
            return known[path]
        return OutputShard(size, tag, read_footer(output, path))

    with readable_errors(output, "output"):
        listed = _listing(output)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(listed, pool.map(read, listed, listed.values()), strict=True))


def _listing(output: Place) -> dict[str, Entry]:
    try:
        entries = dict(output.files())
    except FileNotFoundError:
        return {}
    return {
        path: entry
        for path, entry in sorted(entries.items())
        if path.endswith(".parquet") and "/" in path and not any(part.startswith(".") for part in path.split("/"))
    }


def read_footer(output: Place, path: str) -> Footer:
    """Raises ConfigError for what is no shard, or a damaged one."""
    with damage_named(output, path), _opened(output, path) as stream:
        values = json.loads((pq.read_metadata(stream).metadata or {})[METADATA])
        return Footer(values["key"], [Rejection(*row) for row in values["rejected"]], dict(values["source"]))


@contextmanager
def damage_named(output: Place, path: str) -> Iterator[None]:
    """Turns what reading a file that is no shard, or a damaged one, raises into a ConfigError that names it."""
    try:
        yield
    except (pa.ArrowException, ValueError, KeyError, TypeError, Refused) as error:
        raise ConfigError(
            f"{output / path}: not written by an ingest, or damaged; move it, or choose another output"
        ) from error


def read_prompts(output: Place, paths: Sequence[str]) -> Iterator[tuple[str, list[OutputPrompt]]]:
    """These shards with their prompts; raises ConfigError where one is damaged."""
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(paths), READERS):
            part = paths[start : start + READERS]
            yield from zip(part, pool.map(lambda path: _prompts(output, path), part), strict=True)


def _prompts(output: Place, path: str) -> list[OutputPrompt]:
    rows = read_columns(output, path, ["prompt_id", "prompt", "skills"])
    return [
        OutputPrompt(row["prompt_id"], row["prompt"], row.get("skills") or ())
        for row in rows
        if row["prompt"] is not None
    ]


def read_columns(output: Place, path: str, names: list[str]) -> list[dict[str, Any]]:
    """Those of these columns that a shard has, row by row; raises ConfigError where it is damaged."""
    with damage_named(output, path), _opened(output, path) as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        rows: list[dict[str, Any]] = file.read(columns=names, use_threads=False).to_pylist()
        return rows


@contextmanager
def _opened(output: Place, path: str) -> Iterator[Any]:
    """A file opened for the few ranges of it that are read; what Arrow finds wrong with it is an ArrowException."""
    with readable_errors(output, "output"), (output / path).open(cache_type="none") as stream:
        try:
            yield stream
        except OSError as error:
            if error.errno is not None:  # Arrow's own have none
                raise
            raise pa.ArrowInvalid(str(error)) from error


def other_generators(standing: Mapping[str, OutputShard], own: Identity) -> dict[str, str]:
    """The generators of other ingests, with what those took in."""
    sources = {path.partition("/")[0]: shard.footer.source for path, shard in standing.items()}
    return {name: _words(source) for name, source in sources.items() if source != own}


def _words(source: Identity) -> str:
    """What an ingest takes in, as its command says it."""
    return " ".join(f"{name}={value}" for name, value in source.items() if value is not None)
