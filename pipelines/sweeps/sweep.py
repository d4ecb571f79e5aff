"""A sweep: benchmark prompts x generators x metrics, from sources to a run's tables."""

import logging
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.errors import DISTRIBUTION, ConfigError, PlumblineError
from plumbline.operators.models.calls import Usage
from plumbline.operators.models.resolution import find_vqa_kind
from plumbline.operators.models.vqa_kinds import VqaKind
from plumbline.operators.stages.graph import check_clips, make_nodes
from plumbline.operators.stages.table import STAGES
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.summary import best_first
from plumbline.pipelines.base.endings import exit_code
from plumbline.pipelines.base.logs import LogConfig, about
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, Shard, digest
from plumbline.pipelines.cells.retry import Retried, count_retried
from plumbline.pipelines.cells.runs import CELLS, NameRun, Run, by_time, commit_run, newest_first
from plumbline.pipelines.cells.store import Store, open_store
from plumbline.pipelines.keeping.presence import deletions, present, wait_for_deletions
from plumbline.pipelines.keeping.watching import progress_of
from plumbline.pipelines.plans.config import SweepConfig
from plumbline.pipelines.plans.costs import Cost, ask_services, spent
from plumbline.pipelines.plans.plan import Plan, make_plan, with_missing
from plumbline.pipelines.running.progress import NodeProgress
from plumbline.pipelines.running.rounds import Report, Rounds
from plumbline.pipelines.sources.sources import Sources, Whole, open_sources, with_pack
from plumbline.pipelines.sources.uris import Uris, benchmark_uris
from plumbline.pipelines.sweeps.results import Results, error_counts, gather_results

if TYPE_CHECKING:
    from plumbline.operators.judging.adaptive import Seen
    from plumbline.pipelines.judging.metaeval import Findings
    from plumbline.pipelines.judging.releases.release import Release
    from plumbline.pipelines.running.stages import StageContext
    from plumbline.pipelines.sources.waves import Waves

T = TypeVar("T")

LOG = logging.getLogger(__name__)
MOST_LOOKED_AT = 32
"""Of the newest runs, for one of the same benchmark and metrics."""
MOST_ROUNDS = 6
"""Of computing and looking; the chain from questions to scores is shorter, and what breaks again is told instead."""
RESAMPLES = 200
"""Of the intervals at a sweep's end; python -m jobs.metaeval draws more."""
PACKAGES = (DISTRIBUTION, "ray", "torch", "transformers", "pyarrow")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSweep:
    """A sweep that is known whole and has computed nothing."""

    config: SweepConfig
    store: Store
    sources: Sources
    plan: Plan
    wanted: tuple[str, ...] = ("scores",)
    """The stages whose cells are to be there in the end."""
    deletions: int = 0
    """How often something had been deleted from the store before the plan was made; -1 where that was being done."""
    waves: "Waves | None" = None
    """Of an adaptive sweep."""
    seen: "Seen | None" = None
    """Of an adaptive sweep whose last wave has come, what was decided."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """What became of cells that were computed for it before, wave by wave."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By node, what that took."""

    @property
    def falling(self) -> frozenset[str]:
        """The metrics by which a lower score is better."""
        return frozenset(name for name, metric in self.config.metrics.items() if metric.falling)


class FinishedSweep(NamedTuple):
    """A run that stands in the store."""

    run_id: str
    folder: str
    """Where its tables are."""
    results: Results
    falling: frozenset[str]
    """The metrics by which a lower score is better."""
    computed: int
    """Cells this run computed."""
    renewed: int
    """Those of them that were committed and could not be used."""
    exit_code: int
    """0 complete, 2 within the failure budget, 1 over it."""
    usage: Mapping[str, Usage]
    """By node, what the model calls of this run took, where they are counted."""
    costs: Mapping[str, Cost]
    """By node, what they cost, where the model has prices."""
    unchanged: bool
    """Whether it is the newest run, which holds as it is: it stands on the same, so that nothing was written anew."""
    retried: Retried | None = None
    """Where `retry_failed` is set, the failed rows that were tried again."""


