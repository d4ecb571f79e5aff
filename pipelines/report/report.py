"""Writes a run's report from its tables, its prompts and the images of its gallery."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.base.ordered_maps import OrderedMap
from plumbline.operators.images.generation_settings import COMPARE, SettingsPolicy, read_all_settings
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.report.changes import compare_runs
from plumbline.operators.report.choices import make_choices_section
from plumbline.operators.report.metric_figures import MetricInputs, measure_metrics
from plumbline.operators.report.page import GatheredRun, Page, ReportSection, build_page
from plumbline.operators.report.picked_images import compute_gallery_quotas, pick_contradicted_images, pick_images
from plumbline.operators.report.rendering import render_report, to_csv, to_latex, to_markdown
from plumbline.operators.results.choices import ChoiceResults, decide_scored_duels
from plumbline.operators.results.summary import Skills
from plumbline.operators.rewards.combination import AnyReward, RewardConfig
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.report.choices import read_choice_results, read_people_choices
from plumbline.pipelines.report.comparable_runs import find_compared_run, read_bridges
from plumbline.pipelines.report.finished_run import (
    OriginalSources,
    find_originals,
    read_agreement,
    read_judge_noise,
    read_usual_scores,
)
from plumbline.pipelines.report.image_details import read_details
from plumbline.pipelines.report.report_record import ReportRecord, read_report_record, write_report_record
from plumbline.pipelines.running.tasks import open_tasks
from plumbline.pipelines.sources.sources import Sources, collect_skills
from plumbline.pipelines.store.run_scores import read_failures, read_run_scores
from plumbline.pipelines.store.runs import (
    find_newest_run,
    find_run,
    make_run_newest,
    may_become_newest,
    publish_newest_run,
    read_manifest,
)
from plumbline.pipelines.store.store import Store

MAX_IMAGES = 96
LOCAL_CLUSTER = ClusterConfig(executor="here")
NO_COMPARISON = "none"
"""Value of the `compare` option for a report without a comparison."""
MAX_CONTRADICTED_IMAGES = 24
"""Maximum number of images shown because their scores contradict people."""
SECTIONS = Extensions[Callable[[Store, str], ReportSection | None]]("report_sections", {})
"""Plugin functions that make a section from a store and a run's id; they return None if there is nothing to show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportConfig:
    store: str = "store"
    """Folder or cloud prefix of the store."""
    run: str = "latest"
    """Id of a run (see plumbline status); `latest` is the newest run."""
    compare: str | None = None
    """Earlier run to compare with: a run's id, `previous` for the newest comparable run of the benchmark, or `none` for
    no comparison. null repeats the comparison of the last report.
    """
    reward: AnyReward = None
    """Reward that generators were trained on since the earlier run: a metric, or a combination of metrics as for
    jobs.serve (docs/rewards.md). The report names generators that seem to game it.
    """
    baseline: str | None = None
    """Compare the other generators with this generator only. With 30 generators, the error probability is then shared
    by 29 comparisons instead of 435. Choose the baseline before you see the scores.
    """
    images: int = MAX_IMAGES
    """Maximum number of images in the gallery, and of images shown side by side."""
    bradley_terry: bool = False
    """Add Bradley-Terry ratings of the generators, based on the prompts that each wins, to summary.csv and summary.md.
    """
    settings: SettingsPolicy = COMPARE
    """`compare` treats no difference as clear between images that were generated with different settings
    (docs/decide.md); `ignore` compares them anyway.
    """
    protocol: ProtocolConfig | None = None
    """Protocol for comparing the metrics with human ratings before the report is written; null shows the results of the
    last comparison.
    """
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Cluster for comparing runs that have more than `cluster.driver_rows` rows of scores, with one task per metric."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if self.compare is not None and "," in self.compare:
            raise ConfigError(
                f"compare: expected a single run, got {self.compare}: a report shows the changes between two runs. "
                "Write a report for each, or use jobs.trends, which shows many runs in order"
            )
        if not 0 <= self.images <= MAX_IMAGES:
            raise ConfigError(f"images: expected 0 to {MAX_IMAGES}, got {self.images}")
        if self.reward is not None and self.compare in (None, NO_COMPARISON):
            raise ConfigError(
                f"reward: {self.reward.name!r} needs an earlier run to compare with; set compare=previous"
            )


