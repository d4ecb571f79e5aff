"""How well the saved checkpoints answer, measured through the production code on scenes and wordings held out."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from operators.models.calls import Question
from operators.models.checkpoints import ModelConfig, resolve_model
from operators.models.clip import ClipSimilarity
from operators.models.clip_flant5 import ClipFlanT5Likelihood
from operators.models.loading import load
from operators.pack.checkpoints import CLIP_FOLDER, VQA_FOLDER
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

YES_NO = ("Yes", "No")
PAIR_BATCH = 128
CHOICES: Mapping[str, tuple[str, ...]] = {
    "color": COLOURS,
    "size": SIZES,
    "shape": SHAPES,
    "part": (*(f"a {part}" for part in PARTS), "nothing"),
    "place": tuple(name for row in PLACES for name in row),
    "at place": tuple(f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES),
    "relation": RELATIONS,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A gold question with the image it is about."""

    png: bytes
    gold: GoldQuestion


def choices_of(gold: GoldQuestion) -> tuple[str, ...]:
    """The answers a question is chosen from."""
    if gold.form != "open":
        return YES_NO
    if gold.topic == "count":
        return tuple(str(number) for number in range(len(NUMBERS))) if gold.answer.isdigit() else NUMBERS
    return CHOICES[gold.topic]


def held_out_questions(seed: int, each: int) -> list[Asked]:
    """`each` questions of every form and topic on scenes no training drew; half of the yes/no answers are Yes."""
    rng = Random(f"held out/{seed}")
    asked: list[Asked] = []
    for skill in SKILLS:
        for index in range(each):
            truth = index % 2 == 0
            asked.append(_until_asked(rng, partial(ask_vqascore, skill=skill, truth=truth, held_out=True)))
            asked.append(_until_asked(rng, partial(ask_directly, skill=skill, truth=truth)))
    for topic in OPEN_QUESTIONS:
        asked += [_until_asked(rng, partial(ask_openly, topic=topic)) for _ in range(each)]
    return asked


def _until_asked(rng: Random, ask: Callable[[Random, Scene], GoldQuestion | None]) -> Asked:
    while True:
        scene = random_scene(rng)
        gold = ask(rng, scene)
        if gold is not None:
            return Asked(png=to_png(draw_scene(scene, rng.getrandbits(32))), gold=gold)


def load_vqa(assets: Path) -> ClipFlanT5Likelihood:
    """The saved CLIP-FlanT5 as production loads it."""
    config = ModelConfig(family="clip_flant5", checkpoint=str(assets / VQA_FOLDER), pair_batch=PAIR_BATCH)
    model = load(resolve_model(config, on_gpu=False), "likelihood")
    assert isinstance(model, ClipFlanT5Likelihood)
    return model


def load_similarity(assets: Path) -> ClipSimilarity:
    """The saved CLIP as production loads it."""
    config = ModelConfig(family="clip", checkpoint=str(assets / CLIP_FOLDER), pair_batch=PAIR_BATCH)
    model = load(resolve_model(config, on_gpu=False), "similarity")
    assert isinstance(model, ClipSimilarity)
    return model


def encode_images(model: ClipFlanT5Likelihood | ClipSimilarity, pngs: Sequence[bytes]) -> list[torch.Tensor]:
    """PNG files through the model's own preprocessing and tower, one tensor each."""
    batches = [pngs[first : first + PAIR_BATCH] for first in range(0, len(pngs), PAIR_BATCH)]
    return [encoded for batch in batches for encoded in model.encode([_pixels(model, png) for png in batch])]


def _pixels(model: ClipFlanT5Likelihood | ClipSimilarity, png: bytes) -> torch.Tensor:
    return model.preprocess(Image.open(io.BytesIO(png)).convert("RGB"))


