"""The priors stage: likelihoods of the candidate answers for a blank image."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.ablation import blank_image
from plumbline.operators.models.calls import LikelihoodModel, Question
from plumbline.operators.stages.answers import AskingStage, QuestionIndex, require_finite
from plumbline.operators.stages.stage import Inputs, StageOptions


class PriorsStage(AskingStage):
    """Questions to answers about one grey image (schema PRIORS), one row per prompt.

    These answers show the model's bias (Zhao et al. 2021, Calibrate Before Use).
    """

    name = "priors"
    version = 1
    schema = schemas.PRIORS
    over = "prompts"
    calls: ClassVar = {"model": "likelihood"}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.model: LikelihoodModel = models["model"]

    def prepare(self, inputs: Inputs) -> Mapping[str, QuestionIndex]:
        return {
            name: QuestionIndex(inputs.upstream[name]["questions"].read(), self.metrics[name])
            for name in inputs.metrics
        }

    def compute(self, prepared: Mapping[str, QuestionIndex]) -> Mapping[str, pa.Table]:
        before = self.model.usage
        encoded = self.model.encode([self.model.preprocess(blank_image())])
        tables = {name: self._table(index, encoded) for name, index in prepared.items()}
        usage = self.model.usage.minus(before)
        return {name: rows.with_usage(table, usage) for name, table in tables.items()}

    def _table(self, index: QuestionIndex, encoded: Any) -> pa.Table:
        """Return a row for every prompt, with the answers to all its questions or an error."""
        asked = [question for of_prompt in index.prompts.values() for question in of_prompt.questions]
        questions = [Question(0, one.vqa_prompt.text, one.vqa_prompt.choices) for one in asked]
        outcomes = iter(isolate(lambda batch: self.model.likelihood(encoded, batch), questions))
        records = []
        for prompt_id, of_prompt in index.prompts.items():
            results = [require_finite(next(outcomes)) for _ in of_prompt.questions]
            error = of_prompt.error or next((one for one in results if isinstance(one, RowError)), None)
            row = {"prompt_id": prompt_id, "error": rows.error_value(error)}
            if error is None:
                ids = (question.question_id for question in of_prompt.questions)
                answers = zip(ids, results, strict=True)
                row["answers"] = [{"question_id": name, "token_logprobs": logs} for name, logs in answers]
                row["basis"] = of_prompt.basis
            records.append(row)
        return rows.table(records, schemas.PRIORS)
