"""GPT4V-Eval: a model that sees the image rates how well the image fits the prompt (Zhang et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import InspectionMetricConfig, Scale, fill_template
from plumbline.operators.metrics.metric import ScoreRange, Verdict
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

SCALES = (Scale("rating", 0, 100),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpt4vEvalConfig(InspectionMetricConfig):
    kind: Literal["gpt4v_eval"] = "gpt4v_eval"
    story: ClassVar[str] = "lets a model that sees the image rate from 0 to 100 how well it fits the prompt"
    score_range: ClassVar[ScoreRange] = (0.0, 100.0)
    templates: ClassVar[tuple[str, ...]] = ("gpt4v_eval",)

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        text = fill_template(self.get_template_text("gpt4v_eval"), prompt=parsing.collapse_spaces(prompt))
        return (yield from self.request_verdict(text, SCALES))
