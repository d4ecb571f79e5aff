"""What can be said of a scene, with one meaning each: descriptions of entities and claims that hold or do not.

Conventions, the same in prompts, questions and truth: naming a thing claims that at least one such thing exists; a
number word means exactly that many; a relation or a size comparison holds where some pair fits it; "every" also claims
that there is at least one; left, right, above and below compare grid columns and rows strictly.
"""

from dataclasses import dataclass
from typing import Protocol

from operators.pack.scenes import Entity, Scene

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
RELATIONS = ("to the left of", "to the right of", "above", "below")
SKILLS = ("object", "attribute", "counting", "spatial", "comparison", "negation", "universality", "part")


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A kind of entity, such as `small red circle with a dot`; None leaves a property open."""

    shape: str | None
    colour: str | None = None
    size: str | None = None
    part: str | None = None

    def fits(self, entity: Entity) -> bool:
        return (
            (self.shape is None or entity.shape == self.shape)
            and (self.colour is None or entity.colour == self.colour)
            and (self.size is None or entity.size == self.size)
            and (self.part is None or entity.part == self.part)
        )

    def among(self, scene: Scene) -> list[Entity]:
        """The entities of the scene that fit."""
        return [entity for entity in scene.entities if self.fits(entity)]

    @property
    def noun(self) -> str:
        """Singular without article."""
        words = [word for word in (self.size, self.colour, self.shape or "shape") if word]
        return " ".join(words) + (f" with a {self.part}" if self.part else "")

    @property
    def plural(self) -> str:
        """Plural without article; the part stays singular, as each has its own."""
        return pluralise(Description(shape=self.shape, colour=self.colour, size=self.size).noun) + (
            f" with a {self.part}" if self.part else ""
        )

    @property
    def one(self) -> str:
        """Singular with its article."""
        return f"a {self.noun}"


def pluralise(noun: str) -> str:
    """The noun's plural."""
    return noun + ("es" if noun.endswith("ss") else "s")


class Claim(Protocol):
    """Something a scene bears out or not."""

    @property
    def kind(self) -> str:
        """The skill that judging it takes, one of SKILLS."""

    @property
    def text(self) -> str:
        """The claim as a clause."""

    @property
    def question(self) -> str:
        """The claim as a yes/no question."""

    def holds(self, scene: Scene) -> bool:
        """Whether it is true of the scene."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exists:
    """At least one entity fits; an object, attribute or part claim by what the description names."""

    what: Description

    @property
    def kind(self) -> str:
        if self.what.part:
            return "part"
        return "attribute" if self.what.colour or self.what.size else "object"

    @property
    def text(self) -> str:
        return f"there is {self.what.one}"

    @property
    def question(self) -> str:
        return f"Is there {self.what.one}?"

    def holds(self, scene: Scene) -> bool:
        return any(self.what.fits(entity) for entity in scene.entities)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Exactly `number` entities fit."""

    what: Description
    number: int

    @property
    def kind(self) -> str:
        return "counting"

    @property
    def amount(self) -> str:
        """The number with its noun, `two red circles`."""
        return f"{NUMBERS[self.number]} {self.what.noun if self.number == 1 else self.what.plural}"

    @property
    def text(self) -> str:
        return f"there {'is' if self.number == 1 else 'are'} exactly {self.amount}"

    @property
    def question(self) -> str:
        return f"{'Is' if self.number == 1 else 'Are'} there exactly {self.amount}?"

    def holds(self, scene: Scene) -> bool:
        return len(self.what.among(scene)) == self.number


@dataclass(frozen=True, kw_only=True, slots=True)
class Relates:
    """Some entity of the first kind stands in the relation to some entity of the second."""

    one: Description
    relation: str
    other: Description

    @property
    def kind(self) -> str:
        return "spatial"

    @property
    def text(self) -> str:
        return f"{self.one.one} is {self.relation} {self.other.one}"

    @property
    def question(self) -> str:
        return f"Is there {self.one.one} {self.relation} {self.other.one}?"

    def holds(self, scene: Scene) -> bool:
        others = self.other.among(scene)
        return any(related(one, self.relation, other) for one in self.one.among(scene) for other in others)


