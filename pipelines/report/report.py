"""A run's report: its tables, its prompts and the images of its gallery, gathered from where they lie, and written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from operators.errors import ConfigError, PlumblineError
from operators.images import ImageLimits
from operators.report.exports import to_csv, to_markdown
from operators.report.gallery import pick_images
from operators.report.page import GatheredRun, Page, build_page, take_statistics
from operators.report.rendering import render
from operators.report.tables import BoardRow
from operators.report.words import Sentence, Shown
from pipelines.cells.runs import find_run, list_runs, read_manifest
from pipelines.cells.store import Store
from pipelines.config import read_config
from pipelines.report.images import read_details
from pipelines.sources.benchmark import BenchmarkConfig
from pipelines.sources.sources import Sources, open_sources
from pipelines.sources.uris import Uris, benchmark_uris
from pipelines.storage import StorageConfig, first_line, is_storage_error

MOST_IMAGES = 96
SCORE_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "score", "truncated")
"""Of a run's scores, what a report reads."""
NAMES = ("prompt_id", "generator", "metric")
"""Those of them that many rows share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportConfig:
    """Of which run to make the report."""

    store: str
    """Folder or s3:// prefix of the store."""
    run: str = "latest"
    """A run's id; `latest` is the newest."""
    compare: str | None = None
    """The id of an earlier run to compare it to; `previous` is the one before it of the same benchmark."""
    images: int = MOST_IMAGES
    """How many images the gallery has at most."""
    bradley_terry: bool = False
    """Whether the tables also rate generators by the prompts that they win of each other."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.images <= MOST_IMAGES:
            raise ConfigError(f"images: expected 0 to {MOST_IMAGES}, got {self.images}")


class WrittenReport(NamedTuple):
    """A report that stands in its run's folder."""

    run_id: str
    url: str
    """Where report.html is; summary.csv and summary.md are beside it."""
    size: int
    """Its bytes."""
    metrics: list[str]
    board: Shown[BoardRow]
    """The generators, best first, with a cell for each of `metrics`."""
    decision: list[Sentence]
    changes: list[Sentence]
    """Since the run that it was compared to; empty where none was."""
    compared: str
    warnings: list[str]


class OpenedRun(NamedTuple):
    """A run with the sources that its manifest names, where they can still be read."""

    gathered: GatheredRun
    sources: Sources | None
    limits: ImageLimits
    uris: Uris


def write_report(
    store: Store,
    run: str = "latest",
    *,
    compare: str | None = None,
    images: int = MOST_IMAGES,
    bradley_terry: bool = False,
    sources: Sources | None = None,
) -> WrittenReport:
    """Writes report.html, summary.csv and summary.md into the run's folder; raises ConfigError where there is no run.

    `sources` are the run's, where they have just been read; else they are opened anew. Prompts and images that can no
    longer be read are shown as missing, with the reason.
    """
    run_id = find_run(store, run)
    opened = open_run(store, run_id, sources)
    before = _earlier(store, opened.gathered, compare)
    page = _make_page(store, opened, before, images, rated=bradley_terry)
    html = render(page)
    for name, text in (
        ("report.html", html),
        ("summary.csv", to_csv(page.standings)),
        ("summary.md", to_markdown(page)),
    ):
        store.write_text(f"runs/{run_id}/{name}", text)
    return WrittenReport(
        run_id=run_id,
        url=f"{store.location.url}/runs/{run_id}/report.html",
        size=len(html.encode()),
        metrics=page.metrics,
        board=page.board,
        decision=page.decision.sentences(),
        changes=page.changes.sentences if page.changes is not None else [],
        compared=page.changes.run_id if page.changes is not None else "",
        warnings=page.warnings,
    )


def _make_page(store: Store, opened: OpenedRun, before: GatheredRun | None, images: int, *, rated: bool) -> Page:
    run, sources = opened.gathered, opened.sources
    picks = pick_images(run.scores, list(run.manifest.get("metrics", ())), images)
    details = read_details(
        picks, run.run_id, run.scores, store, sources, limits=opened.limits, uris=opened.uris,
        unreadable=run.unreadable,
    )  # fmt: skip
    if sources is not None:
        run = replace(run, prompts=_texts(sources, [pick.prompt_id for pick in picks]))
    return build_page(run, take_statistics(run, rated=rated), picks=picks, details=details, before=before)


def _texts(sources: Sources, prompt_ids: Sequence[str]) -> dict[str, str]:
    """The texts of some prompts."""
    wanted = pc.is_in(sources.prompts.column("prompt_id"), pa.array(prompt_ids, pa.string()))
    return {row["prompt_id"]: row["text"] or "" for row in sources.prompts.filter(wanted).to_pylist()}


def _earlier(store: Store, run: GatheredRun, compare: str | None) -> GatheredRun | None:
    """The run to compare to, without its sources."""
    if compare is None:
        return None
    run_id = _previous(store, run) if compare == "previous" else find_run(store, compare, key="compare")
    manifest = read_manifest(store, run_id)
    return _gathered(store, run_id, manifest, None, "")


def _previous(store: Store, run: GatheredRun) -> str:
    """The newest run of the same benchmark that is older."""
    earlier = [one for one in list_runs(store) if one.run_id < run.run_id and one.manifest is not None]
    same = [one.run_id for one in earlier if (one.manifest or {}).get("benchmark") == run.manifest.get("benchmark")]
    if not same:
        raise ConfigError(f"compare=previous: {run.run_id} is the first run of its benchmark; there is none before it")
    return same[-1]


def open_run(store: Store, run_id: str, sources: Sources | None = None) -> OpenedRun:
    """A run's manifest and tables, and its sources, or what can still be read of them."""
    manifest = read_manifest(store, run_id)
    config = manifest.get("config", {})
    try:
        limits = read_config(config.get("limits", {}), ImageLimits)
        benchmark = read_config(config.get("benchmark", {}), BenchmarkConfig)
        if sources is None:
            sources = open_sources(benchmark, store.storage, shard_rows=config.get("shard_rows", 256))
    except Exception as error:
        if not isinstance(error, PlumblineError) and not is_storage_error(error):
            raise
        nowhere = Uris(roots=(), storage=store.storage, max_bytes=0)
        return OpenedRun(_gathered(store, run_id, manifest, None, first_line(error)), None, ImageLimits(), nowhere)
    uris = benchmark_uris(benchmark, store.storage, limits)
    return OpenedRun(_gathered(store, run_id, manifest, sources, ""), sources, limits, uris)


def _gathered(
    store: Store, run_id: str, manifest: Mapping[str, Any], sources: Sources | None, unreadable: str
) -> GatheredRun:
    """A run without the texts of its prompts."""
    folder = f"runs/{run_id}"
    return GatheredRun(
        run_id=run_id,
        manifest=manifest,
        scores=store.read_table(f"{folder}/scores.parquet", SCORE_COLUMNS, encoded=NAMES),
        summary=store.read_table(f"{folder}/summary.parquet"),
        errors=store.read_table(f"{folder}/errors.parquet"),
        prompts={},
        skills=sources.skills if sources is not None else {},
        unreadable=unreadable,
    )
