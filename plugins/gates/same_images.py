"""Finds prompts for which two generators have byte-identical images.

Equal scores alone do not prove that images are identical.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.results.run_scores import Hashes
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.store.question_cells import find_scores_cells, read_stored_cell
from plumbline.pipelines.store.runs import read_cell_states
from plumbline.pipelines.store.store import Store, StoredCell

NO_PROMPTS: Hashes = np.zeros(0, np.uint64)


class ScoredImages(NamedTuple):
    """The images of a generator that a metric scored in a run."""

    run_id: str
    generator: str
    metric: str


class _ImageDigests(NamedTuple):
    """Digests of the images of each prompt; prompts with a missing digest are left out."""

    prompts: Hashes
    """Hashes of the prompt ids in ascending order."""
    sums: Hashes
    """Sum of the hashed image digests of each prompt."""


def find_same_images(store: Store, images: ScoredImages, others: ScoredImages) -> Hashes:
    """Return the prompts for which both sides have the same images, as ascending hashes of their ids.

    Sides with the same score cells have the same images. Otherwise the digests are compared; they are in the cells that
    the scores were computed from. If these cells no longer exist, or a prompt has an image without a digest, the images
    do not count as the same.
    """
    try:
        cells, other_cells = _read_scores(store, images), _read_scores(store, others)
        if cells.keys() == other_cells.keys():
            return np.unique(_hash_ids((cell.table for cell in cells.values()), "prompt_id"))
        digests, other_digests = (_read_digests(store, side.values()) for side in (cells, other_cells))
    except PlumblineError:
        return NO_PROMPTS
    common, at, other_at = np.intersect1d(
        digests.prompts, other_digests.prompts, assume_unique=True, return_indices=True
    )
    return np.asarray(common[digests.sums[at] == other_digests.sums[other_at]])


def _read_scores(store: Store, side: ScoredImages) -> dict[str, StoredCell]:
    """Return a side's score cells by path.

    A draft is keyed by the digest of its content instead, because the next run writes another draft at its path.
    """
    states = read_cell_states(store, side.run_id)
    own = {path: state for path, state in states.items() if path.split("/")[-2:-1] == [side.generator]}
    cells = {path: read_stored_cell(store, states, path) for path in find_scores_cells(store, own, side.metric)}
    return {cell.digest if states[path] == "draft" else path: cell for path, cell in cells.items()}


def _read_digests(store: Store, scores: Iterable[StoredCell]) -> _ImageDigests:
    """Return the digests of the images scored in these cells, by prompt; empty if any cell has no digests."""
    tables = [_read_image_digests(store, cell) for cell in scores]
    with_digests = [table for table in tables if table is not None]
    if len(with_digests) < len(tables) or not with_digests:
        return _ImageDigests(NO_PROMPTS, NO_PROMPTS)
    without = _hash_ids((table.filter(table.column("image_digest").is_null()) for table in with_digests), "prompt_id")
    rows = [table.drop_null() for table in with_digests]
    prompts, digests = (_hash_ids(rows, name) for name in ("prompt_id", "image_digest"))
    order = np.argsort(prompts, kind="stable")
    distinct, first = np.unique(prompts[order], return_index=True)
    sums = np.add.reduceat(digests[order], first) if len(first) else NO_PROMPTS
    known = ~np.isin(distinct, without)
    return _ImageDigests(distinct[known], sums[known])


def _read_image_digests(store: Store, scores: StoredCell) -> pa.Table | None:
    """Return a table of the prompts and digests of the images scored in a cell; None if the cell has no digests."""
    for path in scores.provenance["inputs"]:
        table = store.read_cell(path).table
        if "image_digest" in table.column_names:
            return table.select(["prompt_id", "image_digest"])
    return None


def _hash_ids(tables: Iterable[pa.Table], name: str) -> Hashes:
    return np.concatenate([NO_PROMPTS, *(hash_ids(table.column(name).drop_null().to_pylist()) for table in tables)])
