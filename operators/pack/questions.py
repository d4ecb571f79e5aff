"""Questions about scenes with their gold answers, and captions: what the models are trained on and measured by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from random import Random

from operators.pack.claims import NUMBERS, RELATIONS, Claim, Description, Exists, Outsizes, Relates, related
from operators.pack.prompts import Statement, describe, is_held_out, join_list, sample_statement
from operators.pack.scenes import Entity, Palette, Scene, edit_scene, random_palette, random_scene

VQASCORE_TEMPLATE = 'Does this figure show "{}"? Please answer yes or no.'
TRIES = 12
EASY_SHARE = 0.1
DIGIT_SHARE = 0.25
MOST_TOLD = 3
PLACES = (
    ("top left", "top", "top right"),
    ("left", "center", "right"),
    ("bottom left", "bottom", "bottom right"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldQuestion:
    """A question about one scene, with the answer that the scene's truth gives."""

    text: str
    answer: str
    form: str
    """`vqascore`, `direct` or `open`."""
    topic: str
    """The skill it takes; for open questions, what is asked for."""


def yes_or_no(truth: bool) -> str:
    return "Yes" if truth else "No"


def sample_claiming(rng: Random, scene: Scene, skill: str, *, truth: bool) -> Statement | None:
    """A statement of the skill that is true, or false, of the scene; None where the draws find none.

    A false one is true of a scene one or two edits away (seldom: of another scene), so that it is nearly true and
    its words alone do not give it away.
    """
    for _ in range(TRIES):
        described = scene if truth else _near_miss(rng, scene)
        statement = sample_statement(rng, described, skill)
        if statement is not None and statement.holds(scene) == truth:
            return statement
    return None


def _near_miss(rng: Random, scene: Scene) -> Scene:
    if rng.random() < EASY_SHARE:
        return random_scene(rng)
    other = random_palette(rng)
    palette = Palette(
        shapes=(*(entity.shape for entity in scene.entities), *other.shapes[:2]),
        colours=(*(entity.colour for entity in scene.entities), *other.colours[:2]),
    )
    edited = edit_scene(rng, scene, palette)
    return edit_scene(rng, edited, palette) if rng.random() < 0.3 else edited


def ask_vqascore(rng: Random, scene: Scene, skill: str, *, truth: bool, held_out: bool) -> GoldQuestion | None:
    """VQAScore's question about a statement whose wording is, or is not, among the held-out ones."""
    for _ in range(TRIES):
        statement = sample_claiming(rng, scene, skill, truth=truth)
        if statement is not None and is_held_out(statement.text) == held_out:
            text = VQASCORE_TEMPLATE.format(statement.text)
            return GoldQuestion(text=text, answer=yes_or_no(truth), form="vqascore", topic=skill)
    return None


def ask_directly(rng: Random, scene: Scene, skill: str, *, truth: bool) -> GoldQuestion | None:
    """A plain yes/no question of the skill: about things that may exist, or about the one there is."""
    for _ in range(TRIES):
        statement = sample_claiming(rng, scene, skill, truth=truth)
        claims = [claim for claim in statement.claims if claim.kind == skill] if statement else []
        claims = [claim for claim in claims if claim.holds(scene) == truth]
        if claims:
            claim = rng.choice(claims)
            return GoldQuestion(text=_wording(rng, scene, claim), answer=yes_or_no(truth), form="direct", topic=skill)
    return None


def _wording(rng: Random, scene: Scene, claim: Claim) -> str:
    definite = definite_question(scene, claim) if rng.random() < 0.5 else None
    if definite:
        return definite
    if rng.random() < 0.2:
        return VQASCORE_TEMPLATE.format(claim.text)
    return claim.question if rng.random() < 0.5 else claim.question.replace(" exactly", "")


def definite_question(scene: Scene, claim: Claim) -> str | None:
    """The claim asked of *the* thing it is about; None where the scene has none or several of them."""
    match claim:
        case Exists(what=what):
            return _definite_property(scene, what)
        case Relates(one=one, relation=relation, other=other) if _unique(scene, one) and _unique(scene, other):
            return f"Is the {one.noun} {relation} the {other.noun}?"
        case Outsizes(one=one, other=other) if _unique(scene, one) and _unique(scene, other):
            return f"Is the {one.noun} {claim.relation} the {other.noun}?"
    return None


def _definite_property(scene: Scene, what: Description) -> str | None:
    bare = Description(shape=what.shape)
    without_part = Description(shape=what.shape, colour=what.colour, size=what.size)
    if what.part and _unique(scene, without_part):
        return f"Does the {without_part.noun} have a {what.part}?"
    if not what.part and bool(what.colour) != bool(what.size) and _unique(scene, bare):
        return f"Is the {bare.noun} {what.colour or what.size}?"
    return None


def _unique(scene: Scene, what: Description) -> bool:
    return len(what.among(scene)) == 1


