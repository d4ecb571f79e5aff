"""Loads the checkpoints to train, and writes the trained ones. A CLIP-FlanT5 is written in the published layout."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import torch

from plumbline.operators.models.checkpoints.parts import Part
from plumbline.operators.models.families.vlm import ChatModel
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.clip_flant5 import (
    ClipFlanT5,
    ClipFlanT5Likelihood,
    assemble_network,
    load_network,
    save_clip_flant5,
)
from plumbline.operators.models.processing import load_tokenizer
from plumbline.plugins.training.exercises import (
    TRAINED_PARTS,
    Exercise,
    ExerciseBatch,
    compute_exercise_loss,
    make_batch,
    make_question_exercise,
    split_caption,
)
from plumbline.plugins.training.sharding import gather_weights, shard_network
from plumbline.plugins.training.trainee import Trainee

TOWER_FOLDER = "vision_tower"
TOWER_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")


class ClipFlanT5Trainee(Trainee):
    """A CLIP-FlanT5 that is trained as in appendix D of the VQAScore paper."""

    prefixes: ClassVar = {part: (f"{part}.",) for part in TRAINED_PARTS}

    def make_caption_exercise(self, image: int, pixels: Any, caption: str, rng: Random) -> Exercise:
        return split_caption(image, caption, rng)

    def make_question_exercise(self, image: int, pixels: Any, question: str, answer: str) -> Exercise:
        return make_question_exercise(image, question, answer)

    def make_batch(self, pixels: Sequence[torch.Tensor], exercises: Sequence[Exercise]) -> ExerciseBatch:
        return make_batch(self.likelihood.tokenizer, self.likelihood.batch(pixels), exercises)

    def compute_loss(self, network: ClipFlanT5, batch: ExerciseBatch) -> torch.Tensor:
        return compute_exercise_loss(network, batch)

    def save(self, model: ResolvedModel, folder: Path | None) -> None:
        if folder is None:
            gather_weights(self.network, {})
            return
        network = _load_stored_network(model)
        with torch.no_grad():
            gather_weights(self.network, dict(network.named_parameters()))
        _write_checkpoint(network, self.likelihood.tokenizer, model.parts["vision_tower"], folder)


def load_trainee(model: ResolvedModel, device: torch.device, *, sharded: bool = False) -> Trainee:
    """Load a checkpoint's network onto a device, or only this worker's part of it if `sharded`.

    Raises ModelError if the checkpoint cannot be loaded.
    """
    if isinstance(model.config, ChatModel):
        from plumbline.plugins.training.llava import load_llava

        return load_llava(model, device)
    network = _load_stored_network(model)
    precisions = {name: parameter.dtype for name, parameter in network.named_parameters()}
    network = shard_network(network, device) if sharded else network.to(device=device, dtype=torch.float32)
    return ClipFlanT5Trainee(network, ClipFlanT5Likelihood.load(model, network), precisions)


def _load_stored_network(model: ResolvedModel) -> ClipFlanT5:
    return load_network(model.folder("checkpoint"), tower=model.folder("vision_tower"))


def assemble_checkpoint(language: Part, tower: Part, folder: Path, *, family: str, seed: int) -> None:
    """Write a new checkpoint for stage 1: a language model, a CLIP vision tower, and an untrained projector."""
    if family == "vlm":
        from plumbline.plugins.training.llava import assemble_llava

        assemble_llava(language, tower, folder, seed=seed)
        return
    torch.manual_seed(seed)
    network = assemble_network(language.folder(), tower.folder())
    _write_checkpoint(network, load_tokenizer(language.folder()), tower, folder)


def _write_checkpoint(network: ClipFlanT5, tokenizer: Any, tower: Part, folder: Path) -> None:
    """Write the checkpoint and its tokenizer. If the tower is local, its configuration is copied too."""
    save_clip_flant5(network, folder, tower_name=f"./{TOWER_FOLDER}" if tower.commit is None else tower.source)
    tokenizer.save_pretrained(folder)
    if tower.commit is None:
        (folder / TOWER_FOLDER).mkdir(exist_ok=True)
        for file in filter(None, map(tower.find_file, TOWER_FILES)):
            shutil.copyfile(file, folder / TOWER_FOLDER / file.name)
