"""Rubrics: a judge rates an image based on the benchmark's explanation of the prompt or its list of checkpoints."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import InspectionMetricConfig, Scale, fill_template
from plumbline.operators.metrics.metric import SHARE_RANGE, ScoreRange, Verdict
from plumbline.operators.metrics.wording import Release
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion
from plumbline.plugins.third_party_benchmarks.wordings.unigenbench import UniGenBenchRelease
from plumbline.plugins.third_party_benchmarks.wordings.wise import WiseRelease

KNOWLEDGE_TEMPLATE_NAME = "rubric_knowledge"
CHECKPOINTS_TEMPLATE_NAME = "rubric_checkpoints"
MEANINGS_TEMPLATE_NAME = "rubric_meanings"
"""Name of the template with the meanings of UniGenBench++'s checkpoints, one per line, by English name.

Checkpoints with Chinese names have no meaning in it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RubricConfig(InspectionMetricConfig):
    """Options for a judge that uses a rubric."""

    kind: Literal["rubric"] = "rubric"
    story: ClassVar[str] = (
        "shows the image to a model, which judges it by the benchmark's own requirements for the prompt"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "inspections", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("inspections",)
    score_range: ClassVar[ScoreRange] = SHARE_RANGE
    rubric: Literal["knowledge", "checkpoints"]
    """`knowledge`: 1 or 0, judged by the explanation of the prompt (WISE_Verified); `checkpoints`: the fraction of
    checkpoints that the image passes (UniGenBench++).
    """

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (WiseRelease,) if self.rubric == "knowledge" else (UniGenBenchRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return (
            (KNOWLEDGE_TEMPLATE_NAME,)
            if self.rubric == "knowledge"
            else (CHECKPOINTS_TEMPLATE_NAME, MEANINGS_TEMPLATE_NAME)
        )

    def explain_pack_refusal(self, choices: Collection[int]) -> str | None:
        """Return why the metric cannot use a pack with multiple-choice questions; None if no question has choices."""
        return "a judge needs explanations or checkpoints, but these have choices" if set(choices) - {0} else None

    def list_question_options(self) -> dict[str, Any]:
        """Return an empty mapping, because the questions come from the pack."""
        return {}

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Ask for a verdict on an image, based on the benchmark's explanation or checkpoints for its prompt."""
        text = parsing.collapse_spaces(prompt)
        wise = self.find_release(WiseRelease)
        if wise is not None:
            return (yield from wise.request_verdict(prompt, " ".join(each.text for each in questions), self.seed))
        if self.rubric == "knowledge":
            reference = " ".join(parsing.collapse_spaces(question.text) for question in questions)
            asked = fill_template(self.get_template_text(KNOWLEDGE_TEMPLATE_NAME), prompt=text, reference=reference)
            return (yield from self.request_verdict(asked, [Scale("score", 0, 1)], require_zero_or_one))
        meanings = read_meanings(self.get_template_text(MEANINGS_TEMPLATE_NAME))
        release = self.find_release(UniGenBenchRelease)
        if release is not None:
            return (yield from release.request_verdict(prompt, questions, self.seed))
        listed = "\n".join(_format_checkpoint(question, meanings) for question in questions)
        scales = [Scale(question.kind or question.text, 0, 1) for question in questions]
        asked = fill_template(self.get_template_text(CHECKPOINTS_TEMPLATE_NAME), prompt=text, checkpoints=listed)
        return (yield from self.request_verdict(asked, scales, require_zero_or_one))


def require_zero_or_one(rated: Mapping[str, float]) -> None:
    """Raise UnreadableReply if a value is neither 0 nor 1."""
    for name, value in rated.items():
        if value not in (0, 1):
            raise UnreadableReply(f"expected 0 or 1 for {name!r}, found {value:g}")


def read_meanings(listed: str) -> dict[str, str]:
    """Return the meaning of each rubric checkpoint, by name, from lines of the form `NAME: MEANING`."""
    return dict(line.split(": ", 1) for line in listed.splitlines() if ": " in line)


def _format_checkpoint(checkpoint: WrittenQuestion, meanings: Mapping[str, str]) -> str:
    """Return a line with a checkpoint's name, its general meaning (if known), and its requirement for this prompt."""
    name = checkpoint.kind or "Checkpoint"
    meaning = meanings.get(name.rstrip(" 0123456789"))
    return f"- {name}{f' ({meaning})' if meaning else ''}: {parsing.collapse_spaces(checkpoint.text)}"
