"""A run's report: its tables, its prompts and the images of its gallery, gathered from where they lie, and written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.each import Each
from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.images.generation_settings import COMPARE, Choice, all_settings
from plumbline.operators.metrics.table import falling_metrics
from plumbline.operators.report.changes import Changes, compare
from plumbline.operators.report.metric_figures import Question, measure_metrics
from plumbline.operators.report.page import GatheredRun, Page, build_page
from plumbline.operators.report.picked_images import pick_contradicted, pick_images, places_for
from plumbline.operators.report.rendering import render, to_csv, to_latex, to_markdown
from plumbline.operators.results.summary import Skills
from plumbline.operators.rewards.combination import AnyReward, Combination
from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.run_errors import read_failures
from plumbline.pipelines.cells.run_scores import read_run_scores
from plumbline.pipelines.cells.runs import (
    awaits_name,
    find_run,
    name_newest,
    newest_run,
    read_manifest,
    show_newest,
)
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.judging.protocols import ProtocolConfig
from plumbline.pipelines.report.bridges import read_bridges
from plumbline.pipelines.report.comparable_runs import find_compared
from plumbline.pipelines.report.finished_run import (
    Originals,
    find_originals,
    read_agreement,
    read_diagnosis,
    read_judge_noise,
)
from plumbline.pipelines.report.image_details import read_details
from plumbline.pipelines.report.report_record import ReportRecord, read_report_record, write_report_record
from plumbline.pipelines.report.usual import read_usual_scores
from plumbline.pipelines.running.tasks import open_tasks
from plumbline.pipelines.sources.sources import Sources, skills_of

MOST_IMAGES = 96
NO_RAY = ClusterConfig(executor="here")
NO_RUN = "none"
"""Compares a run with no other."""
MOST_CONTRADICTED = 24
"""Images on which metrics contradict people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportConfig:
    """Of which run to make the report."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    run: str = "latest"
    """A run's id (plumbline status); `latest` is the newest."""
    compare: str | None = None
    """The id of an earlier run to compare it to; `previous` is the newest of its benchmark that can be compared, `none`
    is no run, and null is the run that its report was compared with before."""
    reward: AnyReward = None
    """What generators were trained on since the run it is compared to, a metric or several in one as for jobs.serve
    (docs/rewards.md): who seems to game it is said."""
    baseline: str | None = None
    """The generator with which every other one is compared, and with no other: of 30 generators 29 comparisons share
    the probability of error, and not 435. Name it before you see the scores."""
    images: int = MOST_IMAGES
    """How many images the gallery has at most, and how many at most stand side by side."""
    bradley_terry: bool = False
    """Whether summary.csv and summary.md also rate generators by the prompts that they win of each other."""
    settings: Choice = COMPARE
    """`compare` calls no difference clear between images that were generated with different settings (docs/decide.md);
    `ignore` compares them all the same."""
    protocol: ProtocolConfig | None = None
    """People's judgements by which the run is judged first, in place of what was judged before; null shows that."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Where a run of more rows of scores than `cluster.driver_rows` is compared: a metric in each task."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if self.compare is not None and "," in self.compare:
            raise ConfigError(
                f"compare: expected one run, got {self.compare}: a change and its significance are told between two "
                "runs; make a report for each, or look at jobs.trends, which shows them one after the other"
            )
        if not 0 <= self.images <= MOST_IMAGES:
            raise ConfigError(f"images: expected 0 to {MOST_IMAGES}, got {self.images}")
        if self.reward is not None and self.compare in (None, NO_RUN):
            raise ConfigError(f"reward: {self.reward.name!r} is looked at beside an earlier run; set compare=previous")


class WrittenReport(NamedTuple):
    """A report that stands in its run's folder."""

    page: Page
    url: str
    """Where report.html is; summary.csv, summary.md and summary.tex are beside it."""
    size: int
    """Its bytes."""


