"""The prompt grammar: claims about a scene for each skill, the requirements that claims imply, and whole prompts."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from random import Random

from plumbline.assets.making.claims import (
    LARGER,
    RELATION_CHECKS,
    RELATIONS,
    SKILLS,
    SMALLER,
    AbsenceClaim,
    Claim,
    CountClaim,
    Description,
    ExistenceClaim,
    OutnumberingClaim,
    RelationClaim,
    UniversalityClaim,
)
from plumbline.assets.making.scenes import COLOURS, SHAPES, Entity, Scene, sample_scene

MAX_COUNTED_OBJECTS = 4
HELD_OUT_DIVISOR = 4
EXTRA_CLAIM_SHARE = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One requirement of a prompt, expressed as a claim.

    A requirement can only be judged if the image meets the requirements whose ids are in `parents`.
    """

    requirement_id: str
    claim: Claim
    parents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt, with the claims that its text makes, in the order of the text."""

    text: str
    skill: str
    """The main skill."""
    claims: tuple[Claim, ...]

    @property
    def prompt_id(self) -> str:
        return make_content_id(self.text.encode())

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        """The claims and everything that they presuppose, with parents before children."""
        nodes = dict.fromkeys(node for claim in self.claims for node in _iterate_presupposed_claims(claim))
        names = {claim: f"r{index}" for index, claim in enumerate(nodes, start=1)}
        return tuple(
            Requirement(
                requirement_id=name,
                claim=claim,
                parents=tuple(names[parent] for parent in list_presupposed_claims(claim)),
            )
            for claim, name in names.items()
        )

    @property
    def skills(self) -> list[str]:
        """The kinds of the prompt's requirements, in the order of SKILLS."""
        kinds = {requirement.claim.kind for requirement in self.requirements}
        return [skill for skill in SKILLS if skill in kinds]

    def holds(self, scene: Scene) -> bool:
        return all(claim.holds(scene) for claim in self.claims)

    def list_broken_requirements(self, scene: Scene) -> list[str]:
        """Return the ids of the requirements that the scene does not meet."""
        return [node.requirement_id for node in self.requirements if not node.claim.holds(scene)]