def plan_sweep(config: SweepConfig, *, wanted: tuple[str, ...] = ("scores",)) -> PlannedSweep:
    """Checks the store, the sources and the checkpoints, and names every cell; loads no model.

    What is to be computed are the cells of the stages `wanted`, and those that they stand on.

    Raises ConfigError or ModelError, whose message is one line with the remedy.
    """
    store = open_store(config)
    if config.benchmark.images and store.place.url == config.storage.locate(config.benchmark.images).url:
        raise ConfigError(f"store {store.place.url}: the images are there too; name a folder of its own")
    if not config.dry_run:
        store.check()
    sources = open_sources(config.benchmark, config.storage, shard_rows=config.shard_rows)
    config = settle(config)
    packed = config.benchmark.packed(config.storage)
    if packed is not None and any(metric.packed for metric in config.metrics.values()):
        sources = with_pack(sources, packed, config.benchmark.name)
        check_pack(config, sources)
    waves = None
    if config.adaptive is not None:
        from plumbline.pipelines.sources.waves import cut_waves  # imports scipy, which takes a second

        waves = cut_waves(sources, config.benchmark, uris_of(config), config.adaptive)
        sources = waves.sources
    deleted = deletions(store)  # before its cells are listed
    plan = make_plan(config, sources, store, wanted=wanted)
    return PlannedSweep(
        config=config, store=store, sources=sources, plan=plan, wanted=wanted, deletions=deleted, waves=waves
    )


def check_pack(config: SweepConfig, sources: Sources) -> None:
    """Raises ConfigError where a metric cannot score by the questions that the benchmark ships; logs their problems."""
    for name, metric in config.metrics.items():
        refusal = metric.refusal_of_pack(sources.pack_choices) if metric.packed else None
        if refusal is not None:
            raise ConfigError(f"metrics.{name}: with the questions of {config.benchmark.questions}, {refusal}")
    for problem in sources.pack_problems:
        LOG.warning("%s", problem)


def settle(config: SweepConfig) -> SweepConfig:
    """The configuration with what its metrics leave to their models filled in: so it is in the keys and the manifest.

    Raises ModelError where a checkpoint does not tell what it is, ConfigError where it does not take what it is shown.
    """

    def kind_of(role: str) -> VqaKind:
        return find_vqa_kind(config.models[role])

    metrics = {name: metric.settled(kind_of) for name, metric in config.metrics.items()}
    check_clips(make_nodes(metrics), config.models, config.clips)
    return replace(config, metrics=metrics)


def run_sweep(
    planned: PlannedSweep,
    report: Report,
    *,
    name: NameRun = by_time,
    hold: Callable[[], None] = lambda: None,
) -> FinishedSweep:
    """Computes what is missing and writes the run; with nothing missing, Ray is not even imported.

    Where the newest run stands on the same and is whole, it is the result, and no other run is written. The run is the
    newest once it is named (`name_newest`), which comes with its report. `hold` is called before anything of the run is
    published, and raises where that may not be any more.
    """
    standing = _standing_run(planned)
    if standing is not None:
        LOG.info("nothing changed since run %s", standing.run_id)
        return standing
    began = datetime.now(UTC)
    run_id = name(planned.store, began)
    with about(run=run_id), at_work(planned, report, run=run_id) as (planned, noted):
        return _run(planned, noted, run_id, began, hold)