class EarlierRun(NamedTuple):
    """The run that a run is compared with."""

    run_id: str | None = None
    """The id of the earlier run, if there is one."""
    run: GatheredRun | None = None
    """None if it cannot be read any more."""
    warning: str = ""
    """Why it cannot be read."""


class OpenedRun(NamedTuple):
    """A run with its sources, where they can still be read."""

    gathered: GatheredRun
    originals: Originals | None


def write_report(
    store: Store,
    run: str = "latest",
    *,
    compare: str | None = None,
    reward: Combination | None = None,
    baseline: str | None = None,
    images: int = MOST_IMAGES,
    bradley_terry: bool = False,
    settings: Choice = COMPARE,
    sources: Sources | None = None,
    cluster: ClusterConfig = NO_RAY,
    hold: Callable[[], None] = lambda: None,
) -> WrittenReport:
    """Writes report.html and the summary as CSV, Markdown and LaTeX into the run's folder; raises ConfigError where
    there is no run.

    A report that is written again without `compare` is compared with the same run as before.

    A run that was written after the newest becomes the newest by it, unless `hold` raises LeaseLost.

    `sources` are the run's, where they have just been read; else they are opened anew. On the `cluster` the metrics of
    a large run are compared side by side. Prompts and images that can no
    longer be read are shown as missing, with the reason.
    """
    run_id = find_run(store, run)
    rows = read_manifest(store, run_id).get("counts", {}).get("rows", 0)
    with open_tasks(cluster, store, rows=rows) as tasks:
        opened = open_run(store, run_id, sources, tasks.map)
        before = _earlier(store, opened.gathered, compare, tasks.map)
        _require_metrics(opened.gathered, reward)
        _require_generator(opened.gathered, baseline)
        page = _make_page(
            store,
            opened,
            before.run,
            images,
            reward=reward,
            rated=bradley_terry,
            baseline=baseline or "",
            settings=settings,
            each=tasks.map,
        )
    if before.warning:
        page = page._replace(warnings=[*page.warnings, before.warning])
    html = render(page)
    size = store.write_page(f"runs/{run_id}/report.html", html)
    for name, text in (
        ("summary.csv", to_csv(page.standings)),
        ("summary.md", to_markdown(page)),
        ("summary.tex", to_latex(page)),
    ):
        store.write_text(f"runs/{run_id}/{name}", text)
    record = ReportRecord(compared_with=before.run_id, title=page.leaderboard_title, leaderboard=page.leaderboard)
    write_report_record(store, run_id, record)
    if awaits_name(store, run_id):
        name_newest(store, run_id, hold)
    elif newest_run(store) == run_id:
        show_newest(store)
    return WrittenReport(page, f"{store.place.url}/runs/{run_id}/report.html", size)


def _require_metrics(run: GatheredRun, reward: Combination | None) -> None:
    metrics = run.ranking()
    for name in () if reward is None else reward.weights:
        if name not in metrics:
            raise ConfigError(
                f"reward: expected a metric of the run, {' or '.join(metrics) or 'of which it has none'}, got {name!r}"
            )


def _require_generator(run: GatheredRun, baseline: str | None) -> None:
    generators = run.scores.generators
    if baseline is not None and baseline not in generators:
        raise ConfigError(f"baseline: expected a generator of the run, {' or '.join(generators)}, got {baseline!r}")


