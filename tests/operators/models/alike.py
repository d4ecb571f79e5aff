"""Checks that a batched model gives the same answer for an input alone, in a padded batch, and in any order."""

import random
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pytest
from PIL import Image

from plumbline.operators.models.calls import (
    Call,
    ComparisonResult,
    DetectionRequest,
    Generation,
    ImageGenerateModel,
    ImageRequest,
    LikelihoodModel,
    Measure,
    Message,
    Pair,
    Question,
    Request,
    SimilarityModel,
)
from plumbline.operators.models.networks.similarity import DualEncoder
from tests.operators import tiny

MAX_DIFFERENCE = 1e-4
"""Tolerance when comparing float32 results on a CPU."""
IMAGES = (
    tiny.draw_image(0),
    tiny.draw_image(1, width=24, height=64),
    tiny.draw_image(2, width=64, height=24),
    tiny.draw_image(3, width=16, height=16),
)
IMAGE_BEFORE = tiny.draw_image(4, width=40, height=32)
"""Image before the edit, for models that score edits and for models that compare images without reading a text."""
TEXTS = (
    "a red circle",
    "two blue stars left of a green square",
    "a",
    "the red star above three blue squares , left of a circle",
)
PHRASES = ("red circle", "Star", "dog")
QUESTIONS = (
    Question(0, "Is it red?", ("Yes",)),
    Question(1, "Does this figure show two stars, left of a square? Please answer Yes or No.", ("Yes", "No")),
    Question(0, "What is it?", ("circle", "a blue star", "no")),
    Question(3, "a?", ("Yes",)),
    Question(2, "Is it red?", ("Yes",)),
)
CHOICE_QUESTIONS = (
    Question(0, "is it red?", ("yes", "no")),
    Question(1, "a", ("star", "red", "a circle")),
    Question(0, "a", ("star", "red", "a circle")),
    Question(3, "is it?", ("a", "blue")),
    Question(2, "is it red?", ("yes", "no")),
)
"""Questions with several choices, short enough for the tiny text towers."""


def compute_likelihoods(
    model: LikelihoodModel, images: Sequence[Image.Image], questions: Sequence[Question]
) -> list[list[list[float]]]:
    """Return log-probabilities by question, choice and token, computed as the stage does; fail on any error."""
    features = model.encode([model.preprocess(image) for image in images])
    answers = model.likelihood(features, questions)
    assert all(isinstance(answer, list) for answer in answers), answers
    return [list(answer) for answer in answers if isinstance(answer, list)]


def compute_similarities(
    model: SimilarityModel, images: Sequence[Image.Image], texts: Sequence[tuple[int, str]], measure: Measure
) -> list[ComparisonResult]:
    """Return the similarity for each (image index, text) pair, computed as the stage does.

    The cache of encoded texts is empty at first.
    """
    if isinstance(model, DualEncoder):
        model.embedded.clear()
    features = model.encode([_preprocess(model, image) for image in (*images, IMAGE_BEFORE)])
    blind = getattr(model, "tokenizer", None) is None
    pairs = [Pair(text[0], source=len(images)) if blind else Pair(*text) for text in texts]
    return list(model.compare(features, pairs, measure))


def _preprocess(model: Any, image: Image.Image) -> Any:
    """Return the image as preprocessed by the model; if the model scores edits, IMAGE_BEFORE is the image's source."""
    edits = type(model).__name__.startswith("EditReward")  # belongs to a plugin
    return model.preprocess_several([IMAGE_BEFORE, image]) if edits else model.preprocess(image)


def generate_replies(
    model: ImageGenerateModel, images: Sequence[Image.Image], requests: Sequence[ImageRequest]
) -> list[Generation]:
    """Return the model's reply to each request, generated as the stages do; fail on any error."""
    features = model.encode([model.preprocess(image) for image in images])
    given = model.generate_from_images(features, requests)
    assert all(isinstance(reply, Generation) for reply in given), given
    return [reply for reply in given if isinstance(reply, Generation)]


class Answer(NamedTuple):
    """A model's answer to one input; two answers agree if their words are equal and their numbers are close."""

    words: tuple[str, ...]
    numbers: tuple[float, ...] = ()


Ask = Callable[[Any, Sequence[Image.Image], Sequence[Any]], list[Answer]]


def _answer_questions(model: Any, images: Sequence[Image.Image], questions: Sequence[Question]) -> list[Answer]:
    return [Answer((), tuple(chain(*choices))) for choices in compute_likelihoods(model, images, questions)]


