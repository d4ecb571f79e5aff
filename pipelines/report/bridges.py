"""Reads the bridges of a store. A bridge compares two versions of a metric on the same images."""

import logging
from typing import Any

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.results.bridge import Bridge
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.store.store import Store

LOG = logging.getLogger(__name__)

BRIDGES = "bridges"
"""Folder with a folder for each bridge. It has groups.parquet, and bridge.json, which is written last and only once."""


def read_bridges(store: Store, benchmark: Any) -> list[Bridge]:
    """Read the bridges of a benchmark, the newest first, without damaged ones, which are logged."""
    bridges = []
    for bridge_id in sorted(store.folders(BRIDGES), reverse=True):
        path = f"{BRIDGES}/{bridge_id}/bridge.json"
        content = store.read_json(path)
        if content is None:
            continue  # another process is writing it
        try:
            bridge = read_config(content, Bridge)
        except ConfigError as error:
            LOG.warning("%s: not read (%s)", store.place / path, error)
            continue
        if bridge.benchmark == benchmark:
            bridges.append(bridge)
    return bridges
