"""Descriptions of entities, and claims about a scene that are true or false.

Prompts, questions and the ground truth follow the same conventions. Naming a thing claims that at least one such thing
exists. A number word means exactly that many. A relation or a size comparison is true if it is true of at least one
pair. "Every" also claims that there is at least one. Left, right, above and below are strict comparisons of grid
columns and rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from plumbline.assets.making.scenes import Entity, Scene

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six")
RELATIONS = ("to the left of", "to the right of", "above", "below")
LARGER, SMALLER = "larger than", "smaller than"
SKILLS = ("object", "attribute", "counting", "spatial", "comparison", "negation", "universality", "part")


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A kind of entity, such as `small red circle with a dot`; a property that is None may have any value."""

    shape: str | None = None
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

    def find_matching_entities(self, scene: Scene) -> list[Entity]:
        """Return the scene's entities that fit the description."""
        return [entity for entity in scene.entities if self.fits(entity)]

    def excludes(self, other: "Description") -> bool:
        """Return True if no entity can fit both descriptions."""
        pairs = ((getattr(self, field), getattr(other, field)) for field in ("shape", "colour", "size", "part"))
        return any(own and others and own != others for own, others in pairs)

    @property
    def bare(self) -> "Description":
        """The description without any property except the shape."""
        return Description(shape=self.shape)

    @property
    def whole(self) -> "Description":
        """The description without the entity's part, such as a dot."""
        return replace(self, part=None)

    @property
    def adjectives(self) -> str:
        """The size and the colour."""
        return " ".join(word for word in (self.size, self.colour) if word)

    @property
    def noun(self) -> str:
        """The description as a singular noun phrase without an article."""
        words = [word for word in (self.adjectives, self.shape or "shape") if word]
        return " ".join(words) + (f" with a {self.part}" if self.part else "")

    @property
    def plural(self) -> str:
        """The description as a plural without an article. The part stays singular, because each entity has its own."""
        noun = self.whole.noun
        ending = "es" if noun.endswith("ss") else "s"
        return noun + ending + (f" with a {self.part}" if self.part else "")

    @property
    def indefinite(self) -> str:
        """The description as a singular noun phrase with an indefinite article."""
        return f"a {self.noun}"


class Claim(ABC):
    """A statement that is true or false of a scene."""

    @property
    def verb(self) -> str:
        return "are"

    @property
    @abstractmethod
    def kind(self) -> str:
        """The skill from SKILLS that is needed to judge the claim."""

    @property
    @abstractmethod
    def things(self) -> tuple[Description, ...]:
        """The kinds of entities that the claim is about."""

    @property
    @abstractmethod
    def clause(self) -> str:
        """The claim as it is worded in a prompt."""

    @property
    def predicate(self) -> str:
        """The words that follow "there is" or "there are"."""
        return self.clause

    @property
    def text(self) -> str:
        """The claim as a sentence."""
        return f"there {self.verb} {self.predicate}"

    @property
    def question(self) -> str:
        """The claim as a yes/no question."""
        return f"{self.verb.capitalize()} there {self.predicate}?"

    @abstractmethod
    def holds(self, scene: Scene) -> bool:
        """Return True if the claim is true of the scene."""


@dataclass(frozen=True, slots=True)
class KindClaim(Claim):
    """A claim about one kind of entity."""

    what: Description

    @property
    def things(self) -> tuple[Description, ...]:
        return (self.what,)


@dataclass(frozen=True, slots=True)
class PairClaim(Claim):
    """A claim about two kinds of entities."""

    first: Description
    second: Description

    @property
    def things(self) -> tuple[Description, ...]:
        return (self.first, self.second)


@dataclass(frozen=True, slots=True)
class ExistenceClaim(KindClaim):
    """The claim that at least one entity fits the description.

    The claim's kind is object, attribute or part, depending on the properties in the description.
    """

    verb = "is"

    @property
    def kind(self) -> str:
        if self.what.part:
            return "part"
        return "attribute" if self.what.adjectives else "object"

    @property
    def clause(self) -> str:
        return self.what.indefinite

    def holds(self, scene: Scene) -> bool:
        return any(self.what.fits(entity) for entity in scene.entities)


