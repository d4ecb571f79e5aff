"""Functions for sets of prompts: finding near-duplicates, drawing a sample with balanced skills, and statistics."""

import hashlib
import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from plumbline.operators.base.sentences import ShownTable, format_number
from plumbline.operators.results.prompt_properties import PromptProperty


def draw_balanced_sample(
    ids: Sequence[str],
    skills: Sequence[Sequence[str]],
    lengths: Sequence[int],
    count: int,
    edges: Sequence[int],
    seed: int,
) -> list[int]:
    """Draw `count` of the prompts with skills, or all if there are fewer, and return their indices in order.

    A prompt's weight is 1 / (n m), where n prompts have the rarest of its skills, and m prompts have a length between
    the same two `edges`. The Gecko paper gives rare skills higher weights, but does not specify the weights.
    Prompts are drawn by weight without replacement (Efraimidis and Spirakis 2006). The draw depends only on the ids and
    the seed, not on the order of the prompts.
    """
    candidates = [place for place, own in enumerate(skills) if own]
    by_skill = Counter(skill for place in candidates for skill in set(skills[place]))
    bins = [bisect_left(edges, length) for length in lengths]
    by_bin = Counter(bins[place] for place in candidates)
    weights = {place: 1 / min(by_skill[skill] for skill in skills[place]) / by_bin[bins[place]] for place in candidates}
    first = sorted(
        candidates, key=lambda place: (-math.log(_draw_number(ids[place], seed)) / weights[place], ids[place])
    )
    return sorted(first[:count])


def _draw_number(prompt_id: str, seed: int) -> float:
    hashed = hashlib.sha256(f"{seed}\0{prompt_id}".encode("utf-8", "replace")).digest()
    return (int.from_bytes(hashed[:7], "big") + 1) / 2**56


def compute_evenness(counts: Sequence[int]) -> float:
    """Return Pielou's evenness (1966): the entropy divided by its maximum.

    Returns nan for fewer than two counts, or if all counts are 0.
    """
    total = sum(counts)
    if len(counts) < 2 or not total:
        return math.nan
    return -sum(count / total * math.log(count / total) for count in counts if count) / math.log(len(counts))


MIN_COVERED_PERCENT = 2
"""A skill counts as covered if more than this percentage of prompts has it (VQAScore, GenAI-Bench, appendix A, table
8).
"""
WORDS_PER_SHINGLE = 3
"""Number of consecutive words in a shingle."""
N_MINHASH_PERMUTATIONS = 128
MINHASH_SEED = 1

_WORD_PATTERN = re.compile(r"\w+")


def split_words(text: str) -> list[str]:
    """Return a text's words in lower case without punctuation, or the whole text if it has no words."""
    return _WORD_PATTERN.findall(text.casefold()) or [text]


def make_shingles(text: str) -> frozenset[str]:
    """Return all sequences of three consecutive words in a text; a shorter text is a single sequence."""
    words = split_words(text)
    return frozenset(
        " ".join(words[start : start + WORDS_PER_SHINGLE])
        for start in range(max(1, len(words) - WORDS_PER_SHINGLE + 1))
    )


def find_near_duplicates(texts: Sequence[str], threshold: float) -> list[int | None]:
    """Return, for each prompt, the index of the first kept prompt that it nearly duplicates; None if it is kept itself.

    A prompt is kept unless it nearly duplicates an earlier kept prompt. Two prompts are near-duplicates if the Jaccard
    similarity of their three-word sequences is at least `threshold`. Case and punctuation therefore make no difference;
    a different number, colour or order does, unless the prompt is long. Candidates are found by MinHash with
    locality-sensitive hashing (Broder 1997; datasketch) and then compared exactly, so there are no false positives, but
    pairs close to the threshold may be missed.
    """
    from datasketch import MinHash, MinHashLSH

    sets = [make_shingles(text) for text in texts]
    index = MinHashLSH(threshold=threshold, num_perm=N_MINHASH_PERMUTATIONS, weights=(0.1, 0.9))
    hashes = MinHash.generator(
        ([run.encode("utf-8", "replace") for run in runs] for runs in sets),
        num_perm=N_MINHASH_PERMUTATIONS,
        seed=MINHASH_SEED,
    )
    repeated: list[int | None] = []
    for place, hashed in enumerate(hashes):
        similar = [other for other in index.query(hashed) if _compute_jaccard(sets[place], sets[other]) >= threshold]
        repeated.append(min(similar, default=None))
        if not similar:
            index.insert(place, hashed)
    return repeated


