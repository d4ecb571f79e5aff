"""Training of the tiny CLIP: images against true prompts, with nearly true ones of the same images beside them."""

from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy, normalize
from transformers import CLIPModel, PreTrainedTokenizerFast

from operators.pack.claims import SKILLS
from operators.pack.networks import draw_pixels
from operators.pack.prompts import Prompt, is_held_out
from operators.pack.questions import sample_claiming
from operators.pack.scenes import Scene, random_scene

MOST_LOGIT_SCALE = 4.6052


class PairBatch(NamedTuple):
    """Images with prompts; the first row of prompts is the images' own, then come near misses."""

    pixels: torch.Tensor
    """(images, 3, 48, 48)."""
    ids: torch.Tensor
    """(prompts, tokens), right-padded."""
    mask: torch.Tensor
    """(prompts, tokens), 1 where a token stands."""
    true: torch.Tensor
    """(images, prompts), whether the prompt holds of the image."""


def pair_batch(tokenizer: PreTrainedTokenizerFast, rng: Random, images: int, near_misses: int, most: int) -> PairBatch:
    """`images` scenes of at most `most` entities, a true prompt of each, then `near_misses` false ones of each."""
    scenes: list[Scene] = []
    prompts: list[Prompt] = []
    while len(scenes) < images:
        scene = random_scene(rng, most=most)
        prompt = _training_prompt(rng, scene, truth=True)
        if prompt is not None:
            scenes.append(scene)
            prompts.append(prompt)
    for _ in range(near_misses):
        prompts += [_training_prompt(rng, scene, truth=False) or prompts[index] for index, scene in enumerate(scenes)]
    encoded = tokenizer([prompt.text for prompt in prompts], padding=True, return_tensors="pt")
    true = torch.tensor([[prompt.holds(scene) for prompt in prompts] for scene in scenes])
    return PairBatch(draw_pixels(rng, scenes), encoded.input_ids, encoded.attention_mask, true)


def _training_prompt(rng: Random, scene: Scene, *, truth: bool) -> Prompt | None:
    prompt = sample_claiming(rng, scene, rng.choice(SKILLS), truth=truth)
    return None if prompt is None or is_held_out(prompt.text) else prompt


def contrastive_loss(model: CLIPModel, batch: PairBatch) -> torch.Tensor:
    """CLIP's symmetric loss; a prompt that happens to be true of another image is no negative there."""
    with torch.no_grad():
        model.logit_scale.clamp_(max=MOST_LOGIT_SCALE)
    images = normalize(model.get_image_features(pixel_values=batch.pixels).pooler_output.float(), dim=-1)
    encoded = model.get_text_features(input_ids=batch.ids, attention_mask=batch.mask).pooler_output
    logits = model.logit_scale.exp() * images @ normalize(encoded.float(), dim=-1).T
    own = torch.arange(len(images), device=logits.device)
    others_true = batch.true.clone()
    others_true[own, own] = False
    logits = logits.masked_fill(others_true, -torch.inf)
    return (cross_entropy(logits, own) + cross_entropy(logits[:, : len(own)].T, own)) / 2


def freeze_tower(model: CLIPModel) -> None:
    """Keeps all that the tower's penultimate layer rests on."""
    tower = model.vision_model
    for frozen in (tower.embeddings, tower.pre_layrnorm, tower.encoder.layers[:-1]):
        frozen.requires_grad_(False)
