"""PRISM-Bench (Fang et al. 2025): a judge rates how well an image follows the prompt, and how well it is made.

The criteria depend on the prompt's track. Upstream's code scores a set of images by the mean of all ratings, which
equals the mean of the scores computed here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import (
    InspectionMetricConfig,
    JudgeQuestion,
    Scale,
    fill_template,
    find_kind,
    map_ratings,
    read_ratings,
)
from plumbline.operators.metrics.metric import Evidence, Scored, ScoreRange, Verdict
from plumbline.operators.metrics.wording import Release
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.plugins.third_party_benchmarks.wordings.prism_bench import PrismBenchRelease

ALIGNMENT_TEMPLATE_NAME, TRACKS_TEMPLATE_NAME, AESTHETICS_TEMPLATE_NAME = (
    "prism_bench_alignment",
    "prism_bench_tracks",
    "prism_bench_aesthetics",
)
SCALES_BY_RATING = {name: (Scale(name, 0, 10),) for name in ("alignment", "aesthetics")}
NO_TRACK_MESSAGE = (
    "expected one track among the prompt's skills ({tracks}), found {found}; name the column that has it by "
    "benchmark.prompt_columns.skills, or set the metric's track"
)


class Track(NamedTuple):
    """A category of prompts, with the judge's criteria for it."""

    name: str
    aim: str
    faults: str
    """Faults that cost points, one per line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrismBenchConfig(InspectionMetricConfig):
    """Options for PRISM-Bench."""

    kind: Literal["prism"] = "prism"
    calls_per_image: ClassVar[int] = 2
    story: ClassVar[str] = (
        "shows the image to a model, which rates how well it follows the prompt and how well it is made, and takes the "
        "mean"
    )
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    part: Literal["overall", "alignment", "aesthetics"] = "overall"
    """Value used as the score: one of the two ratings, or their mean (`overall`). The judge's questions are always the
    same.
    """
    track: (
        Literal["affection", "composition", "entity", "imagination", "long_text", "style", "text_rendering"] | None
    ) = None
    """Track of all prompts; null takes each prompt's track from its skills."""
    releases: ClassVar[tuple[type[Release], ...]] = (PrismBenchRelease,)
    templates: ClassVar[tuple[str, ...]] = (ALIGNMENT_TEMPLATE_NAME, TRACKS_TEMPLATE_NAME, AESTHETICS_TEMPLATE_NAME)

    @property
    def uses_skills(self) -> bool:
        """True if the question depends on the prompt's skills."""
        return self.track is None

    def list_verdict_options(self) -> dict[str, Any]:
        """Return all options that affect a verdict, except the judge."""
        return InspectionMetricConfig.list_verdict_options(self) | ({} if self.track is None else {"track": self.track})

    def inspect(
        self, prompt: str, questions: Sequence[WrittenQuestion] = (), skills: Sequence[str] = ()
    ) -> Writing[Verdict | RowError]:
        """Ask the judge for both ratings of an image; the track comes from the options or from the prompt's skills."""
        tracks = read_tracks(self.get_template_text(TRACKS_TEMPLATE_NAME))
        track = find_kind(tracks, skills, self.track)
        if track is None:
            found = ", ".join(map(repr, skills)) or "none"
            return RowError("no_track", NO_TRACK_MESSAGE.format(tracks=", ".join(tracks), found=found))
        release = self.find_release(PrismBenchRelease)
        if release is not None:
            return (yield from release.request_verdict(prompt, track.name, self.seed))
        parts = {
            "prompt": parsing.collapse_spaces(prompt),
            "track": track.name,
            "aim": track.aim,
            "faults": track.faults,
        }
        texts = (
            fill_template(self.get_template_text(name), **parts)
            for name in (ALIGNMENT_TEMPLATE_NAME, AESTHETICS_TEMPLATE_NAME)
        )
        return (
            yield from self.request_combined_verdict(
                [JudgeQuestion(*one) for one in zip(texts, SCALES_BY_RATING.values(), strict=True)]
            )
        )

    def list_score_options(self) -> dict[str, Any]:
        return {"part": self.part}

    def score(self, evidence: Evidence) -> Scored:
        """Return one of the ratings or their mean, from 0 to 10."""
        ratings = read_ratings(evidence.row)
        rated = map_ratings(ratings)
        overall = math.fsum(rated.values()) / len(rated)
        return Scored(rated.get(self.part, overall), ratings=ratings, rationale=evidence.row["rationale"])


def read_tracks(text: str) -> Mapping[str, Track]:
    """Return the tracks by name.

    Blocks are separated by empty lines. The first line of a block contains the track's name and aim, and each further
    line describes one fault.
    """
    tracks = {}
    for block in text.strip().split("\n\n"):
        head, *faults = block.splitlines()
        name, aim = head.split(": ", 1)
        tracks[name] = Track(name, aim, "\n".join(faults))
    return tracks
