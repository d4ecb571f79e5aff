"""GenEval: an image is right if a detector finds all objects in their numbers, colours and positions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import NonNegative, Share
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.metric import (
    SHARE_RANGE,
    Answered,
    CallEstimate,
    Evidence,
    Metric,
    Scored,
    ScoreRange,
    make_element,
)
from plumbline.operators.metrics.modules import ImageQuery
from plumbline.operators.metrics.writing import VqaPrompt
from plumbline.plugins.detected_objects.geneval_rules import (
    COLORS,
    MAX_COUNT,
    FoundObject,
    Requirement,
    Thresholds,
    UnreadableRequirement,
    check_requirements,
    parse_requirement,
)

COUNTING_TAG = "counting"
"""Tag of the prompts with a threshold of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenevalConfig(Metric):
    """Options for GenEval: its models and thresholds."""

    kind: Literal["geneval"] = "geneval"
    story: ClassVar[str] = (
        "has a detector find the objects that the prompt mentions, and is 1 if their numbers, colours and positions "
        "are right, otherwise 0"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "objects", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("objects", "questions")
    role_keys: ClassVar[tuple[str, ...]] = ("detector", "classifier")
    score_range: ClassVar[ScoreRange] = SHARE_RANGE
    detector: str = "detector"
    """Role of the detector."""
    classifier: str = "color_classifier"
    """Role of the dual encoder that names the colours of objects."""
    threshold: Share = 0.3
    """Minimum score of a box (as in the release, for Mask2Former)."""
    counting_threshold: Share | None = None
    """Minimum score of a box for prompts about numbers; null uses `threshold`. The release uses 0.9, for Mask2Former.
    """
    max_overlap: Share = 1.0
    """Intersection over union with a better box of the same class from which a box is dropped; 1 keeps all boxes, as in
    the release.
    """
    position_threshold: NonNegative = 0.1
    """Fraction of the two objects' widths and heights that does not count in the offset between their centres (as in
    the release).
    """

    def explain_pack_refusal(self, choices: Collection[int]) -> str | None:
        """Return why the metric cannot use a pack, given the questions' numbers of choices; None if all are 0."""
        return "geneval needs requirements without choices; use the pack geneval" if set(choices) - {0} else None

    def list_question_options(self) -> dict[str, Any]:
        """Return no options: the requirements come from the pack."""
        return {}

    def list_query_options(self) -> dict[str, Any]:
        return {"threshold": self.detection_threshold, "colors": COLORS}

    def list_answer_options(self) -> dict[str, Any]:
        return self.list_query_options()

    def list_score_options(self) -> dict[str, Any]:
        names = ("threshold", "counting_threshold", "max_overlap", "position_threshold")
        return {name: getattr(self, name) for name in names}

    @property
    def detection_threshold(self) -> float:
        """Lowest threshold for any prompt, above which the detector returns boxes."""
        return min(self.threshold, 1.0 if self.counting_threshold is None else self.counting_threshold)

    def estimate_calls(self, words: float) -> CallEstimate:
        """Estimate two objects per prompt, and no call of a writer."""
        return CallEstimate(0, 2)

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the requirement unchanged; the detector is asked for its class."""
        return VqaPrompt(text, tuple(choices), free=True)

    def list_image_queries(self, text: str) -> tuple[ImageQuery, ...]:
        """Return the query for a requirement's objects; none if the requirement cannot be read."""
        try:
            requirement = parse_requirement(text, n_earlier=MAX_COUNT)
        except UnreadableRequirement:
            return ()
        choices = COLORS if requirement.color is not None else ()
        return (ImageQuery("detector", requirement.name, box_threshold=self.detection_threshold, choices=choices),)

    def score(self, evidence: Evidence) -> Scored:
        """Return 1 if the image meets all requirements, otherwise 0 with the reasons; an element per requirement."""
        answered = evidence.answered
        requirements: list[Requirement] = []
        try:
            for answer in answered:
                requirements.append(parse_requirement(answer.question.text, n_earlier=len(requirements)))
        except UnreadableRequirement as error:
            return Scored(None, error=RowError("no_requirement", f"{error}; use the questions of the pack geneval"))
        counting = self.counting_threshold is not None and answered[0].question.kind == COUNTING_TAG
        score = self.counting_threshold if counting and self.counting_threshold is not None else self.threshold
        thresholds = Thresholds(score, self.max_overlap, self.position_threshold)
        reasons = check_requirements(requirements, list(map(_list_objects, answered)), thresholds)
        elements = [
            make_element(answer, given=reason or "met", score=float(not reason))
            for answer, reason in zip(answered, reasons, strict=True)
        ]
        rationale = "; ".join(filter(None, reasons))
        return Scored(float(not rationale), tuple(elements), n_questions=len(elements), rationale=rationale)


def _list_objects(answered: Answered) -> list[FoundObject]:
    (result,) = answered.query_results
    colors = result.text.split("\n") if result.text else [None] * len(result.boxes)
    return [FoundObject(box, color) for box, color in zip(result.boxes, colors, strict=True)]
