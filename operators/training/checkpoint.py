"""A trained CLIP-FlanT5 in the layout that was released, in the precision of the checkpoint that it was made of."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plumbline.operators.models.checkpoints.parts import Part
from plumbline.operators.models.families.clip_flant5 import ClipFlanT5Model
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.clip_flant5 import (
    ClipFlanT5,
    ClipFlanT5Likelihood,
    begin_network,
    load_network,
    save_clip_flant5,
)
from plumbline.operators.models.processing import load_tokenizer
from plumbline.operators.training.sharding import copy_whole, shard_network

TOWER_FOLDER = "vision_tower"
TOWER_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")


class Trainee(NamedTuple):
    """A network in single precision, with what stands in front of it."""

    network: ClipFlanT5
    likelihood: ClipFlanT5Likelihood
    """The same network as production calls it, with its tokenizer and preprocessing."""
    precisions: Mapping[str, torch.dtype]
    """Of the checkpoint's parameters, by name."""

    def round(self) -> None:
        """Gives every weight the value that its checkpoint can hold."""
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(parameter.to(self.precisions[name]))


def load_trainee(model: ResolvedModel, device: torch.device, *, sharded: bool = False) -> Trainee:
    """Return the checkpoint's network on a device, or this worker's part of it.

    Raises:
        ModelError: It does not load.
    """
    assert isinstance(model.config, ClipFlanT5Model), "no other family is trained"
    network = _stored_network(model)
    precisions = {name: parameter.dtype for name, parameter in network.named_parameters()}
    network = shard_network(network, device) if sharded else network.to(device=device, dtype=torch.float32)
    return Trainee(network, ClipFlanT5Likelihood.load(model, network), precisions)


def _stored_network(model: ResolvedModel) -> ClipFlanT5:
    """The checkpoint's network in the checkpoint's precision, in main memory."""
    return load_network(model.folder("checkpoint"), tower=model.folder("vision_tower"))


def begin(language: Part, tower: Part, folder: Path, *, seed: int) -> None:
    """Writes the checkpoint that stage 1 begins with: a FlanT5, a CLIP's tower, and between them a fresh projector."""
    torch.manual_seed(seed)
    network = begin_network(language.folder(), tower.folder())
    _save(network, load_tokenizer(language.folder()), tower, folder)


def save_trainee(trainee: Trainee, model: ResolvedModel, folder: Path | None) -> None:
    """Write the checkpoint in the precision of the checkpoint that the training began with.

    All workers of a sharded training call this, for their parts of the weights; only the first has a folder.
    """
    if folder is None:
        copy_whole(trainee.network, {})
        return
    network = _stored_network(model)
    with torch.no_grad():
        copy_whole(trainee.network, dict(network.named_parameters()))
    _save(network, trainee.likelihood.tokenizer, model.parts["vision_tower"], folder)


def _save(network: ClipFlanT5, tokenizer: Any, tower: Part, folder: Path) -> None:
    """The checkpoint with its tokenizer; a tower that is a local folder goes along, but for its weights, which are in
    the checkpoint.
    """
    save_clip_flant5(network, folder, tower_name=f"./{TOWER_FOLDER}" if tower.commit is None else tower.source)
    tokenizer.save_pretrained(folder)
    if tower.commit is None:
        (folder / TOWER_FOLDER).mkdir(exist_ok=True)
        for file in filter(None, map(tower.file, TOWER_FILES)):
            shutil.copyfile(file, folder / TOWER_FOLDER / file.name)
