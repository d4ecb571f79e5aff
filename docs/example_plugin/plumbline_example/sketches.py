"""The sketches stage: what a model says that an image shows."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.extending import ImagesStage, Inputs, PreparedImages, Question, RowError, isolate
from plumbline.operators.base import rows, schemas

SKETCHES = schemas.image_schema(("description", pa.string()))


@runtime_checkable
class DescribingMetric(Protocol):
    """A metric that has images described."""

    def describing(self) -> str:
        """Return what the model is asked."""


class ScoreRequest(NamedTuple):
    """What is asked about every image."""

    text: str

    def basis(self, prompt_id: str | None) -> str:
        return rows.input_digest(self.text)


class SketchesStage(ImagesStage):
    """Images to sketches (schema SKETCHES)."""

    name = "sketches"
    version = 1
    schema = SKETCHES
    needs = DescribingMetric
    calls: ClassVar = {"model": "likelihood"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"describing": metric.describing()}

    def asked(self, inputs: Inputs) -> Mapping[str, ScoreRequest]:
        return {name: ScoreRequest(self.metrics[name].describing()) for name in inputs.metrics}

    def measure(self, images: PreparedImages, asked: Mapping[str, ScoreRequest]) -> Mapping[str, pa.Table]:
        features = self.model.encode(images.pixels)
        return {name: self._table(images, features, one) for name, one in asked.items()}

    def _table(self, images: PreparedImages, features: Any, asked: ScoreRequest) -> pa.Table:
        questions = [Question(image, asked.text, ()) for image in range(len(images.pixels))]
        replies = iter(isolate(lambda batch: self.model.reply(features, batch), questions))
        records = []
        for row, digest, error in zip(images.rows, images.digests, images.errors, strict=True):
            reply = error or next(replies)
            said = {"error": rows.error_value(reply)} if isinstance(reply, RowError) else {"description": reply}
            records.append(row.row(image_digest=digest, basis=asked.basis(None), **said))
        return rows.table(records, SKETCHES)
