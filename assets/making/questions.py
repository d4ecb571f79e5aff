"""Questions about scenes, with the right answers, and captions of scenes, for training and testing the models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from random import Random

from plumbline.assets.making.claims import (
    NUMBER_WORDS,
    RELATION_CHECKS,
    RELATIONS,
    Claim,
    CountClaim,
    Description,
    ExistenceClaim,
    RelationClaim,
)
from plumbline.assets.making.prompts import Prompt, describe_at_random, is_held_out, join_list, sample_prompt
from plumbline.assets.making.scenes import Entity, Palette, Scene, edit_scene, sample_palette, sample_scene

VQASCORE_TEMPLATE = 'Does this figure show "{}"? Please answer yes or no.'
MAX_QUESTION_TRIES = 12
EASY_QUESTION_SHARE = 0.1
DIGIT_ANSWER_SHARE = 0.25
MAX_OBJECTS_IN_CAPTION = 3
PLACE_NAMES = (
    ("top left", "top", "top right"),
    ("left", "center", "right"),
    ("bottom left", "bottom", "bottom right"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldQuestion:
    """A question about one scene, with its right answer."""

    text: str
    answer: str
    form: str
    """Form of the question: `vqascore`, `direct` or `open`."""
    topic: str
    """Skill that is needed to answer; for open questions, the property that is asked for."""


def sample_claim_prompt(rng: Random, scene: Scene, skill: str, *, truth: bool) -> Prompt | None:
    """Sample a prompt for the skill that is true of the scene, or false if `truth` is False.

    A false prompt is true of a scene that is one or two edits away or, rarely, of an unrelated scene. It is therefore
    nearly true, and cannot be recognized as false from its words alone. The result is None if all tries fail.
    """
    for _ in range(MAX_QUESTION_TRIES):
        prompt = sample_prompt(rng, scene if truth else _make_similar_scene(rng, scene), skill)
        if prompt is not None and prompt.holds(scene) == truth:
            return prompt
    return None


def _make_similar_scene(rng: Random, scene: Scene) -> Scene:
    if rng.random() < EASY_QUESTION_SHARE:
        return sample_scene(rng)
    palette = make_extended_palette(rng, scene)
    edited = edit_scene(rng, scene, palette)
    return edit_scene(rng, edited, palette) if rng.random() < 0.3 else edited


def make_extended_palette(rng: Random, scene: Scene) -> Palette:
    """Return the scene's shapes and colours, and up to two more of each."""
    other = sample_palette(rng)
    return Palette(
        shapes=(*(entity.shape for entity in scene.entities), *other.shapes[:2]),
        colours=(*(entity.colour for entity in scene.entities), *other.colours[:2]),
    )


def ask_vqascore(rng: Random, scene: Scene, skill: str, *, truth: bool, held_out: bool) -> GoldQuestion | None:
    """Ask VQAScore's question about a prompt, whose wording is held out if `held_out` is True."""
    for _ in range(MAX_QUESTION_TRIES):
        prompt = sample_claim_prompt(rng, scene, skill, truth=truth)
        if prompt is not None and is_held_out(prompt.text) == held_out:
            return _make_yes_no_question(VQASCORE_TEMPLATE.format(prompt.text), truth, "vqascore", skill)
    return None


def ask_plain_yes_no_question(rng: Random, scene: Scene, skill: str, *, truth: bool) -> GoldQuestion | None:
    """Ask a plain yes/no question that tests the skill, such as "Is there a red circle?" or "Is the circle red?"."""
    for _ in range(MAX_QUESTION_TRIES):
        prompt = sample_claim_prompt(rng, scene, skill, truth=truth)
        claims = [claim for claim in prompt.claims if claim.kind == skill] if prompt else []
        claims = [claim for claim in claims if claim.holds(scene) == truth]
        if claims:
            return _make_yes_no_question(_phrase_question(rng, scene, rng.choice(claims)), truth, "direct", skill)
    return None


def _make_yes_no_question(text: str, truth: bool, form: str, skill: str) -> GoldQuestion:
    return GoldQuestion(text=text, answer="Yes" if truth else "No", form=form, topic=skill)


