"""PRISM-Bench: a model that sees rates how an image follows its prompt, by the prompt's track, and how it is made.

Fang et al. 2025. The release's number for a set of images, the mean of all its ratings, is the mean of these scores.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.judged import (
    Asked,
    InspectedConfig,
    Scale,
    Verdict,
    fill,
    named_kind,
    ratings_of,
    values,
)
from plumbline.operators.metrics.metric import Evidence, Expected, ScoreRange
from plumbline.operators.metrics.wordings.prism_bench import PrismBenchRelease
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

ALIGNMENT, TRACKS, AESTHETICS = "prism_bench_alignment", "prism_bench_tracks", "prism_bench_aesthetics"
SCALES = {name: (Scale(name, 0, 10),) for name in ("alignment", "aesthetics")}
NO_TRACK = (
    "expected one track among the prompt's skills ({tracks}), found {found}; name the column that has it by "
    "benchmark.prompt_columns.skills, or set the metric's track"
)


class Track(NamedTuple):
    """What prompts of one track are about."""

    name: str
    aim: str
    faults: str
    """What an image loses points for, a line each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrismBenchConfig(InspectedConfig):
    """Who looks at the images, and which rating is the score."""

    kind: Literal["prism"] = "prism"
    story: ClassVar[str] = (
        "lets a model that sees the image rate how well it follows the prompt, strictly and by what prompts of its "
        "kind test, and how well it is made, and takes the mean"
    )
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    part: Literal["overall", "alignment", "aesthetics"] = "overall"
    """Which number is the score: one of the two ratings, or their mean. The judge is asked the same for all three."""
    track: (
        Literal["affection", "composition", "entity", "imagination", "long_text", "style", "text_rendering"] | None
    ) = None
    """The track of all prompts; null takes each prompt's from its skills."""

    @property
    def by_skills(self) -> bool:
        """Whether what it asks depends on the prompt's skills."""
        return self.track is None

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (PrismBenchRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return ALIGNMENT, TRACKS, AESTHETICS

    def expected(self, words: float) -> Expected:
        """Two calls for an image."""
        return Expected(2, 1)

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        release = self.released(PrismBenchRelease)
        asked = self.asking(*self.templates) if release is None else {"wording": release.digest, "seed": self.seed}
        return asked if self.track is None else {**asked, "track": self.track}

    def inspect(
        self, prompt: str, questions: Sequence[WrittenQuestion] = (), skills: Sequence[str] = ()
    ) -> Writing[Verdict | RowError]:
        """One verdict of two replies on an image of the track that is among the skills."""
        tracks = read_tracks(self.template_text(TRACKS))
        track = named_kind(tracks, skills, self.track)
        if track is None:
            found = ", ".join(map(repr, skills)) or "none"
            return RowError("no_track", NO_TRACK.format(tracks=", ".join(tracks), found=found))
        release = self.released(PrismBenchRelease)
        if release is not None:
            return Verdict(*(yield from release.inspect(prompt, track.name, self.seed)))
        parts = {"prompt": parsing.one_line(prompt), "track": track.name, "aim": track.aim, "faults": track.faults}
        texts = (fill(self.template_text(name), **parts) for name in (ALIGNMENT, AESTHETICS))
        return (yield from self.verdicts([Asked(*one) for one in zip(texts, SCALES.values(), strict=True)]))

    def scoring(self) -> dict[str, Any]:
        return {"part": self.part}

    def score(self, evidence: Evidence) -> Scored:
        """One of the ratings or their mean, from 0 to 10."""
        ratings = ratings_of(evidence.row)
        rated = values(ratings)
        overall = math.fsum(rated.values()) / len(rated)
        return Scored(rated.get(self.part, overall), ratings=ratings, rationale=evidence.row["rationale"])


def read_tracks(text: str) -> Mapping[str, Track]:
    """The tracks by name: of each block the first line has its name and aim, the others a fault each."""
    tracks = {}
    for block in text.strip().split("\n\n"):
        head, *faults = block.splitlines()
        name, aim = head.split(": ", 1)
        tracks[name] = Track(name, aim, "\n".join(faults))
    return tracks
