"""Training of the tiny CLIP-FlanT5 by the two-stage recipe of the VQAScore paper, appendix D: captions, then VQA.

As there, the tower stays as it was trained before. FlanT5 is not pretrained here, so both stages train all of it.
"""

from collections.abc import Sequence
from random import Random

from transformers import PreTrainedTokenizerFast

from operators.pack.claims import SKILLS
from operators.pack.networks import draw_pixels
from operators.pack.questions import OPEN_QUESTIONS, GoldQuestion, ask_directly, ask_openly, ask_vqascore, caption
from operators.pack.scenes import MOST_ENTITIES, Scene, random_scene
from operators.training.exercises import Exercise, ExerciseBatch, ask, make_batch, split_caption
from operators.training.loop import Stage

CAPTIONS_EVERY = 10
CAPTIONS_EACH = 2
FEWEST_ENTITIES = 2
GROWING_SHARE = 0.3
SKILL_WEIGHTS = {"counting": 2, "spatial": 3, "comparison": 2, "universality": 2}
FORM_WEIGHTS = {"vqascore": 6, "direct": 2, "open": 2}


def most_entities(stage: Stage, step: int) -> int:
    """The most entities a scene has at this step: a curriculum from two to all, grown at 30% of the steps."""
    progress = min(1.0, step / max(1.0, GROWING_SHARE * stage.steps))
    return round(FEWEST_ENTITIES + progress * (MOST_ENTITIES - FEWEST_ENTITIES))


class ExerciseMaker:
    """Draws fresh scenes and makes each step's batch of captions or questions of them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng

    def captions(self, stage: Stage, step: int) -> ExerciseBatch:
        """Captions split at a random word: the first part is read, the second written (appendix D)."""
        return self._captions(stage.size, stage.each, most_entities(stage, step))

    def questions(self, stage: Stage, step: int) -> ExerciseBatch:
        """Questions in the form of inference; now and then captions, so that what they taught is kept."""
        most = most_entities(stage, step)
        if step % CAPTIONS_EVERY == 0:
            return self._captions(stage.size, CAPTIONS_EACH, most)
        scenes = self._scenes(stage.size, most)
        exercises = [
            ask(index, question.text, question.answer)
            for index, scene in enumerate(scenes)
            for question in training_questions(self.rng, scene, stage.each)
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


def training_questions(rng: Random, scene: Scene, count: int) -> list[GoldQuestion]:
    """`count` questions about the scene, half of the yes/no ones with the answer Yes, none of held-out wording."""
    questions: list[GoldQuestion] = []
    while len(questions) < count:
        question = _training_question(rng, scene)
        if question is not None:
            questions.append(question)
    return questions


def _training_question(rng: Random, scene: Scene) -> GoldQuestion | None:
    (form,) = rng.choices(list(FORM_WEIGHTS), list(FORM_WEIGHTS.values()))
    if form == "open":
        return ask_openly(rng, scene, rng.choice(list(OPEN_QUESTIONS)))
    (skill,) = rng.choices(SKILLS, [SKILL_WEIGHTS.get(skill, 1) for skill in SKILLS])
    truth = rng.random() < 0.5
    if form == "direct":
        return ask_directly(rng, scene, skill, truth=truth)
    return ask_vqascore(rng, scene, skill, truth=truth, held_out=False)
