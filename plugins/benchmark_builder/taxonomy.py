"""Taxonomies of the skills and sub-skills of prompts, with templates for writing prompts of a sub-skill."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.metrics.parsing import normalise

ControlValue = str | int
NO_ENTRIES_TEXT = "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldCheck:
    """A condition on a field that the model writes. Exactly one of the three options is set."""

    field: str
    words: str | None = None
    """Name of the control that gives the number of words, such as `12` or `8-15`."""
    characters: str | None = None
    """Name of the control that gives the number of characters, not counting quotation marks around the text."""
    contains: str | None = None
    """Name of the control or field whose words this field must contain."""

    @property
    def other(self) -> str:
        """Name of the control or field that the condition refers to.

        Raises ConfigError unless exactly one option is set.
        """
        options = [name for name in (self.words, self.characters, self.contains) if name is not None]
        if len(options) != 1:
            raise ConfigError(
                f"a template's check of {self.field!r}: expected exactly one of words, characters and "
                f"contains, got {len(options)}; set one of them in the taxonomy"
            )
        return options[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """Instructions for writing prompts of a sub-skill (Gecko, appendix B.3, listing 2)."""

    instructions: str
    controls: Mapping[str, tuple[ControlValue, ...]] = field(default_factory=dict)
    """Configurable properties of a prompt and their values; all values are requested equally often."""
    fields: tuple[str, ...] = ("Caption",)
    """Fields that the model writes, in this order; the last field is the prompt."""
    examples: tuple[Mapping[str, ControlValue], ...] = ()
    """Examples, each with a value for every control and field."""
    checks: tuple[FieldCheck, ...] = ()

    def __post_init__(self) -> None:
        if not self.fields:
            raise ConfigError(
                "a template's fields: expected the names of the fields to write, got none; name at least one, such "
                "as Caption"
            )
        if empty := [name for name, values in self.controls.items() if not values]:
            raise ConfigError(
                f"a template's control {empty[0]!r}: expected a list of values, got none; add values, or remove the "
                "control"
            )
        names = (*self.controls, *self.fields)
        for number, example in enumerate(self.examples):
            if set(example) != set(names):
                raise ConfigError(
                    f"example {number} of a template: expected {', '.join(names)}, "
                    f"got {', '.join(example) or NO_ENTRIES_TEXT}; correct the example"
                )
        for check in self.checks:
            if check.field not in self.fields or check.other not in names:
                raise ConfigError(
                    f"a template's check must compare one of its fields ({', '.join(self.fields)}) with a field "
                    f"or a control ({', '.join(self.controls) or 'none'}), got {check.field!r} and "
                    f"{check.other!r}; correct the names"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class SubSkill:
    """A subdivision of a skill."""

    about: str = ""
    """Description of the sub-skill for the model that tags prompts."""
    template: Template | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """An ability that prompts require of image generators."""

    about: str = ""
    """Description of the skill for the model that tags prompts."""
    sub_skills: Mapping[str, SubSkill] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedExample:
    """An example of a prompt with its tags, written as the model must write them: `entity - whole (man)`."""

    prompt: str
    tags: tuple[str, ...]


class Tag(NamedTuple):
    """A skill or a sub-skill."""

    skill: str
    sub_skill: str | None

    @property
    def label(self) -> str:
        """The tag as models write it (listing 1)."""
        return self.skill if self.sub_skill is None else f"{self.skill} - {self.sub_skill}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the skill and, if there is a sub-skill, `skill:sub_skill` as in Gecko2K."""
        return (self.skill,) if self.sub_skill is None else (self.skill, f"{self.skill}:{self.sub_skill}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxonomy:
    """All skills, with examples of tagged prompts."""

    name: str
    skills: Mapping[str, Skill]
    examples: tuple[TaggedExample, ...] = ()
    """Examples for the model that tags prompts."""

    def __post_init__(self) -> None:
        if not self.skills:
            raise ConfigError(f"taxonomy {self.name}: expected at least one skill, got none; add skills to it")
        for example in self.examples:
            for tag in example.tags:
                self.find(tag.partition("(")[0])

    def list_tags(self) -> Iterator[Tag]:
        """Yield each skill, followed by its sub-skills."""
        for name, skill in self.skills.items():
            yield Tag(name, None)
            yield from (Tag(name, part) for part in skill.sub_skills)

    def find(self, label: str) -> Tag:
        """Return the tag with this label.

        Case is ignored. Text after the name of a skill that has no sub-skills is ignored too.

        Raises ConfigError, suggesting the nearest tag, if the taxonomy has no such tag.
        """
        by_name = {_normalize_label(name): tag for tag in self.list_tags() for name in (tag.label, tag.names[-1])}
        whole = {_normalize_label(name): Tag(name, None) for name, skill in self.skills.items() if not skill.sub_skills}
        tag = by_name.get(_normalize_label(label)) or whole.get(_normalize_label(label.partition(" - ")[0]))
        if tag is None:
            names = [tag.label for tag in self.list_tags()]
            raise ConfigError(f"{label.strip()!r} is not a tag of the taxonomy {self.name}; {suggest(label, names)}")
        return tag

    def select_templates(self, chosen: Iterable[str] | None = None) -> dict[Tag, Template]:
        """Return the templates of all sub-skills, or only those of the `chosen` skills and sub-skills.

        Raises ConfigError if a name has no template.
        """
        templates = {
            Tag(name, part): sub_skill.template
            for name, skill in self.skills.items()
            for part, sub_skill in skill.sub_skills.items()
            if sub_skill.template is not None
        }
        if chosen is None:
            return templates
        selected = set(chosen)
        if absent := selected - {name for tag in templates for name in tag.names}:
            names = list(dict.fromkeys(name for tag in templates for name in tag.names))
            raise ConfigError(
                f"generation.sub_skills: {min(absent)!r} has no template in the taxonomy {self.name}; "
                f"{suggest(min(absent), names)}"
            )
        return {tag: template for tag, template in templates.items() if selected & set(tag.names)}


def _normalize_label(label: str) -> str:
    return normalise(label).replace(" ", "")
