"""A detector's boxes and a reader's text are the library's own, whatever else is in the batch."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
    GotOcr2ForConditionalGeneration,
    GotOcr2Processor,
    GroundingDinoForObjectDetection,
    GroundingDinoProcessor,
    Owlv2ForObjectDetection,
    Owlv2Processor,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.grounding_dino.image_processing_pil_grounding_dino import GroundingDinoImageProcessorPil
from transformers.models.owlv2.image_processing_pil_owlv2 import Owlv2ImageProcessorPil

from plumbline.operators.models import loading
from plumbline.operators.models.calls import Box, DetectionModel, Wanted
from plumbline.operators.models.families import got_ocr2, model_config
from plumbline.operators.models.families.got_ocr2 import GotOcr2
from plumbline.operators.models.families.grounding_dino import GroundingDino
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models.alike import CLOSE, PICTURES
from tests.operators.tiny import detectors

PHRASES = ("red circle", "Star", "a blue star left of the circle", "dog")


@pytest.fixture(scope="module")
def dino_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return detectors.save_grounding_dino(tmp_path_factory.mktemp("dino"))


@pytest.fixture(scope="module")
def detector(dino_folder: Path) -> GroundingDino:
    loaded = load("grounding_dino", dino_folder, "detect")
    assert isinstance(loaded, GroundingDino)
    return loaded


@pytest.fixture(scope="module")
def owl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return detectors.save_owlv2(tmp_path_factory.mktemp("owl"))


@pytest.fixture(scope="module")
def got_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return detectors.save_got_ocr2(tmp_path_factory.mktemp("got"))


@pytest.fixture(scope="module")
def reader(got_folder: Path) -> GotOcr2:
    loaded = load("got_ocr2", got_folder, "ocr")
    assert isinstance(loaded, GotOcr2)
    return loaded


def load(family: str, folder: Path, call: Any) -> Any:
    config = model_config(family=family, checkpoint=str(folder), pair_batch=3, image_batch=3)
    return loading.load(resolve_model(config, on_gpu=False), call)


def find(model: DetectionModel, asked: Sequence[tuple[int, str]], threshold: float = 0.4) -> list[list[Box]]:
    features = model.encode([model.preprocess(picture) for picture in PICTURES])
    found = model.detect(features, [Wanted(image, phrase, threshold, 0.25) for image, phrase in asked])
    assert all(isinstance(boxes, list) for boxes in found), found
    return [boxes for boxes in found if isinstance(boxes, list)]


@torch.inference_mode()
def found_by_library(folder: Path, picture: Image.Image, phrase: str, threshold: float) -> list[Box]:
    images = GroundingDinoImageProcessorPil.from_pretrained(folder)
    processor = GroundingDinoProcessor(images, AutoTokenizer.from_pretrained(folder))
    inputs = processor(images=picture, text=[[phrase]], return_tensors="pt")
    outputs = GroundingDinoForObjectDetection.from_pretrained(folder)(**inputs)
    (read,) = processor.post_process_grounded_object_detection(
        outputs, inputs.input_ids, threshold=threshold, text_threshold=0.25, target_sizes=[picture.size[::-1]]
    )
    labels = [label.replace("[SEP]", "").strip(" .") for label in read["text_labels"]]
    return [Box(*one) for one in zip(labels, read["scores"].tolist(), *read["boxes"].T.tolist(), strict=False)]


def require_same(boxes: Sequence[Box], expected: Sequence[Box]) -> None:
    assert [box.label for box in boxes] == [box.label for box in expected]
    assert [box[1:] for box in boxes] == [pytest.approx(box[1:], abs=100 * CLOSE, rel=CLOSE) for box in expected]


PAIRS = [(image, phrase) for image in range(len(PICTURES)) for phrase in PHRASES]


def test_grounding_dino_finds_what_the_library_finds(dino_folder: Path, detector: GroundingDino) -> None:
    scores = sorted(box.score for boxes in find(detector, PAIRS, 0.0) for box in boxes)
    gaps = list(pairwise(scores[len(scores) // 4 : -len(scores) // 4]))
    threshold = sum(max(gaps, key=lambda gap: gap[1] - gap[0])) / 2  # far from every score
    found = find(detector, PAIRS, threshold)
    assert len({len(boxes) for boxes in found}) > 1, "a detector that finds the same of everything proves nothing"
    for (image, phrase), boxes in zip(PAIRS, found, strict=True):
        require_same(boxes, found_by_library(dino_folder, PICTURES[image], phrase, threshold))


def test_padding_that_leaks_into_the_boxes_would_be_seen(
    detector: GroundingDino, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All images on one canvas, which the mask is not told of."""

    def padded(image: Image.Image) -> Any:
        sized = whole(image)
        canvas = torch.zeros(3, detectors.LONGEST, detectors.LONGEST)
        canvas[:, : sized.tensor.shape[1], : sized.tensor.shape[2]] = sized.tensor
        return sized._replace(tensor=canvas)

    alone = find(detector, [(0, "Star")], 0.0)
    whole = detector.preprocess
    monkeypatch.setattr(detector, "preprocess", padded)
    with pytest.raises(AssertionError):
        require_same(find(detector, [(0, "Star")], 0.0)[0], alone[0])


