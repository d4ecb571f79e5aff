"""The entailment stage, which computes the probability that a prompt entails each of its questions with its answer."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.calls import EntailmentModel
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions

_THERE_PATTERN = re.compile(
    r"(?P<verb>is|are) there (?P<what>.+?)(?: in (?:the|this) (?:image|picture|photo))? ?(?:(?<!\?)\?+)?", re.IGNORECASE
)


class EntailmentStage(Stage):
    """Stage that computes the probability that the prompt entails each question (schemas QUESTIONS, ENTAILMENTS).

    The premise is the prompt; the hypothesis is the question with its answer, phrased as a statement (gecko.txt, sec.
    5, "Groundedness: removing hallucination"). No question is dropped here.
    """

    name = "entailment"
    version = 1
    schema = schemas.ENTAILMENTS
    row_kind = "prompts"
    metric_type = Metric
    calls: ClassVar = {"nli": "entailment"}

    @classmethod
    def list_input_stages(cls, metric: Metric) -> tuple[str, ...]:
        return ("questions",)

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.model: EntailmentModel = models["nli"]

    def prepare(self, inputs: Inputs) -> Mapping[str, pa.Table]:
        return {name: inputs.upstream[name]["questions"].read() for name in inputs.metrics}

    def compute(self, prepared: Mapping[str, pa.Table]) -> Mapping[str, pa.Table]:
        tables = {}
        for name, questions in prepared.items():
            records = questions.select(["prompt_id", "question_id", "error", "prompt", "text", "answer"]).to_pylist()
            sound = [record for record in records if record["error"] is None]
            for record in sound:
                record["hypothesis"] = write_hypothesis(record["text"], record["answer"])
            pairs = [(record["prompt"], record["hypothesis"]) for record in sound]
            for record, outcome in zip(sound, isolate(self.model.entailment, pairs), strict=True):
                if isinstance(outcome, RowError):
                    record["error"] = rows.error_to_dict(outcome)
                else:
                    record["p_entail"] = outcome
            tables[name] = rows.table(records, schemas.ENTAILMENTS)
        return tables


def write_hypothesis(question: str, answer: str) -> str:
    """Return a question and its answer as one statement.

    "is there a man in the image?" and yes become "There is a man."; no becomes "It is not true that there is a man.".
    Everything else is quoted: 'The answer to the question "what color is the dog?" is red.'. The paper does not say how
    it phrases hypotheses.
    """
    question, answer = parsing.collapse_spaces(question), parsing.collapse_spaces(answer)
    there = _THERE_PATTERN.fullmatch(question)
    if there and parsing.normalise(answer) in parsing.YES_NO:
        statement = f"here {there['verb'].lower()} {there['what']}."
        return f"T{statement}" if parsing.normalise(answer) == "yes" else f"It is not true that t{statement}"
    return f'The answer to the question "{question}" is {answer}.'
