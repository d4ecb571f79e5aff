"""Publishes a run's manifest, summary and report to a sink."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plumbline.operators.base.errors import PlumblineError, check_known
from plumbline.pipelines.base.storage import StorageConfig, get_first_line
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import open_existing_store
from plumbline.plugins.exports.sinks import SINKS
from plumbline.plugins.exports.sinks.run_contents import HubConfig, RunContents, make_tracker_name

NUMBER_COLUMNS = ("mean", "low", "high", "coverage")


class SinkError(PlumblineError):
    """Raised if a run cannot be published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishConfig:
    """Options of `plumbline publish`."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    sink: str
    """Sink to publish to: mlflow, swanlab, wandb or hub (the modules in plugins/exports/sinks). The server and the user
    come from the sink's own environment variables.
    """
    run: str = "latest"
    """Id of a run (plumbline status); `latest` selects the newest."""
    project: str = "plumbline"
    """Experiment in MLflow, or project in SwanLab or W&B."""
    hub: HubConfig = field(default_factory=HubConfig)
    """Options for sink=hub."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        check_known("sink", self.sink, SINKS)


def publish_run(config: PublishConfig) -> str:
    """Publish the run and return its address. The store is not changed. Raises SinkError on failure."""
    store = open_existing_store(config)
    run_id = find_run(store, config.run)
    folder = f"runs/{run_id}"
    manifest, summary = read_manifest(store, run_id), store.read_table(f"{folder}/summary.parquet").to_pylist()
    contents = RunContents(
        run_id=run_id,
        project=config.project,
        facts=_list_facts(manifest),
        numbers=dict(_list_numbers(summary)),
        report=store.read_text(f"{folder}/report.html") or "",
        manifest=manifest,
        summary=summary,
        hub=config.hub,
        folder=None if config.hub.folder is None else config.storage.locate(config.hub.folder, writable=True),
    )
    publish = SINKS[config.sink]
    try:
        return publish(contents)
    except PlumblineError:
        raise
    except Exception as error:  # whatever the sink's own client raises
        kind = type(error).__name__
        raise SinkError(
            f"sink={config.sink}: {kind}: {get_first_line(error)}; the run is unchanged; correct the cause and publish "
            "it again"
        ) from error


def _list_numbers(summary: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for row in summary:
        for name in NUMBER_COLUMNS:
            value = row[name]
            if value is not None and math.isfinite(value):
                yield (
                    "/".join((*(make_tracker_name(row[part]) for part in ("metric", "skill", "generator")), name)),
                    float(value),
                )


def _list_facts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the run's id, benchmark, start and exit code, and all that the manifest records about its models."""
    facts = {name: str(manifest[name]) for name in ("run_id", "benchmark", "began", "exit_code") if name in manifest}
    return facts | dict(_flatten_parts(manifest.get("models", {}), "models."))


def _flatten_parts(parts: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in parts.items():
        key = f"{prefix}{make_tracker_name(name.replace(':', '_'))}"  # answers:vqa is a stage and a role
        if isinstance(value, Mapping):
            yield from _flatten_parts(value, f"{key}.")
        else:
            yield key, str(value)
