"""How well the saved image models answer, measured through the production code on scenes and wordings held out."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from operators.models.calls import Question
from operators.models.clip_flant5 import ClipFlanT5Likelihood
from operators.models.families.clip import ClipSimilarity
from operators.pack.checkpoints import IMAGE_BATCH
from operators.pack.claims import NUMBERS, RELATIONS, SKILLS
from operators.pack.drawing import draw_scene, to_png
from operators.pack.prompts import is_held_out
from operators.pack.questions import (
    OPEN_QUESTIONS,
    PLACES,
    VQASCORE_TEMPLATE,
    GoldQuestion,
    ask_directly,
    ask_openly,
    ask_vqascore,
    sample_claiming,
)
from operators.pack.scenes import COLOURS, PARTS, SHAPES, SIZES, Scene, random_scene
from operators.pack.tables import Benchmark, Depiction
from operators.statistics.correlation import auroc

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


def _encode(model: ClipFlanT5Likelihood | ClipSimilarity, pngs: Sequence[bytes]) -> list[torch.Tensor]:
    """PNG files through the model's own preprocessing and tower, one tensor each."""
    pixels = [model.preprocess(Image.open(io.BytesIO(png)).convert("RGB")) for png in pngs]
    batches = [pixels[first : first + IMAGE_BATCH] for first in range(0, len(pixels), IMAGE_BATCH)]
    return [encoded for batch in batches for encoded in model.encode(batch)]


def vqa_accuracy(model: ClipFlanT5Likelihood, trials: Sequence[GoldTrial]) -> dict[str, dict[str, Any]]:
    """By form and topic, the share of questions whose likeliest choice is the gold answer, and their number."""
    features = _encode(model, [trial.png for trial in trials])
    questions = [Question(index, trial.gold.text, trial.choices) for index, trial in enumerate(trials)]
    outcomes: dict[str, list[bool]] = {}
    for trial, logprobs in zip(trials, model.likelihood(features, questions), strict=True):
        right = trial.choices[_likeliest(logprobs)] == trial.gold.answer
        outcomes.setdefault(f"{trial.gold.form}/{trial.gold.topic}", []).append(right)
    return {name: _accuracy(group) for name, group in outcomes.items()}


def _likeliest(logprobs: Sequence[Sequence[float]]) -> int:
    return int(np.argmax([sum(tokens) for tokens in logprobs]))


def clip_accuracy(model: ClipSimilarity, seed: int, each: int) -> dict[str, dict[str, Any]]:
    """By skill, how often a true statement of held-out wording is nearer to its image than a nearly true one."""
    rng = Random(f"held out clip/{seed}")
    return {skill: _accuracy(_nearer(model, [_choice_trial(rng, skill) for _ in range(each)])) for skill in SKILLS}


class ChoiceTrial(NamedTuple):
    """An image with a true and a nearly true statement."""

    png: bytes
    true: str
    false: str


def _choice_trial(rng: Random, skill: str) -> ChoiceTrial:
    while True:
        scene = random_scene(rng)
        true, false = (sample_claiming(rng, scene, skill, truth=truth) for truth in (True, False))
        if true and false and is_held_out(true.text) and is_held_out(false.text):
            return ChoiceTrial(_draw_png(rng, scene), true.text, false.text)


def _nearer(model: ClipSimilarity, trials: Sequence[ChoiceTrial]) -> list[bool]:
    images = torch.stack(_encode(model, [trial.png for trial in trials]))
    true = model.encode_texts([trial.true for trial in trials]).features
    false = model.encode_texts([trial.false for trial in trials]).features
    nearer: list[bool] = ((images * true).sum(-1) > (images * false).sum(-1)).tolist()
    return nearer


def _accuracy(outcomes: Sequence[bool]) -> dict[str, Any]:
    return {"accuracy": rounded_mean(outcomes), "n": len(outcomes)}


def rounded_mean(values: Any) -> float:
    """The mean of numbers, or the share of what is true, to four digits."""
    return round(float(np.mean(values)), 4)


def vqa_scores(model: ClipFlanT5Likelihood, made: Sequence[Depiction]) -> list[float]:
    """VQAScore of each depiction for its prompt: the mean reduction over `Yes` and its EOS."""
    features = _encode(model, [depiction.png for depiction in made])
    texts = [VQASCORE_TEMPLATE.format(depiction.prompt.text) for depiction in made]
    questions = [Question(index, text, ("Yes",)) for index, text in enumerate(texts)]
    return [float(np.exp(np.mean(logprobs[0]))) for logprobs in model.likelihood(features, questions)]


def clip_scores(model: ClipSimilarity, made: Sequence[Depiction]) -> list[float]:
    """Cosine of each depiction with its raw prompt."""
    images = torch.stack(_encode(model, [depiction.png for depiction in made]))
    texts = model.encode_texts([depiction.prompt.text for depiction in made]).features
    return [float(value) for value in (images * texts).sum(-1)]


def benchmark_quality(benchmark: Benchmark, score: Callable[[Sequence[Depiction]], Sequence[float]]) -> dict[str, Any]:
    """A metric's mean by generator, and its area under the ROC curve for `no requirement broken`."""
    scores = {name: score(made) for name, made in benchmark.depictions.items()}
    everything = [depiction for made in benchmark.depictions.values() for depiction in made]
    skills = np.array([depiction.prompt.skill for depiction in everything])
    correct = np.array([not depiction.broken for depiction in everything])
    flat = np.array([value for values in scores.values() for value in values])
    return {
        "auroc": round(auroc(correct, flat), 4),
        "auroc_by_main_skill": {
            skill: round(auroc(correct[skills == skill], flat[skills == skill]), 4) for skill in SKILLS
        },
        "mean_by_generator": {name: rounded_mean(values) for name, values in scores.items()},
    }
