"""Skills and sub-skills of prompts as data, with the templates by which prompts of a sub-skill are written."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.metrics.parsing import key

Value = str | int
EMPTY = "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What must hold of a field that the model wrote; one of the three is set."""

    field: str
    words: str | None = None
    """The control that says how many words it has: a number, or `8-15`."""
    characters: str | None = None
    """The control that says how many characters it has, quotes around it apart."""
    contains: str | None = None
    """The control or the field whose words must stand in it."""

    @property
    def other(self) -> str:
        """The control or field that it is held against; raises ConfigError unless it is exactly one."""
        named = [name for name in (self.words, self.characters, self.contains) if name is not None]
        if len(named) != 1:
            raise ConfigError(
                f"a template's check of {self.field!r}: expected one of words, characters, contains, got {len(named)}"
            )
        return named[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """How prompts of a sub-skill are written (Gecko, appendix B.3, listing 2)."""

    instructions: str
    controls: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """What a prompt is to be like: by name the values that are asked for, each as often as the others."""
    fields: tuple[str, ...] = ("Caption",)
    """What the model writes, in this order; the last one is the prompt."""
    examples: tuple[Mapping[str, Value], ...] = ()
    """Each with every control and field."""
    checks: tuple[Check, ...] = ()

    def __post_init__(self) -> None:
        if not self.fields:
            raise ConfigError("a template's fields: expected the name of what the model writes, got none")
        if empty := [name for name, values in self.controls.items() if not values]:
            raise ConfigError(f"a template's control {empty[0]!r}: expected some values, got none")
        names = (*self.controls, *self.fields)
        for number, example in enumerate(self.examples):
            if set(example) != set(names):
                raise ConfigError(
                    f"example {number} of a template: expected {', '.join(names)}, got {', '.join(example) or EMPTY}"
                )
        for check in self.checks:
            if check.field not in self.fields or check.other not in names:
                raise ConfigError(
                    f"a template's check of {check.field!r} against {check.other!r}: they are not among its fields "
                    f"({', '.join(self.fields)}) and controls ({', '.join(self.controls)})"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class SubSkill:
    """A part of a skill."""

    about: str = ""
    """What it is, for the model that tags."""
    template: Template | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """Something that images are asked for."""

    about: str = ""
    """What it is, for the model that tags."""
    sub_skills: Mapping[str, SubSkill] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedExample:
    """A prompt with its tags, as the model is to write them: `entity - whole (man)`."""

    prompt: str
    tags: tuple[str, ...]


class Tag(NamedTuple):
    """A skill, or a part of one."""

    skill: str
    sub_skill: str | None

    @property
    def written(self) -> str:
        """As a model writes it (listing 1)."""
        return self.skill if self.sub_skill is None else f"{self.skill} - {self.sub_skill}"

    @property
    def names(self) -> tuple[str, ...]:
        """As the skills of a prompt have it: the skill, and the part as `skill:part`, as Gecko2K writes it."""
        return (self.skill,) if self.sub_skill is None else (self.skill, f"{self.skill}:{self.sub_skill}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxonomy:
    """All skills there are."""

    name: str
    skills: Mapping[str, Skill]
    examples: tuple[TaggedExample, ...] = ()
    """What the model that tags is shown."""

    def __post_init__(self) -> None:
        if not self.skills:
            raise ConfigError(f"taxonomy {self.name}: expected skills, got none")
        for example in self.examples:
            for tag in example.tags:
                self.find(tag.partition("(")[0])

    def tags(self) -> Iterator[Tag]:
        """Each skill, and behind it its parts."""
        for name, skill in self.skills.items():
            yield Tag(name, None)
            yield from (Tag(name, part) for part in skill.sub_skills)

    def find(self, written: str) -> Tag:
        """The tag that these words are, whatever their case; what follows a skill without parts says nothing.

        Raises ConfigError for a tag that is not in the taxonomy, with the nearest one.
        """
        by_name = {_plain(name): tag for tag in self.tags() for name in (tag.written, tag.names[-1])}
        whole = {_plain(name): Tag(name, None) for name, skill in self.skills.items() if not skill.sub_skills}
        tag = by_name.get(_plain(written)) or whole.get(_plain(written.partition(" - ")[0]))
        if tag is None:
            names = [tag.written for tag in self.tags()]
            raise ConfigError(f"{written.strip()!r} is no tag of the taxonomy {self.name}; {suggest(written, names)}")
        return tag

    def templates(self, chosen: Iterable[str] | None = None) -> dict[Tag, Template]:
        """The sub-skills that have one; of `chosen` skills and sub-skills, where they are given, those alone.

        Raises ConfigError for a name that has none.
        """
        all_of_them = {
            Tag(name, part): sub_skill.template
            for name, skill in self.skills.items()
            for part, sub_skill in skill.sub_skills.items()
            if sub_skill.template is not None
        }
        if chosen is None:
            return all_of_them
        wanted = set(chosen)
        if absent := wanted - {name for tag in all_of_them for name in tag.names}:
            names = list(dict.fromkeys(name for tag in all_of_them for name in tag.names))
            raise ConfigError(
                f"generation.sub_skills: {min(absent)!r} has no template in the taxonomy {self.name}; "
                f"{suggest(min(absent), names)}"
            )
        return {tag: template for tag, template in all_of_them.items() if wanted & set(tag.names)}


def _plain(written: str) -> str:
    return key(written).replace(" ", "")