def _phrase_question(rng: Random, scene: Scene, claim: Claim) -> str:
    definite = _make_definite_question(scene, claim) if rng.random() < 0.5 else None
    if definite:
        return definite
    if rng.random() < 0.2:
        return VQASCORE_TEMPLATE.format(claim.text)
    return claim.question if rng.random() < 0.5 else claim.question.replace(" exactly", "")


def _make_definite_question(scene: Scene, claim: Claim) -> str | None:
    """Ask about *the* thing; return None unless the scene contains exactly one such thing."""
    match claim:
        case ExistenceClaim(what) if what.part and _is_unique(scene, what.whole):
            return f"Does the {what.whole.noun} have a {what.part}?"
        case ExistenceClaim(what) if (
            not what.part and bool(what.colour) != bool(what.size) and _is_unique(scene, what.bare)
        ):
            return f"Is the {what.bare.noun} {what.adjectives}?"
        case RelationClaim(first, second) if _is_unique(scene, first) and _is_unique(scene, second):
            return f"Is the {first.noun} {claim.relation} the {second.noun}?"
    return None


def _is_unique(scene: Scene, what: Description) -> bool:
    return len(what.find_matching_entities(scene)) == 1


def ask_open_question(rng: Random, scene: Scene, topic: str) -> GoldQuestion | None:
    """Ask a question whose answer is a word or two; return None if the scene has nothing to ask about."""
    asked = {**OPEN_QUESTIONS, **TRAINING_QUESTIONS}[topic](rng, scene)
    return asked and GoldQuestion(text=asked[0], answer=asked[1], form="open", topic=topic)


OpenQuestionWriter = Callable[[Random, Scene], tuple[str, str] | None]
"""A function that returns a question and its answer, or None if the scene has nothing to ask about."""


def _sample_unique_thing(rng: Random, scene: Scene, **shares: float) -> tuple[Entity, Description] | None:
    """Return an entity with a description that fits no other entity of the scene, or None if the draw fails."""
    entity = rng.choice(scene.entities)
    what = describe_at_random(rng, entity, **{"colour": 0.5, "size": 0.1, "part": 0.1} | shares)
    return (entity, what) if _is_unique(scene, what) else None


def _make_unique_thing_question(template: str, answer: Callable[[Entity], str], **shares: float) -> OpenQuestionWriter:
    def ask(rng: Random, scene: Scene) -> tuple[str, str] | None:
        unique = _sample_unique_thing(rng, scene, **shares)
        return unique and (template.format(unique[1].noun), answer(unique[0]))

    return ask


def _ask_shape(rng: Random, scene: Scene) -> tuple[str, str] | None:
    entity = rng.choice(scene.entities)
    what = Description(colour=entity.colour, size=entity.size if rng.random() < 0.3 else None)
    return (f"What shape is the {what.noun}?", entity.shape) if _is_unique(scene, what) else None


def _ask_about_position(rng: Random, scene: Scene) -> tuple[str, str]:
    entity = rng.choice(scene.entities)
    return f"What is at the {name_place(entity)}?", f"a {entity.colour} {entity.shape}"


def _ask_count(rng: Random, scene: Scene) -> tuple[str, str]:
    what = describe_at_random(rng, rng.choice(scene.entities), size=0.1)
    if rng.random() < 0.15:
        what = describe_at_random(rng, rng.choice(sample_scene(rng).entities))
    number = len(what.find_matching_entities(scene))
    return f"How many {what.plural} are there?", str(number) if rng.random() < DIGIT_ANSWER_SHARE else NUMBER_WORDS[
        number
    ]


def _sample_two_things(
    rng: Random, scene: Scene
) -> tuple[tuple[Entity, Description], tuple[Entity, Description]] | None:
    """Return two entities with descriptions that fit no other entity of the scene, or None if the draw fails."""
    first, second = _sample_unique_thing(rng, scene), _sample_unique_thing(rng, scene)
    return None if first is None or second is None or first[0] is second[0] else (first, second)


