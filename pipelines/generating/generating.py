"""A benchmark's pictures made by a generator: what is missing is drawn, and all are put into the generator's folder."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow.parquet as pq

from plumbline.operators.errors import ConfigError
from plumbline.operators.models.calls import Usage
from plumbline.pipelines.base.exit_codes import exit_code
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, is_draft
from plumbline.pipelines.cells.store import Store, draft_path
from plumbline.pipelines.generating.generate_config import GenerateConfig
from plumbline.pipelines.generating.wanted import wanted_pictures, write_wanted
from plumbline.pipelines.plans.costs import Cost, costs_of
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.shards import Cut
from plumbline.pipelines.sources.sources import open_sources
from plumbline.pipelines.sweeps.computing import compute_missing, model_usage, registered_sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep

OURS = re.compile(r"\d{5}-[0-9a-f]{8}(\.draft)?\.parquet")
"""How the files are called that a generation puts into a generator's folder."""
READERS = 16


class PlannedGeneration(NamedTuple):
    """All that is known before a picture is made."""

    config: GenerateConfig
    drawing: PlannedSweep
    prompts: int
    pictures: int


class Generated(NamedTuple):
    """A generator's pictures that stand."""

    url: str
    """Its folder."""
    pictures: int
    made: int
    """Of this run."""
    failed: int
    """Without a picture, those of earlier runs included."""
    kinds: Mapping[str, int]
    """Of this run, those without a picture by the kind of their error."""
    problems: tuple[str, ...]
    """Why whole files could not be made."""
    usage: Mapping[str, Usage]
    costs: Mapping[str, Cost]
    exit_code: int


def plan_generation(config: GenerateConfig) -> PlannedGeneration:
    """Names every picture and finds those that stand; loads no model, and draws none.

    Raises ConfigError, SourceError or ModelError, whose message is one line with the remedy.
    """
    strangers = [name for name in _tables(config.folder) if OURS.fullmatch(name) is None]
    if strangers:
        raise ConfigError(
            f"{config.folder / strangers[0]}: not made by jobs.generate, whose pictures are to be put beside it; "
            "choose another name=NAME or another folder"
        )
    memory = FileMemory(None, config.texts)
    prompts = open_sources(config.texts, config.storage, cut=Cut(), memory=memory).prompts
    wanted = wanted_pictures(prompts, config.pictures.seeds)
    if not wanted:
        raise ConfigError(f"benchmark.prompts {config.benchmark.prompts}: expected prompts, found none")
    write_wanted(config.wanted, wanted, config.shard_rows)
    return PlannedGeneration(config, plan_sweep(config.drawing(), wanted=("pictures",)), len(prompts), len(wanted))


def generate(planned: PlannedGeneration, watch: Watch) -> Generated:
    """Draws what is missing and puts all into the generator's folder, as the sweep reads it."""
    with registered_sweep(planned.drawing, watch) as (drawing, watch):
        outcomes = compute_missing(drawing, watch)
        cells = drawing.plan.of_prompts("pictures")["pictures"]
        lost = [cell for cell in cells if cell.path in outcomes and outcomes[cell.path].state == "failed"]
        failed = sum(cell.shard.rows for cell in lost)
        failed += _publish(drawing.store, planned.config.folder, set(cells) - set(lost), outcomes)
    kinds = Counter[str]()
    for outcome in outcomes.values():
        kinds.update(outcome.kinds)
    usage = model_usage(drawing.plan, outcomes)
    return Generated(
        url=planned.config.folder.url,
        pictures=planned.pictures,
        made=sum(outcome.rows - outcome.kept - outcome.errors for outcome in outcomes.values()),
        failed=failed,
        kinds=kinds,
        problems=tuple(dict.fromkeys(outcomes[cell.path].message for cell in lost)),
        usage=usage,
        costs=costs_of(drawing.plan, usage),
        exit_code=exit_code(failed, planned.pictures, planned.config.max_failed),
    )


def _tables(folder: Place) -> list[str]:
    """The tables in a generator's folder."""
    with readable_errors(folder, "images"):
        try:
            return sorted(name for name in folder.list() if name.endswith(".parquet"))
        except FileNotFoundError:
            return []


def _publish(store: Store, folder: Place, cells: set[PlannedCell], outcomes: Mapping[str, Outcome]) -> int:
    """Makes the folder hold these cells and no others; how many of their rows have no picture.

    A cell is linked on a disk, and copied within its cloud.
    """
    paths = [draft_path(cell.path) if is_draft(cell.path, outcomes) else cell.path for cell in cells]
    wanted = {path.rpartition("/")[2]: store.place / path for path in paths}
    standing = _tables(folder)

    def put(name: str) -> int:
        target = folder / name
        if name.endswith(".draft.parquet"):  # its name says nothing of what it holds
            target.write(wanted[name].read())
        elif name not in standing:
            wanted[name].copy_to(target)
        with target.open() as stream:
            return int(json.loads((pq.read_metadata(stream).metadata or {})[b"plumbline"])["errors"])

    with ThreadPoolExecutor(READERS) as pool:
        failed = sum(pool.map(put, wanted))
    folder.remove_below([name for name in standing if name not in wanted])
    return failed
