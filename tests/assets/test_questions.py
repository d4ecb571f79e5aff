"""Expected answers follow from the scene: a second parser of the questions' texts finds the same answers."""

import re
from collections import Counter
from random import Random

import pytest

from plumbline.assets.making.claims import NUMBER_WORDS, SKILLS, Description
from plumbline.assets.making.prompts import is_held_out, sample_prompt
from plumbline.assets.making.questions import (
    PLACE_NAMES,
    ask_open_question,
    ask_plain_yes_no_question,
    ask_relation_both_ways,
    ask_vqascore,
    name_place,
    sample_claim_prompt,
)
from plumbline.assets.making.scenes import COLOURS, PARTS, SHAPES, SIZES, Entity, Scene, sample_scene
from plumbline.assets.making.vqa_training import QUESTION_MIXTURES, make_training_questions

SHAPE_BY_PLURAL = {f"{shape}es" if shape == "cross" else f"{shape}s": shape for shape in SHAPES}


def read_description(words: str) -> Description:
    """Return the shape, colour, size and part that a noun phrase names; None for each that it does not name."""
    listed = words.replace("?", "").split()
    shapes = [SHAPE_BY_PLURAL.get(word, word) for word in listed if SHAPE_BY_PLURAL.get(word, word) in SHAPES]
    return Description(
        shape=shapes[0] if shapes else None,
        colour=next((word for word in listed if word in COLOURS), None),
        size=next((word for word in listed if word in SIZES), None),
        part=next((word for word in listed if word in PARTS), None),
    )


def find_fitting_entities(scene: Scene, words: str) -> list[Entity]:
    what = read_description(words)
    return [
        entity
        for entity in scene.entities
        if what.shape in (None, entity.shape)
        and what.colour in (None, entity.colour)
        and what.size in (None, entity.size)
        and what.part in (None, entity.part)
    ]


OFFSET_BY_RELATION = {"to the left of": (1, -1), "to the right of": (1, 1), "above": (0, -1), "below": (0, 1)}


def is_in_relation(one: Entity, relation: str, other: Entity) -> bool:
    axis, sign = OFFSET_BY_RELATION[relation]
    return (one.cell[axis] - other.cell[axis]) * sign > 0


def is_statement_true(scene: Scene, text: str) -> bool:
    """Parse a prompt with one kind of statement, and return True if the statement is true of the scene.

    The statement compares numbers or sizes, gives a position, excludes objects, describes every object, counts objects,
    or lists objects.
    """
    numbers = "|".join(NUMBER_WORDS)
    if match := re.fullmatch(r"(more|fewer) (.+) than (.+)", text):
        one, other = (len(find_fitting_entities(scene, match[group])) for group in (2, 3))
        return min(one, other) > 0 and (one > other if match[1] == "more" else one < other)
    if match := re.fullmatch(r"(.+) (larger|smaller) than (.+)", text):
        pairs = [
            (one.size, other.size)
            for one in find_fitting_entities(scene, match[1])
            for other in find_fitting_entities(scene, match[3])
        ]
        return (("large", "small") if match[2] == "larger" else ("small", "large")) in pairs
    if match := re.fullmatch(rf"(.+) ({'|'.join(OFFSET_BY_RELATION)}) (.+)", text):
        others = find_fitting_entities(scene, match[3])
        return any(
            is_in_relation(one, match[2], other) for one in find_fitting_entities(scene, match[1]) for other in others
        )
    if match := re.fullmatch(r"(.+) and no (.+)", text):
        return bool(find_fitting_entities(scene, match[1])) and not find_fitting_entities(scene, match[2])
    phrases = re.split(r", | and ", text)
    if re.match(r"every|all", text):
        return all(_is_true_of_every(scene, phrase) for phrase in phrases)
    if re.match(rf"({numbers}) ", text):
        return all(
            len(find_fitting_entities(scene, phrase)) == NUMBER_WORDS.index(phrase.split()[0]) for phrase in phrases
        )
    return all(find_fitting_entities(scene, phrase) for phrase in phrases)


def _is_true_of_every(scene: Scene, phrase: str) -> bool:
    match = re.fullmatch(r"(?:every|all) (\w+) (?:is|are|has a|have a) (\w+)", phrase)
    assert match, phrase
    members = find_fitting_entities(scene, match[1])
    return bool(members) and all(match[2] in (entity.colour, entity.size, entity.part) for entity in members)