def _ask_relation(rng: Random, scene: Scene) -> tuple[str, str] | None:
    things = _sample_two_things(rng, scene)
    if things is None:
        return None
    first, second = things
    opposites = rng.choice((RELATIONS[:2], RELATIONS[2:]))
    for relation in opposites:
        if RELATION_CHECKS[relation](first[0], second[0]):
            return f"Is the {first[1].noun} {' or '.join(opposites)} the {second[1].noun}?", relation
    return None


def _ask_places(rng: Random, scene: Scene) -> tuple[str, str] | None:
    things = _sample_two_things(rng, scene)
    if things is None:
        return None
    (first, first_what), (second, second_what) = things
    return (
        f"Where are the {first_what.noun} and the {second_what.noun}?",
        f"{name_place(first)} and {name_place(second)}",
    )


def ask_relation_both_ways(rng: Random, scene: Scene) -> tuple[str, str] | None:
    """Return a question about two things' positions whose answer is yes, and the question with the things swapped."""
    things = _sample_two_things(rng, scene)
    if things is None:
        return None
    first, second = things
    holding = [relation for relation in RELATIONS if RELATION_CHECKS[relation](first[0], second[0])]
    relation = rng.choice(holding)
    nouns = (first[1].noun, second[1].noun)
    true, false = (f"Is the {one} {relation} the {other}?" for one, other in (nouns, nouns[::-1]))
    return true, false


def name_place(entity: Entity) -> str:
    """Return the entity's position in the image, from `top left` to `bottom right`."""
    row, column = entity.cell
    return PLACE_NAMES[row][column]


def name_part(entity: Entity) -> str:
    """Return the name of the entity's part with an article, or `nothing` if it has no part."""
    return f"a {entity.part}" if entity.part else "nothing"


OPEN_QUESTIONS: Mapping[str, OpenQuestionWriter] = {
    "color": _make_unique_thing_question("What color is the {}?", lambda entity: entity.colour, colour=0),
    "size": _make_unique_thing_question("What size is the {}?", lambda entity: entity.size, size=0),
    "shape": _ask_shape,
    "part": _make_unique_thing_question("What does the {} have?", name_part, part=0),
    "count": _ask_count,
    "place": _make_unique_thing_question("Where is the {}?", name_place),
    "at place": _ask_about_position,
    "relation": _ask_relation,
}
TRAINING_QUESTIONS: Mapping[str, OpenQuestionWriter] = {"places": _ask_places}
"""Functions that make questions for training only, by topic."""


def write_caption(rng: Random, scene: Scene) -> str:
    """Write a caption about positions, counts or relations."""
    compose = rng.choice((_describe_places, _describe_places, _describe_places, _describe_counts, _describe_relations))
    return (compose(rng, scene) or _describe_places(rng, scene)) + "."


def _describe_places(rng: Random, scene: Scene) -> str:
    ordered = sorted(scene.entities, key=lambda entity: entity.cell)
    first = rng.randrange(max(1, len(ordered) - MAX_OBJECTS_IN_CAPTION + 1))
    named = ordered[first : first + MAX_OBJECTS_IN_CAPTION]
    return ", ".join(f"{_describe_fully(entity).indefinite} at the {name_place(entity)}" for entity in named)


def _describe_fully(entity: Entity) -> Description:
    return Description(shape=entity.shape, colour=entity.colour, size=entity.size, part=entity.part)


def _describe_counts(rng: Random, scene: Scene) -> str:
    kinds = sorted((entity.colour, entity.shape) for entity in scene.entities)
    return join_list(
        [
            CountClaim(Description(shape=shape, colour=colour), len(list(same))).clause
            for (colour, shape), same in groupby(kinds)
        ]
    )


def _describe_relations(rng: Random, scene: Scene) -> str:
    prompts = [sample_prompt(rng, scene, rng.choice(("spatial", "spatial", "comparison"))) for _ in range(2)]
    return ", ".join(prompt.text for prompt in prompts if prompt is not None and not is_held_out(prompt.text))