def ask_openly(rng: Random, scene: Scene, topic: str) -> GoldQuestion | None:
    """A question whose answer is a word or two; None where the scene has nothing to ask it of."""
    asked = OPEN_QUESTIONS[topic](rng, scene)
    return asked and GoldQuestion(text=asked[0], answer=asked[1], form="open", topic=topic)


Asked = tuple[str, str] | None


def _the_one(rng: Random, scene: Scene, **shares: float) -> tuple[Entity, Description] | None:
    """An entity with a description that nothing else fits."""
    entity = rng.choice(scene.entities)
    what = describe(rng, entity, **{"colour": 0.5, "size": 0.1, "part": 0.1} | shares)
    return (entity, what) if _unique(scene, what) else None


def _ask_colour(rng: Random, scene: Scene) -> Asked:
    found = _the_one(rng, scene, colour=0)
    return found and (f"What color is the {found[1].noun}?", found[0].colour)


def _ask_size(rng: Random, scene: Scene) -> Asked:
    found = _the_one(rng, scene, size=0)
    return found and (f"What size is the {found[1].noun}?", found[0].size)


def _ask_place(rng: Random, scene: Scene) -> Asked:
    found = _the_one(rng, scene)
    return found and (f"Where is the {found[1].noun}?", place(found[0]))


def _ask_part(rng: Random, scene: Scene) -> Asked:
    found = _the_one(rng, scene, part=0)
    if found is None:
        return None
    return f"What does the {found[1].noun} have?", f"a {found[0].part}" if found[0].part else "nothing"


def _ask_shape(rng: Random, scene: Scene) -> Asked:
    entity = rng.choice(scene.entities)
    what = Description(shape=None, colour=entity.colour, size=entity.size if rng.random() < 0.3 else None)
    return (f"What shape is the {what.noun}?", entity.shape) if _unique(scene, what) else None


def _ask_at_place(rng: Random, scene: Scene) -> Asked:
    entity = rng.choice(scene.entities)
    return f"What is at the {place(entity)}?", f"a {entity.colour} {entity.shape}"


def _ask_count(rng: Random, scene: Scene) -> Asked:
    what = describe(rng, rng.choice(scene.entities), size=0.1)
    if rng.random() < 0.15:
        what = describe(rng, rng.choice(random_scene(rng).entities))
    number = len(what.among(scene))
    return f"How many {what.plural} are there?", str(number) if rng.random() < DIGIT_SHARE else NUMBERS[number]


def _ask_relation(rng: Random, scene: Scene) -> Asked:
    """Which of two opposite relations holds between two things of which there is one each."""
    one, other = _the_one(rng, scene), _the_one(rng, scene)
    if one is None or other is None or one[0] is other[0]:
        return None
    pair = rng.choice((RELATIONS[:2], RELATIONS[2:]))
    for relation in pair:
        if related(one[0], relation, other[0]):
            return f"Is the {one[1].noun} {pair[0]} or {pair[1]} the {other[1].noun}?", relation
    return None


OPEN_QUESTIONS: Mapping[str, Callable[[Random, Scene], Asked]] = {
    "color": _ask_colour,
    "size": _ask_size,
    "shape": _ask_shape,
    "part": _ask_part,
    "count": _ask_count,
    "place": _ask_place,
    "at place": _ask_at_place,
    "relation": _ask_relation,
}


def place(entity: Entity) -> str:
    """Where in the image the entity stands, `top left` to `bottom right`."""
    return PLACES[entity.row][entity.column]


def caption(rng: Random, scene: Scene) -> str:
    """A caption that tells what stands where, how many there are of what, or some relations."""
    tell = rng.choice((_tell_places, _tell_places, _tell_places, _tell_counts, _tell_relations))
    return (tell(rng, scene) or _tell_places(rng, scene)) + "."


def _tell_places(rng: Random, scene: Scene) -> str:
    """Up to three entities one after the other in the order of reading, each in full."""
    ordered = sorted(scene.entities, key=lambda entity: entity.cell)
    first = rng.randrange(max(1, len(ordered) - MOST_TOLD + 1))
    told = ordered[first : first + MOST_TOLD]
    return ", ".join(f"{_in_full(entity).one} at the {place(entity)}" for entity in told)


def _in_full(entity: Entity) -> Description:
    return Description(shape=entity.shape, colour=entity.colour, size=entity.size, part=entity.part)


def _tell_counts(rng: Random, scene: Scene) -> str:
    nouns = sorted(f"{entity.colour} {entity.shape}" for entity in scene.entities)
    groups = [(noun, len(list(same))) for noun, same in groupby(nouns)]
    return join_list([f"{NUMBERS[n]} {_counted(noun, n)}" for noun, n in groups])


def _counted(noun: str, number: int) -> str:
    colour, shape = noun.split()
    what = Description(shape=shape, colour=colour)
    return what.noun if number == 1 else what.plural


def _tell_relations(rng: Random, scene: Scene) -> str:
    statements = [sample_statement(rng, scene, rng.choice(("spatial", "spatial", "comparison"))) for _ in range(2)]
    return ", ".join(told.text for told in statements if told is not None and not is_held_out(told.text))
