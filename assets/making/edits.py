"""The shapes_edits benchmark: editing instructions for scenes of shapes, carried out by four simulated editors."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.assets.making.claims import (
    RELATION_CHECKS,
    RELATIONS,
    AbsenceClaim,
    Claim,
    Description,
    ExistenceClaim,
    RelationClaim,
)
from plumbline.assets.making.prompts import join_list, make_content_id
from plumbline.assets.making.scenes import COLOURS, GRID_CELLS, SHAPES, SIZES, Entity, Scene, draw_scene, to_png
from plumbline.assets.making.tables import write_tables
from plumbline.operators.base.rows import table
from plumbline.operators.base.schemas import PROMPTS

EDITS_SUITE = "shapes_edits"
EDITS_PER_KIND = 8
"""Number of instructions of each kind."""
SCISSORS_ERRORS_PER_KIND = 2
"""Number of instructions of each kind that the editor `scissors` applies to the wrong thing in the scene."""
THINGS_PER_IMAGE = 4
"""Number of things in a source image; their shapes and colours are all different."""
EDIT_PROMPTS_SCHEMA = pa.schema([*PROMPTS, ("source_caption", pa.string()), ("target_caption", pa.string())])
_ID_FIELDS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]
IMAGES_SCHEMA = pa.schema([*_ID_FIELDS, ("image", pa.binary()), ("source", pa.binary())])
TRUTH_SCHEMA = pa.schema([*_ID_FIELDS, ("correct", pa.list_(pa.bool_())), ("score", pa.float64())])
"""Ground truth. `correct` contains, for each question, True if the right answer is yes. `score` is the fraction of True
values, or 0 if the instruction was not followed.
"""


class AppliedEdit(NamedTuple):
    """An editing instruction, and the scene after the edit."""

    text: str
    scene: Scene
    new_claims: tuple[Claim, ...]
    """Claims that are true after the edit; the first claim was false before it."""


def describe_entity(entity: Entity) -> Description:
    """Describe the entity by its colour and shape."""
    return Description(shape=entity.shape, colour=entity.colour)


def _recolour_entity(source: Scene, thing: Entity, spare: Entity) -> AppliedEdit:
    old, new = describe_entity(thing), replace(thing, colour=spare.colour)
    new_claims = (ExistenceClaim(describe_entity(new)), AbsenceClaim(old))
    return AppliedEdit(f"make the {old.noun} {new.colour}", source.replace_entities({thing: new}), new_claims)


def _remove_entity(source: Scene, thing: Entity, spare: Entity) -> AppliedEdit:
    rest = tuple(entity for entity in source.entities if entity is not thing)
    return AppliedEdit(
        f"remove the {describe_entity(thing).noun}", Scene(entities=rest), (AbsenceClaim(describe_entity(thing)),)
    )


def _add_entity(source: Scene, thing: Entity, spare: Entity) -> AppliedEdit:
    new = describe_entity(spare)
    return AppliedEdit(f"add {new.indefinite}", Scene(entities=(*source.entities, spare)), (ExistenceClaim(new),))


def _move_entity(source: Scene, thing: Entity, spare: Entity) -> AppliedEdit:
    """Move the thing to the cell of `spare`; the instruction relates it to a second thing, named without its colour.

    The edit is not sound if the move creates no new relation between the two things.
    """
    moved, other = replace(thing, cell=spare.cell), source.entities[1]
    new_relations = [
        name for name in RELATIONS if RELATION_CHECKS[name](moved, other) > RELATION_CHECKS[name](thing, other)
    ]
    claim = RelationClaim(
        describe_entity(thing), Description(shape=other.shape), next(iter(new_relations), RELATIONS[0])
    )
    text = f"move the {claim.first.noun} {claim.relation} the {claim.second.noun}"
    return AppliedEdit(text, source.replace_entities({thing: moved}), (claim,))


def _replace_entity(source: Scene, thing: Entity, spare: Entity) -> AppliedEdit:
    old, new = describe_entity(thing), describe_entity(spare)
    scene = source.replace_entities({thing: replace(spare, cell=thing.cell)})
    return AppliedEdit(f"replace the {old.noun} with {new.indefinite}", scene, (ExistenceClaim(new), AbsenceClaim(old)))


EDIT_FUNCTIONS: Mapping[str, Callable[[Scene, Entity, Entity], AppliedEdit]] = {
    "recolour": _recolour_entity,
    "remove": _remove_entity,
    "add": _add_entity,
    "move": _move_entity,
    "replace": _replace_entity,
}
"""For each kind of edit, a function that applies it to one thing in a scene.

The function's arguments are the scene, the thing to edit, and a spare thing. The spare thing is added to the scene,
replaces the edited thing, or passes its colour or cell on to the edited thing.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A source scene, an instruction, and the scenes after the instruction was followed correctly and incorrectly."""

    kind: str
    source: Scene
    done: AppliedEdit
    missed: Scene
    """The scene after the edit was applied to the wrong thing, and with another colour."""
    kept: tuple[Entity, ...]
    """Entities that the instruction does not affect."""

    @property
    def prompt_id(self) -> str:
        return make_content_id(self.done.text.encode())

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Claims to ask about: the requested change, and everything that must stay the same."""
        return (*self.done.new_claims, *(ExistenceClaim(describe_entity(thing)) for thing in self.kept))

    @property
    def is_sound(self) -> bool:
        """Return True if the first claim is enough to show that the instruction was followed."""
        first = self.done.new_claims[0]
        return not (first.holds(self.source) or first.holds(self.missed)) and all(
            claim.holds(self.done.scene) for claim in self.claims
        )


