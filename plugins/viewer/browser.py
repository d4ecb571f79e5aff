"""A store as it is browsed: its runs as they stand, the few that are open, and the pictures of their images."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import islice
from threading import BoundedSemaphore, Lock
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError, PlumblineError, RowError
from plumbline.operators.base.schemas import PROMPTS
from plumbline.operators.metrics.table import falling_metrics
from plumbline.operators.report.gallery import ImageDetail, make_picture, make_sources
from plumbline.operators.report.picked_images import ImageKey, Pick
from plumbline.operators.results.usual_scores import UsualScores
from plumbline.pipelines.cells.runs import Run, ScoresCell, list_runs, read_manifest, run_ids
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.cells.suites import SUITES, Suite, newest_suites
from plumbline.pipelines.report.finished_run import Originals, find_originals
from plumbline.pipelines.report.image_details import (
    Made,
    MakePicture,
    read_edit_sources,
    read_elements,
    read_scores_cells,
    show_images,
)
from plumbline.pipelines.report.usual import read_usual_scores
from plumbline.plugins.viewer.notes import LOOK_SECONDS
from plumbline.plugins.viewer.run_database import Database, RunRows, Score

MOST_OPEN = 8
"""Runs whose rows are kept; the one that was looked at longest ago goes first."""
SMALL, LARGE = 1000, 48
"""Pictures that are kept, of either size, and as many sources as large ones: some 12, 19 and 19 MB."""
LARGE_SIDE, LARGE_BYTES = 1024, 400_000
DECODED_AT_ONCE = 4


class NotThere(PlumblineError):
    """What a page was asked for is not in the store."""


class NoPicture(PlumblineError):
    """An image cannot be shown."""


class BrowsedRun(NamedTuple):
    """A run with all that its pages need."""

    run_id: str
    manifest: Mapping[str, Any]
    falling: frozenset[str]
    """The metrics by which a lower score is better."""
    rows: RunRows
    cells: Sequence[ScoresCell]
    originals: Originals | None
    unreadable: str
    """Why there are no originals; empty where there are."""
    usual: UsualScores
    """The scores of all images of its benchmark, as the store had them when the run was opened."""


class _Opening:
    """A run that is being opened, or stands open, for as long as the files of its scores are the same."""

    def __init__(self, list_parts: Callable[[], Mapping[str, float]], read: Callable[[], "Future[BrowsedRun]"]) -> None:
        self._list_parts, self._looked = list_parts, time.monotonic()
        self._parts = list_parts()
        self.run = read()

    def stands(self) -> bool:
        """Whether it need not be opened anew; looks at the files no more often than each `LOOK_SECONDS`."""
        if self.run.done() and self.run.exception() is not None:
            return False
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return True
        self._looked = time.monotonic()
        return self._list_parts() == self._parts


class Browser:
    """What is read of a store for its pages; nothing in it is written."""

    def __init__(self, store: Store, database: Database) -> None:
        self.store, self._database = store, database
        self._open: OrderedDict[str, _Opening] = OrderedDict()
        self._opening = Lock()
        self._openers = ThreadPoolExecutor(2)
        self._decoding = BoundedSemaphore(DECODED_AT_ONCE)
        self._small = lru_cache(SMALL)(partial(self._made, make_picture))
        large = partial(make_picture, side=LARGE_SIDE, most=LARGE_BYTES)
        self._large = lru_cache(LARGE)(partial(self._made, large))
        sources = partial(make_sources, side=LARGE_SIDE, most=LARGE_BYTES)
        self._sources = lru_cache(LARGE)(partial(self._made, sources, edited=True))

    def check(self) -> None:
        """Raises ConfigError where the store has no run."""
        if not run_ids(self.store):
            url = self.store.place.url
            raise ConfigError(f"store {url}: has no runs yet; start one with: plumbline sweep store={url}")

    def close(self) -> None:
        self._openers.shutdown(cancel_futures=True)
        self._database.close()

    def runs(self) -> list[Run]:
        """Newest first, those with a damaged manifest among them."""
        return list_runs(self.store)[::-1]

    def suites(self, most: int) -> list[Suite]:
        """Those of several benchmarks, newest first."""
        return list(islice(newest_suites(self.store), most))

    def suite_page(self, suite_id: str) -> str | None:
        """The HTML of a suite of the store."""
        there = suite_id in self.store.folders(SUITES)
        return self.store.read_text(f"{SUITES}/{suite_id}/report.html") if there else None

    def manifest(self, run_id: str) -> Mapping[str, Any]:
        """What a run of the store says; raises NotThere, and ConfigError where it is damaged."""
        if run_id not in run_ids(self.store):
            raise NotThere(f"run {run_id}: no such run in {self.store.place.url}")
        return read_manifest(self.store, run_id)

    def open(self, run_id: str) -> "Future[BrowsedRun]":
        """A run that is being opened, or stands open; raises as `manifest`."""
        with self._opening:
            known = self._open.get(run_id)
            if known is None or not known.stands():
                read = partial(self._openers.submit, self._opened, run_id, self.manifest(run_id))
                known = _Opening(partial(self.store.listing, f"runs/{run_id}/scores.parquet"), read)
                self._open[run_id] = known
            self._open.move_to_end(run_id)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            return known.run

    def _opened(self, run_id: str, manifest: Mapping[str, Any]) -> BrowsedRun:
        originals, unreadable = find_originals(manifest, self.store)
        prompts = originals.prompts if originals is not None else PROMPTS.empty_table()
        falling = falling_metrics(manifest)
        rows = RunRows(self._database, self.store, run_id, prompts, falling)
        cells = read_scores_cells(self.store, run_id)
        usual = read_usual_scores(self.store, run_id, manifest)
        return BrowsedRun(run_id, manifest, falling, rows, cells, originals, unreadable, usual)

    def details(self, run: BrowsedRun, picks: Sequence[Pick]) -> Mapping[ImageKey, ImageDetail]:
        """The questions, ratings and reasons that the run's cells have of images."""
        return read_elements(picks, run.cells, self.store)

    def picture(self, run_id: str, row: int, *, large: bool) -> bytes:
        """The image of a row as WebP; raises NoPicture with the reason, and what `open` raises."""
        return (self._large if large else self._small)(run_id, row)

    def sources(self, run_id: str, row: int) -> Sequence[bytes | RowError]:
        """What the image of a row was edited from, each as WebP or why it cannot be shown; raises as `picture`."""
        return self._sources(run_id, row)

    def _made(self, make: MakePicture[Made], run_id: str, row: int, *, edited: bool = False) -> Made:
        run = self.open(run_id).result()
        score = run.rows.at(row)
        if score is None:
            raise NotThere(f"run {run_id}: has no row {row}")
        if run.originals is None or score.image_id is None:
            raise NoPicture(run.unreadable or score.message or "the row names no image")
        with self._decoding:
            pick = pick_of([score])
            edits = read_edit_sources([pick.prompt_id], run.originals) if edited else {}
            (made,) = show_images([pick], run.cells, run.originals, make, edits).values()
        if isinstance(made, RowError):
            raise NoPicture(made.message)
        return made


def pick_of(scores: Sequence[Score]) -> Pick:
    """Return an image by what metrics say of it."""
    first = scores[0]
    scored = [score for score in scores if score.score is not None]
    return Pick(
        key=ImageKey(first.generator, first.image_id or ""),
        prompt_id=first.prompt_id or "",
        scores={score.metric: score.score for score in scored if score.score is not None},
        ranks={score.metric: score.rank or 0.0 for score in scored},
        reasons=(),
        rows=tuple(score.row for score in scores),
    )
