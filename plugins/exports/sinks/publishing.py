"""A run told to an experiment tracker, from its manifest, its summary and its report."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plumbline.operators.base.errors import PlumblineError, check_known
from plumbline.pipelines.base.storage import StorageConfig, first_line
from plumbline.pipelines.cells.runs import find_run, read_manifest
from plumbline.pipelines.cells.store import open_existing_store
from plumbline.plugins.exports.sinks import SINKS
from plumbline.plugins.exports.sinks.run_story import HubConfig, RunStory, tracker_name

NUMBERS = ("mean", "low", "high", "coverage")


class SinkError(PlumblineError):
    """A sink did not take a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishConfig:
    """Which run to tell which sink."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    sink: str
    """mlflow, swanlab, wandb or hub: a name of plugins/exports/sinks. Where it is and who publishes comes from its own
    environment variables."""
    run: str = "latest"
    """A run's id (plumbline status); `latest` is the newest."""
    project: str = "plumbline"
    """The experiment of MLflow, or the project of SwanLab or W&B."""
    hub: HubConfig = field(default_factory=HubConfig)
    """Of sink=hub alone."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        check_known("sink", self.sink, SINKS)


def publish_run(config: PublishConfig) -> str:
    """Tells the sink, and gives where the run stands there; raises SinkError where that fails.

    Nothing of the run or the store is written.
    """
    store = open_existing_store(config)
    run_id = find_run(store, config.run)
    folder = f"runs/{run_id}"
    manifest, summary = read_manifest(store, run_id), store.read_table(f"{folder}/summary.parquet").to_pylist()
    story = RunStory(
        run_id=run_id,
        project=config.project,
        facts=_facts(manifest),
        numbers=dict(_numbers(summary)),
        report=store.read_text(f"{folder}/report.html") or "",
        manifest=manifest,
        summary=summary,
        hub=config.hub,
        folder=None if config.hub.folder is None else config.storage.locate(config.hub.folder, writable=True),
    )
    publish = SINKS[config.sink]
    try:
        return publish(story)
    except PlumblineError:
        raise
    except Exception as error:  # whatever the sink's own client raises
        kind = type(error).__name__
        raise SinkError(f"sink={config.sink}: {kind}: {first_line(error)}; the run stands as it was") from error


def _numbers(summary: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for row in summary:
        for name in NUMBERS:
            value = row[name]
            if value is not None and math.isfinite(value):
                yield (
                    "/".join((*(tracker_name(row[part]) for part in ("metric", "skill", "generator")), name)),
                    float(value),
                )


def _facts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The benchmark, and every model with its revision and digests."""
    facts = {name: str(manifest[name]) for name in ("run_id", "benchmark", "began", "exit_code") if name in manifest}
    return facts | dict(_leaves(manifest.get("models", {}), "models."))


def _leaves(parts: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in parts.items():
        place = f"{before}{tracker_name(name.replace(':', '_'))}"  # answers:vqa is a stage and a role
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{place}.")
        else:
            yield place, str(value)