def related(one: Entity, relation: str, other: Entity) -> bool:
    """Whether the relation holds from one entity to the other."""
    match relation:
        case "to the left of":
            return one.column < other.column
        case "to the right of":
            return one.column > other.column
        case "above":
            return one.row < other.row
        case "below":
            return one.row > other.row
    raise ValueError(f"relation: expected one of {RELATIONS}, got {relation!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outnumbers:
    """More, or fewer, entities fit the first description than the second, and at least one fits each."""

    one: Description
    more: bool
    other: Description

    @property
    def kind(self) -> str:
        return "comparison"

    @property
    def clause(self) -> str:
        return f"{'more' if self.more else 'fewer'} {self.one.plural} than {self.other.plural}"

    @property
    def text(self) -> str:
        return f"there are {self.clause}"

    @property
    def question(self) -> str:
        return f"Are there {self.clause}?"

    def holds(self, scene: Scene) -> bool:
        one, other = len(self.one.among(scene)), len(self.other.among(scene))
        return one > other > 0 if self.more else 0 < one < other


@dataclass(frozen=True, kw_only=True, slots=True)
class Outsizes:
    """Some entity of the first kind is larger, or smaller, than some entity of the second."""

    one: Description
    larger: bool
    other: Description

    @property
    def kind(self) -> str:
        return "comparison"

    @property
    def relation(self) -> str:
        return "larger than" if self.larger else "smaller than"

    @property
    def text(self) -> str:
        return f"{self.one.one} is {self.relation} {self.other.one}"

    @property
    def question(self) -> str:
        return f"Is there {self.one.one} {self.relation} {self.other.one}?"

    def holds(self, scene: Scene) -> bool:
        sizes = ("large", "small") if self.larger else ("small", "large")
        return any(entity.size == sizes[0] for entity in self.one.among(scene)) and any(
            entity.size == sizes[1] for entity in self.other.among(scene)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lacks:
    """No entity fits."""

    what: Description

    @property
    def kind(self) -> str:
        return "negation"

    @property
    def text(self) -> str:
        return f"there are no {self.what.plural}"

    @property
    def question(self) -> str:
        return f"Are there no {self.what.plural}?"

    def holds(self, scene: Scene) -> bool:
        return not any(self.what.fits(entity) for entity in scene.entities)


@dataclass(frozen=True, kw_only=True, slots=True)
class Every:
    """There is an entity that fits, and all that fit have one colour, one size or one part."""

    what: Description
    colour: str | None = None
    size: str | None = None
    part: str | None = None
    word: str = "every"

    @property
    def kind(self) -> str:
        return "universality"

    @property
    def clause(self) -> str:
        """`every circle is blue` or `all circles are blue`."""
        has, be = ("has", "is") if self.word == "every" else ("have", "are")
        predicate = f"{has} a {self.part}" if self.part else f"{be} {self.colour or self.size}"
        return f"{self._subject} {predicate}"

    @property
    def _subject(self) -> str:
        return f"every {self.what.noun}" if self.word == "every" else f"all {self.what.plural}"

    @property
    def text(self) -> str:
        return self.clause

    @property
    def question(self) -> str:
        if self.part:
            return f"{'Does' if self.word == 'every' else 'Do'} {self._subject} have a {self.part}?"
        return f"{'Is' if self.word == 'every' else 'Are'} {self._subject} {self.colour or self.size}?"

    def holds(self, scene: Scene) -> bool:
        members = self.what.among(scene)
        wanted = Description(shape=None, colour=self.colour, size=self.size, part=self.part)
        return bool(members) and all(wanted.fits(entity) for entity in members)
