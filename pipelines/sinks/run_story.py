"""What a sink is told of a run."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

UNSAFE = re.compile(r"[^A-Za-z0-9_. -]")


class RunStory(NamedTuple):
    """A run as an experiment tracker takes it."""

    run_id: str
    project: str
    """The experiment or project that it goes to."""
    facts: Mapping[str, str]
    """The benchmark, and of every model its name, revision and digests, by their places in the manifest."""
    numbers: Mapping[str, float]
    """Means, ends of their 95% intervals and coverage: by metric/skill/generator/what, in letters that all take."""
    report: str
    """HTML."""


Publish = Callable[[RunStory], str]
"""Tells a sink of a run, or tells it again, and gives where that stands."""


def safe(name: str) -> str:
    """A name in letters that every tracker takes."""
    return UNSAFE.sub("_", name)
