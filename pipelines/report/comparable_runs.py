"""Decides which runs can be compared, reads bridges between metric versions, and checks the `checkpoints` option."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_names
from plumbline.operators.report.changes import list_comparable_metrics
from plumbline.operators.results.bridge import Bridge
from plumbline.operators.results.metric_recipes import list_relative_metrics
from plumbline.operators.results.summary import describe_part
from plumbline.pipelines.base.exit_codes import OVER_BUDGET
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.store.runs import read_earlier_runs
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.store.suites import find_named_run

LOG = logging.getLogger(__name__)

BRIDGES_FOLDER = "bridges"
"""Folder with a subfolder for each bridge. A subfolder contains groups.parquet and bridge.json; bridge.json is written
last and never changes.
"""
CHECKPOINT_PATTERN = r"(?P<family>.+?)[-_.]?(?:step|ckpt|checkpoint|iter|epoch)[-_.]?(?P<step>[0-9]+)"


def read_bridges(store: Store, benchmark: Any) -> list[Bridge]:
    """Read the bridges of a benchmark, newest first; log and skip damaged bridges.

    A bridge records whether two versions of a metric share a scale, can be converted into each other, or measure
    different things.
    """
    bridges = []
    for bridge_id in sorted(store.list_folders(BRIDGES_FOLDER), reverse=True):
        path = f"{BRIDGES_FOLDER}/{bridge_id}/bridge.json"
        content = store.read_json(path)
        if content is None:
            continue  # another process is writing it
        try:
            bridge = read_config(content, Bridge)
        except ConfigError as error:
            LOG.warning("%s cannot be read and is ignored: %s", store.place / path, error)
            continue
        if bridge.benchmark == benchmark:
            bridges.append(bridge)
    return bridges


def find_obstacle(before: Mapping[str, Any] | None, after: Mapping[str, Any], bridges: Sequence[Bridge] = ()) -> str:
    """Return the reason why two runs cannot be compared; empty if they can be, directly or through a bridge."""
    if before is None:
        return "its manifest is damaged"
    if before.get("benchmark") != after.get("benchmark"):
        return f"its benchmark is {before.get('benchmark')!r}"
    part = describe_part(before)
    if part and part != describe_part(after):
        return f"it only scored {part}"
    if before.get("exit_code") == OVER_BUDGET:
        return "more of its rows failed than its budget allows"
    if not set(before.get("generators", ())) & set(after.get("generators", ())):
        return "the two runs share no generator"
    if not list_comparable_metrics(before, after, bridges):
        metrics = list(after.get("metrics", ()))
        if set(metrics) <= list_relative_metrics(after):
            return f"scores by {format_names(metrics)} depend on all generators of a run"
        return f"the settings or models of {format_names(metrics)} differ"
    return ""


def find_compared_run(
    store: Store,
    run_id: str,
    manifest: Mapping[str, Any],
    compare: str,
    key: str = "compare",
    bridges: Sequence[Bridge] = (),
) -> str:
    """Return the id of the run to compare the given run with.

    `compare` is the id of a run or of a suite; in a suite, the run of the same benchmark is used. `previous` means the
    newest earlier run that can be compared. Raise ConfigError if no run is found; `key` is the name of the option in
    the message.
    """
    if compare != "previous":
        named = find_named_run(store, compare, str(manifest.get("benchmark")), key)
        if named is None:
            raise ConfigError(f"{key}={compare}: that suite has no run of {manifest.get('benchmark')}; name another")
        return named
    reason = ""
    for earlier in read_earlier_runs(store, run_id):
        if not (obstacle := find_obstacle(earlier.manifest, manifest, bridges)):
            return earlier.run_id
        reason = reason or f"{earlier.run_id} cannot be compared with it ({obstacle})"
    reason = reason or "it is the first run of this store"
    raise ConfigError(f"{key}=previous: {run_id} has no earlier run to compare with; {reason}")


def check_checkpoints(key: str, expression: str) -> None:
    """Raise ConfigError unless the expression is a valid regular expression with groups `family` and `step`."""
    try:
        groups = re.compile(expression).groupindex
    except re.error as error:
        raise ConfigError(f"{key}: expected a regular expression, got {expression!r} ({error})") from error
    if not {"family", "step"} <= set(groups):
        raise ConfigError(f"{key}: expected groups (?P<family>...) and (?P<step>[0-9]+), got {expression!r}")
