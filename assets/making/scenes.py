"""Scenes of coloured, textured shapes on a grid, and their images."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
COLOURS = ("red", "green", "blue", "yellow", "purple", "black")
SIZES = ("small", "large")
PARTS = ("dot", "stripe")
GRID_SIZE = 3
GRID_CELLS = tuple((row, column) for row in range(GRID_SIZE) for column in range(GRID_SIZE))
MAX_ENTITIES = 6
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
    """Content of one image; each cell contains at most one entity."""

    entities: tuple[Entity, ...]

    def __post_init__(self) -> None:
        cells = [entity.cell for entity in self.entities]
        if len(set(cells)) != len(cells):
            raise ValueError(f"scene: expected one entity in a cell, got cells {sorted(cells)}")

    @property
    def free_cells(self) -> list[tuple[int, int]]:
        taken = {entity.cell for entity in self.entities}
        return [cell for cell in GRID_CELLS if cell not in taken]

    def replace_entities(self, new: Mapping[Entity, Entity]) -> "Scene":
        """Return the scene with each entity that is a key of `new` replaced by the corresponding value."""
        return Scene(entities=tuple(new.get(entity, entity) for entity in self.entities))


@dataclass(frozen=True, kw_only=True, slots=True)
class Palette:
    """Shapes and colours to choose from in a scene; with few of them, shapes repeat and near misses are common."""

    shapes: tuple[str, ...] = SHAPES
    colours: tuple[str, ...] = COLOURS


def sample_palette(rng: Random) -> Palette:
    """Choose two to four shapes, and the same number of colours."""
    shapes = rng.sample(SHAPES, rng.randint(2, 4))
    return Palette(shapes=tuple(shapes), colours=tuple(rng.sample(COLOURS, rng.randint(2, 4))))


def sample_entity(rng: Random, palette: Palette, cell: tuple[int, int]) -> Entity:
    """Draw an entity for this cell, using the palette's shapes and colours."""
    return Entity(
        shape=rng.choice(palette.shapes),
        colour=rng.choice(palette.colours),
        size=rng.choice(SIZES),
        part=rng.choice(PARTS) if rng.random() < PART_SHARE else None,
        cell=cell,
    )


def sample_scene(rng: Random, palette: Palette | None = None, *, max_entities: int = MAX_ENTITIES) -> Scene:
    """Draw 1 to `max_entities` entities in random cells, using the given palette or a random palette."""
    palette = palette or sample_palette(rng)
    cells = rng.sample(GRID_CELLS, rng.randint(1, max_entities))
    return Scene(entities=tuple(sample_entity(rng, palette, cell) for cell in cells))


def edit_scene(rng: Random, scene: Scene, palette: Palette) -> Scene:
    """Make one small random change; return the same scene if the chosen change is impossible."""
    edit = rng.choice((*POSSIBLE_VALUES, "swap cells", "swap colours", "add", "remove"))
    match edit:
        case "add":
            return _add_entity(rng, scene, palette)
        case "remove":
            return _remove_entity(rng, scene)
        case "swap cells":
            return _swap_values(rng, scene, "cell")
        case "swap colours":
            return _swap_values(rng, scene, "colour")
    entity = rng.choice(scene.entities)
    return scene.replace_entities(
        {entity: replace(entity, **{edit: rng.choice(POSSIBLE_VALUES[edit](scene, palette))})}
    )


POSSIBLE_VALUES: Mapping[str, Callable[[Scene, Palette], Sequence[Any]]] = {
    "colour": lambda scene, palette: palette.colours,
    "shape": lambda scene, palette: palette.shapes,
    "size": lambda scene, palette: SIZES,
    "part": lambda scene, palette: (*PARTS, None),
    "cell": lambda scene, palette: scene.free_cells,
}
"""For each field of an entity, a function that returns the values that the field can be changed to."""


def _swap_values(rng: Random, scene: Scene, field: str) -> Scene:
    if len(scene.entities) < 2:
        return scene
    first, second = rng.sample(scene.entities, 2)
    return scene.replace_entities(
        {
            first: replace(first, **{field: getattr(second, field)}),
            second: replace(second, **{field: getattr(first, field)}),
        }
    )


def _add_entity(rng: Random, scene: Scene, palette: Palette) -> Scene:
    """Add an entity; half of the time, copy an existing one, so that there are several of a kind to count."""
    if len(scene.entities) >= MAX_ENTITIES:
        return scene
    cell = rng.choice(scene.free_cells)
    added = sample_entity(rng, palette, cell)
    if rng.random() < 0.5:
        added = replace(rng.choice(scene.entities), cell=cell)
    return Scene(entities=(*scene.entities, added))


def _remove_entity(rng: Random, scene: Scene) -> Scene:
    if len(scene.entities) < 2:
        return scene
    removed = rng.choice(scene.entities)
    return Scene(entities=tuple(entity for entity in scene.entities if entity is not removed))


IMAGE_SIDE = 96
CELL_SIDE = IMAGE_SIDE // GRID_SIZE
OVERSAMPLING_FACTOR = 8
RADII_BY_SIZE = {"small": (8.5, 9.0, 9.5), "large": (12.5, 13.0, 13.5)}
MAX_JITTER_PIXELS = 1
BACKGROUND_LEVELS = range(238, 253)
RGB_BY_COLOUR = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 90, 220),
    "yellow": (245, 205, 20),
    "purple": (150, 60, 190),
    "black": (25, 25, 25),
}
MARK_COLOUR = (255, 255, 255)
MARK_COLOUR_ON_YELLOW = (25, 25, 25)

