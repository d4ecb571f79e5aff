"""Checks that a batched model gives the same answer for an input alone, in a padded batch, and in any order."""

import random
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pytest
from PIL import Image

from plumbline.operators.models.calls import (
    Call,
    Compared,
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
from plumbline.operators.models.families.embedders import DinoSimilarity
from plumbline.operators.models.networks.similarity import DualEncoder
from tests.operators import tiny

CLOSE = 1e-4
"""Tolerance for float32 on a CPU."""
PICTURES = (
    tiny.picture(0),
    tiny.picture(1, width=24, height=64),
    tiny.picture(2, width=64, height=24),
    tiny.picture(3, width=16, height=16),
)
BEFORE = tiny.picture(4, width=40, height=32)
"""The source of every image, for models that score edits and for models without text input."""
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
CHOOSING = (
    Question(0, "is it red?", ("yes", "no")),
    Question(1, "a", ("star", "red", "a circle")),
    Question(0, "a", ("star", "red", "a circle")),
    Question(3, "is it?", ("a", "blue")),
    Question(2, "is it red?", ("yes", "no")),
)
"""Questions with several choices, short enough for the tiny text towers."""


def likelihoods(
    model: LikelihoodModel, pictures: Sequence[Image.Image], questions: Sequence[Question]
) -> list[list[list[float]]]:
    """Make the call as the stage does, and fail on any error."""
    features = model.encode([model.preprocess(picture) for picture in pictures])
    answers = model.likelihood(features, questions)
    assert all(isinstance(answer, list) for answer in answers), answers
    return [list(answer) for answer in answers if isinstance(answer, list)]


def similarities(
    model: SimilarityModel, pictures: Sequence[Image.Image], texts: Sequence[tuple[int, str]], measure: Measure
) -> list[Compared]:
    """Make the call as the stage does, starting with an empty cache of texts."""
    if isinstance(model, DualEncoder):
        model.embedded.clear()
    features = model.encode([_preprocess(model, picture) for picture in (*pictures, BEFORE)])
    blind = isinstance(model, DinoSimilarity)
    pairs = [Pair(text[0], source=len(pictures)) if blind else Pair(*text) for text in texts]
    return list(model.compare(features, pairs, measure))


def _preprocess(model: Any, picture: Image.Image) -> Any:
    """Preprocess the image, together with its source if the model scores edits."""
    edits = type(model).__name__ == "EditRewardSimilarity"  # belongs to a plugin
    return model.preprocess_several([BEFORE, picture]) if edits else model.preprocess(picture)


def replies(
    model: ImageGenerateModel, pictures: Sequence[Image.Image], requests: Sequence[ImageRequest]
) -> list[Generation]:
    """Make the call as the stages do, and fail on any error."""
    features = model.encode([model.preprocess(picture) for picture in pictures])
    given = model.generate_from_images(features, requests)
    assert all(isinstance(reply, Generation) for reply in given), given
    return [reply for reply in given if isinstance(reply, Generation)]


class Answer(NamedTuple):
    """A model's answer to one input: words must be equal, and numbers must be close."""

    words: tuple[str, ...]
    numbers: tuple[float, ...] = ()


Ask = Callable[[Any, Sequence[Image.Image], Sequence[Any]], list[Answer]]


def _likelihoods(model: Any, pictures: Sequence[Image.Image], questions: Sequence[Question]) -> list[Answer]:
    return [Answer((), tuple(chain(*choices))) for choices in likelihoods(model, pictures, questions)]


def _replies(model: Any, pictures: Sequence[Image.Image], requests: Sequence[ImageRequest]) -> list[Answer]:
    return [_reply(reply) for reply in replies(model, pictures, requests)]


def _reply(reply: Generation) -> Answer:
    return Answer((reply.text,), (reply.complete, reply.usage.new_tokens))


def _regions(model: Any, pictures: Sequence[Image.Image], images: Sequence[Pair]) -> list[Answer]:
    told = model.regions(model.encode([model.preprocess(pictures[pair.image]) for pair in images]))
    return [Answer(tuple(map(str, regions))) for regions in told]


def _texts(model: Any, pictures: Sequence[Image.Image], images: Sequence[Pair]) -> list[Answer]:
    return [Answer((text,)) for text in model.ocr(model.encode([model.preprocess(pictures[i.image]) for i in images]))]


def _boxes(model: Any, pictures: Sequence[Image.Image], wanted: Sequence[DetectionRequest]) -> list[Answer]:
    found = model.detect(model.encode([model.preprocess(picture) for picture in pictures]), wanted)
    return [Answer(tuple(box.label for box in boxes), tuple(n for box in boxes for n in box[1:])) for boxes in found]


REQUESTS = [
    Request((Message("user", text),), length) for length in (12, 20) for text in ("What does it show?", "Is it red?")
]
ABOUT_IMAGES = [ImageRequest(image, request) for request in REQUESTS for image in range(len(PICTURES))]
PAIRS = [Pair(image, text) for image in range(len(PICTURES)) for text in TEXTS]
ASKED: dict[Call, tuple[Sequence[Any], Ask]] = {
    "likelihood": (QUESTIONS, _likelihoods),
    "generate_from_images": (ABOUT_IMAGES, _replies),
    "regions": ([Pair(image, "") for image in range(len(PICTURES))], _regions),
    "ocr": ([Pair(image, "") for image in range(len(PICTURES))], _texts),
    "detect": ([DetectionRequest(i, phrase, 0.0, 0.25) for i in range(len(PICTURES)) for phrase in PHRASES], _boxes),
    "generate": (
        [request._replace(max_tokens=3 + 5 * number) for number, request in enumerate(REQUESTS)],
        lambda model, pictures, requests: list(map(_reply, model.generate(requests))),
    ),
    "entailment": (
        [(premise, hypothesis) for premise in TEXTS for hypothesis in ("it is red", "a")],
        lambda model, pictures, pairs: [Answer((), (number,)) for number in model.entailment(pairs)],
    ),
    "embedding": (
        TEXTS,
        lambda model, pictures, texts: [Answer((), tuple(row.tolist())) for row in model.encode_texts(texts).features],
    ),
}
"""Inputs, and the function that makes the call, by kind of call."""


def asked(call: Call, measure: Measure = "cosine") -> tuple[Sequence[Any], Ask]:
    """Return the inputs for a call and the function that makes it; `image` is an index into PICTURES."""
    if call != "similarity":
        return ASKED[call]

    def compare(model: Any, pictures: Sequence[Image.Image], pairs: Sequence[Pair]) -> list[Answer]:
        return [Answer((), (row.similarity,)) for row in similarities(model, pictures, pairs, measure)]

    return PAIRS, compare


def require_alike(
    model: Any, call: Call, *, measure: Measure = "cosine", inputs: Sequence[Any] = (), alone: Any = None
) -> None:
    """Fail if an answer depends on its position or on the other inputs in its batch.

    `alone` is the model that gets one input at a time; by default it is the same model.
    """
    given, ask = asked(call, measure)
    inputs = inputs or given

    def one(single: Any) -> Answer:
        shown = [PICTURES[single.image]] if hasattr(single, "image") else PICTURES
        placed = single._replace(image=0) if hasattr(single, "image") else single
        return ask(alone or model, shown, [placed])[0]

    expected = [one(single) for single in inputs]
    assert len(set(expected)) > 1, "a model with constant answers would prove nothing"
    order = random.Random(0).sample(range(len(inputs)), len(inputs))
    for places in (list(range(len(inputs))), order):
        answers = ask(model, PICTURES, [inputs[place] for place in places])
        assert [answer.words for answer in answers] == [expected[place].words for place in places]
        close = [pytest.approx(expected[place].numbers, abs=CLOSE, rel=CLOSE) for place in places]
        assert [answer.numbers for answer in answers] == close
