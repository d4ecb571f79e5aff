"""What a model that reads in batches must hold: a result is the same alone, padded beside others, in any order."""

import random
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest
from PIL import Image

from plumbline.operators.models.calls import (
    Compared,
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
from plumbline.operators.models.networks.dual_encoder import DualEncoder
from tests.operators import tiny

CLOSE = 1e-4
"""In float32 on a CPU."""
PICTURES = (
    tiny.picture(0),
    tiny.picture(1, width=24, height=64),
    tiny.picture(2, width=64, height=24),
    tiny.picture(3, width=16, height=16),
)
TEXTS = (
    "a red circle",
    "two blue stars left of a green square",
    "a",
    "the red star above three blue squares , left of a circle",
)
QUESTIONS = (
    Question(0, "Is it red?", ("Yes",)),
    Question(1, "Does this figure show two stars, left of a square? Please answer Yes or No.", ("Yes", "No")),
    Question(0, "What is it?", ("circle", "a blue star", "no")),
    Question(3, "a?", ("Yes",)),
    Question(2, "Is it red?", ("Yes",)),
)


def likelihoods(
    model: LikelihoodModel, pictures: Sequence[Image.Image], questions: Sequence[Question]
) -> list[list[list[float]]]:
    """The call as the stage makes it; an error is a failure of the test."""
    features = model.encode([model.preprocess(picture) for picture in pictures])
    answers = model.likelihood(features, questions)
    assert all(isinstance(answer, list) for answer in answers), answers
    return [list(answer) for answer in answers if isinstance(answer, list)]


def similarities(
    model: SimilarityModel, pictures: Sequence[Image.Image], texts: Sequence[tuple[int, str]], measure: Measure
) -> list[Compared]:
    """The call as the stage makes it, by a model that remembers no text of an earlier one."""
    if isinstance(model, DualEncoder):
        model.embedded.clear()
    features = model.encode([model.preprocess(picture) for picture in pictures])
    return list(model.compare(features, [Pair(*text) for text in texts], measure))


def require_likelihoods_alike(model: LikelihoodModel, asked: Sequence[Question] = QUESTIONS) -> None:
    """Fails where a question's answer depends on what else is in the batch, or on its place there."""

    def answer(questions: Sequence[Question]) -> list[list[float]]:
        return [list(chain.from_iterable(choices)) for choices in likelihoods(model, PICTURES, questions)]

    def alone(question: Question) -> list[float]:
        (choices,) = likelihoods(model, [PICTURES[question.image]], [question._replace(image=0)])
        return list(chain.from_iterable(choices))

    _require_alike(asked, answer, alone)


def require_similarities_alike(model: SimilarityModel, measure: Measure = "cosine") -> None:
    """Fails where a pair's similarity depends on what else is in the batch, or on its place there."""
    pairs = [(image, text) for image in range(len(PICTURES)) for text in TEXTS]

    def alone(pair: tuple[int, str]) -> list[float]:
        return [similarities(model, [PICTURES[pair[0]]], [(0, pair[1])], measure)[0].similarity]

    def batch(asked: Sequence[tuple[int, str]]) -> list[list[float]]:
        return [[row.similarity] for row in similarities(model, PICTURES, asked, measure)]

    _require_alike(pairs, batch, alone)


def replies(
    model: ImageGenerateModel, pictures: Sequence[Image.Image], asked: Sequence[ImageRequest]
) -> list[Generation]:
    """The call as the stages make it; an error is a failure of the test."""
    features = model.encode([model.preprocess(picture) for picture in pictures])
    given = model.generate_from_images(features, asked)
    assert all(isinstance(reply, Generation) for reply in given), given
    return [reply for reply in given if isinstance(reply, Generation)]


def require_replies_alike(model: ImageGenerateModel, *, lengths: Sequence[int] = (12, 20)) -> None:
    """Fails where a reply depends on what else is in the batch, or on its place there, by a letter."""
    asked = [
        ImageRequest(image, Request((Message("user", text),), length))
        for length in lengths
        for text in ("What does it show?", "Is it red?")
        for image in range(len(PICTURES))
    ]
    expected = [replies(model, [PICTURES[one.image]], [one._replace(image=0)])[0] for one in asked]
    assert len({reply.text for reply in expected}) > 1, "a model that says the same of everything proves nothing"
    assert replies(model, PICTURES, asked) == expected
    order = list(range(len(asked)))
    random.Random(0).shuffle(order)
    assert replies(model, PICTURES, [asked[index] for index in order]) == [expected[index] for index in order]


def _require_alike(
    asked: Sequence[Any], batch: Callable[[Sequence[Any]], list[list[float]]], alone: Callable[[Any], list[float]]
) -> None:
    expected = [alone(one) for one in asked]
    assert len({tuple(row) for row in expected}) > 1, "a model that says the same of everything proves nothing"
    assert batch(asked) == [pytest.approx(row, abs=CLOSE) for row in expected]
    order = list(range(len(asked)))
    random.Random(0).shuffle(order)
    assert batch([asked[index] for index in order]) == [pytest.approx(expected[index], abs=CLOSE) for index in order]
