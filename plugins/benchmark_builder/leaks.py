"""Which prompts of a benchmark are among the captions of a training set, and what all kinds of leaks have in common."""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.results.summary import OVERALL
from plumbline.plugins.benchmark_builder.prompt_sets import shingles, words_of

Kind = Literal["exact", "reordered", "near", "contained", "source", "image"]
TEXTS: tuple[Kind, ...] = ("exact", "reordered", "near", "contained")
"""The surest first: the same words; the same words in another order; most runs of three words; all of a long prompt's
words, one after the other, within a longer caption."""
PICTURES: tuple[Kind, ...] = ("source", "image")
"""A picture of the benchmark's that is edited, and one that a generator made."""
KINDS = (*TEXTS, *PICTURES)
CONTAINED_WORDS = 8
"""Shorter prompts are within many captions by chance."""
SOURCES = "sources"
"""What pictures that are edited are called beside generators."""
KEPT_ROWS = 5
"""Of a prompt or picture, the training rows that are named; all are counted."""

LEAKS = pa.schema(
    [
        *schemas.texts("prompt_id", "prompt", "generator", "image_id", "kind"),
        *schemas.floats("similarity"),
        *schemas.texts("file", "row", "text"),
        ("training_rows", pa.int64()),
    ]
)
"""The training rows that a prompt or its picture stands in, the surest first. `generator` and `image_id` name a
generated picture. `similarity` is the share of all their runs of three words that two texts have in common, or the
correlation of two pictures' colours. `text` is the caption, or the training image's own id. `training_rows` is how many
rows the prompt or picture stands in."""


class Sought(NamedTuple):
    """A prompt that is looked for, or a picture of it."""

    prompt_id: str
    prompt: str
    generator: str | None = None
    image_id: str | None = None
    """Of a picture that a generator made."""


class Caption(NamedTuple):
    """A text of a training set."""

    file: str
    row: str
    """Its row, line or sample there."""
    text: str


class Match(NamedTuple):
    """A row of a training set in which a prompt or picture stands; of two the lower is the surer."""

    kind: int
    """Its place in KINDS."""
    unlike: float
    """1 less the similarity."""
    file: str
    row: str
    text: str


@dataclass(slots=True)
class Matches:
    """What was found in some rows."""

    looked: int = 0
    """How many rows."""
    rows: Counter[int] = field(default_factory=Counter)
    """By place of what is sought, how many rows it stands in."""
    surest: dict[int, list[Match]] = field(default_factory=dict)

    def add(self, place: int, matches: Sequence[Match], rows: int) -> None:
        """Adds so many rows in which what is sought stands; `matches` are the surest of them."""
        self.rows[place] += rows
        self.surest[place] = sorted([*self.surest.get(place, ()), *matches])[:KEPT_ROWS]


class LeakFinder:
    """Compares captions with all prompts at once; what it holds grows with the prompts alone.

    Every pair that is as similar as the threshold is found: a prompt that shares so many runs of words with a caption
    shares one of its rarest with it, so that only these are looked up (Bayardo, Ma and Srikant 2007, prefix filter).
    """

    def __init__(self, prompts: Sequence[Sought], threshold: float, kinds: Iterable[Kind] = TEXTS) -> None:
        """`threshold` is the share, in (0, 1], that a near-duplicate has in common."""
        self.threshold, self.kinds = threshold, frozenset(kinds)
        self._words = [tuple(words_of(_plain(sought.prompt))) for sought in prompts]
        self._runs = [shingles(_plain(sought.prompt)) for sought in prompts]
        self._sorted: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, words in enumerate(self._words):
            self._sorted[tuple(sorted(words))].append(place)
        frequent = Counter(run for runs in self._runs for run in runs)
        self._by_rare_run: dict[str, list[int]] = defaultdict(list)
        for place, runs in enumerate(self._runs):
            rarest = sorted(runs, key=lambda run: (frequent[run], run))
            for run in rarest[: len(runs) - math.ceil(threshold * len(runs)) + 1]:
                self._by_rare_run[run].append(place)

    def find(self, captions: Iterable[Caption]) -> Matches:
        """The prompts that stand in the captions."""
        matches = Matches()
        for caption in captions:
            matches.looked += 1
            for place, match in self._in(caption).items():
                matches.add(place, [match], 1)
        return matches

    def _in(self, caption: Caption) -> dict[int, Match]:
        text = _plain(caption.text)
        words, runs = tuple(words_of(text)), shingles(text)
        places = {*self._sorted.get(tuple(sorted(words)), ())}
        for run in runs:
            places.update(self._by_rare_run.get(run, ()))
        found = {}
        for place in places:
            own = self._runs[place]
            shared = len(own & runs)
            similarity = shared / (len(own) + len(runs) - shared)
            kind = self._kind(place, words, similarity, whole=shared == len(own))
            if kind in self.kinds:
                found[place] = Match(KINDS.index(kind), 1 - similarity, *caption)
        return found

    def _kind(self, place: int, words: Sequence[str], similarity: float, *, whole: bool) -> Kind | None:
        own = self._words[place]
        if own == words:
            return "exact"
        if len(own) == len(words) and sorted(own) == sorted(words):
            return "reordered"
        if similarity >= self.threshold:
            return "near"
        return "contained" if whole and len(own) >= CONTAINED_WORDS else None


