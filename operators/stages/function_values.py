"""The function_values stage, which calls the user's own functions on each image and its prompt."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import is_device_lost, isolate_without_counting
from plumbline.operators.base.errors import RowError, UnprocessableRowError
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.metrics.function import FunctionConfig, UserCode, require_runnable
from plumbline.operators.metrics.user_code import describe_error, to_float
from plumbline.operators.stages.images import ImagesStage
from plumbline.operators.stages.stage import Inputs, StageOptions, cache_upstream, find_text, read_prompt_texts

WINDOW_ROWS = 32
"""Number of rows whose images are decoded together; the images are not resized."""
ImageAndPrompt = tuple[Image.Image, str]


class GivenTexts(NamedTuple):
    """The texts that a metric receives along with the images, by prompt."""

    prompts: Mapping[str, str]
    metric: FunctionConfig

    def text(self, prompt_id: str | None) -> str | RowError:
        text = find_text(self.prompts, prompt_id)
        return self.metric.apply_word_order(text) if isinstance(text, str) else text

    def digest(self, prompt_id: str | None) -> str | None:
        text = self.text(prompt_id)
        return rows.digest_inputs(text) if isinstance(text, str) else None


class FunctionValuesStage(ImagesStage):
    """Stage that turns images and prompts into values (schema FUNCTION_VALUES).

    Each image is decoded once for all functions.
    """

    name = "function_values"
    version = 1
    schema = schemas.FUNCTION_VALUES
    metric_type = FunctionConfig
    shuffles_words = True
    window = WINDOW_ROWS

    @classmethod
    def recipe(cls, name: str, metric: FunctionConfig) -> dict[str, Any]:
        return dict(metric.list_function_options())

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.functions = {name: UserFunction(require_runnable(metric.code)) for name, metric in metrics.items()}
        self._texts = cache_upstream(read_prompt_texts)

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Image.Image:
        return image

    def read_questions(self, inputs: Inputs) -> Mapping[str, GivenTexts]:
        prompts = self._texts(inputs.prompts)
        return {name: GivenTexts(prompts, self.metrics[name]) for name in inputs.metrics}

    def measure(self, images: PreparedImages, questions: Mapping[str, GivenTexts]) -> Mapping[str, pa.Table]:
        return {name: self._make_table(images, texts, self.functions[name]) for name, texts in questions.items()}

    def _make_table(self, images: PreparedImages, given: GivenTexts, function: "UserFunction") -> pa.Table:
        texts = [
            text
            for row, count in zip(images.rows, images.counts, strict=True)
            for text in [given.text(row.prompt_id)] * count
        ]
        usable = [(image, text) for image, text in zip(images.pixels, texts, strict=True) if isinstance(text, str)]
        values = iter(function.compute(usable, self.image_batch.rows))
        results = [text if isinstance(text, RowError) else next(values) for text in texts]
        return self.tabulate(images, given, results, lambda of_row: {"values": [{"value": value} for value in of_row]})


class UserFunction:
    """A user's function, wrapped so that an exception or an invalid value fails only the image that caused it."""

    def __init__(self, code: UserCode) -> None:
        self.code = code
        self.function = code.open()

    def compute(self, shown: Sequence[ImageAndPrompt], batch: int) -> list[float | RowError]:
        """Return the function's value, or an error, for each image with its prompt.

        A function that takes several images gets `batch` of them per call.
        """
        size = batch if self.code.batches else 1
        return [
            value
            for first in range(0, len(shown), size)
            for value in isolate_without_counting(self._call_function, shown[first : first + size])
        ]

    def _call_function(self, shown: Sequence[ImageAndPrompt]) -> list[float | RowError]:
        images, texts = [image for image, _ in shown], [text for _, text in shown]
        try:
            values = self.function(images, texts)
            if len(values) != len(shown):
                raise ValueError(f"expected a value for each of {len(shown)} images, found {len(values)}")
            return [self._read_value(value) for value in values]
        except UnprocessableRowError:  # from a function that runs elsewhere
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, Exception) and is_device_lost(error):
                raise
            raised = describe_error(error, self.code.origin.file)
            message = f"{self.code.where} raised {raised}; correct the function"
            raise UnprocessableRowError(RowError("function_failed", message, retryable=True)) from error

    def _read_value(self, value: Any) -> float | RowError:
        number = to_float(value)
        low, high = self.code.score_range or (-math.inf, math.inf)
        if math.isfinite(number) and low <= number <= high:
            return number
        within = "" if self.code.score_range is None else f" between {low:g} and {high:g}"
        message = (
            f"{self.code.where} returned {reprlib.repr(value)}; expected a finite number{within}; correct the function"
        )
        return RowError("unusable_value", message)
