"""The sketches stage: a model describes each image."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.extending import ImagesStage, Inputs, PreparedImages, Question, isolate
from plumbline.operators.base import rows, schemas

SKETCHES = schemas.make_image_schema(("description", pa.string()))


@runtime_checkable
class DescribingMetric(Protocol):
    """A metric that needs descriptions of images."""

    def description_request(self) -> str:
        """Return the request that is sent to the model."""


class DescriptionRequest(NamedTuple):
    """Request for a description; it is the same for every image."""

    text: str

    def digest(self, prompt_id: str | None) -> str:
        return rows.digest_inputs(self.text)


class SketchesStage(ImagesStage):
    """Stage that turns images into sketches (schema SKETCHES)."""

    name = "sketches"
    version = 1
    schema = SKETCHES
    metric_type = DescribingMetric
    calls: ClassVar = {"model": "likelihood"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"describing": metric.description_request()}

    def read_questions(self, inputs: Inputs) -> Mapping[str, DescriptionRequest]:
        return {name: DescriptionRequest(self.metrics[name].description_request()) for name in inputs.metrics}

    def measure(self, images: PreparedImages, questions: Mapping[str, DescriptionRequest]) -> Mapping[str, pa.Table]:
        features = self.model.encode(images.pixels)
        return {name: self._make_table(images, features, request) for name, request in questions.items()}

    def _make_table(self, images: PreparedImages, features: Any, request: DescriptionRequest) -> pa.Table:
        questions = [Question(image, request.text, ()) for image in range(len(images.pixels))]
        replies = isolate(lambda batch: self.model.reply(features, batch), questions)
        return self.tabulate(images, request, replies, lambda of_row: {"description": of_row[0]})