def _answer_requests(model: Any, images: Sequence[Image.Image], requests: Sequence[ImageRequest]) -> list[Answer]:
    return [_convert_reply(reply) for reply in generate_replies(model, images, requests)]


def _convert_reply(reply: Generation) -> Answer:
    return Answer((reply.text,), (reply.complete, reply.usage.new_tokens))


def _find_regions(model: Any, images: Sequence[Image.Image], pairs: Sequence[Pair]) -> list[Answer]:
    told = model.regions(model.encode([model.preprocess(images[pair.image]) for pair in pairs]))
    return [Answer(tuple(map(str, regions))) for regions in told]


def _read_texts(model: Any, images: Sequence[Image.Image], pairs: Sequence[Pair]) -> list[Answer]:
    return [
        Answer((text,)) for text in model.ocr(model.encode([model.preprocess(images[pair.image]) for pair in pairs]))
    ]


def _detect_boxes(model: Any, images: Sequence[Image.Image], wanted: Sequence[DetectionRequest]) -> list[Answer]:
    found = model.detect(model.encode([model.preprocess(image) for image in images]), wanted)
    return [Answer(tuple(box.label for box in boxes), tuple(n for box in boxes for n in box[1:])) for boxes in found]


REQUESTS = [
    Request((Message("user", text),), length) for length in (12, 20) for text in ("What does it show?", "Is it red?")
]
IMAGE_REQUESTS = [ImageRequest(image, request) for request in REQUESTS for image in range(len(IMAGES))]
PAIRS = [Pair(image, text) for image in range(len(IMAGES)) for text in TEXTS]
CALLS: dict[Call, tuple[Sequence[Any], Ask]] = {
    "likelihood": (QUESTIONS, _answer_questions),
    "generate_from_images": (IMAGE_REQUESTS, _answer_requests),
    "regions": ([Pair(image, "") for image in range(len(IMAGES))], _find_regions),
    "ocr": ([Pair(image, "") for image in range(len(IMAGES))], _read_texts),
    "detect": (
        [DetectionRequest(i, phrase, 0.0, 0.25) for i in range(len(IMAGES)) for phrase in PHRASES],
        _detect_boxes,
    ),
    "generate": (
        [request._replace(max_tokens=3 + 5 * number) for number, request in enumerate(REQUESTS)],
        lambda model, images, requests: list(map(_convert_reply, model.generate(requests))),
    ),
    "entailment": (
        [(premise, hypothesis) for premise in TEXTS for hypothesis in ("it is red", "a")],
        lambda model, images, pairs: [Answer((), (number,)) for number in model.entailment(pairs)],
    ),
    "embedding": (
        TEXTS,
        lambda model, images, texts: [Answer((), tuple(row.tolist())) for row in model.encode_texts(texts).features],
    ),
}
"""Default inputs of each kind of call, and the function that makes the call and returns an Answer for each input."""


def prepare_call(call: Call, measure: Measure = "cosine") -> tuple[Sequence[Any], Ask]:
    """Return the inputs for a call, and the function that makes it.

    Inputs refer to images by their index in IMAGES.
    """
    if call != "similarity":
        return CALLS[call]

    def compare(model: Any, images: Sequence[Image.Image], pairs: Sequence[Pair]) -> list[Answer]:
        return [Answer((), (row.similarity,)) for row in compute_similarities(model, images, pairs, measure)]

    return PAIRS, compare


def require_batch_invariance(
    model: Any, call: Call, *, measure: Measure = "cosine", inputs: Sequence[Any] = (), alone: Any = None
) -> None:
    """Fail if an answer depends on its input's position or on the other inputs in the batch.

    `alone` is the model that gets one input at a time; by default it is the same model.
    """
    given, ask = prepare_call(call, measure)
    inputs = inputs or given

    def ask_alone(single: Any) -> Answer:
        shown = [IMAGES[single.image]] if hasattr(single, "image") else IMAGES
        placed = single._replace(image=0) if hasattr(single, "image") else single
        return ask(alone or model, shown, [placed])[0]

    expected = [ask_alone(single) for single in inputs]
    assert len(set(expected)) > 1, "a model with constant answers would prove nothing"
    order = random.Random(0).sample(range(len(inputs)), len(inputs))
    for places in (list(range(len(inputs))), order):
        answers = ask(model, IMAGES, [inputs[place] for place in places])
        assert [answer.words for answer in answers] == [expected[place].words for place in places]
        close = [pytest.approx(expected[place].numbers, abs=MAX_DIFFERENCE, rel=MAX_DIFFERENCE) for place in places]
        assert [answer.numbers for answer in answers] == close