def _make_page(
    store: Store,
    opened: OpenedRun,
    before: GatheredRun | None,
    images: int,
    *,
    reward: Combination | None,
    rated: bool,
    baseline: str,
    settings: Choice,
    each: Each,
) -> Page:
    run, originals = opened
    falling, ranking, pictured = falling_metrics(run.manifest), run.ranking(), run.pictured()
    places = places_for(run.scores, pictured, images, ranking=bool(ranking))
    of_generators = all_settings(run.manifest, settings)
    question = Question(run.scores, run.skills, places, run.unranked(), falling, baseline, rated, of_generators)
    figures = measure_metrics(question, each)
    seen = {metric: figures[metric].seen for metric in pictured if metric in figures}
    picks = pick_images(run.scores, seen, places, images, falling, each)
    if run.agreement is not None:
        contradicted = run.agreement.contradicted[: min(images, MOST_CONTRADICTED)]
        picks = picks._replace(contradicted=pick_contradicted(contradicted, run.scores, ranking, falling, each))
    every = picks.every()
    details = read_details(every, run, store, originals)
    if originals is not None:
        run = replace(run, prompts=_texts(originals.prompts, [pick.prompt_id for pick in every]))
    changes = None if before is None else _changes(store, before, run, reward, each, settings)
    return build_page(run, figures, picks=picks, details=details, changes=changes, baseline=baseline)


def _changes(
    store: Store, before: GatheredRun, run: GatheredRun, reward: Combination | None, each: Each, settings: Choice
) -> Changes:
    bridges = read_bridges(store, run.manifest.get("benchmark"))
    manifests = (before.manifest, run.manifest)
    changes = compare(before.scores, run.scores, run.skills, manifests, reward, each, settings, bridges)
    return changes._replace(run_id=before.run_id)


def _texts(prompts: pa.Table, prompt_ids: Sequence[str]) -> dict[str, str]:
    """The texts of some prompts."""
    wanted = pc.is_in(prompts.column("prompt_id"), pa.array(prompt_ids, pa.string()))
    return {row["prompt_id"]: row["text"] or "" for row in prompts.filter(wanted).to_pylist()}


def _earlier(store: Store, run: GatheredRun, compare: str | None, each: Each) -> EarlierRun:
    """Return the run to compare to, without its sources: the one that is asked for, else that of the last report."""
    if compare == NO_RUN:
        return EarlierRun()
    if compare is not None:
        compared = _compared(store, run, compare, each)
        return EarlierRun(compared.run_id, compared)
    record = read_report_record(store, run.run_id)
    if record is None or record.compared_with is None:
        return EarlierRun()
    last = record.compared_with
    try:
        return EarlierRun(last, _compared(store, run, last, each))
    except PlumblineError as error:
        said = f"What changed since run {last} is not shown any more: {error}; compare=none accepts that."
        return EarlierRun(last, warning=said)


def _compared(store: Store, run: GatheredRun, compare: str, each: Each) -> GatheredRun:
    bridges = read_bridges(store, run.manifest.get("benchmark"))
    run_id = find_compared(store, run.run_id, run.manifest, compare, bridges=bridges)
    return _gathered(store, run_id, read_manifest(store, run_id), Skills(()), each)


def open_run(store: Store, run_id: str, sources: Sources | None, each: Each) -> OpenedRun:
    """A run's manifest and tables, and its sources, or what can still be read of them."""
    manifest = read_manifest(store, run_id)
    originals, unreadable = find_originals(manifest, store, sources)
    skills = Skills(()) if originals is None else skills_of(originals.prompts)
    gathered = _gathered(store, run_id, manifest, skills, each, unreadable)
    return OpenedRun(replace(gathered, usual=read_usual_scores(store, run_id, manifest)), originals)


def _gathered(
    store: Store,
    run_id: str,
    manifest: Mapping[str, Any],
    skills: Skills,
    each: Each,
    unreadable: str = "",
) -> GatheredRun:
    """A run without the texts of its prompts."""
    folder = f"runs/{run_id}"
    return GatheredRun(
        run_id=run_id,
        manifest=manifest,
        scores=read_run_scores(store, run_id, each),
        summary=store.read_table(f"{folder}/summary.parquet"),
        failures=read_failures(store, folder),
        prompts={},
        skills=skills,
        diagnosis=read_diagnosis(store, run_id),
        agreement=read_agreement(store, run_id),
        noise=read_judge_noise(store, run_id),
        decisions=store.read_table(f"{folder}/decisions.parquet") if manifest.get("seen") else None,
        unreadable=unreadable,
    )
