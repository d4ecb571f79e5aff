"""An object's colour is read from its own part of the image, and a failure costs only its own row."""

from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Box, DetectionRequest
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.stages.answers import QuestionIndex
from plumbline.operators.stages.scores import WrittenIndex
from plumbline.plugins.detected_objects.geneval import GenevalConfig
from plumbline.plugins.detected_objects.geneval_rules import Requirement
from plumbline.plugins.detected_objects.objects_stage import ObjectsStage
from tests.environment import ROOT
from tests.operators.stages.given import decode, make_options, score
from tests.operators.tiny import encode_image, make_image_table

REQUIREMENTS = [Requirement("cat", 1, "red"), Requirement("dog", 1, "blue", "right of", 0)]
BOXES = {"cat": Box("cat", 0.9, -3, -2, 30.4, 64), "dog": Box("dog", 0.8, 33.6, 0, 66, 70)}
"""Boxes in an image of 64 x 64 pixels whose left half is red and whose right half is blue; they exceed the image."""


class ScriptedDetector:
    """A detector that always finds the same objects, except in images of another size, which it cannot read."""

    usage = Usage()

    def __init__(self) -> None:
        self.asked: list[str] = []

    def preprocess(self, image: Image.Image) -> Image.Image:
        return image

    def encode(self, images: Sequence[Image.Image]) -> Sequence[Image.Image]:
        if any(image.width != 64 for image in images):
            raise ValueError("cannot read the image")
        return images

    def detect(self, features: Sequence[Any], wanted: Sequence[DetectionRequest]) -> list[list[Box] | RowError]:
        self.asked += [one.phrase for one in wanted]
        return [[BOXES[one.phrase]._replace(score=0.31), BOXES[one.phrase]] for one in wanted]


def draw_halves(mode: str) -> Image.Image:
    image = Image.new("RGB", (64, 64), "red")
    image.paste("blue", (32, 0, 64, 64))
    return image.quantize(4) if mode == "P" else image.convert(mode)


def score_images(detector: ScriptedDetector, images: Sequence[bytes]) -> list[dict[str, Any]]:
    config = make_model_config(family="clip", checkpoint=str(ROOT / "assets/clip-shapes"))
    classifier = loading.load(resolve_model(config, on_gpu=False), "similarity")
    asked = assign_ids([WrittenQuestion(str(one), each.write(), ()) for one, each in enumerate(REQUIREMENTS)])
    questions = rows.table([{"prompt_id": "p0", **question._asdict()} for question in asked], schemas.QUESTIONS)
    metric = GenevalConfig()
    stage = ObjectsStage({"geneval": metric}, {"detector": detector, "classifier": classifier}, make_options())
    prepared = decode(stage, make_image_table(images, ["p0"] * len(images)))
    seen = stage.measure(prepared, {"geneval": QuestionIndex(questions, metric)})["geneval"]
    assert seen.schema.equals(schemas.MODULE_ANSWERS)
    return list(score(seen, "geneval", metric, WrittenIndex(questions, None)).to_pylist())


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_each_object_has_the_colour_of_its_own_part_of_the_image(mode: str) -> None:
    detector = ScriptedDetector()
    (row,) = score_images(detector, [encode_image(draw_halves(mode))])
    assert (row["score"], row["rationale"], row["error"]) == (1.0, "", None)
    assert detector.asked == ["cat", "dog"], "each class is searched once"


def test_an_image_that_the_detector_cannot_read_costs_only_its_row() -> None:
    narrow = Image.new("RGB", (20, 64), "red")
    images = [encode_image(draw_halves("RGB")), encode_image(narrow), b"no image"]
    scored = score_images(ScriptedDetector(), images)
    assert [row["score"] for row in scored] == [1.0, None, None]
    assert [row["error"] and row["error"]["kind"] for row in scored] == [None, "model_failed", "corrupt_image"]
