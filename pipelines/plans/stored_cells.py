"""Which of a plan's cells stand in the store, found without listing all of it: the newest run's cells are the index.

The files in the store are the truth, and a run's cells.parquet is only believed in what it names as committed. A
recipe's folder is listed where one request shows all of it. In a larger one a generator's folder is listed too, unless
its wanted cells are all named by the newest run of the benchmark; cells that only others read are looked for where some
of those are missing. So an index that is gone, damaged, old or of another store costs a listing. What it names and is
gone is found where it is read, as a broken cell, and the sweep plans again by a listing of everything.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.cells import PlannedCell, Recipe
from plumbline.pipelines.cells.runs import Run, newest_of
from plumbline.pipelines.cells.store import Store, StoreError

NamedCells = Mapping[str, Set[str]]
"""By folder of a recipe and a generator or benchmark, the paths of the cells that a run names as committed."""


class StoredCells(NamedTuple):
    """What a plan knows of the store."""

    committed: set[PlannedCell]
    others: dict[str, float]
    """Paths that the plan does not name, with the time each was written; 0 where an earlier run alone tells of it."""


def find_stored(
    of_recipes: Iterable[tuple[Recipe, Sequence[PlannedCell]]],
    store: Store,
    wanted: Container[str],
    named: Callable[[], NamedCells] | None,
) -> StoredCells:
    """The committed cells of each recipe, and what else is in the recipes' folders.

    `named` is the index, asked for only where a folder is large; with None everything is listed. Cells of stages that
    are not `wanted` may be left out where nothing needs them.
    """
    found = StoredCells(set(), {})
    lacking: set[str] = set()
    for recipe, cells in sorted(of_recipes, key=lambda pair: pair[0].stage not in wanted):
        stored = _look(recipe, cells, store, None if recipe.stage in wanted else lacking, named)
        missing = [cell for cell in cells if stored.pop(cell.path, None) is None]
        found.committed.update(set(cells).difference(missing))
        found.others.update(stored)
        if recipe.stage in wanted:
            lacking |= {cell.shard.group for cell in missing}
    return found


def _look(
    recipe: Recipe,
    cells: Sequence[PlannedCell],
    store: Store,
    lacking: Set[str] | None,
    named: Callable[[], NamedCells] | None,
) -> dict[str, float]:
    """What stands in a recipe's folder; `lacking` are the generators with missing cells that may read this recipe's,
    None where its own are wanted."""
    if named is None:
        return store.listing(recipe.folder)
    page = store.page(recipe.folder)
    if page.whole:
        return dict(page.written)
    of_group: defaultdict[str, list[str]] = defaultdict(list)
    for cell in cells:
        of_group[f"{recipe.folder}/{cell.shard.group}"].append(cell.path)
    stored: dict[str, float] = {}
    known = {folder: paths for folder, paths in named().items() if folder.startswith(f"{recipe.folder}/")}
    for folder in (*of_group, *(folder for folder in known if folder not in of_group)):
        paths = known.get(folder, frozenset())
        if lacking is None:
            believed = set(of_group.get(folder, ())) <= paths
        elif STAGES[recipe.stage].over == "prompts":
            believed = not lacking
        else:
            believed = folder.rpartition("/")[2] not in lacking
        stored |= dict.fromkeys(paths, 0.0) if believed else store.listing(folder)
    return stored


def name_cells(store: Store, benchmark: str, metrics: Sequence[str]) -> NamedCells:
    """The cells of the benchmark's newest run, by the same metrics if there is one; none where it does not tell."""
    run = _newest_of(store, benchmark, metrics)
    named: defaultdict[str, set[str]] = defaultdict(set)
    try:
        cells = store.read_table(f"runs/{run.run_id}/cells.parquet", ["path", "state"]) if run is not None else None
        if cells is not None:
            for path, state in zip(*(cells.column(name).to_pylist() for name in ("path", "state")), strict=True):
                if state in ("cached", "committed"):
                    named[path.rpartition("/")[0]].add(path)
    except (StoreError, KeyError):
        return {}
    return named


def _newest_of(store: Store, benchmark: str, metrics: Sequence[str]) -> Run | None:
    newest = None
    for run in newest_of(store, benchmark):
        newest = newest or run
        if run.manifest is not None and run.manifest.get("metrics") == list(metrics):
            return run
    return newest
