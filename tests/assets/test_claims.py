"""Every kind of claim about hand-made scenes is true or false as the kind's definition says."""

import pytest

from plumbline.assets.making.claims import (
    LARGER,
    SMALLER,
    Claim,
    Counts,
    Description,
    Every,
    Exists,
    Lacks,
    Outnumbers,
    Relates,
)
from plumbline.assets.making.scenes import Entity, Scene


def make_entity(words: str, row: int, column: int, *, part: str | None = None) -> Entity:
    size, colour, shape = words.split()
    return Entity(shape=shape, colour=colour, size=size, part=part, cell=(row, column))


SCENE = Scene(
    entities=(
        make_entity("large red circle", 0, 0, part="dot"),
        make_entity("small red circle", 2, 1),
        make_entity("small blue square", 1, 2, part="stripe"),
        make_entity("small blue star", 1, 1),
    )
)
CIRCLE, SQUARE, STAR = (Description(shape=shape) for shape in ("circle", "square", "star"))
HEART = Description(shape="heart")


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        (Exists(CIRCLE), True),
        (Exists(HEART), False),
        (Exists(Description(shape="circle", colour="red", size="small")), True),
        (Exists(Description(shape="square", colour="red")), False),
        (Exists(Description(shape="circle", part="dot")), True),
        (Exists(Description(shape="circle", size="small", part="dot")), False),
        (Counts(CIRCLE, 2), True),
        (Counts(CIRCLE, 1), False),
        (Relates(CIRCLE, SQUARE, "above"), True),
        (Relates(CIRCLE, SQUARE, "below"), True),
        (Relates(SQUARE, CIRCLE, "to the left of"), False),
        (Relates(SQUARE, STAR, "to the right of"), True),
        (Relates(SQUARE, STAR, "above"), False),
        (Outnumbers(CIRCLE, SQUARE, "more"), True),
        (Outnumbers(SQUARE, STAR, "more"), False),
        (Outnumbers(SQUARE, CIRCLE, "fewer"), True),
        (Outnumbers(CIRCLE, HEART, "more"), False),
        (Relates(CIRCLE, SQUARE, LARGER), True),
        (Relates(SQUARE, CIRCLE, LARGER), False),
        (Relates(STAR, CIRCLE, SMALLER), True),
        (Lacks(HEART), True),
        (Lacks(Description(shape="square", colour="red")), True),
        (Lacks(SQUARE), False),
        (Every(CIRCLE, "colour", "red"), True),
        (Every(CIRCLE, "size", "small"), False),
        (Every(CIRCLE, "part", "dot"), False),
        (Every(HEART, "colour", "red"), False),
    ],
)
def test_a_claim_holds_exactly_if_it_is_true_of_the_scene(claim: Claim, holds: bool) -> None:
    assert claim.holds(SCENE) is holds


@pytest.mark.parametrize(
    ("claim", "text", "question"),
    [
        (
            Counts(Description(shape="cross", colour="red"), 2),
            "there are exactly two red crosses",
            "Are there exactly two red crosses?",
        ),
        (
            Relates(CIRCLE, Description(shape="square", part="dot"), "to the left of"),
            "a circle is to the left of a square with a dot",
            "Is there a circle to the left of a square with a dot?",
        ),
        (Every(CIRCLE, "part", "dot", word="all"), "all circles have a dot", "Do all circles have a dot?"),
        (Every(CIRCLE, "colour", "red"), "every circle is red", "Is every circle red?"),
        (Lacks(STAR), "there are no stars", "Are there no stars?"),
    ],
)
def test_claim_reads_as_english(claim: Claim, text: str, question: str) -> None:
    assert (claim.text, claim.question) == (text, question)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (CIRCLE, "object"),
        (Description(shape="circle", size="small"), "attribute"),
        (Description(shape="circle", colour="red", part="dot"), "part"),
    ],
)
def test_an_existence_claim_has_the_skill_of_its_most_specific_property(what: Description, kind: str) -> None:
    assert Exists(what).kind == kind


def test_a_cell_contains_at_most_one_entity() -> None:
    with pytest.raises(ValueError, match="one entity in a cell"):
        Scene(entities=(make_entity("large red circle", 0, 0), make_entity("small red star", 0, 0)))
