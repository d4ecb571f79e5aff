"""Contents of a run that are passed to sinks."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place

UNSAFE_CHARACTER_PATTERN = re.compile(r"[^A-Za-z0-9_. -]")
MAX_NAME_CHARACTERS = 60
"""Maximum number of characters in one component of a number's name. MLflow allows 250 for the whole name."""
REPOSITORY_PATTERN = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
SOURCE_ADDRESS_PATTERN = re.compile(r"https?://[^\s/@]+(/\S*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubConfig:
    """Options for sink=hub: the model to publish, and the benchmark's dataset on the Hugging Face Hub."""

    generator: str | None = None
    """Name of the model among the run's generators."""
    folder: str | None = None
    """Folder or cloud prefix for README.md and .eval_results, such as a checkout of the model's repository."""
    dataset: str | None = None
    """Dataset on the Hub that contains the benchmark, as owner/name; null writes only the model card."""
    revision: str | None = None
    """Commit of the dataset."""
    tasks: Mapping[str, str] | None = None
    """Tasks in the dataset's eval.yaml, by `metric` or `metric/skill`. Null publishes the overall score of each metric
    that ranks generators; the task has the metric's name.
    """
    source: str | None = None
    """Address of a page that explains the scores."""
    upload: str | None = None
    """Repository of the model, as owner/name. A pull request is opened there by the user of HF_TOKEN. Null uploads
    nothing.
    """

    def __post_init__(self) -> None:
        for name in ("dataset", "upload"):
            value = getattr(self, name)
            if value is not None and not REPOSITORY_PATTERN.fullmatch(value):
                raise ConfigError(f"hub.{name}: expected a repository as owner/name, got {value!r}; correct hub.{name}")
        if self.source is not None and not SOURCE_ADDRESS_PATTERN.fullmatch(self.source):
            raise ConfigError(
                "hub.source: expected an address such as https://host/page, without credentials; correct hub.source"
            )


class RunContents(NamedTuple):
    """Contents of a run that are passed to sinks."""

    run_id: str
    project: str
    """Experiment or project that the run is published in."""
    facts: Mapping[str, str]
    """The benchmark, and every model's name, revision and digests, by key in the manifest."""
    numbers: Mapping[str, float]
    """Means, bounds of 95% intervals and coverage, by metric/skill/generator/NUMBER. Trackers accept these names."""
    report: str
    """The run's report as HTML."""
    manifest: Mapping[str, Any] = MappingProxyType({})
    summary: Sequence[Mapping[str, Any]] = ()
    """Rows with the schema SUMMARY."""
    hub: HubConfig = HubConfig()
    folder: Place | None = None
    """Folder of the model. Only used by sink=hub."""


PublishFunction = Callable[[RunContents], str]
"""Function that publishes or updates a run, and returns its address."""


def make_tracker_name(name: str) -> str:
    """Replace the characters that some trackers do not accept, and shorten the name.

    If the name changes, a digest is appended, so that sdxl+lora and sdxl@lora stay distinct.
    """
    short = UNSAFE_CHARACTER_PATTERN.sub("_", name)[:MAX_NAME_CHARACTERS]
    return name if short == name else f"{short}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"