def _plain(text: str) -> str:
    """Without what is another way to write the same letters, such as full-width ones."""
    return unicodedata.normalize("NFKC", text)


def merge(found: Iterable[Matches]) -> Matches:
    """What was found in several files."""
    merged = Matches()
    for matches in found:
        merged.looked += matches.looked
        for place, of_place in matches.surest.items():
            merged.add(place, of_place, matches.rows[place])
    return merged


class Found(NamedTuple):
    """What was sought in a training set's captions or images, and found."""

    sought: Sequence[Sought]
    matches: Matches

    def by_place(self) -> Iterator[tuple[int, Sought, Sequence[Match]]]:
        """What stands in the training set, in the order of what was sought, with its surest rows."""
        return ((place, self.sought[place], matches) for place, matches in sorted(self.matches.surest.items()))


def leaks_table(every_found: Iterable[Found]) -> pa.Table:
    """The leaks (schema LEAKS)."""
    records = [
        {
            **sought._asdict(),
            **match._asdict(),
            "kind": KINDS[match.kind],
            "similarity": 1 - match.unlike,
            "training_rows": found.matches.rows[place],
        }
        for found in every_found
        for place, sought, matches in found.by_place()
        for match in matches
    ]
    return rows.table(records, LEAKS)


def kinds_of_prompts(every_found: Iterable[Found]) -> dict[str, str]:
    """The surest kind of each prompt that stands in the training set, itself or by a picture, in order."""
    kinds: dict[str, int] = {}
    for found in every_found:
        for _, sought, (surest, *_) in found.by_place():
            kinds[sought.prompt_id] = min(surest.kind, kinds.get(sought.prompt_id, surest.kind))
    return {prompt_id: KINDS[kind] for prompt_id, kind in kinds.items()}


def picture_shares(found: Found) -> list["Share"]:
    """How many pictures of each generator, and how many sources, stand in the training set."""
    surest = {str(place): KINDS[matches[0].kind] for place, _, matches in found.by_place()}
    return shares({str(place): (sought.generator or SOURCES,) for place, sought in enumerate(found.sought)}, surest)


class Share(NamedTuple):
    """How many prompts of a skill, or pictures of a generator, are leaked."""

    name: str
    total: int
    leaked: int
    by_kind: Mapping[str, int]
    """By the surest kind of each."""


def shares(groups: Mapping[str, Sequence[str]], kind_of: Mapping[str, str]) -> list[Share]:
    """Of all and of each group, the largest share first; `groups` and `kind_of` are by id."""
    members: dict[str, list[str]] = defaultdict(list)
    for one, own in groups.items():
        for name in dict.fromkeys((OVERALL, *own)):
            members[name].append(one)
    found = {name: Counter(kind_of[one] for one in ids if one in kind_of) for name, ids in members.items()}
    counted = [Share(name, len(ids), found[name].total(), found[name]) for name, ids in members.items()]
    return sorted(counted, key=lambda share: (share.name != OVERALL, -share.leaked / share.total, share.name))