def _compute_jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / len(first | second)


ALL_PROMPTS_GROUP = "all prompts"


class SkillStatistics(NamedTuple):
    """Statistics of the prompts that require a skill."""

    prompts: int
    characters: float
    """Mean length in characters."""
    longest: int
    """Maximum length in characters."""
    means: Mapping[str, float]
    """Mean of each property; nan if it could not be measured for any prompt."""


def summarize_skills(
    texts: Sequence[str], skills: Sequence[Sequence[str]], properties: Mapping[str, PromptProperty]
) -> dict[str, SkillStatistics]:
    """Return the statistics of all prompts, followed by those of each skill, sorted by name."""
    measured = [(len(text), {name: measure(text) for name, measure in properties.items()}) for text in texts]
    members: dict[str, list[int]] = defaultdict(list)
    for place, own in enumerate(skills):
        for skill in dict.fromkeys(own):
            members[skill].append(place)
    groups = {ALL_PROMPTS_GROUP: list(range(len(texts))), **dict(sorted(members.items()))}
    return {
        skill: _summarize_prompts([measured[place] for place in places], [*properties])
        for skill, places in groups.items()
    }


def _summarize_prompts(measured: Sequence[tuple[int, Mapping[str, float]]], names: Sequence[str]) -> SkillStatistics:
    lengths = [length for length, _ in measured]
    means = {}
    for name in names:
        known = [values[name] for _, values in measured if not math.isnan(values[name])]
        means[name] = fmean(known) if known else math.nan
    return SkillStatistics(len(measured), fmean(lengths) if lengths else math.nan, max(lengths, default=0), means)


StatisticsBySkill = Mapping[str, SkillStatistics]


def make_statistics_table(own: StatisticsBySkill, published: Mapping[str, StatisticsBySkill]) -> ShownTable:
    """Return a table of statistics by skill, with more columns for this benchmark than for published benchmarks."""
    skills = [
        ALL_PROMPTS_GROUP,
        *sorted({skill for statistics in (own, *published.values()) for skill in statistics} - {ALL_PROMPTS_GROUP}),
    ]
    properties = [*own[ALL_PROMPTS_GROUP].means]
    names = ["skill", "prompts", "share", "characters", "longest", *properties]
    names += [f"{name}: {column}" for name in published for column in ("prompts", "characters", *properties)]
    rows = [
        [
            skill,
            *_list_cells(own.get(skill), own[ALL_PROMPTS_GROUP].prompts, properties),
            *(cell for other in published.values() for cell in _list_common_cells(other.get(skill), properties)),
        ]
        for skill in skills
    ]
    return ShownTable("Prompts by skill", _write_caption({"here": own, **published}), names, rows)


def _list_cells(row: SkillStatistics | None, total: int, properties: Sequence[str]) -> list[str]:
    if row is None:
        return [""] * (4 + len(properties))
    prompts, characters, *means = _list_common_cells(row, properties)
    return [prompts, format_number(row.prompts / total if total else None), characters, str(row.longest), *means]


def _list_common_cells(row: SkillStatistics | None, properties: Sequence[str]) -> list[str]:
    if row is None:
        return [""] * (2 + len(properties))
    return [
        str(row.prompts),
        format_number(row.characters, 1),
        *(format_number(row.means[name], 1) for name in properties),
    ]


def _write_caption(benchmarks: Mapping[str, StatisticsBySkill]) -> str:
    parts, covered = [], []
    for benchmark, statistics in benchmarks.items():
        counts = {name: row.prompts for name, row in statistics.items() if name != ALL_PROMPTS_GROUP}
        skills, sub_skills = ([n for name, n in counts.items() if (":" in name) == is_sub] for is_sub in (False, True))
        parts.append(
            f"{benchmark} {format_number(compute_evenness(skills), 3)} and "
            f"{format_number(compute_evenness(sub_skills), 3)}"
        )
        frequent = sorted(
            name for name, n in counts.items() if n * 100 > MIN_COVERED_PERCENT * statistics[ALL_PROMPTS_GROUP].prompts
        )
        covered.append(f"{benchmark}: {', '.join(frequent) or 'none'}")
    return (
        "Means over prompts: characters, content words (length), Flesch-Kincaid grade. Evenness of skills and of "
        f"sub-skills, 1 if all are equally frequent: {', '.join(parts)}. "
        f"Covered skills, which more than {MIN_COVERED_PERCENT}% of the prompts have: {'; '.join(covered)}."
    )
