"""Each kind of claim is true of exactly those hand-made scenes that its definition describes."""

import pytest

from plumbline.assets.making.claims import (
    LARGER,
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
        (ExistenceClaim(CIRCLE), True),
        (ExistenceClaim(HEART), False),
        (ExistenceClaim(Description(shape="circle", colour="red", size="small")), True),
        (ExistenceClaim(Description(shape="square", colour="red")), False),
        (ExistenceClaim(Description(shape="circle", part="dot")), True),
        (ExistenceClaim(Description(shape="circle", size="small", part="dot")), False),
        (CountClaim(CIRCLE, 2), True),
        (CountClaim(CIRCLE, 1), False),
        (RelationClaim(CIRCLE, SQUARE, "above"), True),
        (RelationClaim(CIRCLE, SQUARE, "below"), True),
        (RelationClaim(SQUARE, CIRCLE, "to the left of"), False),
        (RelationClaim(SQUARE, STAR, "to the right of"), True),
        (RelationClaim(SQUARE, STAR, "above"), False),
        (OutnumberingClaim(CIRCLE, SQUARE, "more"), True),
        (OutnumberingClaim(SQUARE, STAR, "more"), False),
        (OutnumberingClaim(SQUARE, CIRCLE, "fewer"), True),
        (OutnumberingClaim(CIRCLE, HEART, "more"), False),
        (RelationClaim(CIRCLE, SQUARE, LARGER), True),
        (RelationClaim(SQUARE, CIRCLE, LARGER), False),
        (RelationClaim(STAR, CIRCLE, SMALLER), True),
        (AbsenceClaim(HEART), True),
        (AbsenceClaim(Description(shape="square", colour="red")), True),
        (AbsenceClaim(SQUARE), False),
        (UniversalityClaim(CIRCLE, "colour", "red"), True),
        (UniversalityClaim(CIRCLE, "size", "small"), False),
        (UniversalityClaim(CIRCLE, "part", "dot"), False),
        (UniversalityClaim(HEART, "colour", "red"), False),
    ],
)
def test_a_claim_holds_exactly_if_it_is_true_of_the_scene(claim: Claim, holds: bool) -> None:
    assert claim.holds(SCENE) is holds


@pytest.mark.parametrize(
    ("claim", "text", "question"),
    [
        (
            CountClaim(Description(shape="cross", colour="red"), 2),
            "there are exactly two red crosses",
            "Are there exactly two red crosses?",
        ),
        (
            RelationClaim(CIRCLE, Description(shape="square", part="dot"), "to the left of"),
            "a circle is to the left of a square with a dot",
            "Is there a circle to the left of a square with a dot?",
        ),
        (UniversalityClaim(CIRCLE, "part", "dot", word="all"), "all circles have a dot", "Do all circles have a dot?"),
        (UniversalityClaim(CIRCLE, "colour", "red"), "every circle is red", "Is every circle red?"),
        (AbsenceClaim(STAR), "there are no stars", "Are there no stars?"),
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
    assert ExistenceClaim(what).kind == kind


def test_a_cell_contains_at_most_one_entity() -> None:
    with pytest.raises(ValueError, match="one entity in a cell"):
        Scene(entities=(make_entity("large red circle", 0, 0), make_entity("small red star", 0, 0)))
