"""The bridges of a store: what was found of two versions of a metric on the same images."""

import logging
from dataclasses import asdict
from typing import Any

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.results.bridge import Bridge, Built
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.sweep_config import read_config

LOG = logging.getLogger(__name__)

BRIDGES = "bridges"
"""The folder of the bridges; of each a folder with groups.parquet and bridge.json, which is written last, and once."""


def write_bridge(store: Store, built: Built) -> str:
    """Where it is now; raises ConfigError where one of its id stands already."""
    folder = f"{BRIDGES}/{built.bridge.bridge_id}"
    if store.exists(f"{folder}/bridge.json"):
        raise ConfigError(f"{store.place / folder}: there is a bridge already; run again")
    store.write_table(f"{folder}/groups.parquet", built.groups)
    store.create_json(f"{folder}/bridge.json", asdict(built.bridge))
    return str(store.place / folder)


def read_bridges(store: Store, benchmark: Any) -> list[Bridge]:
    """Those of a benchmark, the newest first; one that is damaged is left out, and logged."""
    bridges = []
    for bridge_id in sorted(store.folders(BRIDGES), reverse=True):
        path = f"{BRIDGES}/{bridge_id}/bridge.json"
        content = store.read_json(path)
        if content is None:
            continue  # it is being written
        try:
            bridge = read_config(content, Bridge)
        except ConfigError as error:
            LOG.warning("%s: not read (%s)", store.place / path, error)
            continue
        if bridge.benchmark == benchmark:
            bridges.append(bridge)
    return bridges
