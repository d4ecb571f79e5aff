"""Training of the vision tower alone: every patch must tell what stands in its cell of the grid.

A tiny tower has no 400 million pairs to learn to see from; these labels stand in for them. The heads that read the
labels off are thrown away.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import CLIPVisionModel

from operators.pack.networks import draw_pixels
from operators.pack.scenes import CELLS, COLOURS, PARTS, SHAPES, SIZES, Entity, Palette, Scene, random_scene

EMPTY = "empty"
PLAIN = "plain"
FIELDS = {
    "shape": (*SHAPES, EMPTY),
    "colour": (*COLOURS, EMPTY),
    "size": (*SIZES, EMPTY),
    "part": (*PARTS, PLAIN, EMPTY),
    "cell": CELLS,
}


class CellBatch(NamedTuple):
    """Images with what stands in each of their cells."""

    pixels: torch.Tensor
    """(images, 3, 48, 48)."""
    labels: dict[str, torch.Tensor]
    """By field, (images, 9) indices into its values."""


class CellReader(nn.Module):
    """The tower with one linear reading of each field from the patches of its penultimate layer."""

    def __init__(self, tower: CLIPVisionModel) -> None:
        super().__init__()
        self.tower = tower
        width = int(tower.config.hidden_size)
        self.heads = nn.ModuleDict({field: nn.Linear(width, len(values)) for field, values in FIELDS.items()})


def cell_loss(model: CellReader, batch: CellBatch) -> torch.Tensor:
    """Sum over the fields of the mean cross-entropy, read from what CLIP-FlanT5 reads: all but the class token."""
    hidden = model.tower(pixel_values=batch.pixels, output_hidden_states=True).hidden_states
    patches = hidden[-2][:, 1:]
    losses = [
        cross_entropy(head(patches).float().flatten(0, 1), batch.labels[field].flatten())
        for field, head in model.heads.items()
    ]
    return torch.stack(losses).sum()


def cell_batch(rng: Random, images: int) -> CellBatch:
    """Fresh scenes of up to nine entities of any shape and colour."""
    scenes = [random_scene(rng, Palette(), most=len(CELLS)) for _ in range(images)]
    return CellBatch(draw_pixels(rng, scenes), cell_labels(scenes))


def cell_labels(scenes: Sequence[Scene]) -> dict[str, torch.Tensor]:
    """By field, what stands in each cell, row by row."""
    by_cell = [{entity.cell: entity for entity in scene.entities} for scene in scenes]
    return {
        field: torch.tensor(
            [[values.index(_value(field, entities.get(cell), cell)) for cell in CELLS] for entities in by_cell]
        )
        for field, values in FIELDS.items()
    }


def _value(field: str, entity: Entity | None, cell: tuple[int, int]) -> object:
    if field == "cell":
        return cell
    return EMPTY if entity is None else getattr(entity, field) or PLAIN
