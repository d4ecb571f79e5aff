"""Statements about scenes by skill, the requirements they break down into, and the benchmark's prompts."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from operators.pack.claims import (
    RELATIONS,
    SKILLS,
    Claim,
    Counts,
    Description,
    Every,
    Exists,
    Lacks,
    Outnumbers,
    Outsizes,
    Relates,
    related,
)
from operators.pack.scenes import COLOURS, SHAPES, Entity, Scene, random_scene

MOST_COUNTED = 4
HELD_OUT_OF = 4
TAIL_SHARE = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A text in the prompts' language and the claims it makes."""

    text: str
    skill: str
    """Its main skill."""
    claims: tuple[Claim, ...]

    def holds(self, scene: Scene) -> bool:
        return all(claim.holds(scene) for claim in self.claims)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One typed requirement of a prompt; it makes sense only where its parents are met."""

    requirement_id: str
    claim: Claim
    parents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One prompt of the benchmark with its graph of requirements, parents before children."""

    prompt_id: str
    text: str
    skill: str
    """Its main skill."""
    requirements: tuple[Requirement, ...]

    @property
    def skills(self) -> list[str]:
        """The kinds of its requirements, in the order of SKILLS."""
        kinds = {requirement.claim.kind for requirement in self.requirements}
        return [skill for skill in SKILLS if skill in kinds]

    def broken(self, scene: Scene) -> list[str]:
        """The requirements that the scene does not meet."""
        return [node.requirement_id for node in self.requirements if not node.claim.holds(scene)]


def content_id(*parts: bytes) -> str:
    """Sixteen hexadecimal digits that depend on every part."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def is_held_out(text: str) -> bool:
    """Whether a statement's wording is kept from training; a fixed quarter of all wordings, by their hash."""
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT_OF == 0


def make_prompts(seed: int, per_skill: int) -> list[Prompt]:
    """`per_skill` distinct prompts of each main skill, in turn, all of held-out wording."""
    rng = Random(f"prompts/{seed}")
    seen: set[str] = set()
    return [as_prompt(_new_statement(rng, skill, seen)) for _ in range(per_skill) for skill in SKILLS]


def _new_statement(rng: Random, skill: str, seen: set[str]) -> Statement:
    """A statement of held-out wording that was not seen, which it then is."""
    while True:
        statement = sample_statement(rng, random_scene(rng), skill)
        if statement is not None and is_held_out(statement.text) and statement.text not in seen:
            seen.add(statement.text)
            return statement


def as_prompt(statement: Statement) -> Prompt:
    """The statement with its claims broken down into requirements."""
    parents: dict[Claim, list[Claim]] = {}
    for claim in statement.claims:
        _add_requirement(parents, claim)
    names = {claim: f"r{index}" for index, claim in enumerate(parents, start=1)}
    requirements = tuple(
        Requirement(requirement_id=names[claim], claim=claim, parents=tuple(names[parent] for parent in above))
        for claim, above in parents.items()
    )
    return Prompt(
        prompt_id=content_id(statement.text.encode()),
        text=statement.text,
        skill=statement.skill,
        requirements=requirements,
    )


def _add_requirement(parents: dict[Claim, list[Claim]], claim: Claim) -> None:
    if claim in parents:
        return
    above = presupposed(claim)
    for parent in above:
        _add_requirement(parents, parent)
    parents[claim] = list(above)


def presupposed(claim: Claim) -> Sequence[Claim]:
    """The claims without which this one makes no sense, nearest first only: they have their own in turn."""
    match claim:
        case Exists(what=what):
            return _less_specific(what)
        case Counts(what=what) | Every(what=what):
            return [Exists(what=what)]
        case Relates(one=one, other=other) | Outnumbers(one=one, other=other) | Outsizes(one=one, other=other):
            return [Exists(what=one), Exists(what=other)]
    return []


def _less_specific(what: Description) -> Sequence[Claim]:
    if what.part:
        return [Exists(what=Description(shape=what.shape, colour=what.colour, size=what.size))]
    if what.colour or what.size:
        return [Exists(what=Description(shape=what.shape))]
    return []


def sample_statement(rng: Random, scene: Scene, skill: str) -> Statement | None:
    """A statement of this skill that is true of the scene; None where the draw finds nothing of the kind to say."""
    statement = SAMPLERS[skill](rng, scene)
    if statement is not None and rng.random() < TAIL_SHARE:
        statement = _with_tail(rng, scene, statement)
    return statement


