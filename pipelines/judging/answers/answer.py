"""What VQA models answered about images, as a reader finds it in a table or in a release's own files."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from plumbline.operators.errors import ConfigError


class Answer(NamedTuple):
    """One answer about an image."""

    metric: str
    """Which model answered, by the name that its scores get."""
    image_id: str
    prompt_id: str | None
    generator: str | None
    question_id: str
    right: bool | None
    """None where there is no answer."""
    parents: Sequence[str]
    """The questions that must hold for this one."""
    where: str
    """The file and row."""


class Answered(NamedTuple):
    """All answers of a release, in its order."""

    answers: Sequence[Answer]
    notes: Sequence[str] = ()
    """What is read otherwise than it stands, in words."""


Found = TypeVar("Found")


def asked_for(found: Mapping[str, Found], given: Collection[str], where: str) -> dict[str, Found]:
    """What is there of the models asked for, of all where none are; raises ConfigError for one that is not there."""
    for name in given:
        if name not in found:
            raise ConfigError(f"given: {where} has no answers of {name!r}; there are {', '.join(found) or 'none'}")
    return {name: found[name] for name in given} if given else dict(found)
