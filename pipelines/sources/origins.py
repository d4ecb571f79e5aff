"""Where the prompts and generators of images come from, in words: every job that reads images says so."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import printable

MANIFEST = "manifest.json"
"""Of an ingest's output."""

MOST_NAMED = 8
"""Generators, columns or endings that a line names."""


class Origins(NamedTuple):
    """What tells the prompts and the generators of images, and what is there besides and is not read."""

    prompts: str
    """In words, such as: the column 'caption' of images.csv."""
    generators: str
    unread: Sequence[str] = ()
    """Columns or fields."""
    passed_over: str = ""
    """Files, by their suffixes, with an example."""
    sources: str = ""
    """In words, of edits: how many have sources and from where."""
    settings: str = ""
    """The settings of generation, with the columns that hold them."""
    warnings: Sequence[str] = ()
    """Warnings for people to check before they trust the pairs."""

    def lines(self, prompts: int, images: Mapping[str, int]) -> list[str]:
        """What people are told; `images` counts those of each generator."""
        told = [f"prompts: {prompts}, from {self.prompts}"]
        if images:
            names = [f"{name} ({count} {'image' if count == 1 else 'images'})" for name, count in images.items()]
            told.append(f"generators: {len(names)}, from {self.generators}: {name_some(names)}")
        if self.sources:
            told.append(f"sources: {self.sources}")
        if self.settings:
            told.append(f"settings: {self.settings}")
        if self.unread:
            told.append(f"columns not read: {name_some(list(self.unread))}")
        if self.passed_over:
            told.append(f"files passed over: {self.passed_over}")
        return [printable(line) for line in (*told, *(f"warning: {warning}" for warning in self.warnings))]


def read_origins(folder: Place) -> Origins | None:
    """What the ingests of an output left there of where its prompts and generators came from; None where they did not.

    Raises ConfigError where the storage does not answer.
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
    """What told the prompts and the generators of rows that were read one by one, each once and in order."""

    prompts: dict[str, None] = field(default_factory=dict)
    generators: dict[str, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)

    def note(self, prompt: str, generator: str, unread: Iterable[str] = ()) -> None:
        """Notes what told a row's, and its columns or fields that were not read."""
        self.prompts[prompt] = None
        self.generators[generator] = None
        self.unread.update(dict.fromkeys(unread))

    def origins(self, generator: str | None) -> Origins:
        """All of it, where no one generator is given for every row."""
        whose = f"generator={generator}" if generator else " and ".join(self.generators)
        return Origins(" and ".join(self.prompts), whose, list(self.unread))


def combine(origins: Sequence[Origins]) -> Origins:
    """Several as one, whose example is the first's."""
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
    """Files that are not read, as people are told of them."""
    return f"{count_suffixes(paths)}, such as {min(paths)}" if paths else ""


def count_suffixes(paths: Iterable[str]) -> str:
    """How many files there are, by their endings: 3 .heic, 1 .zip."""
    suffixes = Counter(PurePosixPath(path).suffix.lower() or "without an ending" for path in paths)
    return name_some([f"{count} {suffix}" for suffix, count in suffixes.most_common()])


def name_some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    others = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {others} others" if others > 0 else "")
