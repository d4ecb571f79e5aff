"""VIEScore for edits: a vision-language model rates the edit, and then the edited image (Ku et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.judges.judge import JudgeQuestion, Scale, fill_template
from plumbline.operators.metrics.judges.viescore import PERCEPTUAL_TEMPLATE, QUALITY_SCALES, TwoQuestionConfig
from plumbline.operators.metrics.metric import View
from plumbline.operators.metrics.wording import Release
from plumbline.plugins.edits.wordings import GEditRelease, VieScoreEditRelease

EDIT_TEMPLATE_NAME = "viescore_edit"
EDIT_SCALES = (Scale("editing_success", 0, 10), Scale("overediting", 0, 10))


@dataclass(frozen=True, kw_only=True, slots=True)
class VieScoreEditConfig(TwoQuestionConfig):
    """Options of VIEScore for edited images."""

    kind: Literal["viescore_edit"] = "viescore_edit"
    story: ClassVar[str] = (
        "shows the source and the edited image to a model, which rates the edit and the edited image's quality, and "
        "takes the square root of their product"
    )
    views: ClassVar[tuple[View, ...]] = ("edit", "result")
    consistency = EDIT_SCALES
    releases: ClassVar[tuple[type[Release], ...]] = (VieScoreEditRelease, GEditRelease)
    templates: ClassVar[tuple[str, ...]] = (EDIT_TEMPLATE_NAME, PERCEPTUAL_TEMPLATE)

    def judge_questions(self, prompt: str) -> Sequence[JudgeQuestion]:
        """Return a question about the source and the edited image, and a question about the edited image alone."""
        edit = fill_template(self.get_template_text(EDIT_TEMPLATE_NAME), instruction=prompt)
        return JudgeQuestion(edit, EDIT_SCALES), JudgeQuestion(
            self.get_template_text(PERCEPTUAL_TEMPLATE), QUALITY_SCALES, view=1
        )