def describe(rng: Random, entity: Entity, *, colour: float = 0.7, size: float = 0.2, part: float = 0.1) -> Description:
    """A description that fits the entity, naming each property with its probability."""
    return Description(
        shape=entity.shape,
        colour=entity.colour if rng.random() < colour else None,
        size=entity.size if rng.random() < size else None,
        part=entity.part if rng.random() < part else None,
    )


def join_list(phrases: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(phrases[:-1]), phrases[-1]] if len(phrases) > 1 else phrases)


def _existing(skill: str, descriptions: Sequence[Description]) -> Statement:
    claims = tuple(Exists(what=what) for what in descriptions)
    return Statement(text=join_list([what.one for what in descriptions]), skill=skill, claims=claims)


def _object(rng: Random, scene: Scene) -> Statement | None:
    shapes = sorted({entity.shape for entity in scene.entities})
    chosen = rng.sample(shapes, rng.randint(1, min(3, len(shapes))))
    return _existing("object", [Description(shape=shape) for shape in chosen])


def _attribute(rng: Random, scene: Scene) -> Statement | None:
    chosen = rng.sample(scene.entities, min(len(scene.entities), rng.choice((1, 2, 2))))
    colour = rng.random() < 0.85
    descriptions = [describe(rng, entity, colour=colour, size=0.25 if colour else 1, part=0) for entity in chosen]
    if not all(_told_apart(one, other) for one, other in combinations(descriptions, 2)):
        return None
    return _existing("attribute", descriptions)


def _part(rng: Random, scene: Scene) -> Statement | None:
    marked = [entity for entity in scene.entities if entity.part]
    if not marked:
        return None
    chosen = rng.sample(marked, min(len(marked), rng.choice((1, 1, 2))))
    descriptions = [describe(rng, entity, colour=0.5, size=0.1, part=1) for entity in chosen]
    if not all(_told_apart(one, other) for one, other in combinations(descriptions, 2)):
        return None
    return _existing("part", descriptions)


def _counting(rng: Random, scene: Scene) -> Statement | None:
    entities = rng.sample(scene.entities, min(len(scene.entities), rng.choice((1, 1, 2))))
    groups = [describe(rng, entity, colour=0.5, size=0, part=0) for entity in entities]
    claims = tuple(Counts(what=what, number=len(what.among(scene))) for what in groups)
    numbers = [claim.number for claim in claims]
    overlapping = len({what.shape for what in groups}) < len(groups)
    if overlapping or max(numbers) > MOST_COUNTED or (max(numbers) == 1 and rng.random() < 0.8):
        return None
    return Statement(text=join_list([claim.amount for claim in claims]), skill="counting", claims=claims)


def _pair(rng: Random, scene: Scene) -> tuple[Entity, Entity] | None:
    if len(scene.entities) < 2:
        return None
    one, other = rng.sample(scene.entities, 2)
    return one, other


def _told_apart(one: Description, other: Description) -> bool:
    """Whether nothing can be both."""
    pairs = (
        (one.shape, other.shape),
        (one.colour, other.colour),
        (one.size, other.size),
        (one.part, other.part),
    )
    return any(mine and yours and mine != yours for mine, yours in pairs)


def _spatial(rng: Random, scene: Scene) -> Statement | None:
    pair = _pair(rng, scene)
    if pair is None:
        return None
    one, other = (describe(rng, entity) for entity in pair)
    relations = [relation for relation in RELATIONS if related(pair[0], relation, pair[1])]
    if not relations or not _told_apart(one, other):
        return None
    claim = Relates(one=one, relation=rng.choice(relations), other=other)
    return Statement(text=f"{one.one} {claim.relation} {other.one}", skill="spatial", claims=(claim,))


def _comparison(rng: Random, scene: Scene) -> Statement | None:
    pair = _pair(rng, scene)
    if pair is None:
        return None
    one, other = (describe(rng, entity, colour=0.4, size=0, part=0) for entity in pair)
    if not _told_apart(one, other):
        return None
    if rng.random() < 0.5:
        return _size_comparison(pair, one, other)
    counts = [len(what.among(scene)) for what in (one, other)]
    if counts[0] == counts[1]:
        return None
    claim = Outnumbers(one=one, more=counts[0] > counts[1], other=other)
    return Statement(text=claim.clause, skill="comparison", claims=(claim,))


