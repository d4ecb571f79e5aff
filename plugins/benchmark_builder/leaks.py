"""Finds a benchmark's prompts in the captions of a training set.

Also defines the table of leaks and the counts of leaks by kind.
"""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.results.summary import OVERALL
from plumbline.plugins.benchmark_builder.prompt_sets import make_shingles, split_words

MatchKind = Literal["exact", "reordered", "near", "contained", "source", "image"]
TEXT_MATCH_KINDS: tuple[MatchKind, ...] = ("exact", "reordered", "near", "contained")
"""Kinds of text matches, most certain first.

`exact` means the same words, and `reordered` the same words in another order. `near` means that the texts share most of
their three-word sequences. `contained` means that a caption contains all words of a long prompt, in order.
"""
IMAGE_MATCH_KINDS: tuple[MatchKind, ...] = ("source", "image")
"""Kinds of image matches: the source image of an edit, and a generated image."""
MATCH_KINDS = (*TEXT_MATCH_KINDS, *IMAGE_MATCH_KINDS)
MIN_CONTAINED_WORDS = 8
"""Prompts with fewer words are not searched within captions, because many captions contain them by chance."""
SOURCES_GROUP = "sources"
"""Name under which source images are counted, next to the generators."""
MAX_ROWS_PER_MATCH = 5
"""Maximum number of training rows listed per prompt or image; all matching rows are counted."""

LEAKS_SCHEMA = pa.schema(
    [
        *schemas.texts("prompt_id", "prompt", "generator", "image_id", "kind"),
        *schemas.floats("similarity"),
        *schemas.texts("file", "row", "text"),
        ("training_rows", pa.int64()),
    ]
)
"""Training rows that match a prompt or image, best matches first.

`generator` and `image_id` identify a generated image. `similarity` is the Jaccard similarity of two texts' three-word
sequences, or the correlation of two images' colours. `text` is the caption, or the id of the training image.
`training_rows` counts the matching rows.
"""


class LeakTarget(NamedTuple):
    """A prompt or an image to look for in the training set."""

    prompt_id: str
    prompt: str
    generator: str | None = None
    image_id: str | None = None
    """Id of a generated image; None for other targets."""


class Caption(NamedTuple):
    """A caption from a training set."""

    file: str
    row: str
    """The row, line or sample that contains the caption."""
    text: str


class LeakMatch(NamedTuple):
    """A row of a training set that matches a target; better matches sort first."""

    kind: int
    """Index into MATCH_KINDS."""
    distance: float
    """1 minus the similarity."""
    file: str
    row: str
    text: str


@dataclass(slots=True)
class LeakMatches:
    """The matches found in some rows of a training set."""

    scanned: int = 0
    """Number of rows that were compared."""
    rows: Counter[int] = field(default_factory=Counter)
    """Number of matching rows, by the target's index."""
    best: dict[int, list[LeakMatch]] = field(default_factory=dict)
    """The best matches, by the target's index."""

    def add(self, target: int, matches: Sequence[LeakMatch], rows: int) -> None:
        """Add `rows` matching rows for the target with this index; `matches` contains the best of them."""
        self.rows[target] += rows
        self.best[target] = sorted([*self.best.get(target, ()), *matches])[:MAX_ROWS_PER_MATCH]


class LeakFinder:
    """Compares captions with all prompts at once; memory use depends only on the prompts.

    All pairs above the threshold are found. A prompt that shares enough three-word sequences with a caption also shares
    one of its rarest sequences, so it is enough to look these up (Bayardo, Ma and Srikant 2007, prefix filter).
    """

    def __init__(
        self, prompts: Sequence[LeakTarget], threshold: float, kinds: Iterable[MatchKind] = TEXT_MATCH_KINDS
    ) -> None:
        """Index the prompts; `threshold` is the minimum Jaccard similarity of near-duplicates, in (0, 1]."""
        self.threshold, self.kinds = threshold, frozenset(kinds)
        self._words = [tuple(split_words(_normalize_letters(target.prompt))) for target in prompts]
        self._runs = [make_shingles(_normalize_letters(target.prompt)) for target in prompts]
        self._sorted: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, words in enumerate(self._words):
            self._sorted[tuple(sorted(words))].append(place)
        frequent = Counter(run for runs in self._runs for run in runs)
        self._by_rare_run: dict[str, list[int]] = defaultdict(list)
        for place, runs in enumerate(self._runs):
            rarest = sorted(runs, key=lambda run: (frequent[run], run))
            for run in rarest[: len(runs) - math.ceil(threshold * len(runs)) + 1]:
                self._by_rare_run[run].append(place)

    def find(self, captions: Iterable[Caption]) -> LeakMatches:
        """Return all matches between the prompts and the captions."""
        matches = LeakMatches()
        for caption in captions:
            matches.scanned += 1
            for place, match in self._match_caption(caption).items():
                matches.add(place, [match], 1)
        return matches

    def _match_caption(self, caption: Caption) -> dict[int, LeakMatch]:
        text = _normalize_letters(caption.text)
        words, runs = tuple(split_words(text)), make_shingles(text)
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
                found[place] = LeakMatch(MATCH_KINDS.index(kind), 1 - similarity, *caption)
        return found

    def _classify(self, place: int, words: Sequence[str], similarity: float, *, whole: bool) -> MatchKind | None:
        own = self._words[place]
        if own == words:
            return "exact"
        if len(own) == len(words) and sorted(own) == sorted(words):
            return "reordered"
        if similarity >= self.threshold:
            return "near"
        return "contained" if whole and len(own) >= MIN_CONTAINED_WORDS else None


