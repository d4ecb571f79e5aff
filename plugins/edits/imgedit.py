"""ImgEdit-Bench: a vision-language model rates an edit on three criteria for its kind of edit (Ye et al. 2025)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import InspectionMetricConfig, Scale, fill_template, find_kind
from plumbline.operators.metrics.metric import ScoreRange, Verdict, View
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

INSPECT_TEMPLATE_NAME, KINDS_TEMPLATE_NAME = "imgedit", "imgedit_kinds"
NO_KIND_MESSAGE = (
    "expected one kind of edit among the prompt's skills ({kinds}), found {found}; set "
    "benchmark.prompt_columns.skills to the column with the kind, or set the metric's edit_kind"
)


class KindOfEdit(NamedTuple):
    """A kind of edit, with the task and the rating scales that the judge gets."""

    name: str
    task: str
    criteria: str
    """The rating criteria, as text for the judge with one criterion per line."""
    scales: tuple[Scale, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImgEditConfig(InspectionMetricConfig):
    """Options of ImgEdit-Bench."""

    kind: Literal["imgedit"] = "imgedit"
    story: ClassVar[str] = (
        "shows the source and the edited image to a model, which rates the edit from 1 to 5 on three criteria for "
        "its kind of edit"
    )
    views: ClassVar[tuple[View, ...]] = ("edit",)
    score_range: ClassVar[ScoreRange] = (1.0, 5.0)
    edit_kind: (
        Literal["add", "remove", "replace", "adjust", "style", "action", "extract", "background", "compose"] | None
    ) = None
    """Kind of all edits; null reads the kind from each prompt's skills."""
    templates: ClassVar[tuple[str, ...]] = (INSPECT_TEMPLATE_NAME, KINDS_TEMPLATE_NAME)

    @property
    def uses_skills(self) -> bool:
        """True if the question depends on the prompt's skills, because no `edit_kind` is set."""
        return self.edit_kind is None

    def list_verdict_options(self) -> dict[str, Any]:
        """Return all options that affect a verdict, except the judge."""
        return InspectionMetricConfig.list_verdict_options(self) | (
            {} if self.uses_skills else {"edit_kind": self.edit_kind}
        )

    def inspect(
        self, prompt: str, questions: Sequence[WrittenQuestion] = (), skills: Sequence[str] = ()
    ) -> Writing[Verdict | RowError]:
        """Request a verdict on an edit, whose kind is `edit_kind` or the only kind of edit among the skills."""
        kinds = read_kinds(self.get_template_text(KINDS_TEMPLATE_NAME))
        one = find_kind(kinds, skills, self.edit_kind)
        if one is None:
            found = ", ".join(map(repr, skills)) or "none"
            return RowError("no_edit_kind", NO_KIND_MESSAGE.format(kinds=", ".join(kinds), found=found))
        parts = {"instruction": parsing.collapse_spaces(prompt), "task": one.task, "respects": one.criteria}
        return (
            yield from self.request_verdict(
                fill_template(self.get_template_text(INSPECT_TEMPLATE_NAME), **parts), one.scales
            )
        )


def read_kinds(text: str) -> Mapping[str, KindOfEdit]:
    """Return the kinds of edits by name.

    Blocks are separated by empty lines. The first line of a block gives the name and task, and every further line gives
    one criterion.
    """
    kinds = {}
    for block in text.strip().split("\n\n"):
        head, *criteria = block.splitlines()
        name, task = head.split(": ", 1)
        scales = tuple(Scale(criterion.split(": ", 1)[0], 1, 5) for criterion in criteria)
        kinds[name] = KindOfEdit(name, task, "\n".join(criteria), scales)
    return kinds
