"""Finds a benchmark's prompts among the captions of a training set; defines tables and shares of all leaks."""

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
"""Kinds of text matches, the surest first: the same words; the same words in another order; most runs of three words;
all words of a long prompt in order within a longer caption."""
PICTURES: tuple[Kind, ...] = ("source", "image")
"""Kinds of image matches: the source of an edit, and a generated image."""
KINDS = (*TEXTS, *PICTURES)
MIN_CONTAINED_WORDS = 8
"""Shorter prompts are within many captions by chance."""
SOURCES = "sources"
"""Name of the group of sources among the generators."""
MAX_ROWS = 5
"""Training rows that are listed for a prompt or image; all are counted."""

LEAKS = pa.schema(
    [
        *schemas.texts("prompt_id", "prompt", "generator", "image_id", "kind"),
        *schemas.floats("similarity"),
        *schemas.texts("file", "row", "text"),
        ("training_rows", pa.int64()),
    ]
)
"""Training rows that match a prompt or image, the surest first. `generator` and `image_id` name a generated image.
`similarity` is the fraction of all their runs of three words that two texts share, or the correlation of two images'
colours. `text` is the caption, or the id of the training image. `training_rows` counts the matching rows."""


class Target(NamedTuple):
    """A prompt or an image to search for."""

    prompt_id: str
    prompt: str
    generator: str | None = None
    image_id: str | None = None
    """Set for generated images only."""


class Caption(NamedTuple):
    """A text of a training set."""

    file: str
    row: str
    """Its row, line or sample."""
    text: str


class Match(NamedTuple):
    """A row of a training set that matches a target; surer matches sort first."""

    kind: int
    """Index into KINDS."""
    distance: float
    """1 minus the similarity."""
    file: str
    row: str
    text: str


@dataclass(slots=True)
class Matches:
    """Matches in some rows of a training set."""

    scanned: int = 0
    """Number of rows."""
    rows: Counter[int] = field(default_factory=Counter)
    """Number of matching rows by index of the target."""
    surest: dict[int, list[Match]] = field(default_factory=dict)
    """The surest matches by index of the target."""

    def add(self, place: int, matches: Sequence[Match], rows: int) -> None:
        """Add a target's matching rows; `matches` are the surest of them."""
        self.rows[place] += rows
        self.surest[place] = sorted([*self.surest.get(place, ()), *matches])[:MAX_ROWS]


class LeakFinder:
    """Compares captions with all prompts at once; its memory depends only on the prompts.

    All pairs above the threshold are found: a prompt that shares enough runs of words with a caption also shares one of
    its rarest runs, so only these are looked up (Bayardo, Ma and Srikant 2007, prefix filter).
    """

    def __init__(self, prompts: Sequence[Target], threshold: float, kinds: Iterable[Kind] = TEXTS) -> None:
        """`threshold` is the fraction of runs, in (0, 1], that near-duplicates share."""
        self.threshold, self.kinds = threshold, frozenset(kinds)
        self._words = [tuple(words_of(_normalize(target.prompt))) for target in prompts]
        self._runs = [shingles(_normalize(target.prompt)) for target in prompts]
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
        """Return the matches of all prompts in the captions."""
        matches = Matches()
        for caption in captions:
            matches.scanned += 1
            for place, match in self._compare(caption).items():
                matches.add(place, [match], 1)
        return matches

    def _compare(self, caption: Caption) -> dict[int, Match]:
        text = _normalize(caption.text)
        words, runs = tuple(words_of(text)), shingles(text)
        places = {*self._sorted.get(tuple(sorted(words)), ())}
        for run in runs:
            places.update(self._by_rare_run.get(run, ()))
        found = {}
        for place in places:
            own = self._runs[place]
            shared = len(own & runs)
            similarity = shared / (len(own) + len(runs) - shared)
            kind = self._classify(place, words, similarity, whole=shared == len(own))
            if kind in self.kinds:
                found[place] = Match(KINDS.index(kind), 1 - similarity, *caption)
        return found

    def _classify(self, place: int, words: Sequence[str], similarity: float, *, whole: bool) -> Kind | None:
        own = self._words[place]
        if own == words:
            return "exact"
        if len(own) == len(words) and sorted(own) == sorted(words):
            return "reordered"
        if similarity >= self.threshold:
            return "near"
        return "contained" if whole and len(own) >= MIN_CONTAINED_WORDS else None


def _normalize(text: str) -> str:
    """Replace variants of the same letters, such as full-width letters."""
    return unicodedata.normalize("NFKC", text)


def merge(parts: Iterable[Matches]) -> Matches:
    """Merge the matches of several files."""
    merged = Matches()
    for matches in parts:
        merged.scanned += matches.scanned
        for place, surest in matches.surest.items():
            merged.add(place, surest, matches.rows[place])
    return merged


class SearchResult(NamedTuple):
    """Targets, and their matches in a training set."""

    targets: Sequence[Target]
    matches: Matches

    def leaked(self) -> Iterator[tuple[int, Target, Sequence[Match]]]:
        """Yield each target with matches, with its index and its surest matches."""
        return ((place, self.targets[place], matches) for place, matches in sorted(self.matches.surest.items()))


def leaks_table(results: Iterable[SearchResult]) -> pa.Table:
    """Return the leaks as a table of the schema LEAKS."""
    records = [
        {
            **target._asdict(),
            **match._asdict(),
            "kind": KINDS[match.kind],
            "similarity": 1 - match.distance,
            "training_rows": result.matches.rows[place],
        }
        for result in results
        for place, target, matches in result.leaked()
        for match in matches
    ]
    return rows.table(records, LEAKS)


def find_surest_kinds(results: Iterable[SearchResult]) -> dict[str, str]:
    """Return the surest kind of match of each prompt that is leaked, by its text or an image."""
    kinds: dict[str, int] = {}
    for result in results:
        for _, target, (surest, *_) in result.leaked():
            kinds[target.prompt_id] = min(surest.kind, kinds.get(target.prompt_id, surest.kind))
    return {prompt_id: KINDS[kind] for prompt_id, kind in kinds.items()}


def count_image_shares(result: SearchResult) -> list["Share"]:
    """Count the leaked images of each generator, and the leaked sources."""
    surest = {str(place): KINDS[matches[0].kind] for place, _, matches in result.leaked()}
    return shares({str(place): (target.generator or SOURCES,) for place, target in enumerate(result.targets)}, surest)


class Share(NamedTuple):
    """Leaked prompts of a skill, or leaked images of a generator."""

    name: str
    total: int
    leaked: int
    by_kind: Mapping[str, int]
    """Leaks by their surest kind."""


def shares(groups: Mapping[str, Sequence[str]], kind_of: Mapping[str, str]) -> list[Share]:
    """Count the leaks of all ids and of each group, the largest share first.

    `groups` has the groups of each id, `kind_of` the kind of each leaked id.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for own_id, own in groups.items():
        for name in dict.fromkeys((OVERALL, *own)):
            members[name].append(own_id)
    kinds = {name: Counter(kind_of[own_id] for own_id in ids if own_id in kind_of) for name, ids in members.items()}
    counted = [Share(name, len(ids), kinds[name].total(), kinds[name]) for name, ids in members.items()]
    return sorted(counted, key=lambda share: (share.name != OVERALL, -share.leaked / share.total, share.name))
