"""Generates the missing images of a benchmark, and publishes all images in the generator's folder."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.usage import Usage
from plumbline.pipelines.base.exit_codes import compute_exit_code
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.plans.costs import Cost, sum_costs
from plumbline.pipelines.running.events import ProgressTotals, Watch, combine_displays
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sources.sources import open_sources
from plumbline.pipelines.store.cells import Outcome, PlannedCell, is_draft
from plumbline.pipelines.store.checksums import DamagedError
from plumbline.pipelines.store.store import (
    BrokenCellError,
    MissingCellError,
    Store,
    StoredCell,
    decode_cell,
    get_draft_path,
)
from plumbline.pipelines.sweeps.computing import Inspection, compute_and_repair, register_sweep, sum_usage
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.plugins.generation.generate_config import PICTURES_CHAIN, GenerateConfig
from plumbline.plugins.generation.needs import GenerationRate, ResourceNeeds, estimate_needs, save_rate
from plumbline.plugins.generation.wanted_images import PromptByImage, list_wanted_images, write_wanted_images

OWN_FILE_PATTERN = re.compile(r"\d{5}-[0-9a-f]{8}(\.draft)?\.parquet")
"""Pattern of the file names that a generation writes into a generator's folder."""
MAX_PARALLEL_READS = 4
"""Maximum number of files that are read at the same time; each file contains all images of a shard."""


class PlannedGeneration(NamedTuple):
    """A planned generation: its sweep, the images to generate, and the resources that they need."""

    config: GenerateConfig
    drawing: PlannedSweep
    prompts: int
    wanted: PromptByImage
    needs: ResourceNeeds

    @property
    def pictures(self) -> int:
        """Number of images that the generator's folder should contain."""
        return len(self.wanted)


class GenerationResult(NamedTuple):
    """Outcome of a generation: the images in a generator's folder."""

    url: str
    """Address of the generator's folder."""
    pictures: int
    made: int
    """Number of images generated in this run."""
    failed: int
    """Number of missing images, including failures of earlier runs."""
    kinds: Mapping[str, int]
    """Number of images that failed in this run, by kind of error."""
    problems: tuple[str, ...]
    """Reasons why entire files could not be generated."""
    repaired: tuple[str, ...]
    """Addresses of damaged files that were replaced by their copy or by generating the images again."""
    usage: Mapping[str, Usage]
    costs: Mapping[str, Cost]
    exit_code: int


class ImageOrigin(NamedTuple):
    """The recipe and the checkpoint that the images in a generator's folder were generated with."""

    recipe: str
    """Digest of the weights and all settings."""
    checkpoint: str
    revision: str | None


def plan_generation(config: GenerateConfig) -> PlannedGeneration:
    """Find the images to generate, and write the tables that list them, without loading a model.

    Raises ConfigError, SourceError or ModelError, each with a one-line message that says how to fix the problem.
    """
    strangers = [name for name in _list_tables(config.folder) if OWN_FILE_PATTERN.fullmatch(name) is None]
    if strangers:
        raise ConfigError(
            f"{config.folder}: expected a folder that contains only images made by jobs.generate, found "
            f"{strangers[0]}; "
            "choose another folder with name=NAME or images=PATH"
        )
    cache = ImageFileCache(None, config.benchmark_without_images)
    prompts = open_sources(config.benchmark_without_images, config.storage, shard_size=ShardSize(), cache=cache).prompts
    wanted = list_wanted_images(prompts, config.pictures.seeds)
    if not wanted:
        raise ConfigError(f"benchmark.prompts {config.benchmark.prompts}: expected prompts, found none; add some")
    store = Store(config.image_store)
    write_wanted_images(store, config.prompts_folder, wanted, config.shard_rows)
    drawing = plan_sweep(config.make_drawing_sweep(), wanted=("pictures",))
    (planned,) = drawing.plan.nodes
    assert planned.node.model is not None, "the node of the image model"
    needs = estimate_needs(
        planned.node.model, config.chain, config.folder, store, wanted=len(wanted), missing=planned.images
    )
    if not config.pictures.replace:
        _check_recipe_unchanged(config, drawing)
    return PlannedGeneration(config, drawing, len(prompts), wanted, needs)


def _check_recipe_unchanged(config: GenerateConfig, drawing: PlannedSweep) -> None:
    names = _list_tables(config.folder)
    origin = _read_origin(config.folder / names[0]) if names else None
    recipe = drawing.plan.recipes[PICTURES_CHAIN]["pictures"]
    if origin is None or origin.recipe == recipe.digest:
        return
    (planned,) = drawing.plan.nodes
    part = None if planned.node.model is None else planned.node.model.parts.get("checkpoint")
    same_weights = part is None or origin.revision in (part.commit, part.identity)
    changed = "with other settings, another LoRA or another precision" if same_weights else "by other weights"
    raise ConfigError(
        f"{config.folder}: the images of {config.generator} were generated {changed} (from {origin.checkpoint}); "
        "choose another name with name=NAME, or set pictures.replace=true to generate them again"
    )


def _read_origin(file: Place) -> ImageOrigin | None:
    """Return the recipe and the checkpoint that a file's images were generated with.

    Returns None if the file is missing or damaged, or lacks this information.
    """
    unreadable = (FileNotFoundError, pa.ArrowException, KeyError, StopIteration, ValueError)
    with convert_read_errors(file, "images"), suppress(*unreadable):
        with file.open() as stream:
            table = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
            provenance = json.loads((table.metadata.metadata or {})[b"plumbline"])
            row = next(table.iter_batches(1, columns=["checkpoint", "revision"])).to_pylist()[0]
        return ImageOrigin(provenance["recipe"], row["checkpoint"], row["revision"])
    return None