def make_content_id(*parts: bytes) -> str:
    """Return sixteen hexadecimal digits that are derived from all parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def is_held_out(text: str) -> bool:
    """Return True if this wording must not occur in training: a fixed quarter of all wordings, chosen by hash."""
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT_DIVISOR == 0


def _iterate_presupposed_claims(claim: Claim) -> Iterator[Claim]:
    for parent in list_presupposed_claims(claim):
        yield from _iterate_presupposed_claims(parent)
    yield claim


def list_presupposed_claims(claim: Claim) -> Sequence[Claim]:
    """Return the claims that this claim presupposes directly, without indirect presuppositions."""
    match claim:
        case AbsenceClaim():
            return []
        case ExistenceClaim(what) if what.part:
            return [ExistenceClaim(what.whole)]
        case ExistenceClaim(what):
            return [ExistenceClaim(what.bare)] if what.adjectives else []
    return [ExistenceClaim(thing) for thing in claim.things]


def make_prompts(seed: int, per_skill: int) -> list[Prompt]:
    """Make `per_skill` distinct prompts for each main skill, cycling through the skills, all with held-out wording."""
    rng = Random(f"prompts/{seed}")
    prompts: dict[str, Prompt] = {}
    for skill in SKILLS * per_skill:
        prompt = None
        while prompt is None or not is_held_out(prompt.text) or prompt.text in prompts:
            prompt = sample_prompt(rng, sample_scene(rng), skill)
        prompts[prompt.text] = prompt
    return list(prompts.values())


def sample_prompt(rng: Random, scene: Scene, skill: str) -> Prompt | None:
    """Sample a prompt that tests this skill and is true of the scene; return None if no suitable claim is drawn."""
    claims = CLAIM_SAMPLERS[skill](rng, scene)
    if not claims:
        return None
    text = join_list([claim.clause for claim in claims])
    if rng.random() < EXTRA_CLAIM_SHARE:
        tail = rng.choice((_sample_absence_claim, _sample_plain_count_claim, _sample_common_property_claim))(rng, scene)
        if tail and not any(_list_shapes(claim) & _list_shapes(tail) for claim in claims):
            text, claims = f"{text} and {tail.clause}", [*claims, tail]
    return Prompt(text=text, skill=skill, claims=tuple(claims))


def _list_shapes(claim: Claim) -> set[str | None]:
    return {thing.shape for thing in claim.things}


def describe_at_random(
    rng: Random, entity: Entity, *, colour: float = 0.7, size: float = 0.2, part: float = 0.1
) -> Description:
    """Describe the entity, including each property with the given probability."""
    return Description(
        shape=entity.shape,
        colour=entity.colour if rng.random() < colour else None,
        size=entity.size if rng.random() < size else None,
        part=entity.part if rng.random() < part else None,
    )


def join_list(phrases: Sequence[str]) -> str:
    """Join phrases with commas and a final `and`, as in `a, b and c`."""
    return " and ".join([", ".join(phrases[:-1]), phrases[-1]] if len(phrases) > 1 else phrases)


def _sample_object_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    shapes = sorted({entity.shape for entity in scene.entities})
    chosen = rng.sample(shapes, rng.randint(1, min(3, len(shapes))))
    return [ExistenceClaim(Description(shape=shape)) for shape in chosen]


def _sample_attribute_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    chosen = _sample_entities(rng, scene.entities, (1, 2, 2))
    colour = rng.random() < 0.85
    return _make_existence_claims(
        [describe_at_random(rng, entity, colour=colour, size=0.25 if colour else 1, part=0) for entity in chosen]
    )


def _sample_part_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    marked = [entity for entity in scene.entities if entity.part]
    chosen = _sample_entities(rng, marked, (1, 1, 2)) if marked else []
    return _make_existence_claims([describe_at_random(rng, entity, colour=0.5, size=0.1, part=1) for entity in chosen])


def _sample_entities(rng: Random, entities: Sequence[Entity], numbers: Sequence[int]) -> list[Entity]:
    return rng.sample(entities, min(len(entities), rng.choice(numbers)))


def _make_existence_claims(descriptions: Sequence[Description]) -> Sequence[Claim]:
    """Return one existence claim per description, or none at all if one thing could fit two descriptions."""
    distinct = all(first.excludes(second) for first, second in combinations(descriptions, 2))
    return [ExistenceClaim(what) for what in descriptions] if distinct else []


def _sample_count_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    things = [
        describe_at_random(rng, entity, colour=0.5, size=0, part=0)
        for entity in _sample_entities(rng, scene.entities, (1, 1, 2))
    ]
    claims = [CountClaim(what, len(what.find_matching_entities(scene))) for what in things]
    most = max(claim.number for claim in claims)
    overlapping = len({what.shape for what in things}) < len(things)
    dull = overlapping or most > MAX_COUNTED_OBJECTS or (most == 1 and rng.random() < 0.8)
    return [] if dull else claims


def _sample_described_pair(rng: Random, scene: Scene, **shares: float) -> Sequence[tuple[Entity, Description]]:
    """Draw two entities with descriptions that exclude each other; return an empty list if the draw fails.

    `shares` are the probabilities that `describe_at_random` takes.
    """
    if len(scene.entities) < 2:
        return []
    described = [(entity, describe_at_random(rng, entity, **shares)) for entity in rng.sample(scene.entities, 2)]
    return described if described[0][1].excludes(described[1][1]) else []


def _sample_relation_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    pair = _sample_described_pair(rng, scene)
    if not pair:
        return []
    (entity, first), (other, second) = pair
    return [
        RelationClaim(first, second, rng.choice([name for name in RELATIONS if RELATION_CHECKS[name](entity, other)]))
    ]


def _sample_comparison_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    pair = _sample_described_pair(rng, scene, colour=0.4, size=0, part=0)
    if not pair:
        return []
    (entity, first), (other, second) = pair
    if rng.random() < 0.5:
        relation = LARGER if entity.size == "large" else SMALLER
        return [RelationClaim(first, second, relation)] if entity.size != other.size else []
    difference = len(first.find_matching_entities(scene)) - len(second.find_matching_entities(scene))
    return [OutnumberingClaim(first, second, "more" if difference > 0 else "fewer")] if difference else []


def _sample_negation_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    there = describe_at_random(rng, rng.choice(scene.entities), colour=0.5, size=0, part=0)
    absence = _sample_absence_claim(rng, scene)
    return [ExistenceClaim(there), absence] if absence and there.excludes(absence.what) else []


def _sample_absence_claim(rng: Random, scene: Scene) -> AbsenceClaim | None:
    shape = rng.choice(SHAPES)
    claim = AbsenceClaim(Description(shape=shape, colour=rng.choice(COLOURS) if rng.random() < 0.5 else None))
    return claim if claim.holds(scene) else None


def _sample_plain_count_claim(rng: Random, scene: Scene) -> CountClaim | None:
    what = Description(shape=rng.choice(scene.entities).shape)
    number = len(what.find_matching_entities(scene))
    return CountClaim(what, number) if 2 <= number <= MAX_COUNTED_OBJECTS else None


def _sample_universality_claims(rng: Random, scene: Scene) -> Sequence[Claim]:
    drawn = [_sample_common_property_claim(rng, scene) for _ in range(rng.choice((1, 1, 2)))]
    claims = [claim for claim in drawn if claim is not None]
    return claims if len({claim.what for claim in claims}) == len(claims) else []


def _sample_common_property_claim(rng: Random, scene: Scene) -> UniversalityClaim | None:
    """Return a claim that all entities of one shape share a property, or None if the draw fails.

    The shape usually occurs more than once.
    """
    member = rng.choice(scene.entities)
    what = Description(shape=member.shape)
    if len(what.find_matching_entities(scene)) == 1 and rng.random() < 0.7:
        return None
    word = rng.choice(("every", "all"))
    values = {"colour": member.colour, "size": member.size, "part": member.part}
    claims = [UniversalityClaim(what, field, value, word) for field, value in values.items() if value]
    claim = rng.choice(claims)
    return claim if claim.holds(scene) else None


CLAIM_SAMPLERS: Mapping[str, Callable[[Random, Scene], Sequence[Claim]]] = {
    "object": _sample_object_claims,
    "attribute": _sample_attribute_claims,
    "counting": _sample_count_claims,
    "spatial": _sample_relation_claims,
    "comparison": _sample_comparison_claims,
    "negation": _sample_negation_claims,
    "universality": _sample_universality_claims,
    "part": _sample_part_claims,
}
