"""Training of the tiny CLIP: images against true statements, with nearly true ones of the same images beside them."""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy, normalize
from transformers import CLIPModel, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from operators.pack.batches import PixelMaker
from operators.pack.claims import SKILLS
from operators.pack.drawing import draw_scene
from operators.pack.prompts import Statement, is_held_out
from operators.pack.questions import sample_claiming
from operators.pack.scenes import Scene, random_scene
from operators.pack.schedule import Report, Stage, optimise

MOST_LOGIT_SCALE = 4.6052


class PairBatch(NamedTuple):
    """Images with statements; the first row of statements is the images' own, then come near misses."""

    pixels: torch.Tensor
    """(images, 3, 48, 48)."""
    ids: torch.Tensor
    """(statements, tokens), right-padded."""
    mask: torch.Tensor
    """(statements, tokens), 1 where a token stands."""
    true: torch.Tensor
    """(images, statements), whether the statement holds of the image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairMaker:
    """Draws fresh scenes and states true and nearly true things of them."""

    tokenizer: PreTrainedTokenizerFast
    processor: CLIPImageProcessorPil
    rng: Random

    def pairs(self, images: int, near_misses: int, *, most: int) -> PairBatch:
        """`images` scenes, a true statement of each, then `near_misses` false ones of each."""
        scenes, statements = self._described(images, most)
        for _ in range(near_misses):
            statements += [self._state(scene, truth=False) or statements[index] for index, scene in enumerate(scenes)]
        encoded = self.tokenizer([statement.text for statement in statements], padding=True, return_tensors="pt")
        drawn = [draw_scene(scene, self.rng.getrandbits(32)) for scene in scenes]
        true = torch.tensor([[statement.holds(scene) for statement in statements] for scene in scenes])
        return PairBatch(PixelMaker(self.processor)(drawn), encoded.input_ids, encoded.attention_mask, true)

    def _described(self, images: int, most: int) -> tuple[list[Scene], list[Statement]]:
        scenes: list[Scene] = []
        statements: list[Statement] = []
        while len(scenes) < images:
            scene = random_scene(self.rng, most=most)
            statement = self._state(scene, truth=True)
            if statement is not None:
                scenes.append(scene)
                statements.append(statement)
        return scenes, statements

    def _state(self, scene: Scene, *, truth: bool) -> Statement | None:
        statement = sample_claiming(self.rng, scene, self.rng.choice(SKILLS), truth=truth)
        return None if statement is None or is_held_out(statement.text) else statement


def contrastive_loss(model: CLIPModel, batch: PairBatch) -> torch.Tensor:
    """CLIP's symmetric loss; a statement that happens to be true of another image is no negative there."""
    images = normalize(model.get_image_features(pixel_values=batch.pixels).pooler_output.float(), dim=-1)
    encoded = model.get_text_features(input_ids=batch.ids, attention_mask=batch.mask).pooler_output
    logits = model.logit_scale.exp() * images @ normalize(encoded.float(), dim=-1).T
    own = torch.arange(len(images), device=logits.device)
    others_true = batch.true.clone()
    others_true[own, own] = False
    logits = logits.masked_fill(others_true, -torch.inf)
    return (cross_entropy(logits, own) + cross_entropy(logits[:, : len(own)].T, own)) / 2


def train_clip(model: CLIPModel, stage: Stage, maker: PairMaker, report: Report) -> None:
    """Trains all but what the tower's penultimate layer rests on; `stage.each` is the near misses of every image."""
    tower = model.vision_model
    for frozen in (tower.embeddings, tower.pre_layrnorm, tower.encoder.layers[:-1]):
        frozen.requires_grad_(False)
    model.train()

    def loss_of(step: int) -> torch.Tensor:
        with torch.no_grad():
            model.logit_scale.clamp_(max=MOST_LOGIT_SCALE)
        return contrastive_loss(model, maker.pairs(stage.images, stage.each, most=stage.most(step)))

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimise(trained, stage, loss_of, report, name="clip")