class WrittenReport(NamedTuple):
    """A report, written to its run's folder."""

    page: Page
    url: str
    """URL of report.html. The files summary.csv, summary.md and summary.tex are in the same folder."""
    size: int


class EarlierRun(NamedTuple):
    """The earlier run that a report's run is compared with, if there is one and it can be read."""

    run_id: str | None = None
    run: GatheredRun | None = None
    warning: str = ""
    """Reason why the run cannot be read, to be shown on the page."""


def write_report(
    store: Store,
    run: str = "latest",
    *,
    compare: str | None = None,
    reward: RewardConfig | None = None,
    baseline: str | None = None,
    images: int = MAX_IMAGES,
    bradley_terry: bool = False,
    settings: SettingsPolicy = COMPARE,
    sources: Sources | None = None,
    cluster: ClusterConfig = LOCAL_CLUSTER,
    assert_lease: Callable[[], None] = lambda: None,
) -> WrittenReport:
    """Write report.html and the summary as CSV, Markdown and LaTeX to the run's folder.

    The arguments from `compare` to `settings` are options of `ReportConfig`. The metrics of a large run are compared in
    parallel on the `cluster`. Prompts and images that can no longer be read are shown as missing, with the reason; the
    run's sources are opened unless `sources` are given.

    `assert_lease` is called before the run becomes the newest in the store, and can prevent that by raising LeaseLost.
    Raises ConfigError if the run does not exist, or if an option refers to something that is not in the run.
    """
    run_id = find_run(store, run)
    rows = read_manifest(store, run_id).get("counts", {}).get("rows", 0)
    with open_tasks(cluster, store, rows=rows) as tasks:
        opened, originals = open_run(store, run_id, sources, tasks.map)
        before = _find_earlier_run(store, opened, compare, tasks.map)
        _check_reward_and_baseline(opened, reward, baseline)
        page = _make_page(
            store,
            opened,
            originals,
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
    html = render_report(page)
    size = store.write_page(f"runs/{run_id}/report.html", html)
    for name, text in (
        ("summary.csv", to_csv(page.leaderboard_rows)),
        ("summary.md", to_markdown(page)),
        ("summary.tex", to_latex(page)),
    ):
        store.write_text(f"runs/{run_id}/{name}", text)
    record = ReportRecord(compared_with=before.run_id, title=page.leaderboard_title, leaderboard=page.leaderboard)
    write_report_record(store, run_id, record)
    if may_become_newest(store, run_id):
        make_run_newest(store, run_id, assert_lease)
    elif find_newest_run(store) == run_id:
        publish_newest_run(store)
    return WrittenReport(page, f"{store.place.url}/runs/{run_id}/report.html", size)


def _check_reward_and_baseline(run: GatheredRun, reward: RewardConfig | None, baseline: str | None) -> None:
    metrics, generators = run.list_ranking_metrics(), run.scores.generators
    for name in () if reward is None else reward.weights:
        if name not in metrics:
            known = " or ".join(metrics) or "but none of its metrics ranks images"
            raise ConfigError(f"reward: expected a metric of the run, {known}, got {name!r}")
    if baseline is not None and baseline not in generators:
        raise ConfigError(f"baseline: expected a generator of the run, {' or '.join(generators)}, got {baseline!r}")


def _make_page(
    store: Store,
    run: GatheredRun,
    originals: OriginalSources | None,
    before: GatheredRun | None,
    images: int,
    *,
    reward: RewardConfig | None,
    rated: bool,
    baseline: str,
    settings: SettingsPolicy,
    each: OrderedMap,
) -> Page:
    lower_is_better, ranking, shown = (
        read_lower_is_better(run.manifest),
        run.list_ranking_metrics(),
        run.list_gallery_metrics(),
    )
    quotas = compute_gallery_quotas(run.scores, shown, images, ranking=bool(ranking))
    known = read_all_settings(run.manifest, settings)
    chosen = {
        metric: decide_scored_duels(results, baseline, known)
        for metric, results in run.choices.items()
        if metric in ranking and isinstance(results, ChoiceResults)
    }
    inputs = MetricInputs(
        run.scores, run.skills, quotas, run.find_unranked_metrics(), lower_is_better, baseline, rated, known, chosen
    )
    figures = measure_metrics(inputs, each)
    seen = {metric: figures[metric].seen for metric in shown if metric in figures}
    picks = pick_images(run.scores, seen, quotas, images, lower_is_better, each)
    if run.agreement is not None:
        contradicted = run.agreement.contradicted[: min(images, MAX_CONTRADICTED_IMAGES)]
        picks = picks._replace(
            contradicted=pick_contradicted_images(contradicted, run.scores, ranking, lower_is_better, each)
        )
    every = picks.list_all()
    details = read_details(every, run, store, originals)
    if originals is not None:
        ids = pa.array([pick.prompt_id for pick in every], pa.string())
        wanted = originals.prompts.filter(pc.is_in(originals.prompts.column("prompt_id"), ids))
        run = replace(run, prompts={row["prompt_id"]: row["text"] or "" for row in wanted.to_pylist()})
    changes = None
    if before is not None:
        bridges, manifests = read_bridges(store, run.manifest.get("benchmark")), (before.manifest, run.manifest)
        changes = compare_runs(before.scores, run.scores, run.skills, manifests, reward, each, settings, bridges)
        changes = changes._replace(run_id=before.run_id)
    return build_page(run, figures, picks=picks, details=details, changes=changes, baseline=baseline)


def _find_earlier_run(store: Store, run: GatheredRun, compare: str | None, each: OrderedMap) -> EarlierRun:
    """Return the run to compare with, as named by `compare` or by the last report, without reading its sources.

    The result has no run if the comparison is switched off, or if neither names a run.
    """
    if compare == NO_COMPARISON:
        return EarlierRun()
    if compare is not None:
        earlier = _read_compared_run(store, run, compare, each)
        return EarlierRun(earlier.run_id, earlier)
    record = read_report_record(store, run.run_id)
    if record is None or record.compared_with is None:
        return EarlierRun()
    last = record.compared_with
    try:
        return EarlierRun(last, _read_compared_run(store, run, last, each))
    except PlumblineError as error:
        warning = f"The changes since run {last} can no longer be shown: {error}; compare=none accepts that."
        return EarlierRun(last, warning=warning)


def _read_compared_run(store: Store, run: GatheredRun, compare: str, each: OrderedMap) -> GatheredRun:
    bridges = read_bridges(store, run.manifest.get("benchmark"))
    run_id = find_compared_run(store, run.run_id, run.manifest, compare, bridges=bridges)
    return _gather_run(store, run_id, read_manifest(store, run_id), Skills(()), each)


def open_run(
    store: Store, run_id: str, sources: Sources | None, each: OrderedMap
) -> tuple[GatheredRun, OriginalSources | None]:
    """Read a run's manifest and tables, and its prompts and images if they can still be read."""
    manifest = read_manifest(store, run_id)
    originals, unreadable = find_originals(manifest, store, sources)
    skills = Skills(()) if originals is None else collect_skills(originals.prompts)
    run = _gather_run(store, run_id, manifest, skills, each)
    usual = read_usual_scores(store, run_id, manifest)
    choices = read_choice_results(store, run_id, skills)
    every = [
        make_choices_section(choices, read_people_choices(store, run_id)),
        *(SECTIONS[name](store, run_id) for name in sorted(SECTIONS)),
    ]
    sections = [section for section in every if section is not None]
    return replace(run, usual=usual, sections=sections, unreadable=unreadable, choices=choices), originals


def _gather_run(
    store: Store, run_id: str, manifest: Mapping[str, Any], skills: Skills, each: OrderedMap
) -> GatheredRun:
    """Read a run, except for the texts of its prompts."""
    folder = f"runs/{run_id}"
    return GatheredRun(
        run_id=run_id,
        manifest=manifest,
        scores=read_run_scores(store, run_id, each),
        summary=store.read_table(f"{folder}/summary.parquet"),
        failures=read_failures(store, folder),
        prompts={},
        skills=skills,
        agreement=read_agreement(store, run_id),
        noise=read_judge_noise(store, run_id),
        decisions=store.read_table(f"{folder}/decisions.parquet") if manifest.get("seen") else None,
    )
