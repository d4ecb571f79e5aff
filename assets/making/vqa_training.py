"""Trains the tiny CLIP and CLIP-FlanT5.

CLIP's vision tower is first trained alone, then on images with true and nearly true prompts. A tiny tower does not have
400 million pairs to learn from, so each patch first learns to recognise the content of its grid cell; the heads that
predict these labels are thrown away. CLIP-FlanT5 follows the two-stage recipe in the VQAScore paper, appendix D:
captions, then VQA. As in the paper, the tower is frozen. FlanT5 is not pretrained here, so both stages train all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from transformers import CLIPModel, CLIPVisionModel, PreTrainedTokenizerFast

from plumbline.assets.making.claims import SKILLS
from plumbline.assets.making.networks import draw_pixels
from plumbline.assets.making.prompts import Prompt, is_held_out
from plumbline.assets.making.questions import (
    GoldQuestion,
    ask_open_question,
    ask_plain_yes_no_question,
    ask_vqascore,
    sample_claim_prompt,
    write_caption,
)
from plumbline.assets.making.scenes import (
    COLOURS,
    GRID_CELLS,
    MAX_ENTITIES,
    PARTS,
    SHAPES,
    SIZES,
    Entity,
    Palette,
    Scene,
    sample_scene,
)
from plumbline.plugins.training.exercises import (
    Exercise,
    ExerciseBatch,
    make_batch,
    make_question_exercise,
    split_caption,
)
from plumbline.plugins.training.loop import TrainingStage

STEPS_PER_CAPTION_BATCH = 10
CAPTIONS_PER_IMAGE = 2
MIN_ENTITIES = 2
MAX_TRIES_PER_EXERCISE = 8
SCENE_GROWTH_STEPS_SHARE = 0.3
Weights = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionMixture:
    """The kinds of questions to draw, with their weights."""

    forms: Weights
    skills: Weights = field(default_factory=dict)
    """Weights of yes/no questions, by skill."""
    topics: Weights = field(default_factory=dict)
    """Weights of open questions, by topic."""
    fewest: int = MIN_ENTITIES
    """Maximum number of entities per scene at the first training step; the maximum grows in later steps."""

    def draw(self, rng: Random, scene: Scene) -> GoldQuestion | None:
        """Draw a question about the scene, never with held-out wording; return None if the draws fail."""
        form = _draw_weighted(rng, self.forms)
        if form == "open":
            return ask_open_question(rng, scene, _draw_weighted(rng, self.topics))
        skill, truth = _draw_weighted(rng, self.skills), rng.random() < 0.5
        if form == "direct":
            return ask_plain_yes_no_question(rng, scene, skill, truth=truth)
        return ask_vqascore(rng, scene, skill, truth=truth, held_out=False)


def _draw_weighted(rng: Random, weights: Weights) -> str:
    (name,) = rng.choices(list(weights), list(weights.values()))
    return name


QUESTION_MIXTURES: Mapping[str, QuestionMixture] = {
    "place": QuestionMixture(
        forms={"open": 1},
        topics={"places": 6, "place": 2, "at place": 1, "relation": 1, "color": 0.5, "shape": 0.5},
    ),
    "relation": QuestionMixture(
        forms={"open": 8.5, "direct": 1.5}, skills={"spatial": 1}, topics={"relation": 6, "places": 4}, fewest=3
    ),
    "question": QuestionMixture(
        forms={"vqascore": 5, "direct": 2, "open": 2},
        skills=dict.fromkeys(SKILLS, 1.0)
        | {"spatial": 5, "comparison": 4, "counting": 4, "universality": 2, "part": 2},
        topics={"relation": 5, "count": 2.5, "places": 2, "place": 1}
        | dict.fromkeys(("color", "size", "shape", "part", "at place"), 0.5),
    ),
}
"""The mixture of questions in each stage: first about positions, then about relations, then of all kinds.

