"""How well the saved image models answer, measured through the production code on scenes and wordings held out."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from plumbline.assets.making.checkpoints import BATCH
from plumbline.assets.making.claims import NUMBERS, RELATIONS, SKILLS
from plumbline.assets.making.drawing import draw_scene, to_png
from plumbline.assets.making.prompts import is_held_out
from plumbline.assets.making.questions import (
    OPEN_QUESTIONS,
    PLACES,
    GoldQuestion,
    ask_both_ways,
    ask_directly,
    ask_openly,
    ask_vqascore,
    sample_claiming,
)
from plumbline.assets.making.scenes import COLOURS, PARTS, SHAPES, SIZES, Scene, random_scene
from plumbline.operators.models.calls import LikelihoodModel, Pair, Question, SimilarityModel

YES_NO = ("Yes", "No")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "color": COLOURS,
    "size": SIZES,
    "shape": SHAPES,
    "part": (*(f"a {part}" for part in PARTS), "nothing"),
    "place": tuple(name for row in PLACES for name in row),
    "at place": tuple(f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES),
    "relation": RELATIONS,
}


class GoldTrial(NamedTuple):
    """A gold question with the image it is about."""

    png: bytes
    gold: GoldQuestion

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers the question is chosen from."""
        if self.gold.form != "open":
            return YES_NO
        if self.gold.topic == "count":
            return tuple(str(number) for number in range(len(NUMBERS))) if self.gold.answer.isdigit() else NUMBERS
        return CHOICES[self.gold.topic]


def held_out_questions(seed: int, each: int) -> list[GoldTrial]:
    """`each` questions of every form and topic on scenes no training drew; half of the yes/no answers are Yes."""
    rng = Random(f"held out/{seed}")
    trials: list[GoldTrial] = []
    for skill in SKILLS:
        for index in range(each):
            truth = index % 2 == 0
            for ask in (partial(ask_vqascore, held_out=True), ask_directly):
                trials.append(_gold_trial(rng, partial(ask, skill=skill, truth=truth)))
    for topic in OPEN_QUESTIONS:
        trials += [_gold_trial(rng, partial(ask_openly, topic=topic)) for _ in range(each)]
    return trials


def _gold_trial(rng: Random, ask: Callable[[Random, Scene], GoldQuestion | None]) -> GoldTrial:
    while True:
        scene = random_scene(rng)
        gold = ask(rng, scene)
        if gold is not None:
            return GoldTrial(_draw_png(rng, scene), gold)


def _draw_png(rng: Random, scene: Scene) -> bytes:
    return to_png(draw_scene(scene, rng.getrandbits(32)))


def _encode(model: LikelihoodModel | SimilarityModel, pngs: Sequence[bytes]) -> list[Any]:
    """PNG files through the model's own preprocessing and tower."""
    pixels = [model.preprocess(Image.open(io.BytesIO(png)).convert("RGB")) for png in pngs]
    batches = [pixels[first : first + BATCH] for first in range(0, len(pixels), BATCH)]
    return [encoded for batch in batches for encoded in model.encode(batch)]


def vqa_accuracy(model: LikelihoodModel, trials: Sequence[GoldTrial]) -> dict[str, dict[str, Any]]:
    """By form and topic, the share of questions whose likeliest choice is the gold answer, and their number."""
    features = _encode(model, [trial.png for trial in trials])
    questions = [Question(index, trial.gold.text, trial.choices) for index, trial in enumerate(trials)]
    outcomes: dict[str, list[bool]] = {}
    for trial, logprobs in zip(trials, model.likelihood(features, questions), strict=True):
        right = trial.choices[_likeliest(logprobs)] == trial.gold.answer
        outcomes.setdefault(f"{trial.gold.form}/{trial.gold.topic}", []).append(right)
    return {name: _accuracy(group) for name, group in outcomes.items()}


def _likeliest(logprobs: Any) -> int:
    return int(np.argmax([sum(tokens) for tokens in logprobs]))


def order_accuracy(model: LikelihoodModel, seed: int, each: int) -> dict[str, Any]:
    """How often two questions that differ in which thing is named first have different answers, and the right ones.

    To a model that hears no order the two are one question.
    """
    rng = Random(f"held out order/{seed}")
    pngs: list[bytes] = []
    questions: list[Question] = []
    while len(pngs) < each:
        scene = random_scene(rng)
        texts = ask_both_ways(rng, scene)
        if texts is not None:
            questions += [Question(len(pngs), text, YES_NO) for text in texts]
            pngs.append(_draw_png(rng, scene))
    yes = [_likeliest(logprobs) == 0 for logprobs in model.likelihood(_encode(model, pngs), questions)]
    pairs = list(zip(yes[::2], yes[1::2], strict=True))
    return {
        "told_apart": rounded_mean([true != swapped for true, swapped in pairs]),
        "right": rounded_mean([true and not swapped for true, swapped in pairs]),
        "n": each,
    }


def clip_accuracy(model: SimilarityModel, seed: int, each: int) -> dict[str, dict[str, Any]]:
    """By skill, how often a true statement of held-out wording is nearer to its image than a nearly true one."""
    rng = Random(f"held out clip/{seed}")
    return {skill: _accuracy(_nearer(model, [_choice_trial(rng, skill) for _ in range(each)])) for skill in SKILLS}


class ChoiceTrial(NamedTuple):
    """An image with a true and a nearly true statement."""

    png: bytes
    statements: tuple[str, str]
    """The true one first."""


def _choice_trial(rng: Random, skill: str) -> ChoiceTrial:
    while True:
        scene = random_scene(rng)
        true, false = (sample_claiming(rng, scene, skill, truth=truth) for truth in (True, False))
        if true and false and is_held_out(true.text) and is_held_out(false.text):
            return ChoiceTrial(_draw_png(rng, scene), (true.text, false.text))


def _nearer(model: SimilarityModel, trials: Sequence[ChoiceTrial]) -> list[bool]:
    features = _encode(model, [trial.png for trial in trials])
    true, false = (
        model.compare(features, [Pair(image, trial.statements[place]) for image, trial in enumerate(trials)])
        for place in (0, 1)
    )
    return [nearer.similarity > other.similarity for nearer, other in zip(true, false, strict=True)]


def _accuracy(outcomes: Sequence[bool]) -> dict[str, Any]:
    return {"accuracy": rounded_mean(outcomes), "n": len(outcomes)}


def rounded_mean(values: Any) -> float:
    """The mean of numbers, or the share of what is true, to four digits."""
    return round(float(np.mean(values)), 4)