Pixels = NDArray[np.uint8]
Coverage = NDArray[np.float32]
DrawFunction = Callable[[ImageDraw.ImageDraw, float, float], None]


def draw_scene(scene: Scene, seed: int | str) -> Pixels:
    """Draw the scene in RGB, (96, 96, 3); the seed determines position and size jitter and the background shade."""
    rng = Random(seed)
    background = np.array([rng.choice(BACKGROUND_LEVELS) for _ in range(3)], dtype=np.float32)
    canvas = np.empty((IMAGE_SIDE + 2 * MAX_JITTER_PIXELS, IMAGE_SIDE + 2 * MAX_JITTER_PIXELS, 3), dtype=np.float32)
    canvas[:] = background
    for entity in scene.entities:
        _draw_entity(canvas, entity, rng)
    return np.round(canvas[MAX_JITTER_PIXELS:-MAX_JITTER_PIXELS, MAX_JITTER_PIXELS:-MAX_JITTER_PIXELS]).astype(np.uint8)


def to_png(pixels: Pixels) -> bytes:
    """Encode the pixels as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _draw_entity(canvas: Coverage, entity: Entity, rng: Random) -> None:
    radius = rng.choice(RADII_BY_SIZE[entity.size])
    top, left = (
        CELL_SIDE * index + MAX_JITTER_PIXELS + rng.randint(-MAX_JITTER_PIXELS, MAX_JITTER_PIXELS)
        for index in entity.cell
    )
    region = canvas[top : top + CELL_SIDE, left : left + CELL_SIDE]
    layers = [(_draw_shape(entity.shape, radius), RGB_BY_COLOUR[entity.colour])]
    if entity.part:
        mark = MARK_COLOUR_ON_YELLOW if entity.colour == "yellow" else MARK_COLOUR
        layers.append((_draw_part(entity.shape, entity.part, radius), mark))
    for coverage, colour in layers:
        region += coverage * (np.array(colour, dtype=np.float32) - region)


@cache
def _draw_shape(shape: str, radius: float) -> Coverage:
    return _measure_coverage(lambda draw, centre, scale: SHAPE_DRAWERS[shape](draw, centre, radius * scale))


@cache
def _draw_part(shape: str, part: str, radius: float) -> Coverage:
    mark = _measure_coverage(lambda draw, centre, scale: PART_DRAWERS[part](draw, centre, radius * scale))
    covered: Coverage = np.minimum(mark, _draw_shape(shape, radius))
    return covered


def _measure_coverage(draw_on: DrawFunction) -> Coverage:
    """Draw on an enlarged canvas, and return the covered fraction of each pixel at the original size, (32, 32, 1)."""
    side = CELL_SIDE * OVERSAMPLING_FACTOR
    mask = Image.new("L", (side, side))
    draw_on(ImageDraw.Draw(mask), side / 2, OVERSAMPLING_FACTOR)
    blocks = np.asarray(mask, dtype=np.float32).reshape(CELL_SIDE, OVERSAMPLING_FACTOR, CELL_SIDE, OVERSAMPLING_FACTOR)
    coverage: Coverage = (blocks.mean(axis=(1, 3)) / 255)[..., None]
    return coverage


def _draw_disc(draw: Any, centre: float, radius: float) -> None:
    draw.ellipse((centre - radius, centre - radius, centre + radius, centre + radius), fill=255)


def _draw_box(draw: Any, centre: float, half_width: float, half_height: float) -> None:
    corners = (centre - half_width, centre - half_height, centre + half_width, centre + half_height)
    draw.rectangle(corners, fill=255)


def _draw_polygon(draw: Any, centre: float, radii: list[float]) -> None:
    """Draw a polygon with corners at equal angles, starting at the top; `radii` are their distances from the centre."""
    angles = [2 * math.pi * index / len(radii) for index in range(len(radii))]
    corners = [
        (centre + radius * math.sin(angle), centre - radius * math.cos(angle))
        for radius, angle in zip(radii, angles, strict=True)
    ]
    draw.polygon(corners, fill=255)


def _draw_heart(draw: Any, centre: float, radius: float) -> None:
    steps = [2 * math.pi * index / 60 for index in range(60)]
    scale = radius / 15.5
    corners = [
        (
            centre + scale * 16 * math.sin(t) ** 3,
            centre - scale * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t) + 2.5),
        )
        for t in steps
    ]
    draw.polygon(corners, fill=255)


def _draw_cross(draw: Any, centre: float, radius: float) -> None:
    _draw_box(draw, centre, radius, radius * 0.36)
    _draw_box(draw, centre, radius * 0.36, radius)


SHAPE_DRAWERS: dict[str, DrawFunction] = {
    "circle": _draw_disc,
    "square": lambda draw, centre, radius: _draw_box(draw, centre, radius * 0.88, radius * 0.88),
    "triangle": lambda draw, centre, radius: _draw_polygon(draw, centre, [radius * 1.15] * 3),
    "star": lambda draw, centre, radius: _draw_polygon(draw, centre, [radius * 1.1, radius * 0.48] * 5),
    "heart": _draw_heart,
    "cross": _draw_cross,
}
PART_DRAWERS: dict[str, DrawFunction] = {
    "dot": lambda draw, centre, radius: _draw_disc(draw, centre, radius * 0.34),
    "stripe": lambda draw, centre, radius: _draw_box(draw, centre, radius * 1.2, radius * 0.2),
}