Without the first two stages, a network of this size never learns which of two things is named first: it answers well
enough without knowing, and makes no further progress.
"""


def compute_max_entities(stage: TrainingStage, step: int, min_entities: int = MIN_ENTITIES) -> int:
    """Return the maximum number of entities per scene at this step, which grows until 30% of the steps are done."""
    progress = min(1.0, step / max(1.0, SCENE_GROWTH_STEPS_SHARE * stage.steps))
    return round(min_entities + progress * (MAX_ENTITIES - min_entities))


class ExerciseMaker:
    """Draws fresh scenes and turns them into batches of captions or questions."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng

    def make_captions(self, stage: TrainingStage, step: int) -> ExerciseBatch:
        """Make captions, split at a random word: the model reads the first part and writes the second (appendix D)."""
        return self._make_caption_batch(stage.size, stage.each, compute_max_entities(stage, step))

    def make_questions(self, mixture: QuestionMixture, stage: TrainingStage, step: int) -> ExerciseBatch:
        """Make a batch of questions or, at every STEPS_PER_CAPTION_BATCH-th step, of captions to prevent forgetting."""
        max_entities = compute_max_entities(stage, step, mixture.fewest)
        if step % STEPS_PER_CAPTION_BATCH == 0:
            return self._make_caption_batch(stage.size, CAPTIONS_PER_IMAGE, max_entities)
        scenes = self._draw_scenes(stage.size, max_entities)
        exercises = [
            make_question_exercise(index, question.text, question.answer)
            for index, scene in enumerate(scenes)
            for question in make_training_questions(self.rng, scene, mixture, stage.each)
        ]
        return self._make_batch(scenes, exercises)

    def _make_caption_batch(self, images: int, each: int, max_entities: int) -> ExerciseBatch:
        scenes = self._draw_scenes(images, max_entities)
        exercises = [
            split_caption(index, write_caption(self.rng, scene), self.rng)
            for index, scene in enumerate(scenes)
            for _ in range(each)
        ]
        return self._make_batch(scenes, exercises)

    def _draw_scenes(self, count: int, max_entities: int) -> list[Scene]:
        return [sample_scene(self.rng, max_entities=max_entities) for _ in range(count)]

    def _make_batch(self, scenes: Sequence[Scene], exercises: Sequence[Exercise]) -> ExerciseBatch:
        return make_batch(self.tokenizer, draw_pixels(self.rng, scenes), exercises)


def make_training_questions(rng: Random, scene: Scene, mixture: QuestionMixture, count: int) -> list[GoldQuestion]:
    """Return up to `count` questions about the scene; fewer, or none, if too few kinds of question suit the scene."""
    drawn = (mixture.draw(rng, scene) for _ in range(MAX_TRIES_PER_EXERCISE * count))
    return list(islice(filter(None, drawn), count))


MAX_LOGIT_SCALE = 4.6052
EMPTY_CELL = "empty"
NO_PART = "plain"
CELL_LABELS = {
    "shape": (*SHAPES, EMPTY_CELL),
    "colour": (*COLOURS, EMPTY_CELL),
    "size": (*SIZES, EMPTY_CELL),
    "part": (*PARTS, NO_PART, EMPTY_CELL),
    "cell": GRID_CELLS,
}


class CellBatch(NamedTuple):
    """Images, with the content of each of their cells."""

    pixels: torch.Tensor
    """Images, (images, 3, 48, 48)."""
    labels: dict[str, torch.Tensor]
    """Labels by field, (images, 9), as indices into the field's values."""


class CellReader(nn.Module):
    """The vision tower with a linear head for each field of CELL_LABELS, which reads the tower's penultimate layer."""

    def __init__(self, tower: CLIPVisionModel) -> None:
        super().__init__()
        self.tower = tower
        width = int(tower.config.hidden_size)
        self.heads = nn.ModuleDict({field: nn.Linear(width, len(values)) for field, values in CELL_LABELS.items()})


def compute_cell_loss(model: CellReader, batch: CellBatch) -> torch.Tensor:
    """Return the sum over fields of the mean cross-entropy.

    The heads read the same patches as CLIP-FlanT5: all but the class token.
    """
    hidden = model.tower(pixel_values=batch.pixels, output_hidden_states=True).hidden_states
    patches = hidden[-2][:, 1:]
    losses = [
        cross_entropy(head(patches).float().flatten(0, 1), batch.labels[field].flatten())
        for field, head in model.heads.items()
    ]
    return torch.stack(losses).sum()


