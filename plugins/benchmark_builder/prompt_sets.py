"""A set of prompts: which repeat each other, which are drawn so that no skill is rare, and what the set holds."""

import hashlib
import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from datasketch import MinHash, MinHashLSH

from plumbline.operators.base.sentences import number
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.diagnosis.texts import Property


def drawn(
    ids: Sequence[str],
    skills: Sequence[Sequence[str]],
    lengths: Sequence[int],
    count: int,
    edges: Sequence[int],
    seed: int,
) -> list[int]:
    """`count` of the prompts that have skills, in their order; of fewer, all.

    A prompt's weight is 1 / n for the rarest of its skills, which n prompts have, and 1 / m for the m prompts whose
    length falls between the same `edges`. The paper gives under-represented skills higher weights and does not say
    which. Prompts are drawn by these weights without replacement (Efraimidis and Spirakis 2006); what is drawn follows
    from the ids and the seed, whatever the order of the prompts.
    """
    known = [place for place, own in enumerate(skills) if own]
    of_skill = Counter(skill for place in known for skill in set(skills[place]))
    bins = [bisect_left(edges, length) for length in lengths]
    of_bin = Counter(bins[place] for place in known)
    weights = {place: 1 / min(of_skill[skill] for skill in skills[place]) / of_bin[bins[place]] for place in known}
    first = sorted(known, key=lambda place: (-math.log(_uniform(ids[place], seed)) / weights[place], ids[place]))
    return sorted(first[:count])


def _uniform(prompt_id: str, seed: int) -> float:
    """A number in (0, 1] that is the prompt's own."""
    hashed = hashlib.sha256(f"{seed}\0{prompt_id}".encode("utf-8", "replace")).digest()
    return (int.from_bytes(hashed[:7], "big") + 1) / 2**56


def evenness(counts: Sequence[int]) -> float:
    """How even counts are: their entropy as a share of the largest of so many (Pielou 1966); nan of one or none."""
    total = sum(counts)
    if len(counts) < 2 or not total:
        return math.nan
    return -sum(count / total * math.log(count / total) for count in counts if count) / math.log(len(counts))


PRESENT_PERCENT = 2
"""A skill that more prompts have is covered (vqascore_genai_bench.txt, appendix A, table 8)."""
RUN = 3
"""Words that stand together."""
PERMUTATIONS = 128
SEED = 1

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """A text's words without case and punctuation; the text itself where it has none."""
    return _WORD.findall(text.casefold()) or [text]


def shingles(text: str) -> frozenset[str]:
    """A prompt's runs of three words, without case and punctuation; of a shorter one all its words."""
    words = words_of(text)
    return frozenset(" ".join(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1)))


def near_duplicates(texts: Sequence[str], threshold: float) -> list[int | None]:
    """Of each prompt the first one before it that it repeats, if it repeats any that is not a repetition itself.

    Two prompts repeat each other where of all their runs of three words they share `threshold` (in (0, 1]) or more: so
    other spelling is no other prompt, and another number, colour or order is one, unless the prompt is long. Candidates
    are found by MinHash with locality-sensitive hashing (Broder 1997; datasketch) and then compared exactly: what is
    given repeats indeed, and a pair close to the threshold may be missed.
    """
    sets = [shingles(text) for text in texts]
    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=(0.1, 0.9))
    hashes = MinHash.generator(
        ([one.encode("utf-8", "replace") for one in own] for own in sets), num_perm=PERMUTATIONS, seed=SEED
    )
    repeated: list[int | None] = []
    for place, hashed in enumerate(hashes):
        alike = [other for other in index.query(hashed) if _jaccard(sets[place], sets[other]) >= threshold]
        repeated.append(min(alike, default=None))
        if not alike:
            index.insert(place, hashed)
    return repeated


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


ALL = "all prompts"


