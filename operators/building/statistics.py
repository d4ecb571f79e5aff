"""What prompts are like, by skill: how many, how long, how hard to read."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from plumbline.operators.building.balance import evenness
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.diagnosis.texts import Property
from plumbline.operators.report.words import number

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


def _caption(benchmarks: Mapping[str, Mapping[str, SkillStatistics]]) -> str:
    parts = [f"{name} {_evenness(one)}" for name, one in benchmarks.items()]
    return (
        "Means over prompts: characters, content words (length), Flesch-Kincaid grade. Evenness of skills and of "
        f"sub-skills, 1 where all are as frequent: {', '.join(parts)}."
    )


def _evenness(one: Mapping[str, SkillStatistics]) -> str:
    skills, parts = (
        [s.prompts for name, s in one.items() if name != ALL and (":" in name) == part] for part in (False, True)
    )
    return f"{number(evenness(skills), 3)} and {number(evenness(parts), 3)}"
