"""Origins of prompts and generators in words; every job that reads images shows them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import printable

MANIFEST = "manifest.json"
"""Name of the manifest of an ingest's output."""

MAX_NAMED = 8
"""Maximum number of generators, columns or endings that a line names."""


class Origins(NamedTuple):
    """Origins of prompts and generators, and the columns and files that were ignored."""

    prompts: str
    """Origin of the prompts in words, such as: the column 'caption' of images.csv."""
    generators: str
    unread: Sequence[str] = ()
    """Columns or fields that were not read."""
    passed_over: str = ""
    """Files that were not read, by suffix, with an example."""
    sources: str = ""
    """Number and place of the sources of edits, in words."""
    settings: str = ""
    """The settings of generation, with the columns that hold them."""
    warnings: Sequence[str] = ()
    """Warnings for people to check before they trust the pairs."""

    def lines(self, prompts: int, images: Mapping[str, int]) -> list[str]:
        """Return lines for people; `images` has the number of images of each generator."""
        lines = [f"prompts: {prompts}, from {self.prompts}"]
        if images:
            names = [f"{name} ({count} {'image' if count == 1 else 'images'})" for name, count in images.items()]
            lines.append(f"generators: {len(names)}, from {self.generators}: {name_some(names)}")
        if self.sources:
            lines.append(f"sources: {self.sources}")
        if self.settings:
            lines.append(f"settings: {self.settings}")
        if self.unread:
            lines.append(f"columns not read: {name_some(list(self.unread))}")
        if self.passed_over:
            lines.append(f"files passed over: {self.passed_over}")
        return [printable(line) for line in (*lines, *(f"warning: {warning}" for warning in self.warnings))]


def read_origins(folder: Place) -> Origins | None:
    """Return the origins that ingests recorded in their output; None without a record.

    Raises ConfigError if the storage does not answer.
    """
    with readable_errors(folder, "benchmark.images"):
        try:
            ingests = json.loads((folder / MANIFEST).read())["ingests"]
            origins = [Origins(**ingest["origins"]) for ingest in ingests]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
    return combine(sorted(origins, key=lambda each: each.generators)) if origins else None


@dataclass(slots=True)
class SeenOrigins:
    """Origins of rows that are read one by one, each once and in order."""

    prompts: dict[str, None] = field(default_factory=dict)
    generators: dict[str, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)

    def note(self, prompt: str, generator: str, unread: Iterable[str] = ()) -> None:
        """Record the origins of a row, and its columns or fields that are not read."""
        self.prompts[prompt] = None
        self.generators[generator] = None
        self.unread.update(dict.fromkeys(unread))

    def origins(self, generator: str | None) -> Origins:
        """Return the recorded origins; `generator`, if given, is that of every row."""
        whose = f"generator={generator}" if generator else " and ".join(self.generators)
        return Origins(" and ".join(self.prompts), whose, list(self.unread))


def combine(origins: Sequence[Origins]) -> Origins:
    """Combine several origins into one."""
    prompts, generators, passed_over, sources = (
        " and ".join(dict.fromkeys(filter(None, words)))
        for words in (
            [each.prompts for each in origins],
            [each.generators for each in origins],
            [each.passed_over for each in origins],
            [each.sources for each in origins],
        )
    )
    warnings = list(dict.fromkeys(warning for each in origins for warning in each.warnings))
    unread = list(dict.fromkeys(name for each in origins for name in each.unread))
    return Origins(prompts, generators, unread, passed_over, sources, warnings=warnings)


def pass_over(paths: Sequence[str]) -> str:
    """Describe files that are not read: their number by suffix, and an example."""
    return f"{count_suffixes(paths)}, such as {min(paths)}" if paths else ""


def count_suffixes(paths: Iterable[str]) -> str:
    """Count files by suffix, in words: 3 .heic, 1 .zip."""
    suffixes = Counter(PurePosixPath(path).suffix.lower() or "without an ending" for path in paths)
    return name_some([f"{count} {suffix}" for suffix, count in suffixes.most_common()])


def name_some(names: Sequence[str]) -> str:
    """List the first names, and the number of the others."""
    others = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {others} others" if others > 0 else "")
