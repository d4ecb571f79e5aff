"""Claims that a prompt entails and nearly true ones that it does not, each of the latter with a scene as its proof."""

from dataclasses import replace
from random import Random
from typing import NamedTuple

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
)
from operators.pack.prompts import Prompt, as_prompt, is_held_out, sample_statement
from operators.pack.scenes import COLOURS, PARTS, SHAPES, SIZES, Palette, Scene, edit_scene, random_scene

TRIES = 12
PROPERTIES = (("shape", SHAPES), ("shape", SHAPES), ("colour", COLOURS), ("size", SIZES), ("part", PARTS))
EDITS_TRIED = 6


class Told(NamedTuple):
    """A prompt with a scene that it is true of."""

    prompt: Prompt
    scene: Scene


def sample_told(rng: Random, *, held_out: bool) -> Told:
    """A prompt of any skill whose wording is, or is not, among the held-out ones."""
    while True:
        scene = random_scene(rng)
        statement = sample_statement(rng, scene, rng.choice(SKILLS))
        if statement is not None and is_held_out(statement.text) == held_out:
            return Told(as_prompt(statement), scene)


def entailed(rng: Random, told: Told) -> Claim:
    """One of the prompt's requirements, or one with a word less."""
    claim = rng.choice(told.prompt.requirements).claim
    if isinstance(claim, Exists) and claim.what.colour and claim.what.size and rng.random() < 0.5:
        return Exists(what=replace(claim.what, **{rng.choice(("colour", "size")): None}))
    return claim


def not_entailed(rng: Random, told: Told) -> Claim | None:
    """A claim that is false in some scene of which the prompt is true; None where the draws find none."""
    for _ in range(TRIES):
        claim = _candidate(rng, told.prompt)
        if any(not claim.holds(scene) for scene in _fitting_scenes(rng, told)):
            return claim
    return None


def _candidate(rng: Random, prompt: Prompt) -> Claim:
    """A requirement with something changed, seldom one of another prompt."""
    if rng.random() < 0.2:
        return rng.choice(sample_told(rng, held_out=False).prompt.requirements).claim
    return vary(rng, rng.choice(prompt.requirements).claim)


def _fitting_scenes(rng: Random, told: Told) -> list[Scene]:
    scenes = [told.scene]
    palette = Palette()
    for _ in range(EDITS_TRIED):
        edited = edit_scene(rng, rng.choice(scenes), palette)
        if not told.prompt.broken(edited):
            scenes.append(edited)
    return scenes


def vary(rng: Random, claim: Claim) -> Claim:
    """The claim with one thing about it changed, which may be what it names."""
    match claim:
        case Exists(what=what):
            return rng.choice((Exists(what=vary_description(rng, what)), Lacks(what=what)))
        case Lacks(what=what):
            return rng.choice((Lacks(what=vary_description(rng, what)), Exists(what=what)))
        case Counts(what=what, number=number):
            other = rng.choice([count for count in range(1, 5) if count != number])
            return rng.choice((replace(claim, number=other), replace(claim, what=vary_description(rng, what))))
        case Relates() | Outnumbers() | Outsizes():
            return rng.choice((_turned(rng, claim), _vary_end(rng, claim)))
        case Every():
            return _vary_every(rng, claim)
    raise TypeError(f"claim: expected one of operators/pack/claims.py, got {claim!r}")


def vary_description(rng: Random, what: Description) -> Description:
    """The description with one property changed, added or its shape changed."""
    field, values = rng.choice(PROPERTIES)
    if field != "shape" and getattr(what, field) is None and rng.random() < 0.5:
        field, values = "shape", SHAPES
    return replace(what, **{field: rng.choice([value for value in values if value != getattr(what, field)])})


Two = Relates | Outnumbers | Outsizes


def _turned(rng: Random, claim: Two) -> Claim:
    """The same things the other way round, or in another relation."""
    if rng.random() < 0.5:
        return replace(claim, one=claim.other, other=claim.one)
    if isinstance(claim, Relates):
        return replace(claim, relation=rng.choice([name for name in RELATIONS if name != claim.relation]))
    if isinstance(claim, Outnumbers):
        return replace(claim, more=not claim.more)
    return replace(claim, larger=not claim.larger)


def _vary_end(rng: Random, claim: Two) -> Claim:
    if rng.random() < 0.5:
        return replace(claim, one=vary_description(rng, claim.one))
    return replace(claim, other=vary_description(rng, claim.other))


def _vary_every(rng: Random, claim: Every) -> Claim:
    """Of another shape, or with another property of the same or another kind."""
    if rng.random() < 0.4:
        shape = rng.choice([name for name in SHAPES if name != claim.what.shape])
        return replace(claim, what=Description(shape=shape))
    field, values = rng.choice((("colour", COLOURS), ("size", SIZES), ("part", PARTS)))
    said = rng.choice([value for value in values if value != getattr(claim, field)])
    return Every(what=claim.what, word=claim.word, **{field: said})