def generate(planned: PlannedGeneration, watch: Watch) -> GenerationResult:
    """Generate missing and damaged images, and publish all images in the generator's folder for the sweep."""
    folder = GeneratorFolder(planned.config.folder)
    totals = ProgressTotals()
    with register_sweep(planned.drawing, combine_displays(totals.add, watch)) as (drawing, watch):
        drawing, outcomes, published = compute_and_repair(drawing, watch, folder.publish)
    made = sum(outcome.rows - outcome.kept - outcome.errors for outcome in outcomes.values())
    seconds = sum(progress.seconds for progress in totals.nodes.values())
    if made and seconds:
        rate = GenerationRate(planned.config.generator, made, seconds)
        save_rate(drawing.store, planned.needs, planned.config.chain, rate)
    kinds = Counter[str]()
    for outcome in outcomes.values():
        kinds.update(outcome.kinds)
    usage = sum_usage(drawing.plan, outcomes)
    return GenerationResult(
        url=planned.config.folder.url,
        pictures=planned.pictures,
        made=made,
        failed=published.failed,
        kinds=kinds,
        problems=published.problems,
        repaired=tuple(folder.damaged),
        usage=usage,
        costs=sum_costs(drawing.plan, usage),
        exit_code=compute_exit_code(published.failed, planned.pictures, planned.config.max_failed),
    )


def _list_tables(folder: Place) -> list[str]:
    with convert_read_errors(folder, "images"):
        try:
            return sorted(name for name in folder.list() if name.endswith(".parquet"))
        except FileNotFoundError:
            return []


class FolderProblems(NamedTuple):
    """Problems in a generator's folder after its cells were published there."""

    failed: int
    """Number of rows without an image."""
    problems: tuple[str, ...]
    """Reasons why entire files are missing."""


class GeneratorFolder:
    """The folder that a sweep reads: it contains each cell of a generation as a file.

    On a disk, the file is a hard link to its cell; in cloud storage, it is a copy. Each time the folder is published,
    every cell and its file are read completely.
    """

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self.damaged: dict[str, None] = {}
        """Addresses of damaged cells and files found so far."""

    def publish(self, drawing: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[FolderProblems]:
        """Make the folder contain exactly the generation's cells.

        Return the problems found in the folder, and the damaged cells that could not be restored from their copies in
        the folder.
        """
        cells = drawing.plan.select_prompt_cells("pictures")["pictures"]
        lost = {cell for cell in cells if cell.path in outcomes and outcomes[cell.path].state == "failed"}
        made = {_make_file_name(cell, outcomes): cell for cell in cells if cell not in lost}
        there = _list_tables(self.folder)
        failed, problems = sum(cell.shard.rows for cell in lost), [outcomes[cell.path].message for cell in lost]
        broken = set[str]()

        def publish_cell(name: str) -> StoredCell | BrokenCellError:
            try:
                return self._publish_cell(name, made[name], drawing.store, is_there=name in there)
            except BrokenCellError as error:
                return error

        with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
            for cell, result in zip(made.values(), pool.map(publish_cell, made), strict=True):
                if isinstance(result, BrokenCellError):
                    broken.add(cell.path)
                    problems.append(str(result))
                    failed += cell.shard.rows
                else:
                    failed += int(result.provenance["errors"])
        self.folder.remove_below([name for name in there if name not in made])
        return Inspection(FolderProblems(failed, tuple(dict.fromkeys(problems))), broken)

    def _publish_cell(self, name: str, cell: PlannedCell, store: Store, *, is_there: bool) -> StoredCell:
        """Copy a cell into the folder unless the same bytes are there; return the cell.

        If only the cell is damaged, the file replaces it. Raises BrokenCellError if the cell and the file are damaged.
        """
        place = store.place / f"{cell.path.rpartition('/')[0]}/{name}"
        target, is_draft_file = self.folder / name, name.endswith(".draft.parquet")
        linked = is_there and _is_linked(place, target)
        copy = _read_copy(target, cell.key) if is_there and not linked and not is_draft_file else None
        try:
            stored = store.read_cell(f"{cell.path.rpartition('/')[0]}/{name}", [])
        except BrokenCellError as error:
            if not isinstance(error, MissingCellError):
                self.damaged[target.url if linked else place.url] = None
            if copy is None:
                raise
            target.copy_to(place)
            return copy
        if is_draft_file:  # the next run writes another draft at its path
            target.write(place.read())
        elif not linked and (copy is None or copy.digest != stored.digest):
            if is_there:
                self.damaged[target.url] = None
            place.copy_to(target)
        return stored


def _read_copy(file: Place, key: str) -> StoredCell | None:
    """Return a cell's file in the generator's folder; None if it is damaged, missing, or another cell's file."""
    with convert_read_errors(file, "images"), suppress(FileNotFoundError, DamagedError):
        copy = decode_cell(file.read(), [])
        return copy if copy.provenance["key"] == key else None
    return None


def _is_linked(cell: Place, file: Place) -> bool:
    """Return True if a cell and its file are hard links to the same data, so that damage affects both."""
    with suppress(FileNotFoundError):
        return file.is_local and Path(file.path).samefile(cell.path)
    return False


def _make_file_name(cell: PlannedCell, outcomes: Mapping[str, Outcome]) -> str:
    path = get_draft_path(cell.path) if is_draft(cell.path, outcomes) else cell.path
    return path.rpartition("/")[2]
