"""Describes where prompts and generators were found, with example pairs; every job that reads images prints this."""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import PurePosixPath
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import format_id
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import escape_bytes
from plumbline.pipelines.sources.shards import describe_row, read_shard
from plumbline.pipelines.store.cells import Shard

MANIFEST_FILE = "manifest.json"
"""Name of the manifest in an ingest's output."""
MAX_LISTED_NAMES = 8
"""Maximum number of generators, columns or file suffixes that are named in a line."""
MAX_PROMPT_CHARACTERS = 100
"""Maximum number of characters of a prompt in an example pair."""


class Origins(NamedTuple):
    """Record of where prompts and generators were found, and of the columns and files that were ignored."""

    prompts: str
    """Source of the prompts, in words, for example: the column 'caption' of images.csv."""
    generators: str
    """Source of the generators' names, in words, for example: the folders' names."""
    unread: Sequence[str] = ()
    """Columns or fields that were not read."""
    passed_over: str = ""
    """Number of files that were not read, by suffix, with an example."""
    sources: str = ""
    """Number and location of the source images of edits, in words."""
    settings: str = ""
    """Names of the generation settings, with the columns that contain the values."""
    warnings: Sequence[str] = ()
    """Warnings for the user to check before relying on the pairs."""

    def describe(self, prompts: int, images: Mapping[str, int]) -> list[str]:
        """Return lines that describe these origins to the user; `images` is the number of images per generator."""
        lines = [f"prompts: {prompts}, from {self.prompts}"]
        if images:
            names = [f"{name} ({count} {'image' if count == 1 else 'images'})" for name, count in images.items()]
            lines.append(f"generators: {len(names)}, from {self.generators}: {format_first_names(names)}")
        unread = format_first_names(list(self.unread))
        more = {"sources": self.sources, "settings": self.settings, "columns not read": unread}
        more["files passed over"] = self.passed_over
        lines += [f"{title}: {text}" for title, text in more.items() if text]
        return [escape_bytes(line) for line in (*lines, *(f"warning: {warning}" for warning in self.warnings))]


def read_origins(folder: Place) -> Origins | None:
    """Return the origins that ingests recorded in their output; None if nothing was recorded.

    Raise ConfigError if the storage cannot be reached.
    """
    with convert_read_errors(folder, "benchmark.images"):
        try:
            ingests = json.loads((folder / MANIFEST_FILE).read())["ingests"]
            origins = [Origins(**ingest["origins"]) for ingest in ingests]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
    return combine_origins(sorted(origins, key=lambda each: each.generators)) if origins else None


@dataclass(slots=True)
class SeenOrigins:
    """Collector for the origins of rows that are read one by one; contains each origin once, in order of appearance."""

    prompts: dict[str, None] = field(default_factory=dict)
    generators: dict[str, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)

    def note(self, prompt: str, generator: str, unread: Iterable[str] = ()) -> None:
        self.prompts[prompt] = None
        self.generators[generator] = None
        self.unread.update(dict.fromkeys(unread))

    def to_origins(self, generator: str | None) -> Origins:
        """Return the recorded origins; `generator` is the configured generator of all rows, if there is one."""
        generators = f"generator={generator}" if generator else " and ".join(self.generators)
        return Origins(" and ".join(self.prompts), generators, list(self.unread))


def combine_origins(origins: Sequence[Origins]) -> Origins:
    prompts, generators, passed_over, sources = (
        " and ".join(dict.fromkeys(text for each in origins if (text := getattr(each, name))))
        for name in ("prompts", "generators", "passed_over", "sources")
    )
    warnings = list(dict.fromkeys(warning for each in origins for warning in each.warnings))
    unread = list(dict.fromkeys(name for each in origins for name in each.unread))
    return Origins(prompts, generators, unread, passed_over, sources, warnings=warnings)


def describe_ignored_files(paths: Sequence[str]) -> str:
    """Return a description of ignored files: their number per suffix, and an example; empty if there are none."""
    return f"{format_suffix_counts(paths)}, such as {min(paths)}" if paths else ""


def format_suffix_counts(paths: Iterable[str]) -> str:
    """Format the number of files per suffix, such as: 3 .heic, 1 .zip."""
    suffixes = Counter(PurePosixPath(path).suffix.lower() or "without an ending" for path in paths)
    return format_first_names([f"{count} {suffix}" for suffix, count in suffixes.most_common()])


def format_first_names(names: Sequence[str]) -> str:
    """Return the first few names as text, followed by the number of remaining names."""
    others = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {others} others" if others > 0 else "")


class ExamplePair(NamedTuple):
    """An image and the prompt that it is scored against."""

    image: str
    """The image's id or address, or else its file and row."""
    generator: str
    prompt_id: str
    prompt: str | None
    """The prompt's text; None if it is not known."""

    def __str__(self) -> str:
        text = self.prompt or ""
        short = text if len(text) <= MAX_PROMPT_CHARACTERS else f"{text[:MAX_PROMPT_CHARACTERS]}..."
        prompt = f"prompt_id {self.prompt_id!r}, without a text" if self.prompt is None else repr(short)
        return escape_bytes(f"pair: {self.image} of {self.generator}: {prompt}")


def pick_ends_and_middle(count: int) -> list[int]:
    """Return the indices of the first, the middle and the last of `count` items, without duplicates."""
    return sorted({0, count // 2, count - 1}) if count else []


def read_example_pairs(images: Sequence[Shard], prompts: pa.Table) -> list[ExamplePair]:
    """Return three of the pairs to be scored, without reading images; `prompts` has the schema PROMPTS.

    No pair is returned for an unreadable file: its rows fail, and the plan reports them.
    """
    ends = list(accumulate(shard.rows for shard in images))
    pairs: list[ExamplePair] = []
    # three, because prompts that are shifted against their images often agree at the start
    for row in pick_ends_and_middle(ends[-1] if ends else 0):
        number = bisect_right(ends, row)
        shard, row_in_shard = images[number], row - ends[number] + images[number].rows
        with suppress(SourceError):
            table = read_shard(shard, ("image_id", "prompt_id", "uri")).slice(row_in_shard, 1)
            found = {name: table.column(name)[0].as_py() for name in table.column_names}
            prompt_id = format_id(found["prompt_id"]) or ""
            known = pc.index(prompts.column("prompt_id"), prompt_id).as_py()
            text = prompts.column("text")[known].as_py() if known >= 0 else None
            image = format_id(found.get("image_id")) or found.get("uri") or describe_row(shard, row_in_shard)
            pairs.append(ExamplePair(image, shard.group, prompt_id, text))
    return pairs
