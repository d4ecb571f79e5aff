"""Claims that a prompt entails and nearly true ones that it does not, each of the latter with a scene as its proof."""

from dataclasses import replace
from random import Random
from typing import NamedTuple

from plumbline.assets.making.claims import (
    LARGER,
    RELATIONS,
    SKILLS,
    SMALLER,
    Claim,
    Counts,
    Description,
    Every,
    Exists,
    Lacks,
    Outnumbers,
    PairClaim,
    Relates,
)
from plumbline.assets.making.prompts import Prompt, is_held_out, sample_prompt
from plumbline.assets.making.scenes import COLOURS, PARTS, SHAPES, SIZES, Palette, Scene, edit_scene, random_scene

TRIES = 12
EDITS_TRIED = 6
PROPERTIES = (("colour", COLOURS), ("size", SIZES), ("part", PARTS))
OPPOSITES = {"more": "fewer", "fewer": "more", LARGER: SMALLER, SMALLER: LARGER}


class Illustrated(NamedTuple):
    """A prompt with a scene that it is true of."""

    prompt: Prompt
    scene: Scene


def sample_illustrated(rng: Random, *, held_out: bool) -> Illustrated:
    """A prompt of any skill whose wording is, or is not, among the held-out ones."""
    while True:
        scene = random_scene(rng)
        prompt = sample_prompt(rng, scene, rng.choice(SKILLS))
        if prompt is not None and is_held_out(prompt.text) == held_out:
            return Illustrated(prompt, scene)


def entailed(rng: Random, prompt: Prompt) -> Claim:
    """One of the prompt's requirements, or one with a word less."""
    claim = rng.choice(prompt.requirements).claim
    if isinstance(claim, Exists) and claim.what.colour and claim.what.size and rng.random() < 0.5:
        return Exists(replace(claim.what, **{rng.choice(("colour", "size")): None}))
    return claim


def not_entailed(rng: Random, illustrated: Illustrated) -> Claim | None:
    """A claim that is false in some scene of which the prompt is true; None where the draws have none."""
    for _ in range(TRIES):
        claim = _candidate(rng, illustrated.prompt)
        if any(not claim.holds(scene) for scene in _fitting_scenes(rng, illustrated)):
            return claim
    return None


def _candidate(rng: Random, prompt: Prompt) -> Claim:
    """A requirement with something changed, seldom one of another prompt."""
    if rng.random() < 0.2:
        return rng.choice(sample_illustrated(rng, held_out=False).prompt.requirements).claim
    return vary(rng, rng.choice(prompt.requirements).claim)


def _fitting_scenes(rng: Random, illustrated: Illustrated) -> list[Scene]:
    scenes = [illustrated.scene]
    for _ in range(EDITS_TRIED):
        edited = edit_scene(rng, rng.choice(scenes), Palette())
        if illustrated.prompt.holds(edited):
            scenes.append(edited)
    return scenes


def vary(rng: Random, claim: Claim) -> Claim:
    """The claim with one thing about it changed, which may be what it names."""
    match claim:
        case Exists(what):
            return rng.choice((Exists(_vary_description(rng, what)), Lacks(what)))
        case Lacks(what):
            return rng.choice((Lacks(_vary_description(rng, what)), Exists(what)))
        case Counts(what, number):
            other = rng.choice([count for count in range(1, 5) if count != number])
            return rng.choice((Counts(what, other), Counts(_vary_description(rng, what), number)))
        case PairClaim():
            return rng.choice((_turned(rng, claim), _vary_thing(rng, claim)))
        case Every():
            return _vary_every(rng, claim)
    raise TypeError(f"claim: expected one of assets/making/claims.py, got {claim!r}")


def _vary_description(rng: Random, what: Description) -> Description:
    """The description with one property changed, added or its shape changed."""
    field, values = rng.choice((("shape", SHAPES), ("shape", SHAPES), *PROPERTIES))
    if field != "shape" and getattr(what, field) is None and rng.random() < 0.5:
        field, values = "shape", SHAPES
    return replace(what, **{field: _another(rng, values, getattr(what, field))})


def _another(rng: Random, values: tuple[str, ...], value: str | None) -> str:
    return rng.choice([other for other in values if other != value])


def _turned(rng: Random, claim: PairClaim) -> Claim:
    """The same things the other way round, or in another relation."""
    if rng.random() < 0.5:
        return replace(claim, first=claim.second, second=claim.first)
    match claim:
        case Relates(relation=relation) if relation in RELATIONS:
            return replace(claim, relation=_another(rng, RELATIONS, relation))
        case Relates(relation=relation):
            return replace(claim, relation=OPPOSITES[relation])
        case Outnumbers(amount=amount):
            return replace(claim, amount=OPPOSITES[amount])
    raise TypeError(f"claim: expected a pair of assets/making/claims.py, got {claim!r}")


def _vary_thing(rng: Random, claim: PairClaim) -> Claim:
    if rng.random() < 0.5:
        return replace(claim, first=_vary_description(rng, claim.first))
    return replace(claim, second=_vary_description(rng, claim.second))


def _vary_every(rng: Random, claim: Every) -> Claim:
    """Of another shape, or with another property of the same or another kind."""
    if rng.random() < 0.4:
        return replace(claim, what=Description(shape=_another(rng, SHAPES, claim.what.shape)))
    field, values = rng.choice(PROPERTIES)
    return replace(claim, field=field, value=_another(rng, values, claim.value))