def _normalize_letters(text: str) -> str:
    """Return the text with variants of letters, such as full-width letters, in their standard forms (Unicode NFKC)."""
    return unicodedata.normalize("NFKC", text)


def merge_matches(parts: Iterable[LeakMatches]) -> LeakMatches:
    """Return the matches of several files as a single LeakMatches, with each target's MAX_ROWS_PER_MATCH best rows."""
    merged = LeakMatches()
    for matches in parts:
        merged.scanned += matches.scanned
        for place, surest in matches.best.items():
            merged.add(place, surest, matches.rows[place])
    return merged


class SearchResult(NamedTuple):
    """The targets of a search, and their matches in a training set."""

    targets: Sequence[LeakTarget]
    matches: LeakMatches

    def list_leaked_targets(self) -> Iterator[tuple[int, LeakTarget, Sequence[LeakMatch]]]:
        """Yield the index, the target and the best matches of each target that has matches."""
        return ((place, self.targets[place], matches) for place, matches in sorted(self.matches.best.items()))


def make_leaks_table(results: Iterable[SearchResult]) -> pa.Table:
    """Return the leaks as a table with the schema LEAKS_SCHEMA."""
    records = [
        {
            **target._asdict(),
            **match._asdict(),
            "kind": MATCH_KINDS[match.kind],
            "similarity": 1 - match.distance,
            "training_rows": result.matches.rows[place],
        }
        for result in results
        for place, target, matches in result.list_leaked_targets()
        for match in matches
    ]
    return rows.table(records, LEAKS_SCHEMA)


def find_surest_kinds(results: Iterable[SearchResult]) -> dict[str, str]:
    """Return the surest kind of match for the text or any image of each leaked prompt, by prompt id."""
    kinds: dict[str, int] = {}
    for result in results:
        for _, target, (surest, *_) in result.list_leaked_targets():
            kinds[target.prompt_id] = min(surest.kind, kinds.get(target.prompt_id, surest.kind))
    return {prompt_id: MATCH_KINDS[kind] for prompt_id, kind in kinds.items()}


def count_image_leaks(result: SearchResult) -> list["LeakCount"]:
    """Count the leaked images: in total, for each generator, and among the source images."""
    surest = {str(place): MATCH_KINDS[matches[0].kind] for place, _, matches in result.list_leaked_targets()}
    return count_leaks(
        {str(place): (target.generator or SOURCES_GROUP,) for place, target in enumerate(result.targets)}, surest
    )


class LeakCount(NamedTuple):
    """Number of prompts of a skill, or of images of a generator, and how many of them are leaked."""

    name: str
    total: int
    leaked: int
    by_kind: Mapping[str, int]
    """Number of leaks, by their most certain kind."""


def count_leaks(groups: Mapping[str, Sequence[str]], kinds_by_id: Mapping[str, str]) -> list[LeakCount]:
    """Count the leaks among all ids and in each group: first the overall count, then groups by decreasing fraction.

    `groups` contains the groups of each id, and `kinds_by_id` the kind of each leaked id.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for own_id, own in groups.items():
        for name in dict.fromkeys((OVERALL, *own)):
            members[name].append(own_id)
    kinds = {
        name: Counter(kinds_by_id[own_id] for own_id in ids if own_id in kinds_by_id) for name, ids in members.items()
    }
    counted = [LeakCount(name, len(ids), kinds[name].total(), kinds[name]) for name, ids in members.items()]
    return sorted(counted, key=lambda share: (share.name != OVERALL, -share.leaked / share.total, share.name))
