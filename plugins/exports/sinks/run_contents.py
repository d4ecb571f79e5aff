"""The contents of a run that sinks publish."""

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
"""Characters of one part of a number's name; MLflow allows 250 in total."""
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
SOURCE = re.compile(r"https?://[^\s/@]+(/\S*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubConfig:
    """Options of sink=hub: the model, and the benchmark's dataset on the Hugging Face Hub."""

    generator: str | None = None
    """The model's generator in the run."""
    folder: str | None = None
    """Folder or prefix for README.md and .eval_results, for example a checkout of the model's repository."""
    dataset: str | None = None
    """The dataset on the Hub that is the benchmark, as owner/name; null writes the model card alone."""
    revision: str | None = None
    """The dataset's commit."""
    tasks: Mapping[str, str] | None = None
    """Tasks of the dataset's eval.yaml by `metric` or `metric/skill`; null publishes the overall score of each metric
    that ranks as a task with the metric's name."""
    source: str | None = None
    """Address of a page about the origin of the scores."""
    upload: str | None = None
    """The model's repository, as owner/name; opens a pull request there as HF_TOKEN's user. null sends nothing."""

    def __post_init__(self) -> None:
        for name in ("dataset", "upload"):
            value = getattr(self, name)
            if value is not None and not REPOSITORY.fullmatch(value):
                raise ConfigError(f"hub.{name}: expected a repository as owner/name, got {value!r}")
        if self.source is not None and not SOURCE.fullmatch(self.source):
            raise ConfigError("hub.source: expected an address such as https://host/page, without credentials")


class RunStory(NamedTuple):
    """A run as sinks receive it."""

    run_id: str
    project: str
    """Experiment or project to publish to."""
    facts: Mapping[str, str]
    """The benchmark, and every model's name, revision and digests, by their keys in the manifest."""
    numbers: Mapping[str, float]
    """Means, ends of 95% intervals and coverage by metric/skill/generator/NUMBER, as trackers accept them."""
    report: str
    """HTML."""
    manifest: Mapping[str, Any] = MappingProxyType({})
    summary: Sequence[Mapping[str, Any]] = ()
    """Rows of schema SUMMARY."""
    hub: HubConfig = HubConfig()
    folder: Place | None = None
    """The model's folder, for sink=hub."""


Publish = Callable[[RunStory], str]
"""Publishes or updates a run, and returns its address."""


def tracker_name(name: str) -> str:
    """Return a name made of characters that every tracker accepts.

    A changed name ends in a digest, so that sdxl+lora and sdxl@lora stay distinct in every run.
    """
    short = UNSAFE.sub("_", name)[:MAX_NAME]
    return name if short == name else f"{short}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"