def vqa_accuracy(model: ClipFlanT5Likelihood, asked: Sequence[Asked]) -> dict[str, dict[str, Any]]:
    """By form and topic, the share of questions whose likeliest choice is the gold answer, and their number."""
    features = encode_images(model, [each.png for each in asked])
    questions = [Question(index, each.gold.text, choices_of(each.gold)) for index, each in enumerate(asked)]
    right = [
        question.choices[_likeliest(logprobs)] == each.gold.answer
        for question, logprobs, each in zip(questions, model.likelihood(features, questions), asked, strict=True)
    ]
    return _shares((f"{each.gold.form}/{each.gold.topic}", value) for each, value in zip(asked, right, strict=True))


def _likeliest(logprobs: Sequence[Sequence[float]]) -> int:
    return int(np.argmax([sum(tokens) for tokens in logprobs]))


def _shares(outcomes: Iterable[tuple[str, bool]]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[bool]] = {}
    for name, outcome in outcomes:
        groups.setdefault(name, []).append(outcome)
    return {name: {"accuracy": round(sum(group) / len(group), 4), "n": len(group)} for name, group in groups.items()}


def clip_accuracy(model: ClipSimilarity, seed: int, each: int) -> dict[str, dict[str, Any]]:
    """By skill, how often a true statement of held-out wording is nearer to its image than a nearly true one."""
    rng = Random(f"held out clip/{seed}")
    outcomes: list[tuple[str, bool]] = []
    for skill in SKILLS:
        trials = [_choice_trial(rng, skill) for _ in range(each)]
        images = torch.stack(encode_images(model, [trial.png for trial in trials]))
        true, false = (model.encode_texts([trial.texts[index] for trial in trials]).features for index in (0, 1))
        nearer = (images * true).sum(-1) > (images * false).sum(-1)
        outcomes += [(skill, bool(value)) for value in nearer]
    return _shares(outcomes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceTrial:
    """An image with a true and a nearly true statement."""

    png: bytes
    texts: tuple[str, str]


def _choice_trial(rng: Random, skill: str) -> ChoiceTrial:
    while True:
        scene = random_scene(rng)
        statements = [sample_claiming(rng, scene, skill, truth=truth) for truth in (True, False)]
        texts = [statement.text for statement in statements if statement and is_held_out(statement.text)]
        if len(texts) == 2:
            return ChoiceTrial(png=to_png(draw_scene(scene, rng.getrandbits(32))), texts=(texts[0], texts[1]))


def vqa_scores(model: ClipFlanT5Likelihood, made: Sequence[Depiction]) -> list[float]:
    """VQAScore of each depiction for its prompt: the mean reduction over `Yes` and its EOS."""
    features = encode_images(model, [depiction.png for depiction in made])
    questions = [
        Question(index, VQASCORE_TEMPLATE.format(depiction.prompt.text), ("Yes",))
        for index, depiction in enumerate(made)
    ]
    return [float(np.exp(np.mean(logprobs[0]))) for logprobs in model.likelihood(features, questions)]


def clip_scores(model: ClipSimilarity, made: Sequence[Depiction]) -> list[float]:
    """Cosine of each depiction with its raw prompt."""
    images = torch.stack(encode_images(model, [depiction.png for depiction in made]))
    texts = model.encode_texts([depiction.prompt.text for depiction in made]).features
    return [float(value) for value in (images * texts).sum(-1)]


def benchmark_quality(benchmark: Benchmark, scores: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """A metric's mean by generator, and its area under the ROC curve for `no requirement broken`."""
    pairs = [
        (depiction, score)
        for name, made in benchmark.depictions.items()
        for depiction, score in zip(made, scores[name], strict=True)
    ]
    by_skill = {skill: _auroc([pair for pair in pairs if pair[0].prompt.skill == skill]) for skill in SKILLS}
    means = {name: round(float(np.mean(values)), 4) for name, values in scores.items()}
    return {"auroc": _auroc(pairs), "auroc_by_main_skill": by_skill, "mean_by_generator": means}


def _auroc(pairs: Sequence[tuple[Depiction, float]]) -> float:
    correct = np.array([not depiction.prompt.broken(depiction.scene) for depiction, _ in pairs])
    return round(auroc(np.array([score for _, score in pairs]), correct), 4)


def auroc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The probability that a positive's score is above a negative's, ties counting half."""
    difference = scores[positive][:, None] - scores[~positive][None, :]
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))
