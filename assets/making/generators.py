"""Simulated image generators: each meets a prompt but for the requirements its skill profile makes it break."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from plumbline.assets.making.claims import SKILLS, Every
from plumbline.assets.making.prompts import Prompt
from plumbline.assets.making.scenes import COLOURS, SHAPES, Palette, Scene, edit_scene, random_scene

SEARCH_STEPS = 4000
RESTART_EVERY = 400
MOST_IN_IMAGE = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator:
    """A named generator and the probability that it breaks a requirement of each kind."""

    name: str
    faults: Mapping[str, float]


def _profile(usual: float, **special: float) -> dict[str, float]:
    return {skill: special.get(skill, usual) for skill in SKILLS}


TIED_PROFILE = _profile(0.10, object=0.03, attribute=0.08)
GENERATORS = (
    Generator(name="atlas", faults=_profile(0.04, object=0.01, attribute=0.02)),
    Generator(name="borealis", faults=TIED_PROFILE),
    Generator(name="cobalt", faults=TIED_PROFILE),
    Generator(name="drift", faults=_profile(0.12, object=0.04, attribute=0.06, counting=0.70, spatial=0.75)),
    Generator(name="ember", faults=_profile(0.16, object=0.06, attribute=0.55)),
    Generator(
        name="flint",
        faults=_profile(0.30, object=0.08, attribute=0.15, negation=0.85, universality=0.80, comparison=0.70),
    ),
    Generator(name="garnet", faults=_profile(0.60, object=0.28, attribute=0.40)),
)


def imagine(generator: Generator, prompt: Prompt, rng: Random) -> Scene:
    """The scene the generator makes of the prompt."""
    start = random_scene(rng, prompt_palette(prompt), most=MOST_IN_IMAGE)
    faultless = _scene_breaking(prompt, frozenset(), start, rng)
    broken = {node.requirement_id for node in prompt.requirements if rng.random() < generator.faults[node.claim.kind]}
    for node in prompt.requirements:
        if broken & set(node.parents):
            broken.add(node.requirement_id)
    return _scene_breaking(prompt, frozenset(broken), faultless, rng)


def prompt_palette(prompt: Prompt) -> Palette:
    """The shapes and colours the prompt names, and a few more for distractors."""
    claims = [node.claim for node in prompt.requirements]
    things = [thing for claim in claims for thing in claim.things]
    shapes = sorted({thing.shape for thing in things if thing.shape})
    colours = {thing.colour for thing in things if thing.colour}
    colours |= {claim.value for claim in claims if isinstance(claim, Every) and claim.field == "colour"}
    extra = Random(prompt.prompt_id)
    return Palette(
        shapes=(*shapes, *shapes, *extra.sample(SHAPES, 2)),
        colours=(*sorted(colours), *sorted(colours), *extra.sample(COLOURS, 2)),
    )


def _scene_breaking(prompt: Prompt, wanted: frozenset[str], start: Scene, rng: Random) -> Scene:
    """A scene near `start` that breaks just the wanted requirements, or as nearly those as random edits find.

    A walk of single edits that never moves away from what is wanted. Some sets cannot be had (breaking "there is a
    circle" keeps "there are no circles" from breaking), so the walk's best scene is taken after a fixed number of
    steps; the truth of an image is computed from its scene, never from what was wanted.
    """
    palette = prompt_palette(prompt)
    scene = best = start
    error = least = _misses(prompt, scene, wanted)
    for step in range(SEARCH_STEPS):
        if least == 0:
            break
        if step and step % RESTART_EVERY == 0:
            scene, error = start, _misses(prompt, start, wanted)
        changed = edit_scene(rng, scene, palette)
        misses = _misses(prompt, changed, wanted)
        if misses <= error and len(changed.entities) <= MOST_IN_IMAGE + 1:
            scene, error = changed, misses
        if error < least:
            best, least = scene, error
    return best


def _misses(prompt: Prompt, scene: Scene, wanted: frozenset[str]) -> int:
    return len(wanted.symmetric_difference(prompt.broken(scene)))
