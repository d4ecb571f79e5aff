"""Reads a store for the viewer: lists runs, keeps a few of them open, and decodes images."""

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
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.report.gallery import ImageDetail, encode_source_thumbnails, encode_thumbnail
from plumbline.operators.report.picked_images import ImageKey, Pick
from plumbline.operators.results.percentile_ranks import UsualScores
from plumbline.pipelines.metaeval.metaeval import PEOPLE_CHOICES_TABLE
from plumbline.pipelines.report.finished_run import OriginalSources, find_originals, read_usual_scores
from plumbline.pipelines.report.image_details import (
    Made,
    MakeImage,
    read_edit_sources,
    read_elements,
    read_scores_cells,
    render_images,
)
from plumbline.pipelines.store.runs import Run, ScoresCell, list_run_ids, list_runs, read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.store.suites import SUITES_FOLDER, Suite, read_newest_suites
from plumbline.plugins.viewer.notes import LIST_REFRESH_SECONDS
from plumbline.plugins.viewer.people import RunPeople, read_run_people
from plumbline.plugins.viewer.run_database import Database, RunRows, Score

MAX_OPEN_RUNS = 8
"""Maximum number of runs whose rows are kept; the least recently used run is dropped first."""
MAX_CACHED_SMALL_IMAGES = 1000
"""Maximum number of cached small images, which take about 12 MB together."""
MAX_CACHED_LARGE_IMAGES = 48
"""Maximum number of cached large images (about 19 MB), and of cached lists of source images."""
LARGE_IMAGE_SIDE, LARGE_IMAGE_BYTES = 1024, 400_000
MAX_CONCURRENT_DECODES = 4
"""Maximum number of images decoded at the same time."""


class NotFound(PlumblineError):
    """Raised if a URL contains a name that is not in the store."""


class ImageUnavailable(PlumblineError):
    """Raised for an image that cannot be shown."""


class BrowsedRun(NamedTuple):
    """An open run with everything that its pages need."""

    run_id: str
    manifest: Mapping[str, Any]
    lower_is_better: frozenset[str]
    """Metrics for which lower scores are better."""
    rows: RunRows
    cells: Sequence[ScoresCell]
    originals: OriginalSources | None
    unreadable: str
    """The reason why `originals` is None."""
    usual_scores: UsualScores
    """Scores of all images of the benchmark that the store contained when the run was opened."""


class _OpenRun:
    """A run that is open or being opened, with the score files that it had at that time."""

    def __init__(self, list_parts: Callable[[], Mapping[str, float]], read: Callable[[], "Future[BrowsedRun]"]) -> None:
        self._list_parts, self._listed_at = list_parts, time.monotonic()
        self._parts = list_parts()
        self.run = read()

    def is_current(self) -> bool:
        """Return False if opening failed or the score files changed.

        The files are listed at most once per `LIST_REFRESH_SECONDS`.
        """
        if self.run.done() and self.run.exception() is not None:
            return False
        if time.monotonic() - self._listed_at < LIST_REFRESH_SECONDS:
            return True
        self._listed_at = time.monotonic()
        return self._list_parts() == self._parts