def make_cell_batch(rng: Random, images: int) -> CellBatch:
    """Draw scenes with up to nine entities of any shape and colour."""
    scenes = [sample_scene(rng, Palette(), max_entities=len(GRID_CELLS)) for _ in range(images)]
    return CellBatch(draw_pixels(rng, scenes), label_cells(scenes))


def label_cells(scenes: Sequence[Scene]) -> dict[str, torch.Tensor]:
    """Return, for each field, the labels of each cell's content, row by row."""
    by_cell = [{entity.cell: entity for entity in scene.entities} for scene in scenes]
    return {
        field: torch.tensor(
            [
                [values.index(_get_cell_label(field, entities.get(cell), cell)) for cell in GRID_CELLS]
                for entities in by_cell
            ]
        )
        for field, values in CELL_LABELS.items()
    }


def _get_cell_label(field: str, entity: Entity | None, cell: tuple[int, int]) -> object:
    if field == "cell":
        return cell
    return EMPTY_CELL if entity is None else getattr(entity, field) or NO_PART


class PairBatch(NamedTuple):
    """Images and prompts; each image's own prompt comes first, followed by the near misses."""

    pixels: torch.Tensor
    """Images, (images, 3, 48, 48)."""
    ids: torch.Tensor
    """Token ids, (prompts, tokens), padded on the right."""
    mask: torch.Tensor
    """Attention mask, (prompts, tokens): 1 for tokens and 0 for padding."""
    true: torch.Tensor
    """True if the prompt is true of the image, (images, prompts)."""


def make_pair_batch(
    tokenizer: PreTrainedTokenizerFast, rng: Random, images: int, near_misses: int, max_entities: int
) -> PairBatch:
    """Draw `images` scenes, each with a true prompt and `near_misses` false prompts that are nearly true."""
    scenes: list[Scene] = []
    prompts: list[Prompt] = []
    while len(scenes) < images:
        scene = sample_scene(rng, max_entities=max_entities)
        prompt = _sample_training_prompt(rng, scene, truth=True)
        if prompt is not None:
            scenes.append(scene)
            prompts.append(prompt)
    for _ in range(near_misses):
        prompts += [
            _sample_training_prompt(rng, scene, truth=False) or prompts[index] for index, scene in enumerate(scenes)
        ]
    encoded = tokenizer([prompt.text for prompt in prompts], padding=True, return_tensors="pt")
    true = torch.tensor([[prompt.holds(scene) for prompt in prompts] for scene in scenes])
    return PairBatch(draw_pixels(rng, scenes), encoded.input_ids, encoded.attention_mask, true)


def _sample_training_prompt(rng: Random, scene: Scene, *, truth: bool) -> Prompt | None:
    prompt = sample_claim_prompt(rng, scene, rng.choice(SKILLS), truth=truth)
    return None if prompt is None or is_held_out(prompt.text) else prompt


def compute_contrastive_loss(model: CLIPModel, batch: PairBatch) -> torch.Tensor:
    """Return CLIP's symmetric loss.

    A prompt that happens to be true of another image is not used as a negative for that image.
    """
    with torch.no_grad():
        model.logit_scale.clamp_(max=MAX_LOGIT_SCALE)
    images = normalize(model.get_image_features(pixel_values=batch.pixels).pooler_output.float(), dim=-1)
    encoded = model.get_text_features(input_ids=batch.ids, attention_mask=batch.mask).pooler_output
    logits = model.logit_scale.exp() * images @ normalize(encoded.float(), dim=-1).T
    own = torch.arange(len(images), device=logits.device)
    others_true = batch.true.clone()
    others_true[own, own] = False
    logits = logits.masked_fill(others_true, -torch.inf)
    return (cross_entropy(logits, own) + cross_entropy(logits[:, : len(own)].T, own)) / 2


def freeze_tower(model: CLIPModel) -> None:
    """Freeze everything up to the tower's penultimate layer."""
    tower = model.vision_model
    for frozen in (tower.embeddings, tower.pre_layrnorm, tower.encoder.layers[:-1]):
        frozen.requires_grad_(False)