def _run(
    planned: PlannedSweep,
    report: Report,
    run_id: str,
    began: datetime,
    hold: Callable[[], None],
) -> FinishedSweep:
    LOG.info("%d of %d cells to compute", len(planned.plan.missing), len(planned.plan.cells))
    seconds = dict(planned.seconds)
    noted = timed(report, seconds)

    def gather(now: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Looked[Results]:
        results = gather_results(
            now.plan,
            now.sources,
            {**planned.outcomes, **outcomes},
            run_id=run_id,
            store=now.store,
            benchmark=now.config.benchmark,
        )
        ordered = best_first(results.summary, now.falling)
        return Looked(replace(results, summary=ordered), results.broken)

    planned, outcomes, results = compute_whole(planned, noted, gather)
    planned, outcomes = with_waves(planned, outcomes)
    code = exit_code(results.n_null, results.rows, planned.config.max_failed)
    _write_run(planned, run_id, results, outcomes, began=began, exit_code=code, seconds=seconds, hold=hold)
    folder = planned.store.place
    computed = _counts(planned.plan, results, outcomes)["cells_computed"]
    usage = model_usage(planned.plan, outcomes)
    LOG.info("written: %d rows, coverage %.4f, exit code %d", results.rows, results.coverage, code)
    return FinishedSweep(
        run_id=run_id,
        folder=f"{folder.url}/runs/{run_id}",
        results=results,
        falling=planned.falling,
        computed=computed,
        renewed=len(planned.plan.renewed),
        exit_code=code,
        usage=usage,
        costs=spent(planned.plan, usage),
        unchanged=False,
        retried=count_retried(planned.plan.failed, outcomes) if planned.config.retry_failed else None,
    )


def timed(report: Report, seconds: dict[str, float]) -> Report:
    """What reports and adds to `seconds` what each node took meanwhile."""
    before = dict(seconds)

    def noted(progress: Mapping[str, NodeProgress]) -> None:
        took = {node: state.seconds for node, state in progress.items() if state.seconds}
        seconds.update({node: round(before.get(node, 0) + this_time, 1) for node, this_time in took.items()})
        report(progress)

    return noted


def with_waves(planned: PlannedSweep, outcomes: dict[str, Outcome]) -> tuple[PlannedSweep, dict[str, Outcome]]:
    """The sweep with all that was computed for it, wave by wave."""
    if not planned.outcomes:
        return planned, outcomes
    before = {cell for cell in planned.plan.cells if cell.path in planned.outcomes}
    plan = with_missing(planned.plan, planned.plan.missing | before, planned.sources)
    return replace(planned, plan=plan), {**planned.outcomes, **outcomes}


@contextmanager
def at_work(planned: PlannedSweep, report: Report, **content: Any) -> Iterator[tuple[PlannedSweep, Report]]:
    """Says in the store which cells the sweep uses and how far it is, for those who delete and those who watch.

    Gives the sweep, planned again where cells may have been deleted since it was planned, and what reports both ways.
    """
    recipes = (*planned.plan.prompts.recipes, *planned.plan.images.recipes)
    uses = sorted({recipe.folder for recipe in recipes})
    content |= {"benchmark": planned.config.benchmark.name, "uses": uses}
    with present(planned.store, **content, **progress_of(planned.plan, {})) as presence:
        if wait_for_deletions(planned.store) != planned.deletions:
            plan = make_plan(planned.config, planned.sources, planned.store, wanted=planned.wanted)
            planned = replace(planned, plan=plan)

        def noted(progress: Mapping[str, NodeProgress]) -> None:
            presence.note(**progress_of(planned.plan, progress))
            report(progress)

        yield planned, noted


def judge_metrics(planned: PlannedSweep, finished: FinishedSweep) -> "Findings | None":
    """Compares a run's scores with people's judgements, into the run's folder; None where there is no protocol.

    Raises SourceError where the judgements cannot be read, or are of other images; the run stands all the same.
    """
    protocol = planned.config.protocol
    if protocol is None:
        return None
    from plumbline.pipelines.judging.elements import read_elements
    from plumbline.pipelines.judging.metaeval import (
        judge,
        open_release,
        write_findings,
    )  # imports scipy, which takes a second

    release = open_release(protocol, planned.config.storage)
    protocol = replace(protocol, falling=(*protocol.falling, *finished.falling))
    scores = _judged_scores(finished.results, release)
    run = planned.store.place / f"runs/{finished.run_id}"
    elements = read_elements(run) if "words" in protocol.tasks else ()
    findings = judge(protocol, release, scores, Sampling(resamples=RESAMPLES), finished.folder, elements)
    write_findings(findings, run / "metaeval")
    return findings


def _judged_scores(results: Results, release: "Release") -> pa.Table:
    """The scores of images and prompts that people judged; where there are none, some others, for the message."""
    people = (release.ratings, release.preferences, release.pairings, release.graph_nodes, release.words)
    images, prompts = (
        pa.chunked_array([table.column(name) for table in people for name in names if name in table.column_names])
        for names in (("image_id", "image_a", "image_b"), ("prompt_id",))
    )
    judged: list[pa.Table] = []
    others: list[pa.Table] = []
    for part in results.read_parts():
        is_judged = pc.or_(pc.is_in(part.column("image_id"), images), pc.is_in(part.column("prompt_id"), prompts))
        judged.append(part.filter(is_judged))
        others = others or [part]
    return pa.concat_tables(judged if any(map(len, judged)) else others)


class Looked(NamedTuple, Generic[T]):
    """What was made of the cells of a sweep, and which of them cannot be used."""

    made: T
    broken: Set[str]


def compute_whole(
    planned: PlannedSweep,
    report: Report,
    look: Callable[[PlannedSweep, Mapping[str, Outcome]], Looked[T]],
) -> tuple[PlannedSweep, dict[str, Outcome], T]:
    """Computes what is missing, and anew what turns out to be damaged or to stand on what is no more.

    Gives the sweep with all that it had to compute, what became of it, and what `look` made of the cells.
    """
    now, renewed = planned, frozenset[str]()
    outcomes: dict[str, Outcome] = {}
    rounds = Rounds(report)
    for _ in range(MOST_ROUNDS):
        rounds.begin(now.plan)
        outcomes |= _compute(now, rounds.note)
        looked = look(now, outcomes)
        if not looked.broken:
            break
        renewed |= looked.broken
        left = {path for path in renewed if path not in outcomes or outcomes[path].state != "committed"}
        plan = make_plan(now.config, now.sources, now.store, wanted=now.wanted, renew=left | looked.broken)
        now = replace(now, plan=plan)
    again = frozenset(cell for cell in planned.plan.cells if cell.path in renewed)
    plan = replace(planned.plan, missing=planned.plan.missing | again, renewed=renewed)
    return replace(planned, plan=plan), outcomes, looked.made


def _compute(planned: PlannedSweep, report: Report) -> dict[str, Outcome]:
    """What became of the plan's missing cells; with nothing missing, Ray is not even imported."""
    if not planned.plan.missing:
        return {}
    ask_services(item.node for item in planned.plan.nodes if item.missing)
    cluster = planned.config.cluster
    if cluster.here:
        from plumbline.pipelines.running.here import compute_here

        return compute_here(planned.plan, stage_context(planned), cluster, report)
    from plumbline.pipelines.running.runner import run_plan  # imports Ray, which takes seconds

    return run_plan(planned.plan, stage_context(planned), cluster, report)


def uris_of(config: SweepConfig) -> Uris:
    """Reads the images that the rows of a sweep name by address."""
    return benchmark_uris(config.benchmark, config.storage, config.limits)


def stage_context(planned: PlannedSweep) -> "StageContext":
    """What the stages of a sweep share."""
    from plumbline.pipelines.running.stages import StageContext

    config = planned.config
    return StageContext(
        store=planned.store,
        limits=config.limits,
        clips=config.clips,
        uris=uris_of(config),
        prompt_shards=tuple(planned.sources.prompt_shards),
        packed=planned.sources.packed,
    )


def _standing_run(planned: PlannedSweep) -> FinishedSweep | None:
    """The newest run of its kind, where nothing is to be computed and it stands on the same; a damaged run does not
    stand, and one without a report does: its sweep died before that was written.
    """
    newest = None if planned.plan.missing or planned.outcomes else _newest_like(planned)
    if newest is None or newest.manifest is None:
        return None
    store, run_id, manifest = planned.store, newest.run_id, newest.manifest
    folder = f"runs/{run_id}"
    try:
        if manifest.get("stands_on") != _stands_on(planned):
            return None
        results = _read_results(planned, folder, manifest["counts"])
        parts = store.files(results.path)
        if len(parts) != results.parts or not all(map(store.is_sound, (f"{folder}/cells.parquet", *parts))):
            return None
    except (PlumblineError, KeyError):
        return None
    if _tells_of_the_store(results.errors, planned.sources):
        return None
    url = f"{store.place.url}/{folder}"
    code = manifest["exit_code"]
    return FinishedSweep(run_id, url, results, planned.falling, 0, 0, code, usage={}, costs={}, unchanged=True)


def _newest_like(planned: PlannedSweep) -> Run | None:
    """The newest run of the same benchmark and metrics, for several sweeps may share a store; or a damaged one that is
    newer.
    """
    kind = (planned.config.benchmark.name, list(planned.config.metrics))
    for run in islice(newest_first(planned.store), MOST_LOOKED_AT):
        if run.manifest is None or kind == (run.manifest.get("benchmark"), run.manifest.get("metrics")):
            return run
    return None


def _tells_of_the_store(errors: pa.Table, sources: Sources) -> bool:
    """Whether a run has errors that are not in the cells it stands on: of one that could not be read or written then.

    With nothing missing all cells are committed, but for those that are left out, and a committed cell has no error
    that may pass. Those that have no file are of images that nobody has made, or of files that are broken.
    """
    may_pass = errors.filter(pc.and_(errors.column("retryable"), pc.not_equal(errors.column("kind"), "not_computed")))
    of_shards = pc.is_valid(may_pass.column("file"))
    if not sources.broken:
        of_shards = pc.or_(of_shards, pc.equal(may_pass.column("kind"), "broken_file"))
    return bool(pc.any(of_shards).as_py())


def _stands_on(planned: PlannedSweep) -> str:
    """A digest of all that a run's tables follow from: its cells, and what of the sources is in no cell."""
    sources = planned.sources
    left = {"left": sorted(cell.key for cell in planned.plan.left)} if planned.plan.left else {}
    return digest(
        left
        | {
            "cells": sorted(cell.key for cell in planned.plan.cells),
            "config": public_config(replace(planned.config, retry_failed=False, log=LogConfig())),
            "versions": _versions(),
            "prompts": [shard.prompts for shard in sources.prompt_shards],
            "skills": sha256(sources.skill_labels.tobytes()).hexdigest(),
            "generators": sources.generators,
            "broken": sources.broken,
            "files": sorted({(shard.url, shard.etag) for shard in sources.image_shards if sources.extra.names}),
        }
    )


def _versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


def _read_results(planned: PlannedSweep, folder: str, counts: Mapping[str, Any]) -> Results:
    """What a run handed out."""
    store = planned.store
    return Results(
        store=store,
        path=f"{folder}/scores.parquet",
        parts=counts["parts"],
        rows=counts["rows"],
        n_null=counts["rows_null"],
        n_truncated=counts["rows_truncated"],
        summary=best_first(store.read_table(f"{folder}/summary.parquet"), planned.falling),
        errors=store.read_table(f"{folder}/errors.parquet"),
    )


def _write_run(
    planned: PlannedSweep,
    run_id: str,
    results: Results,
    outcomes: Mapping[str, Outcome],
    *,
    began: datetime,
    exit_code: int,
    seconds: Mapping[str, float],
    hold: Callable[[], None],
) -> None:
    """The tables first, and the manifest after them."""
    store, folder = planned.store, f"runs/{run_id}"
    usage = model_usage(planned.plan, outcomes)
    for name in ("summary", "errors"):
        store.write_table(f"{folder}/{name}.parquet", getattr(results, name))
    if planned.seen is not None:
        store.write_table(f"{folder}/decisions.parquet", planned.seen.decisions)
    store.write_table(f"{folder}/cells.parquet", _cell_table(planned.plan, outcomes, results.first_rows))
    manifest = {
        "run_id": run_id,
        "began": began.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": exit_code,
        "stands_on": _stands_on(planned),
        "note": planned.config.note,
        "benchmark": planned.config.benchmark.name,
        "generators": planned.sources.generators,
        "metrics": list(planned.config.metrics),
        "lower_is_better": sorted(planned.falling),
        "counts": _counts(planned.plan, results, outcomes),
        "errors": dict(error_counts(results.errors)),
        "calls": {
            item.node.name: item.model_calls
            for item in planned.plan.nodes
            if item.node.model is not None and item.missing
        },
        "seconds": dict(seconds),
        "usage": {node: took._asdict() for node, took in usage.items()},
        "costs": {node: cost._asdict() for node, cost in spent(planned.plan, usage).items()},
        "versions": _versions(),
        "config": public_config(planned.config),
        "models": {item.node.name: item.node.model.semantic() for item in planned.plan.nodes if item.node.model},
    }
    if planned.seen is not None:
        manifest["seen"] = _seen_counts(planned)
    if planned.sources.whole is not None:
        manifest["limited"] = _limited_counts(planned.sources, planned.sources.whole)
    commit_run(store, run_id, manifest, hold)


def _seen_counts(planned: PlannedSweep) -> dict[str, Any]:
    """What an adaptive sweep saw and decided, and how much of what there is that was."""
    assert planned.seen is not None and planned.waves is not None
    images = {
        name: sum(shard.rows for shard in sources.image_shards)
        for name, sources in (("images", planned.sources), ("of_images", planned.waves.sources))
    }
    return {**planned.seen.counts(), **images}


def _limited_counts(sources: Sources, whole: Whole) -> dict[str, int]:
    """Of how much of its benchmark a sweep with a limit is."""
    images = sum(shard.rows for shard in sources.image_shards)
    return {
        "prompts": len(sources.prompts), "of_prompts": whole.prompts, "images": images, "of_images": whole.images
    }  # fmt: skip


def _counts(plan: Plan, results: Results, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    failed = sum(1 for outcome in outcomes.values() if outcome.state == "failed")
    retried = count_retried(plan.failed, outcomes)
    return {
        "cells": len(plan.cells),
        "cells_cached": len(plan.cells) - len(plan.missing) - len(plan.left),
        "cells_computed": len(plan.missing) - failed,
        "cells_failed": failed,
        "cells_renewed": len(plan.renewed),
        "rows_kept": sum(outcome.kept for outcome in outcomes.values()),
        "parts": results.parts,
        "rows": results.rows,
        "rows_null": results.n_null,
        "rows_truncated": results.n_truncated,
        "rows_retried": retried.rows,
        "rows_recovered": retried.succeeded,
        "coverage": results.coverage,
    }


def model_usage(plan: Plan, outcomes: Mapping[str, Outcome]) -> dict[str, Usage]:
    """What the model calls of this run took, by node; cells computed together on one shard are counted once."""
    counted: dict[tuple[str, PlannedCell | Shard], Usage] = {}
    for cell in plan.cells:
        usage = outcomes[cell.path].usage if cell.path in outcomes else None
        if usage is not None:
            counted[cell.recipe.node, _counted_as(cell)] = usage
    totals: dict[str, Usage] = {}
    for (node, _), usage in counted.items():
        totals[node] = totals.get(node, Usage()).plus(usage)
    return {node: usage for node, usage in totals.items() if any(usage)}


def _counted_as(cell: PlannedCell) -> PlannedCell | Shard:
    """What cells share that were computed together: stages over images measure a shard for all metrics at once."""
    return cell if STAGES[cell.recipe.stage].over == "prompts" else cell.shard


def _cell_table(plan: Plan, outcomes: Mapping[str, Outcome], first_rows: Mapping[str, int]) -> pa.Table:
    """The cells of a run (schema CELLS) by path."""
    cells = sorted(plan.cells, key=lambda cell: cell.path)
    computed = [outcomes.get(cell.path) for cell in cells]
    usages = [outcome.usage if outcome is not None else None for outcome in computed]
    columns: dict[str, list[Any]] = {
        "path": [cell.path for cell in cells],
        "node": [cell.recipe.node for cell in cells],
        "state": [_state(plan, cell, outcome) for cell, outcome in zip(cells, computed, strict=True)],
        "first_row": [first_rows.get(cell.path) for cell in cells],
    }
    columns |= {name: [getattr(outcome, name, None) for outcome in computed] for name in ("rows", "errors", "message")}
    columns |= {name: [getattr(usage, name, None) for usage in usages] for name in Usage._fields}
    return pa.table(columns, schema=CELLS)


def _state(plan: Plan, cell: PlannedCell, outcome: Outcome | None) -> str:
    if outcome is not None:
        return outcome.state
    return "missing" if cell in plan.missing or cell in plan.left else "cached"


def public_config(config: SweepConfig) -> dict[str, Any]:
    """The configuration without its secrets, and without the note, which stands beside it in a run's manifest."""
    values = asdict(config)
    del values["note"]
    for name in ("key", "secret"):
        values["storage"].pop(name)
    return values