def sample_edit(rng: Random, kind: str) -> Edit:
    """Sample an instruction of the given kind about the last thing in a random source scene."""
    *colours, other_colour = rng.sample(COLOURS, THINGS_PER_IMAGE + 2)
    shapes, cells = rng.sample(SHAPES, THINGS_PER_IMAGE + 1), rng.sample(GRID_CELLS, THINGS_PER_IMAGE + 1)
    *things, spare = (
        Entity(shape=shape, colour=colour, size=rng.choice(SIZES), part=None, cell=cell)
        for shape, colour, cell in zip(shapes, colours, cells, strict=True)
    )
    source = Scene(entities=tuple(things))
    carry_out = EDIT_FUNCTIONS[kind]
    return Edit(
        kind=kind,
        source=source,
        done=carry_out(source, things[-1], spare),
        missed=carry_out(source, things[0], replace(spare, colour=other_colour)).scene,
        kept=tuple(things if kind == "add" else things[:-1]),
    )


def make_edits(seed: int) -> list[Edit]:
    """Make `EDITS_PER_KIND` sound edits of every kind, cycling through the kinds; all instructions are different."""
    rng = Random(f"edits/{seed}")
    edits: dict[str, Edit] = {}
    for kind in [*EDIT_FUNCTIONS] * EDITS_PER_KIND:
        edit = sample_edit(rng, kind)
        while not edit.is_sound or edit.done.text in edits:
            edit = sample_edit(rng, kind)
        edits[edit.done.text] = edit
    return list(edits.values())


def _repaint_scene(edit: Edit) -> Scene:
    """Return the correctly edited scene, but with a different colour for every entity that should be kept."""
    return edit.done.scene.replace_entities({
        thing: replace(thing, colour=COLOURS[COLOURS.index(thing.colour) - 1]) for thing in edit.kept
    })  # fmt: skip


EDITOR_FUNCTIONS: Mapping[str, Callable[[Edit, int], Scene]] = {
    "tweezers": lambda edit, number: edit.done.scene,
    "scissors": lambda edit, number: edit.missed if number < SCISSORS_ERRORS_PER_KIND else edit.done.scene,
    "roller": lambda edit, number: _repaint_scene(edit),
    "glass": lambda edit, number: edit.source,
}
"""For each editor, a function that returns the result of an edit, given the edit and the edit's number among the edits
of the same kind.

One editor is always right, one gets some edits wrong, one also changes everything else, and one changes nothing.
"""


def draw_edit(edit: Edit, scene: Scene) -> bytes:
    """Draw the scene as a PNG.

    Unchanged entities look the same as in the source image, unless an entity that is drawn before them was removed.
    """
    return to_png(draw_scene(scene, edit.prompt_id))


def _write_caption(scene: Scene) -> str:
    return join_list([describe_entity(entity).indefinite for entity in scene.entities])


def _make_prompt_row(edit: Edit) -> dict[str, Any]:
    return {
        "prompt_id": edit.prompt_id,
        "text": edit.done.text,
        "skills": [edit.kind],
        "suite": EDITS_SUITE,
        "source_caption": _write_caption(edit.source),
        "target_caption": _write_caption(edit.done.scene),
    }


def make_edit_tables(seed: int) -> dict[str, pa.Table]:
    """Return all tables of the benchmark, by path in the benchmark's folder."""
    edits = make_edits(seed)
    tables = {"prompts.parquet": table([_make_prompt_row(edit) for edit in edits], EDIT_PROMPTS_SCHEMA)}
    truth = []
    for editor, carry_out in EDITOR_FUNCTIONS.items():
        images = []
        for number, edit in enumerate(edits):
            scene = carry_out(edit, number // len(EDIT_FUNCTIONS))
            png = draw_edit(edit, scene)
            image_id = make_content_id(editor.encode(), edit.prompt_id.encode(), png)
            ids = {"image_id": image_id, "prompt_id": edit.prompt_id, "generator": editor}
            images.append(ids | {"image": png, "source": draw_edit(edit, edit.source)})
            correct = [claim.holds(scene) for claim in edit.claims]
            truth.append(ids | {"correct": correct, "score": correct[0] * sum(correct) / len(correct)})
        tables[f"images/{editor}/00000.parquet"] = table(images, IMAGES_SCHEMA)
    return tables | {"truth.parquet": table(truth, TRUTH_SCHEMA)}


def format_questions_csv(edits: Sequence[Edit]) -> str:
    """Return the questions as a CSV in DSG-1k's layout.

    The first question about an edit asks whether the instruction was followed; the others depend on it.
    """
    columns = ("item_id", "text", "proposition_id", "dependency", "tuple", "question_natural_language")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for edit in edits:
        for number, claim in enumerate(edit.claims, 1):
            kind = "followed" if claim in edit.done.new_claims else "kept"
            row = (edit.prompt_id, edit.done.text, number, int(number > 1), f"{kind} ({claim.text})", claim.question)
            writer.writerow(row)
    return file.getvalue()


def write_edits(seed: int, folder: Path) -> None:
    """Write the benchmark's tables and questions."""
    write_tables(make_edit_tables(seed), folder)
    (folder / "questions.csv").write_text(format_questions_csv(make_edits(seed)))
