"""What a sink is told of a run."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place

UNSAFE = re.compile(r"[^A-Za-z0-9_. -]")
MAX_NAME = 60
"""Characters of one part of a number's name; MLflow takes 250 for all of them."""


REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
SOURCE = re.compile(r"https?://[^\s/@]+(/\S*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubConfig:
    """Of sink=hub: the model, and the benchmark's dataset on the Hugging Face Hub."""

    generator: str | None = None
    """Which generator of the run the model is."""
    folder: str | None = None
    """Where its README.md and .eval_results are, or will be: a checkout of its repository, or any folder or prefix."""
    dataset: str | None = None
    """The dataset on the Hub that is the benchmark, as owner/name; null writes the model card alone."""
    revision: str | None = None
    """The dataset's commit."""
    tasks: Mapping[str, str] | None = None
    """By `metric` or `metric/skill`, the task of the dataset's eval.yaml that it is the score of; null takes the
    overall score of each metric that ranks for a task of its name."""
    source: str | None = None
    """An address where what the scores are from can be seen."""
    upload: str | None = None
    """The model's repository, as owner/name, in which to open a pull request as HF_TOKEN's user; null sends nothing."""

    def __post_init__(self) -> None:
        for name in ("dataset", "upload"):
            value = getattr(self, name)
            if value is not None and not REPOSITORY.fullmatch(value):
                raise ConfigError(f"hub.{name}: expected a repository as owner/name, got {value!r}")
        if self.source is not None and not SOURCE.fullmatch(self.source):
            raise ConfigError("hub.source: expected an address such as https://host/page, without credentials")


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
    manifest: Mapping[str, Any] = MappingProxyType({})
    summary: Sequence[Mapping[str, Any]] = ()
    """Rows of schema SUMMARY."""
    hub: HubConfig = HubConfig()
    folder: Place | None = None
    """The model's, of sink=hub."""


Publish = Callable[[RunStory], str]
"""Tells a sink of a run, or tells it again, and gives where that stands."""


def tracker_name(name: str) -> str:
    """Return a name made of characters that every tracker accepts.

    A changed name ends in a digest, so that sdxl+lora and sdxl@lora stay distinct in every run.
    """
    short = UNSAFE.sub("_", name)[:MAX_NAME]
    return name if short == name else f"{short}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"
