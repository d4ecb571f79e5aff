"""Training batches: scenes drawn and asked about, as the tensors that inference would see."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from operators.models.clip_flant5 import AFTER_IMAGE, BEFORE_IMAGE
from operators.pack.claims import SKILLS
from operators.pack.drawing import Pixels, draw_scene
from operators.pack.networks import IMAGE_SIDE
from operators.pack.questions import OPEN_QUESTIONS, GoldQuestion, ask_directly, ask_openly, ask_vqascore, caption
from operators.pack.scenes import Scene, random_scene

IGNORED = -100
CAPTION_INPUT = "\n{}"
SKILL_WEIGHTS = {"counting": 2, "spatial": 3, "comparison": 2, "universality": 2}
FORM_WEIGHTS = {"vqascore": 6, "direct": 2, "open": 2}


class PixelMaker:
    """Scenes to network input; the same numbers as CLIP's image processor gives for the scene's PNG."""

    def __init__(self, processor: CLIPImageProcessorPil) -> None:
        self.mean = torch.tensor(processor.image_mean).view(3, 1, 1)
        self.deviation = torch.tensor(processor.image_std).view(3, 1, 1)

    def __call__(self, drawn: Sequence[Pixels]) -> torch.Tensor:
        """Drawn scenes as (n, 3, 48, 48), float32."""
        small = np.stack([_shrink(pixels) for pixels in drawn])
        values = torch.from_numpy(small).permute(0, 3, 1, 2).float() / 255
        return (values - self.mean) / self.deviation


def _shrink(pixels: Pixels) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BICUBIC))


class Exercise(NamedTuple):
    """What the network reads after one image and what it must answer."""

    image: int
    """Index into the batch's images."""
    text: str
    answer: str


class Batch(NamedTuple):
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


class BatchMaker:
    """Draws fresh scenes and makes batches of captions or questions of them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, processor: CLIPImageProcessorPil, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.pixel_maker = PixelMaker(processor)
        self.rng = rng
        self.no_text = torch.tensor(tokenizer("").input_ids)
        self.conversation = torch.tensor(tokenizer(BEFORE_IMAGE).input_ids)

    def captions(self, images: int, each: int, *, most: int) -> Batch:
        """Captions split at a random word: the first part is read, the second told (appendix D)."""
        scenes = self._scenes(images, most)
        exercises = [self._split_caption(index, scene) for index, scene in enumerate(scenes) for _ in range(each)]
        return self._batch(scenes, exercises, self.no_text)

    def questions(self, images: int, each: int, *, most: int) -> Batch:
        """Questions in the form of inference, `each` of every image."""
        scenes = self._scenes(images, most)
        exercises = [
            Exercise(index, AFTER_IMAGE.format(question=asked.text), asked.answer)
            for index, scene in enumerate(scenes)
            for asked in training_questions(self.rng, scene, each)
        ]
        return self._batch(scenes, exercises, self.conversation)

    def _scenes(self, count: int, most: int) -> list[Scene]:
        return [random_scene(self.rng, most=most) for _ in range(count)]

    def _split_caption(self, image: int, scene: Scene) -> Exercise:
        words = caption(self.rng, scene).split()
        cut = self.rng.randrange(len(words))
        return Exercise(image, CAPTION_INPUT.format(" ".join(words[:cut])), " ".join(words[cut:]))

    def _batch(self, scenes: Sequence[Scene], exercises: Sequence[Exercise], before: torch.Tensor) -> Batch:
        drawn = [draw_scene(scene, self.rng.getrandbits(32)) for scene in scenes]
        return Batch(
            pixels=self.pixel_maker(drawn),
            images=torch.tensor([exercise.image for exercise in exercises]),
            before=before,
            after=self._pad([exercise.text for exercise in exercises]),
            labels=self._pad([exercise.answer for exercise in exercises]),
        )

    def _pad(self, texts: Sequence[str]) -> torch.Tensor:
        rows = [torch.tensor(ids) for ids in self.tokenizer(list(texts)).input_ids]
        return pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id)


def training_questions(rng: Random, scene: Scene, count: int) -> list[GoldQuestion]:
    """`count` questions about the scene, half of the yes/no ones with the answer Yes, none of held-out wording."""
    asked: list[GoldQuestion] = []
    while len(asked) < count:
        question = _training_question(rng, scene)
        if question is not None:
            asked.append(question)
    return asked


def _training_question(rng: Random, scene: Scene) -> GoldQuestion | None:
    (form,) = rng.choices(list(FORM_WEIGHTS), list(FORM_WEIGHTS.values()))
    if form == "open":
        return ask_openly(rng, scene, rng.choice(list(OPEN_QUESTIONS)))
    (skill,) = rng.choices(SKILLS, [SKILL_WEIGHTS.get(skill, 1) for skill in SKILLS])
    truth = rng.random() < 0.5
    if form == "direct":
        return ask_directly(rng, scene, skill, truth=truth)
    return ask_vqascore(rng, scene, skill, truth=truth, held_out=False)
