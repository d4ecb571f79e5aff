"""The shapes world: scenes of coloured shapes on a 3x3 grid, random scenes, and the small edits that tell two apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
COLOURS = ("red", "green", "blue", "yellow", "purple", "black")
SIZES = ("small", "large")
PARTS = ("dot", "stripe")
GRID = 3
CELLS = tuple((row, column) for row in range(GRID) for column in range(GRID))
MOST_ENTITIES = 6
PART_SHARE = 0.35


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """One shape in one cell of the grid."""

    shape: str
    colour: str
    size: str
    part: str | None
    """A mark drawn on the shape in a contrasting colour, or None."""
    cell: tuple[int, int]
    """Row and column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What is to be seen in one image; at most one entity stands in a cell."""

    entities: tuple[Entity, ...]

    def __post_init__(self) -> None:
        cells = [entity.cell for entity in self.entities]
        if len(set(cells)) != len(cells):
            raise ValueError(f"scene: expected one entity in a cell, got cells {sorted(cells)}")

    @property
    def free_cells(self) -> list[tuple[int, int]]:
        taken = {entity.cell for entity in self.entities}
        return [cell for cell in CELLS if cell not in taken]

    def changed(self, new: Mapping[Entity, Entity]) -> "Scene":
        """The scene with entities replaced."""
        return Scene(entities=tuple(new.get(entity, entity) for entity in self.entities))


@dataclass(frozen=True, kw_only=True, slots=True)
class Palette:
    """The shapes and colours a scene is drawn from; a narrow one makes repeated shapes and near misses common."""

    shapes: tuple[str, ...] = SHAPES
    colours: tuple[str, ...] = COLOURS


def random_palette(rng: Random) -> Palette:
    """Two to four shapes and as many colours."""
    shapes = rng.sample(SHAPES, rng.randint(2, 4))
    return Palette(shapes=tuple(shapes), colours=tuple(rng.sample(COLOURS, rng.randint(2, 4))))


def random_entity(rng: Random, palette: Palette, cell: tuple[int, int]) -> Entity:
    """An entity of the palette in this cell."""
    return Entity(
        shape=rng.choice(palette.shapes),
        colour=rng.choice(palette.colours),
        size=rng.choice(SIZES),
        part=rng.choice(PARTS) if rng.random() < PART_SHARE else None,
        cell=cell,
    )


def random_scene(rng: Random, palette: Palette | None = None, *, most: int = MOST_ENTITIES) -> Scene:
    """One to `most` entities of the palette, by default a random one, in random cells."""
    palette = palette or random_palette(rng)
    cells = rng.sample(CELLS, rng.randint(1, most))
    return Scene(entities=tuple(random_entity(rng, palette, cell) for cell in cells))


def edit_scene(rng: Random, scene: Scene, palette: Palette) -> Scene:
    """The scene after one small random change; the same scene where the drawn change is impossible."""
    edit = rng.choice((*VALUES, "swap cells", "swap colours", "add", "remove"))
    match edit:
        case "add":
            return _add(rng, scene, palette)
        case "remove":
            return _remove(rng, scene)
        case "swap cells":
            return _swap(rng, scene, "cell")
        case "swap colours":
            return _swap(rng, scene, "colour")
    entity = rng.choice(scene.entities)
    return scene.changed({entity: replace(entity, **{edit: rng.choice(VALUES[edit](scene, palette))})})


VALUES: Mapping[str, Callable[[Scene, Palette], Sequence[Any]]] = {
    "colour": lambda scene, palette: palette.colours,
    "shape": lambda scene, palette: palette.shapes,
    "size": lambda scene, palette: SIZES,
    "part": lambda scene, palette: (*PARTS, None),
    "cell": lambda scene, palette: scene.free_cells,
}
"""What an entity's field may be changed to."""


def _swap(rng: Random, scene: Scene, field: str) -> Scene:
    if len(scene.entities) < 2:
        return scene
    first, second = rng.sample(scene.entities, 2)
    return scene.changed(
        {
            first: replace(first, **{field: getattr(second, field)}),
            second: replace(second, **{field: getattr(first, field)}),
        }
    )


def _add(rng: Random, scene: Scene, palette: Palette) -> Scene:
    """Half of the time a second one of what is there, which is what counting turns on."""
    if len(scene.entities) >= MOST_ENTITIES:
        return scene
    cell = rng.choice(scene.free_cells)
    added = random_entity(rng, palette, cell)
    if rng.random() < 0.5:
        added = replace(rng.choice(scene.entities), cell=cell)
    return Scene(entities=(*scene.entities, added))


def _remove(rng: Random, scene: Scene) -> Scene:
    if len(scene.entities) < 2:
        return scene
    removed = rng.choice(scene.entities)
    return Scene(entities=tuple(entity for entity in scene.entities if entity is not removed))
