"""Training of the tiny CLIP-FlanT5 by the two-stage recipe of the VQAScore paper, appendix D: captions, then VQA.

As there, the tower stays as it was trained before. FlanT5 is not pretrained here, so both stages train all of it.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from operators.models.clip_flant5 import AFTER_IMAGE, BEFORE_IMAGE, ClipFlanT5
from operators.pack.claims import SKILLS
from operators.pack.networks import draw_pixels
from operators.pack.questions import OPEN_QUESTIONS, GoldQuestion, ask_directly, ask_openly, ask_vqascore, caption
from operators.pack.scenes import Scene, random_scene
from operators.pack.training import Stage

CAPTIONS_EVERY = 10
CAPTIONS_EACH = 2
CAPTION_INPUT = "\n{}"
SKILL_WEIGHTS = {"counting": 2, "spatial": 3, "comparison": 2, "universality": 2}
FORM_WEIGHTS = {"vqascore": 6, "direct": 2, "open": 2}


class Exercise(NamedTuple):
    """What the network reads after one image and what it must answer."""

    image: int
    """Index into the batch's images."""
    text: str
    answer: str


class ExerciseBatch(NamedTuple):
    """One training step's input."""

    pixels: torch.Tensor
    """(images, 3, 48, 48)."""
    images: torch.Tensor
    """(n,), the image of each exercise."""
    before: torch.Tensor
    """Token ids that stand before every image."""
    after: torch.Tensor
    """(n, tokens), right-padded."""
    labels: torch.Tensor
    """(n, tokens), right-padded."""


class ExerciseMaker:
    """Draws fresh scenes and makes each step's batch of captions or questions of them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng

    def captions(self, stage: Stage, step: int) -> ExerciseBatch:
        """Captions split at a random word: the first part is read, the second written (appendix D)."""
        return self._captions(stage.size, stage.each, stage.most(step))

    def questions(self, stage: Stage, step: int) -> ExerciseBatch:
        """Questions in the form of inference; now and then captions, so that what they taught is kept."""
        if step % CAPTIONS_EVERY == 0:
            return self._captions(stage.size, CAPTIONS_EACH, stage.most(step))
        scenes = self._scenes(stage.size, stage.most(step))
        exercises = [
            Exercise(index, AFTER_IMAGE.format(question=question.text), question.answer)
            for index, scene in enumerate(scenes)
            for question in training_questions(self.rng, scene, stage.each)
        ]
        return self._batch(scenes, exercises, BEFORE_IMAGE)

    def _captions(self, images: int, each: int, most: int) -> ExerciseBatch:
        scenes = self._scenes(images, most)
        exercises = [self._split_caption(index, scene) for index, scene in enumerate(scenes) for _ in range(each)]
        return self._batch(scenes, exercises, "")

    def _scenes(self, count: int, most: int) -> list[Scene]:
        return [random_scene(self.rng, most=most) for _ in range(count)]

    def _split_caption(self, image: int, scene: Scene) -> Exercise:
        words = caption(self.rng, scene).split()
        cut = self.rng.randrange(len(words))
        return Exercise(image, CAPTION_INPUT.format(" ".join(words[:cut])), " ".join(words[cut:]))

    def _batch(self, scenes: Sequence[Scene], exercises: Sequence[Exercise], before: str) -> ExerciseBatch:
        return ExerciseBatch(
            pixels=draw_pixels(self.rng, scenes),
            images=torch.tensor([exercise.image for exercise in exercises]),
            before=torch.tensor(self.tokenizer(before).input_ids),
            after=self._pad([exercise.text for exercise in exercises]),
            labels=self._pad([exercise.answer for exercise in exercises]),
        )

    def _pad(self, texts: Sequence[str]) -> torch.Tensor:
        rows = [torch.tensor(ids) for ids in self.tokenizer(list(texts)).input_ids]
        return pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id)


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


def exercise_loss(model: ClipFlanT5, batch: ExerciseBatch) -> torch.Tensor:
    """Mean cross-entropy over the answers' tokens, EOS included; every image is encoded once."""
    features = model.encode_images(batch.pixels)[batch.images]
    logits = model.decode(model.encode_questions(features, batch.before, batch.after), batch.labels)
    return cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten(), ignore_index=model.pad_id)