def test_a_phrase_beyond_the_detectors_context_fails_alone(detector: GroundingDino) -> None:
    features = detector.encode([detector.preprocess(PICTURES[0])])
    wanted = [Wanted(0, "dog", 0.0, 0.25), Wanted(0, "dog " * 200, 0.0, 0.25)]
    found, refused = detector.detect(features, wanted)
    assert isinstance(found, list) and not isinstance(refused, list)
    assert (refused.kind, refused.retryable) == ("prompt_too_long", False)


@torch.inference_mode()
def owl_found_by_library(folder: Path, picture: Image.Image, phrase: str, threshold: float) -> list[Box]:
    images = Owlv2ImageProcessorPil.from_pretrained(folder)
    processor = Owlv2Processor(images, AutoTokenizer.from_pretrained(folder))
    inputs = processor(images=picture, text=[[phrase]], max_length=16, return_tensors="pt")
    outputs = Owlv2ForObjectDetection.from_pretrained(folder)(**inputs)
    (read,) = processor.post_process_grounded_object_detection(
        outputs, threshold=threshold, target_sizes=[picture.size[::-1]], text_labels=[[phrase]]
    )
    columns = (read["text_labels"], read["scores"].tolist(), *read["boxes"].T.tolist())
    return [Box(*one) for one in zip(*columns, strict=True)]


def test_owlv2_finds_what_the_library_finds_in_any_batch(owl_folder: Path) -> None:
    detector: DetectionModel = load("owlv2", owl_folder, "detect")
    pairs = [(image, phrase) for image, phrase in PAIRS if len(phrase) < 14]  # a letter is a token
    scores = sorted(box.score for boxes in find(detector, pairs, 0.0) for box in boxes)
    gaps = list(pairwise(scores[len(scores) // 4 : -len(scores) // 4]))
    threshold = sum(max(gaps, key=lambda gap: gap[1] - gap[0])) / 2
    found = find(detector, pairs, threshold)
    assert len({len(boxes) for boxes in found}) > 1, "a detector that finds the same of everything proves nothing"
    for (image, phrase), boxes in zip(pairs, found, strict=True):
        require_same(boxes, owl_found_by_library(owl_folder, PICTURES[image], phrase, threshold))
    assert find(detector, pairs[::-1], threshold) == found[::-1]
    too_long = detector.detect(detector.encode([detector.preprocess(PICTURES[0])]), [Wanted(0, "dog " * 20, 0.4, 0.25)])
    assert [getattr(one, "kind", None) for one in too_long] == ["prompt_too_long"]


@torch.inference_mode()
def read_by_library(folder: Path, picture: Image.Image, tokens: int) -> str:
    images = GotOcr2ImageProcessorPil.from_pretrained(folder)
    processor = GotOcr2Processor(images, AutoTokenizer.from_pretrained(folder))
    inputs = processor(images=picture, num_image_tokens=4, return_tensors="pt")
    model = GotOcr2ForConditionalGeneration.from_pretrained(folder)
    output = model.generate(
        **inputs, do_sample=False, max_new_tokens=tokens, tokenizer=processor.tokenizer, stop_strings="<|im_end|>"
    )
    said = processor.tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return str(said).strip()


def test_got_ocr2_reads_what_the_library_reads_in_a_batch_and_alone(
    got_folder: Path, reader: GotOcr2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(got_ocr2, "MAX_TOKENS", 12)
    pictures = [*PICTURES, tiny.picture(7, width=90, height=30)]
    expected = [read_by_library(got_folder, picture, 12) for picture in pictures]
    assert len(set(expected)) > 1, "a reader that reads the same in everything proves nothing"
    features = reader.encode([reader.preprocess(picture) for picture in pictures])
    assert reader.ocr(features) == expected
    assert reader.ocr(features[::-1]) == expected[::-1]
    assert [reader.ocr([feature])[0] for feature in features] == expected