@dataclass(frozen=True, slots=True)
class CountClaim(KindClaim):
    """The claim that exactly `number` entities fit the description."""

    number: int
    kind = "counting"

    @property
    def verb(self) -> str:
        return "is" if self.number == 1 else "are"

    @property
    def clause(self) -> str:
        return f"{NUMBER_WORDS[self.number]} {self.what.noun if self.number == 1 else self.what.plural}"

    @property
    def predicate(self) -> str:
        return f"exactly {self.clause}"

    def holds(self, scene: Scene) -> bool:
        return len(self.what.find_matching_entities(scene)) == self.number


@dataclass(frozen=True, slots=True)
class AbsenceClaim(KindClaim):
    """The claim that no entity fits the description."""

    kind = "negation"

    @property
    def clause(self) -> str:
        return f"no {self.what.plural}"

    def holds(self, scene: Scene) -> bool:
        return not any(self.what.fits(entity) for entity in scene.entities)


@dataclass(frozen=True, slots=True)
class UniversalityClaim(KindClaim):
    """The claim that some entities fit the description, and all of them have the given value (colour, size or part)."""

    field: str
    value: str
    word: str = "every"
    kind = "universality"

    @property
    def subject(self) -> str:
        """The subject of the claim, such as `every circle` or `all circles`."""
        return f"{self.word} {self.what.noun if self.word == 'every' else self.what.plural}"

    @property
    def clause(self) -> str:
        has, be = ("has", "is") if self.word == "every" else ("have", "are")
        return f"{self.subject} {f'{has} a' if self.field == 'part' else be} {self.value}"

    @property
    def text(self) -> str:
        return self.clause

    @property
    def question(self) -> str:
        does, be = ("Does", "Is") if self.word == "every" else ("Do", "Are")
        if self.field == "part":
            return f"{does} {self.subject} have a {self.value}?"
        return f"{be} {self.subject} {self.value}?"

    def holds(self, scene: Scene) -> bool:
        members = self.what.find_matching_entities(scene)
        return bool(members) and all(getattr(entity, self.field) == self.value for entity in members)


@dataclass(frozen=True, slots=True)
class RelationClaim(PairClaim):
    """The claim that an entity of the first kind has a position or size relative to one of the second kind."""

    relation: str
    verb = "is"

    @property
    def kind(self) -> str:
        return "spatial" if self.relation in RELATIONS else "comparison"

    @property
    def clause(self) -> str:
        return f"{self.first.indefinite} {self.relation} {self.second.indefinite}"

    @property
    def text(self) -> str:
        return f"{self.first.indefinite} is {self.relation} {self.second.indefinite}"

    def holds(self, scene: Scene) -> bool:
        seconds = self.second.find_matching_entities(scene)
        related = RELATION_CHECKS[self.relation]
        return any(related(first, second) for first in self.first.find_matching_entities(scene) for second in seconds)


RELATION_CHECKS: Mapping[str, Callable[[Entity, Entity], bool]] = {
    "to the left of": lambda first, second: first.cell[1] < second.cell[1],
    "to the right of": lambda first, second: first.cell[1] > second.cell[1],
    "above": lambda first, second: first.cell[0] < second.cell[0],
    "below": lambda first, second: first.cell[0] > second.cell[0],
    LARGER: lambda first, second: (first.size, second.size) == ("large", "small"),
    SMALLER: lambda first, second: (first.size, second.size) == ("small", "large"),
}


@dataclass(frozen=True, slots=True)
class OutnumberingClaim(PairClaim):
    """The claim that more (or fewer) entities fit the first description than the second, and at least one fits each."""

    amount: str
    """`more` or `fewer`."""
    kind = "comparison"

    @property
    def clause(self) -> str:
        return f"{self.amount} {self.first.plural} than {self.second.plural}"

    def holds(self, scene: Scene) -> bool:
        first, second = (len(thing.find_matching_entities(scene)) for thing in self.things)
        return first > second > 0 if self.amount == "more" else 0 < first < second
