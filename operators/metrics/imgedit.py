"""ImgEdit-Bench: a model that sees rates an edit in three respects, which its kind decides (Ye et al. 2025)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.judged import InspectedConfig, Scale, Verdict, fill, named_kind, ratings_of
from plumbline.operators.metrics.metric import Evidence, Expected, ScoreRange, View
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

INSPECT, KINDS = "imgedit", "imgedit_kinds"
NO_KIND = (
    "expected one kind of edit among the prompt's skills ({kinds}), found {found}; name the column that has it by "
    "benchmark.prompt_columns.skills, or set the metric's edit_kind"
)


class KindOfEdit(NamedTuple):
    """What an edit of one kind is rated by."""

    name: str
    task: str
    respects: str
    """As the judge is told them, a line for each."""
    scales: tuple[Scale, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImgEditConfig(InspectedConfig):
    """Who looks at the edited images and their sources."""

    kind: Literal["imgedit"] = "imgedit"
    story: ClassVar[str] = (
        "lets a model that sees the source and the edited image rate the edit from 1 to 5 in three respects, which "
        "are those of its kind, such as adding or removing something"
    )
    views: ClassVar[tuple[View, ...]] = ("edit",)
    score_range: ClassVar[ScoreRange] = (1.0, 5.0)
    edit_kind: (
        Literal["add", "remove", "replace", "adjust", "style", "action", "extract", "background", "compose"] | None
    ) = None
    """The kind of all edits; null takes each prompt's from its skills."""

    @property
    def by_skills(self) -> bool:
        """Whether what it asks depends on the prompt's skills."""
        return self.edit_kind is None

    @property
    def templates(self) -> tuple[str, ...]:
        return INSPECT, KINDS

    def expected(self, words: float) -> Expected:
        """A call for an image."""
        return Expected(1, 1)

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        return self.asking(*self.templates) | ({} if self.by_skills else {"edit_kind": self.edit_kind})

    def inspect(
        self, prompt: str, questions: Sequence[WrittenQuestion] = (), skills: Sequence[str] = ()
    ) -> Writing[Verdict | RowError]:
        """One verdict on an edit of the kind that is among the skills."""
        kinds = read_kinds(self.template_text(KINDS))
        one = named_kind(kinds, skills, self.edit_kind)
        if one is None:
            found = ", ".join(map(repr, skills)) or "none"
            return RowError("no_edit_kind", NO_KIND.format(kinds=", ".join(kinds), found=found))
        parts = {"instruction": parsing.one_line(prompt), "task": one.task, "respects": one.respects}
        return (yield from self.verdict(fill(self.template_text(INSPECT), **parts), one.scales))

    def score(self, evidence: Evidence) -> Scored:
        """The mean of the three ratings, from 1 to 5."""
        ratings = ratings_of(evidence.row)
        mean = math.fsum(rating.value for rating in ratings) / len(ratings)
        return Scored(mean, ratings=ratings, rationale=evidence.row["rationale"])


def read_kinds(text: str) -> Mapping[str, KindOfEdit]:
    """The kinds of edits by name: of each block the first line has its name and task, the others a respect each."""
    kinds = {}
    for block in text.strip().split("\n\n"):
        head, *respects = block.splitlines()
        name, task = head.split(": ", 1)
        scales = tuple(Scale(respect.split(": ", 1)[0], 1, 5) for respect in respects)
        kinds[name] = KindOfEdit(name, task, "\n".join(respects), scales)
    return kinds
