"""The opinions stage: computes the probability that an image's description entails its prompt."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from plumbline.extending import (
    Inputs,
    Metric,
    RowError,
    Stage,
    StageOptions,
    isolate,
    make_unknown_prompt_error,
    read_prompt_texts,
)
from plumbline.operators.base import rows, schemas

OPINIONS = schemas.make_image_schema(("p_entail", pa.float32()))


class OpinionsStage(Stage):
    """Stage that turns sketches (schema SKETCHES) and prompts into opinions (schema OPINIONS)."""

    name = "opinions"
    version = 1
    schema = OPINIONS
    row_kind = "images"
    previous_stage = "sketches"
    metric_type = Metric
    calls: ClassVar = {"nli": "entailment"}

    @classmethod
    def list_input_stages(cls, metric: Metric) -> tuple[str, ...]:
        return ("sketches",)

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.model = models["nli"]

    def prepare(self, inputs: Inputs) -> Mapping[str, list[dict[str, Any]]]:
        texts = read_prompt_texts(inputs.prompts)
        tables = {name: inputs.upstream[name]["sketches"].read().to_pylist() for name in inputs.metrics}
        for row in (row for table in tables.values() for row in table):
            row["text"] = texts.get(row["prompt_id"])
            if row["error"] is None and row["text"] is None:
                row["error"] = rows.error_to_dict(make_unknown_prompt_error(row["prompt_id"]))
        return tables

    def compute(self, prepared: Mapping[str, list[dict[str, Any]]]) -> Mapping[str, pa.Table]:
        return {name: self._make_table(described) for name, described in prepared.items()}

    def _make_table(self, described: list[dict[str, Any]]) -> pa.Table:
        pairs = [(row["description"], row["text"]) for row in described if row["error"] is None]
        results = iter(isolate(self.model.entailment, pairs))
        records = []
        for row in described:
            record = {name: row[name] for name in ("image_id", "prompt_id", "generator", "error", "basis")}
            if row["error"] is None:
                result = next(results)
                failed = isinstance(result, RowError)
                record |= {"error": rows.error_to_dict(result)} if failed else {"p_entail": result}
            records.append(record)
        return rows.table(records, OPINIONS)