class StoreBrowser:
    """Read-only access to a store for the viewer."""

    def __init__(self, store: Store, database: Database) -> None:
        self.store, self._database = store, database
        self._open: OrderedDict[str, _OpenRun] = OrderedDict()
        self._lock = Lock()
        self._openers = ThreadPoolExecutor(2)
        self._decoding = BoundedSemaphore(MAX_CONCURRENT_DECODES)
        self._small = lru_cache(MAX_CACHED_SMALL_IMAGES)(partial(self._make_image_or_raise, encode_thumbnail))
        large = partial(encode_thumbnail, side=LARGE_IMAGE_SIDE, max_bytes=LARGE_IMAGE_BYTES)
        self._large = lru_cache(MAX_CACHED_LARGE_IMAGES)(partial(self._make_image_or_raise, large))
        sources = partial(encode_source_thumbnails, side=LARGE_IMAGE_SIDE, max_bytes=LARGE_IMAGE_BYTES)
        self._sources = lru_cache(MAX_CACHED_LARGE_IMAGES)(partial(self._make_image_or_raise, sources, edited=True))
        self._people = lru_cache(MAX_OPEN_RUNS)(self._read_people)

    def check(self) -> None:
        """Raise ConfigError if the store has no run."""
        if not list_run_ids(self.store):
            url = self.store.place.url
            raise ConfigError(f"store {url} has no runs yet; start one with: plumbline sweep store={url}")

    def close(self) -> None:
        self._openers.shutdown(cancel_futures=True)
        self._database.close()

    def list_runs(self) -> list[Run]:
        """Return all runs, newest first, including those with a damaged manifest."""
        return list_runs(self.store)[::-1]

    def list_suites(self, limit: int) -> list[Suite]:
        """Return up to `limit` suites (runs of several benchmarks), newest first."""
        return list(islice(read_newest_suites(self.store), limit))

    def read_suite_page(self, suite_id: str) -> str | None:
        """Return the HTML page of a suite, or None if the store does not have the suite."""
        exists = suite_id in self.store.list_folders(SUITES_FOLDER)
        return self.store.read_text(f"{SUITES_FOLDER}/{suite_id}/report.html") if exists else None

    def read_manifest(self, run_id: str) -> Mapping[str, Any]:
        """Return a run's manifest; raise NotFound if the run does not exist, ConfigError if its manifest is damaged."""
        if run_id not in list_run_ids(self.store):
            raise NotFound(f"run {run_id}: not found in {self.store.place.url}; choose one from the list of runs")
        return read_manifest(self.store, run_id)

    def open(self, run_id: str) -> "Future[BrowsedRun]":
        """Open a run in the background unless it is already open; raise the same errors as `read_manifest`."""
        with self._lock:
            opened = self._open.get(run_id)
            if opened is None or not opened.is_current():
                read = partial(self._openers.submit, self._read_run, run_id, self.read_manifest(run_id))
                opened = _OpenRun(partial(self.store.list_files, f"runs/{run_id}/scores.parquet"), read)
                self._open[run_id] = opened
            self._open.move_to_end(run_id)
            while len(self._open) > MAX_OPEN_RUNS:
                self._open.popitem(last=False)
            return opened.run

    def _read_run(self, run_id: str, manifest: Mapping[str, Any]) -> BrowsedRun:
        originals, unreadable = find_originals(manifest, self.store)
        prompts = originals.prompts if originals is not None else PROMPTS.empty_table()
        lower_is_better = read_lower_is_better(manifest)
        rows = RunRows(self._database, self.store, run_id, prompts, lower_is_better)
        cells = read_scores_cells(self.store, run_id)
        usual = read_usual_scores(self.store, run_id, manifest)
        return BrowsedRun(run_id, manifest, lower_is_better, rows, cells, originals, unreadable, usual)

    def read_people(self, run_id: str) -> RunPeople | None:
        """Return people's choices in a run, next to its judges' choices; None if there are none. They are cached."""
        written = self.store.list_files(f"runs/{run_id}/metaeval/{PEOPLE_CHOICES_TABLE}.parquet")
        return self._people(run_id, *written.values()) if written else None

    def _read_people(self, run_id: str, written_at: float) -> RunPeople | None:
        """Read people's choices; `written_at` serves only as part of the cache key."""
        return read_run_people(self.store, run_id)

    def read_details(self, run: BrowsedRun, picks: Sequence[Pick]) -> Mapping[ImageKey, ImageDetail]:
        """Return the questions, ratings and reasons in the run's cells for the picked images, keyed by image."""
        return read_elements(picks, run.cells, self.store)

    def read_image(self, run_id: str, row: int, *, large: bool) -> bytes:
        """Return the image of a row as WebP; raise ImageUnavailable with the reason, or the same errors as `open`."""
        return (self._large if large else self._small)(run_id, row)

    def read_sources(self, run_id: str, row: int) -> Sequence[bytes | RowError]:
        """Return a row's source images, each as WebP or an error; raise the same errors as `read_image`."""
        return self._sources(run_id, row)

    def _make_image_or_raise(self, make: MakeImage[Made], run_id: str, row: int, *, edited: bool = False) -> Made:
        run = self.open(run_id).result()
        score = run.rows.read_row(row)
        if score is None:
            raise NotFound(f"run {run_id} has no row {row}; choose a row from its list of scores")
        if run.originals is None or score.image_id is None:
            raise ImageUnavailable(run.unreadable or score.message or "the row has no image id")
        with self._decoding:
            pick = make_pick([score])
            edits = read_edit_sources([pick.prompt_id], run.originals) if edited else {}
            (result,) = render_images([pick], run.cells, run.originals, make, edits).values()
        if isinstance(result, RowError):
            raise ImageUnavailable(result.message)
        return result


def make_pick(scores: Sequence[Score]) -> Pick:
    """Return the image that all these rows belong to, with its scores by metric."""
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
