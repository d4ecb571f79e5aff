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
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from operators.pack.batches import PixelMaker
from operators.pack.drawing import draw_scene
from operators.pack.scenes import CELLS, COLOURS, PARTS, SHAPES, SIZES, Entity, Palette, Scene, random_scene
from operators.pack.schedule import Report, Stage, optimise

EMPTY = "empty"
PLAIN = "plain"
FIELDS = {
    "shape": (*SHAPES, EMPTY),
    "colour": (*COLOURS, EMPTY),
    "size": (*SIZES, EMPTY),
    "part": (*PARTS, PLAIN, EMPTY),
    "cell": tuple(str(cell) for cell in CELLS),
}


class CellBatch(NamedTuple):
    """Images with what stands in each of their cells."""

    pixels: torch.Tensor
    """(images, 3, 48, 48)."""
    labels: dict[str, torch.Tensor]
    """By field, (images, 9) indices into its names."""


class CellHeads(nn.Module):
    """One linear reading of each field from the patches of the tower's penultimate layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({field: nn.Linear(width, len(names)) for field, names in FIELDS.items()})

    def loss(self, patches: torch.Tensor, labels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Sum over the fields of the mean cross-entropy; patches (images, 9, width)."""
        losses = [
            cross_entropy(head(patches).float().flatten(0, 1), labels[field].flatten())
            for field, head in self.heads.items()
        ]
        return torch.stack(losses).sum()


def cell_batch(rng: Random, pixel_maker: PixelMaker, images: int) -> CellBatch:
    """Fresh scenes of up to nine entities of any shape and colour."""
    scenes = [random_scene(rng, Palette(), most=len(CELLS)) for _ in range(images)]
    drawn = [draw_scene(scene, rng.getrandbits(32)) for scene in scenes]
    return CellBatch(pixel_maker(drawn), cell_labels(scenes))


def cell_labels(scenes: Sequence[Scene]) -> dict[str, torch.Tensor]:
    """By field, what stands in each cell, row by row."""
    standing = [{entity.cell: entity for entity in scene.entities} for scene in scenes]
    return {
        field: torch.tensor(
            [[names.index(_read(field, cells.get(cell), cell)) for cell in CELLS] for cells in standing]
        )
        for field, names in FIELDS.items()
    }


def _read(field: str, entity: Entity | None, cell: tuple[int, int]) -> str:
    if field == "cell":
        return str(cell)
    if entity is None:
        return EMPTY
    values = {"shape": entity.shape, "colour": entity.colour, "size": entity.size, "part": entity.part or PLAIN}
    return values[field]


def penultimate_patches(tower: CLIPVisionModel, pixels: torch.Tensor) -> torch.Tensor:
    """The features CLIP-FlanT5 reads: (images, 9, width), without the class token."""
    hidden: Sequence[torch.Tensor] = tower(pixel_values=pixels, output_hidden_states=True).hidden_states
    return hidden[-2][:, 1:]


def train_tower(
    tower: CLIPVisionModel, stage: Stage, processor: CLIPImageProcessorPil, rng: Random, report: Report
) -> CellHeads:
    """Trains the tower, and returns the heads that read it."""
    heads = CellHeads(int(tower.config.hidden_size))
    pixel_maker = PixelMaker(processor)

    def loss_of(step: int) -> torch.Tensor:
        batch = cell_batch(rng, pixel_maker, stage.images)
        return heads.loss(penultimate_patches(tower, batch.pixels), batch.labels)

    optimise([*tower.parameters(), *heads.parameters()], stage, loss_of, report, name="tower")
    return heads
