"""Finds a plan's committed cells. The newest run serves as an index, so that the store need not be listed completely.

A cell is committed if its file exists; the index only saves list requests. The index consists of the paths that a run's
cells.parquet marks as committed. A recipe's folder is listed completely if that takes only one request. In a larger
folder, a generator's subfolder is listed unless the index contains all of the generator's wanted cells. Cells of
stages that are not wanted are looked for only if wanted cells are missing. An index that is missing, damaged, old or
from another sweep therefore only costs additional list requests. If the index contains a cell that no longer exists,
reading the cell fails, and the sweep is planned again from a full listing.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set

from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.store.cells import PlannedCell, Recipe
from plumbline.pipelines.store.runs import read_cell_states, read_newest_runs
from plumbline.pipelines.store.store import Store, StoreError

ListedCells = Mapping[str, Set[str]]
"""Paths of the cells that a run lists as committed, by folder. A folder contains the cells of one recipe for one
generator, or for a benchmark.
"""


def find_stored_cells(
    cells_by_recipe: Iterable[tuple[Recipe, Sequence[PlannedCell]]],
    store: Store,
    wanted: Container[str],
    list_index: Callable[[], ListedCells] | None,
) -> tuple[set[PlannedCell], dict[str, float]]:
    """Find which cells are committed, and which other files are in the recipes' folders.

    Args:
        cells_by_recipe: The recipes with their cells.
        store: The store to search.
        wanted: Stages whose cells are needed. Cells of other stages may be left out if no missing cell reads them.
        list_index: Function that returns the index; called only if a folder is large. If None, every folder is listed.

    Returns:
        The committed cells, and the modification times of paths that are not in the plan (0 for paths that are known
            only from an earlier run's index).
    """
    committed: set[PlannedCell] = set()
    others: dict[str, float] = {}
    lacking: set[str] = set()
    for recipe, cells in sorted(cells_by_recipe, key=lambda pair: pair[0].stage not in wanted):
        stored = _list_folder(recipe, cells, store, None if recipe.stage in wanted else lacking, list_index)
        missing = [cell for cell in cells if stored.pop(cell.path, None) is None]
        committed.update(set(cells).difference(missing))
        others.update(stored)
        if recipe.stage in wanted:
            lacking |= {cell.shard.group for cell in missing}
    return committed, others


def _list_folder(
    recipe: Recipe,
    cells: Sequence[PlannedCell],
    store: Store,
    lacking: Set[str] | None,
    list_index: Callable[[], ListedCells] | None,
) -> dict[str, float]:
    """Return the files in a recipe's folder with their modification times.

    `lacking` contains the generators whose wanted cells are missing and may depend on cells of this recipe. It is None
    if the cells of this recipe are themselves wanted.
    """
    if list_index is None:
        return store.list_files(recipe.folder)
    page = store.list_first_page(recipe.folder)
    if page.whole:
        return dict(page.written)
    of_group: defaultdict[str, list[str]] = defaultdict(list)
    for cell in cells:
        of_group[f"{recipe.folder}/{cell.shard.group}"].append(cell.path)
    stored: dict[str, float] = {}
    known = {folder: paths for folder, paths in list_index().items() if folder.startswith(f"{recipe.folder}/")}
    for folder in (*of_group, *(folder for folder in known if folder not in of_group)):
        paths = known.get(folder, frozenset())
        if lacking is None:
            trusted = set(of_group.get(folder, ())) <= paths
        elif STAGES[recipe.stage].row_kind == "prompts":
            trusted = not lacking
        else:
            trusted = folder.rpartition("/")[2] not in lacking
        stored |= dict.fromkeys(paths, 0.0) if trusted else store.list_files(folder)
    return stored


def list_committed_cells(store: Store, benchmark: str, metrics: Sequence[str]) -> ListedCells:
    """Return the paths of the committed cells of a benchmark's newest run, preferably one with the same metrics.

    The result is empty if there is no run, or if its table of cells cannot be read.
    """
    run = None
    for candidate in read_newest_runs(store, benchmark):
        run = run or candidate
        if candidate.manifest is not None and candidate.manifest.get("metrics") == list(metrics):
            run = candidate
            break
    named: defaultdict[str, set[str]] = defaultdict(set)
    try:
        states = read_cell_states(store, run.run_id) if run is not None else {}
    except (StoreError, KeyError):
        return {}
    for path, state in states.items():
        if state in ("cached", "committed"):
            named[path.rpartition("/")[0]].add(path)
    return named
