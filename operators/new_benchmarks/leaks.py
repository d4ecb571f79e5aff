"""Which prompts of a benchmark are among the captions of a training set, whatever their case and punctuation."""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa

from plumbline.operators import rows, schemas
from plumbline.operators.new_benchmarks.prompt_sets import shingles, words_of
from plumbline.operators.summary import OVERALL

Kind = Literal["exact", "reordered", "near", "contained"]
KINDS: tuple[Kind, ...] = ("exact", "reordered", "near", "contained")
"""The surest first: the same words; the same words in another order; most runs of three words; all of a long prompt's
words, one after the other, within a longer caption."""
CONTAINED_WORDS = 8
"""Shorter prompts are within many captions by chance."""
KEPT_ROWS = 5
"""Of a prompt, the training rows that are named; all are counted."""

LEAKS = pa.schema(
    [
        *schemas.texts("prompt_id", "prompt", "kind"),
        *schemas.floats("similarity"),
        *schemas.texts("file", "row", "text"),
        ("training_rows", pa.int64()),
    ]
)
"""The training rows that a prompt stands in, the surest first: `similarity` is the share of all runs of three words of
the two that they have in common, `training_rows` how many rows the prompt stands in."""


class Caption(NamedTuple):
    """A text of a training set."""

    file: str
    row: str
    """Its row, line or sample there."""
    text: str


class Match(NamedTuple):
    """A caption in which a prompt stands; of two the lower is the surer."""

    kind: int
    """Its place in KINDS."""
    unlike: float
    """1 less the similarity."""
    file: str
    row: str
    text: str


class Matches(NamedTuple):
    """What was found in some captions."""

    captions: int
    rows: Mapping[int, int]
    """By place of a prompt, how many captions it stands in."""
    surest: Mapping[int, Sequence[Match]]


class LeakFinder:
    """Compares captions with all prompts at once; what it holds grows with the prompts alone.

    Every pair that is as similar as the threshold is found: a prompt that shares so many runs of words with a caption
    shares one of its rarest with it, so that only these are looked up (Bayardo, Ma and Srikant 2007, prefix filter).
    """

    def __init__(self, prompts: Sequence[tuple[str, str]], threshold: float, kinds: Iterable[Kind] = KINDS) -> None:
        """`prompts` are ids with texts; `threshold` is the share, in (0, 1], that a near-duplicate has in common."""
        self.prompts, self.threshold, self.kinds = prompts, threshold, frozenset(kinds)
        self._words = [tuple(words_of(_plain(text))) for _, text in prompts]
        self._runs = [shingles(_plain(text)) for _, text in prompts]
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
        looked, counts = 0, Counter[int]()
        surest: dict[int, list[Match]] = {}
        for caption in captions:
            looked += 1
            for place, match in self._in(caption).items():
                counts[place] += 1
                surest[place] = sorted([*surest.get(place, ()), match])[:KEPT_ROWS]
        return Matches(looked, counts, surest)

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

    def table(self, matches: Matches) -> pa.Table:
        """The leaks (schema LEAKS), in the order of the prompts."""
        records = [
            {
                "prompt_id": self.prompts[place][0],
                "prompt": self.prompts[place][1],
                "kind": KINDS[match.kind],
                "similarity": 1 - match.unlike,
                "file": match.file,
                "row": match.row,
                "text": match.text,
                "training_rows": matches.rows[place],
            }
            for place, of_prompt in sorted(matches.surest.items())
            for match in of_prompt
        ]
        return rows.table(records, LEAKS)


def _plain(text: str) -> str:
    """Without what is another way to write the same letters, such as full-width ones."""
    return unicodedata.normalize("NFKC", text)


def merge(found: Iterable[Matches]) -> Matches:
    """What was found in several files."""
    captions, counts = 0, Counter[int]()
    surest: dict[int, list[Match]] = {}
    for matches in found:
        captions += matches.captions
        counts.update(matches.rows)
        for place, of_prompt in matches.surest.items():
            surest[place] = sorted([*surest.get(place, ()), *of_prompt])[:KEPT_ROWS]
    return Matches(captions, counts, surest)


class SkillShare(NamedTuple):
    """How many prompts of a skill are leaked."""

    skill: str
    prompts: int
    leaked: int
    by_kind: Mapping[str, int]
    """By the surest kind of each."""


def shares(skills: Mapping[str, Sequence[str]], kind_of: Mapping[str, str]) -> list[SkillShare]:
    """Of all prompts and of each skill, the largest share first; `skills` and `kind_of` are by prompt_id."""
    members: dict[str, list[str]] = defaultdict(list)
    for prompt_id, own in skills.items():
        for skill in dict.fromkeys((OVERALL, *own)):
            members[skill].append(prompt_id)
    found = {skill: Counter(kind_of[one] for one in ids if one in kind_of) for skill, ids in members.items()}
    counted = [SkillShare(skill, len(ids), found[skill].total(), found[skill]) for skill, ids in members.items()]
    return sorted(counted, key=lambda one: (one.skill != OVERALL, -one.leaked / one.prompts, one.skill))
