"""Training of the tiny CLIP-FlanT5 by the two-stage recipe of the VQAScore paper, appendix D: captions, then VQA.

As there, the tower stays as it was trained before. FlanT5 is not pretrained here, so both stages train all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from transformers import PreTrainedTokenizerFast

from plumbline.assets.making.claims import SKILLS
from plumbline.assets.making.networks import draw_pixels
from plumbline.assets.making.questions import GoldQuestion, ask_directly, ask_openly, ask_vqascore, caption
from plumbline.assets.making.scenes import MOST_ENTITIES, Scene, random_scene
from plumbline.operators.training.exercises import Exercise, ExerciseBatch, ask, make_batch, split_caption
from plumbline.operators.training.loop import Stage

CAPTIONS_EVERY = 10
CAPTIONS_EACH = 2
FEWEST_ENTITIES = 2
TRIES = 8
GROWING_SHARE = 0.3
Weights = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """What questions are drawn from, by weight."""

    forms: Weights
    skills: Weights = field(default_factory=dict)
    """Of the yes/no questions."""
    topics: Weights = field(default_factory=dict)
    """Of the open ones."""
    fewest: int = FEWEST_ENTITIES
    """The most entities of a scene at the beginning."""

    def draw(self, rng: Random, scene: Scene) -> GoldQuestion | None:
        """A question about the scene, none of held-out wording; None where the draws have none."""
        form = _draw(rng, self.forms)
        if form == "open":
            return ask_openly(rng, scene, _draw(rng, self.topics))
        skill, truth = _draw(rng, self.skills), rng.random() < 0.5
        if form == "direct":
            return ask_directly(rng, scene, skill, truth=truth)
        return ask_vqascore(rng, scene, skill, truth=truth, held_out=False)


def _draw(rng: Random, weights: Weights) -> str:
    (name,) = rng.choices(list(weights), list(weights.values()))
    return name


MIXTURES: Mapping[str, Mixture] = {
    "place": Mixture(
        forms={"open": 1},
        topics={"places": 6, "place": 2, "at place": 1, "relation": 1, "color": 0.5, "shape": 0.5},
    ),
    "relation": Mixture(
        forms={"open": 8.5, "direct": 1.5}, skills={"spatial": 1}, topics={"relation": 6, "places": 4}, fewest=3
    ),
    "question": Mixture(
        forms={"vqascore": 5, "direct": 2, "open": 2},
        skills=dict.fromkeys(SKILLS, 1.0)
        | {"spatial": 5, "comparison": 4, "counting": 4, "universality": 2, "part": 2},
        topics={"relation": 5, "count": 2.5, "places": 2, "place": 1}
        | dict.fromkeys(("color", "size", "shape", "part", "at place"), 0.5),
    ),
}
"""What the stages ask one after the other: where two things are, how they stand to each other, and all there is to ask.

Without the first two a network of this size never hears which of two things is named first: it answers well enough
without, and stays there.
"""


def most_entities(stage: Stage, step: int, fewest: int = FEWEST_ENTITIES) -> int:
    """The most entities a scene has at this step: a curriculum from the fewest to all, grown at 30% of the steps."""
    progress = min(1.0, step / max(1.0, GROWING_SHARE * stage.steps))
    return round(fewest + progress * (MOST_ENTITIES - fewest))


class ExerciseMaker:
    """Draws fresh scenes and makes each step's batch of captions or questions of them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng

    def captions(self, stage: Stage, step: int) -> ExerciseBatch:
        """Captions split at a random word: the first part is read, the second written (appendix D)."""
        return self._captions(stage.size, stage.each, most_entities(stage, step))

    def questions(self, mixture: Mixture, stage: Stage, step: int) -> ExerciseBatch:
        """Questions in the form of inference; now and then captions, so that what they taught is kept."""
        most = most_entities(stage, step, mixture.fewest)
        if step % CAPTIONS_EVERY == 0:
            return self._captions(stage.size, CAPTIONS_EACH, most)
        scenes = self._scenes(stage.size, most)
        exercises = [
            ask(index, question.text, question.answer)
            for index, scene in enumerate(scenes)
            for question in training_questions(self.rng, scene, mixture, stage.each)
        ]
        return self._batch(scenes, exercises)

    def _captions(self, images: int, each: int, most: int) -> ExerciseBatch:
        scenes = self._scenes(images, most)
        exercises = [
            split_caption(index, caption(self.rng, scene), self.rng)
            for index, scene in enumerate(scenes)
            for _ in range(each)
        ]
        return self._batch(scenes, exercises)

    def _scenes(self, count: int, most: int) -> list[Scene]:
        return [random_scene(self.rng, most=most) for _ in range(count)]

    def _batch(self, scenes: Sequence[Scene], exercises: Sequence[Exercise]) -> ExerciseBatch:
        return make_batch(self.tokenizer, draw_pixels(self.rng, scenes), exercises)


def training_questions(rng: Random, scene: Scene, mixture: Mixture, count: int) -> list[GoldQuestion]:
    """Up to `count` questions about the scene: some scenes have nothing that a narrow mixture asks."""
    drawn = (mixture.draw(rng, scene) for _ in range(TRIES * count))
    return list(islice(filter(None, drawn), count))
