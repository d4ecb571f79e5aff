"""Claims mean one thing each, and mean it of hand-made scenes."""

import pytest

from operators.pack.claims import (
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
from operators.pack.scenes import Entity, Scene


def entity(words: str, row: int, column: int, *, part: str | None = None) -> Entity:
    size, colour, shape = words.split()
    return Entity(shape=shape, colour=colour, size=size, part=part, row=row, column=column)


SCENE = Scene(
    entities=(
        entity("large red circle", 0, 0, part="dot"),
        entity("small red circle", 2, 1),
        entity("small blue square", 1, 2, part="stripe"),
        entity("small blue star", 1, 1),
    )
)
CIRCLE, SQUARE, STAR = (Description(shape=shape) for shape in ("circle", "square", "star"))
HEART = Description(shape="heart")


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        (Exists(what=CIRCLE), True),
        (Exists(what=HEART), False),
        (Exists(what=Description(shape="circle", colour="red", size="small")), True),
        (Exists(what=Description(shape="square", colour="red")), False),
        (Exists(what=Description(shape="circle", part="dot")), True),
        (Exists(what=Description(shape="circle", size="small", part="dot")), False),
        (Counts(what=CIRCLE, number=2), True),
        (Counts(what=CIRCLE, number=1), False),
        (Relates(one=CIRCLE, relation="above", other=SQUARE), True),
        (Relates(one=CIRCLE, relation="below", other=SQUARE), True),
        (Relates(one=SQUARE, relation="to the left of", other=CIRCLE), False),
        (Relates(one=SQUARE, relation="to the right of", other=STAR), True),
        (Relates(one=SQUARE, relation="above", other=STAR), False),
        (Outnumbers(one=CIRCLE, more=True, other=SQUARE), True),
        (Outnumbers(one=SQUARE, more=True, other=STAR), False),
        (Outnumbers(one=SQUARE, more=False, other=CIRCLE), True),
        (Outnumbers(one=CIRCLE, more=True, other=HEART), False),
        (Outsizes(one=CIRCLE, larger=True, other=SQUARE), True),
        (Outsizes(one=SQUARE, larger=True, other=CIRCLE), False),
        (Outsizes(one=STAR, larger=False, other=CIRCLE), True),
        (Lacks(what=HEART), True),
        (Lacks(what=Description(shape="square", colour="red")), True),
        (Lacks(what=SQUARE), False),
        (Every(what=CIRCLE, colour="red"), True),
        (Every(what=CIRCLE, size="small"), False),
        (Every(what=CIRCLE, part="dot"), False),
        (Every(what=HEART, colour="red"), False),
    ],
)
def test_claim_holds_exactly_where_the_scene_bears_it_out(claim: Claim, holds: bool) -> None:
    assert claim.holds(SCENE) is holds


@pytest.mark.parametrize(
    ("claim", "text", "question"),
    [
        (
            Counts(what=Description(shape="cross", colour="red"), number=2),
            "there are exactly two red crosses",
            "Are there exactly two red crosses?",
        ),
        (
            Relates(one=CIRCLE, relation="to the left of", other=Description(shape="square", part="dot")),
            "a circle is to the left of a square with a dot",
            "Is there a circle to the left of a square with a dot?",
        ),
        (Every(what=CIRCLE, part="dot", word="all"), "all circles have a dot", "Do all circles have a dot?"),
        (Every(what=CIRCLE, colour="red"), "every circle is red", "Is every circle red?"),
        (Lacks(what=STAR), "there are no stars", "Are there no stars?"),
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
def test_existence_takes_the_skill_of_the_most_specific_property_named(what: Description, kind: str) -> None:
    assert Exists(what=what).kind == kind


def test_a_cell_holds_one_entity() -> None:
    with pytest.raises(ValueError, match="one entity in a cell"):
        Scene(entities=(entity("large red circle", 0, 0), entity("small red star", 0, 0)))