@pytest.mark.parametrize("skill", SKILLS)
@pytest.mark.parametrize("truth", [True, False])
def test_the_truth_of_a_prompt_equals_that_of_its_parsed_words(skill: str, truth: bool) -> None:
    rng, checked = Random(f"{skill}/{truth}"), 0
    while checked < 60:
        scene = sample_scene(rng)
        prompt = sample_claim_prompt(rng, scene, skill, truth=truth)
        if prompt is not None and len({claim.kind for claim in prompt.claims}) == 1 + (skill == "negation"):
            if any(claim.kind == "universality" for claim in prompt.claims) and skill != "universality":
                continue
            assert is_statement_true(scene, prompt.text) is truth, (prompt.text, scene)
            checked += 1


@pytest.mark.parametrize("skill", SKILLS)
def test_questions_have_the_requested_answer(skill: str) -> None:
    rng = Random(skill)
    for truth, answer in ((True, "Yes"), (False, "No")):
        asked = [ask_vqascore(rng, sample_scene(rng), skill, truth=truth, held_out=False) for _ in range(20)]
        asked += [ask_plain_yes_no_question(rng, sample_scene(rng), skill, truth=truth) for _ in range(20)]
        answers = Counter(question.answer for question in asked if question)
        assert set(answers) == {answer} and answers[answer] > 15


def test_held_out_wordings_and_training_wordings_do_not_overlap() -> None:
    rng = Random(3)
    for held_out in (True, False):
        questions = [ask_vqascore(rng, sample_scene(rng), skill, truth=True, held_out=held_out) for skill in SKILLS * 5]
        texts = [question.text.split('"')[1] for question in questions if question]
        assert texts and all(is_held_out(text) is held_out for text in texts)


def test_training_never_uses_a_held_out_wording() -> None:
    rng = Random(4)
    for _ in range(60):
        for question in make_training_questions(rng, sample_scene(rng), QUESTION_MIXTURES["question"], 6):
            if question.form == "vqascore":
                assert not is_held_out(question.text.split('"')[1])


def test_answers_to_open_questions_are_true_of_the_scene() -> None:
    rng = Random(5)
    for _ in range(300):
        scene = sample_scene(rng)
        colour, count, where = (ask_open_question(rng, scene, topic) for topic in ("color", "count", "place"))
        if colour:
            assert {entity.colour for entity in find_fitting_entities(scene, colour.text)} == {colour.answer}
        if count:
            number = len(find_fitting_entities(scene, count.text))
            assert count.answer in (str(number), NUMBER_WORDS[number])
        if where:
            assert [name_place(entity) for entity in find_fitting_entities(scene, where.text)] == [where.answer]


def test_swapping_the_two_things_of_a_question_makes_it_false() -> None:
    first = Entity(shape="circle", colour="red", size="small", part=None, cell=(0, 1))
    second = Entity(shape="star", colour="blue", size="small", part=None, cell=(2, 0))
    rng = Random(6)
    asked: set[tuple[str, ...]] = set()
    while len(asked) < 4:
        both = ask_relation_both_ways(rng, Scene(entities=(first, second)))
        if both:
            asked.add(tuple(re.sub("small |red |blue ", "", text) for text in both))
    circle_first, star_first = "Is the circle {} the star?", "Is the star {} the circle?"
    held = [(circle_first, "above"), (circle_first, "to the right of")]
    held += [(star_first, "below"), (star_first, "to the left of")]
    swapped = {circle_first: star_first, star_first: circle_first}
    assert asked == {(words.format(relation), swapped[words].format(relation)) for words, relation in held}


def test_grid_places_are_named_by_row_and_column() -> None:
    assert [PLACE_NAMES[row][column] for row, column in ((0, 0), (1, 1), (2, 1))] == ["top left", "center", "bottom"]


@pytest.mark.parametrize("skill", SKILLS)
def test_sampled_prompt_is_true_of_its_scene(skill: str) -> None:
    rng = Random(skill)
    for _ in range(200):
        scene = sample_scene(rng)
        prompt = sample_prompt(rng, scene, skill)
        assert prompt is None or prompt.holds(scene)