class SkillStatistics(NamedTuple):
    """The prompts of one skill."""

    prompts: int
    characters: float
    """Their mean."""
    longest: int
    """In characters."""
    means: Mapping[str, float]
    """Of the properties, over the prompts that have one; nan where none has."""


def by_skill(
    texts: Sequence[str], skills: Sequence[Sequence[str]], properties: Mapping[str, Property]
) -> dict[str, SkillStatistics]:
    """The statistics of all prompts, then those of each skill, in the order of their names."""
    measured = [(len(text), {name: of(text) for name, of in properties.items()}) for text in texts]
    members: dict[str, list[int]] = defaultdict(list)
    for place, own in enumerate(skills):
        for skill in dict.fromkeys(own):
            members[skill].append(place)
    groups = {ALL: list(range(len(texts))), **dict(sorted(members.items()))}
    return {skill: _counted([measured[place] for place in places], [*properties]) for skill, places in groups.items()}


def _counted(measured: Sequence[tuple[int, Mapping[str, float]]], names: Sequence[str]) -> SkillStatistics:
    lengths = [length for length, _ in measured]
    return SkillStatistics(
        len(measured),
        fmean(lengths) if lengths else math.nan,
        max(lengths, default=0),
        {name: _mean(own[name] for _, own in measured) for name in names},
    )


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def shown_statistics(
    own: Mapping[str, SkillStatistics], published: Mapping[str, Mapping[str, SkillStatistics]]
) -> ShownTable:
    """The statistics of a benchmark by skill, beside those of published ones, by name, in fewer columns."""
    skills = [ALL, *sorted({skill for one in (own, *published.values()) for skill in one} - {ALL})]
    properties = [*own[ALL].means]
    names = ["skill", "prompts", "share", "characters", "longest", *properties]
    names += [f"{name}: {column}" for name in published for column in ("prompts", "characters", *properties)]
    rows = [
        [
            skill,
            *_cells(own.get(skill), own[ALL].prompts, properties),
            *(cell for one in published.values() for cell in _fewer_cells(one.get(skill), properties)),
        ]
        for skill in skills
    ]
    return ShownTable("Prompts by skill", _caption({"here": own, **published}), names, rows)


def _cells(one: SkillStatistics | None, total: int, properties: Sequence[str]) -> list[str]:
    if one is None:
        return [""] * (4 + len(properties))
    prompts, characters, *means = _fewer_cells(one, properties)
    return [prompts, number(one.prompts / total if total else None), characters, str(one.longest), *means]


def _fewer_cells(one: SkillStatistics | None, properties: Sequence[str]) -> list[str]:
    if one is None:
        return [""] * (2 + len(properties))
    return [str(one.prompts), number(one.characters, 1), *(number(one.means[name], 1) for name in properties)]


def _covered_skills(own: Mapping[str, SkillStatistics]) -> list[str]:
    """Return the skills of more than PRESENT_PERCENT of the prompts, in the order of their names."""
    total = own[ALL].prompts
    return sorted(name for name, one in own.items() if name != ALL and one.prompts * 100 > PRESENT_PERCENT * total)


def _caption(benchmarks: Mapping[str, Mapping[str, SkillStatistics]]) -> str:
    parts = [f"{name} {_evenness(one)}" for name, one in benchmarks.items()]
    covered = [f"{name}: {', '.join(_covered_skills(one)) or 'none'}" for name, one in benchmarks.items()]
    return (
        "Means over prompts: characters, content words (length), Flesch-Kincaid grade. Evenness of skills and of "
        f"sub-skills, 1 where all are as frequent: {', '.join(parts)}. "
        f"Skills of more than {PRESENT_PERCENT}% of the prompts, which count as covered: {'; '.join(covered)}."
    )


def _evenness(one: Mapping[str, SkillStatistics]) -> str:
    skills, parts = (
        [s.prompts for name, s in one.items() if name != ALL and (":" in name) == part] for part in (False, True)
    )
    return f"{number(evenness(skills), 3)} and {number(evenness(parts), 3)}"