def _size_comparison(pair: tuple[Entity, Entity], one: Description, other: Description) -> Statement | None:
    if pair[0].size == pair[1].size:
        return None
    claim = Outsizes(one=one, larger=pair[0].size == "large", other=other)
    return Statement(text=f"{one.one} {claim.relation} {other.one}", skill="comparison", claims=(claim,))


def _negation(rng: Random, scene: Scene) -> Statement | None:
    there = describe(rng, rng.choice(scene.entities), colour=0.5, size=0, part=0)
    absent = _absent(rng, scene)
    if absent is None or not _told_apart(there, absent):
        return None
    claims = (Exists(what=there), Lacks(what=absent))
    return Statement(text=f"{there.one} and no {absent.plural}", skill="negation", claims=claims)


def _absent(rng: Random, scene: Scene) -> Description | None:
    what = Description(shape=rng.choice(SHAPES), colour=rng.choice(COLOURS) if rng.random() < 0.5 else None)
    return what if Lacks(what=what).holds(scene) else None


def _universality(rng: Random, scene: Scene) -> Statement | None:
    claims = [claim for claim in (_every(rng, scene) for _ in range(rng.choice((1, 1, 2)))) if claim is not None]
    shapes = {claim.what.shape for claim in claims}
    if not claims or len(shapes) < len(claims):
        return None
    return Statement(text=join_list([claim.clause for claim in claims]), skill="universality", claims=tuple(claims))


def _every(rng: Random, scene: Scene) -> Every | None:
    """One thing that all entities of some shape have in common; a shape seen once is seldom worth it."""
    member = rng.choice(scene.entities)
    what = Description(shape=member.shape)
    if len(what.among(scene)) == 1 and rng.random() < 0.7:
        return None
    word = rng.choice(("every", "all"))
    claims = [Every(what=what, colour=member.colour, word=word), Every(what=what, size=member.size, word=word)]
    claims += [Every(what=what, part=member.part, word=word)] if member.part else []
    claim = rng.choice(claims)
    return claim if claim.holds(scene) else None


def _with_tail(rng: Random, scene: Scene, statement: Statement) -> Statement:
    """The statement and one more claim of another skill, where the draw finds one."""
    tail = rng.choice((_tail_negation, _tail_counting, _tail_universality))(rng, scene)
    if tail is None or any(_named_shapes(claim) & _named_shapes(tail.claims[0]) for claim in statement.claims):
        return statement
    text = f"{statement.text} and {tail.text}"
    return Statement(text=text, skill=statement.skill, claims=statement.claims + tail.claims)


def _tail_negation(rng: Random, scene: Scene) -> Statement | None:
    absent = _absent(rng, scene)
    if absent is None:
        return None
    return Statement(text=f"no {absent.plural}", skill="negation", claims=(Lacks(what=absent),))


def _tail_counting(rng: Random, scene: Scene) -> Statement | None:
    what = Description(shape=rng.choice(scene.entities).shape)
    number = len(what.among(scene))
    if not 2 <= number <= MOST_COUNTED:
        return None
    claim = Counts(what=what, number=number)
    return Statement(text=claim.amount, skill="counting", claims=(claim,))


def _tail_universality(rng: Random, scene: Scene) -> Statement | None:
    claim = _every(rng, scene)
    if claim is None:
        return None
    return Statement(text=claim.clause, skill="universality", claims=(claim,))


def _named_shapes(claim: Claim) -> set[str | None]:
    match claim:
        case Relates(one=one, other=other) | Outnumbers(one=one, other=other) | Outsizes(one=one, other=other):
            return {one.shape, other.shape}
        case Exists(what=what) | Counts(what=what) | Every(what=what) | Lacks(what=what):
            return {what.shape}
    return set()


Sampler = Callable[[Random, Scene], Statement | None]
SAMPLERS: Mapping[str, Sampler] = {
    "object": _object,
    "attribute": _attribute,
    "counting": _counting,
    "spatial": _spatial,
    "comparison": _comparison,
    "negation": _negation,
    "universality": _universality,
    "part": _part,
}
