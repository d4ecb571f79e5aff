"""Prepares a sweep before anything is computed: its configuration, its sources and the plan of its cells."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import Metric, takes_questions
from plumbline.operators.models import resolution
from plumbline.operators.models.resolution import find_vqa_profile
from plumbline.operators.models.vqa_profiles import VqaProfile
from plumbline.operators.stages.graph import check_image_inputs, list_source_metrics, make_nodes
from plumbline.pipelines.base.storage import StorageConfig, convert_read_errors
from plumbline.pipelines.maintenance.running_sweeps import count_deletions
from plumbline.pipelines.plans.plan import Plan, make_plan
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.running.events import NodeProgress
from plumbline.pipelines.running.executor import Executor, choose_executor
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.image_files import ImageFiles, find_ingested_sources, list_images, load_shard_size
from plumbline.pipelines.sources.prompt_words import find_words_column
from plumbline.pipelines.sources.prompts import locate_skills
from plumbline.pipelines.sources.question_packs import check_choices
from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sources.sources import Sources, add_pack, open_sources
from plumbline.pipelines.sources.uris import open_benchmark_uris
from plumbline.pipelines.store.cells import Outcome, digest
from plumbline.pipelines.store.store import Store, open_store
from plumbline.pipelines.sweeps.pairing import add_pairs
from plumbline.pipelines.sweeps.verifying import VerifiedCells, verify_cells

if TYPE_CHECKING:
    from plumbline.operators.metaeval.decided_pairs import SweepProgress
    from plumbline.pipelines.sources.adaptive_rounds import PromptRounds

LOG = logging.getLogger(__name__)


class SweepInputs(NamedTuple):
    """Inputs of a sweep that have been listed but not opened."""

    config: SweepConfig
    """Configuration with the shard size, the columns of ingested sources and model-dependent defaults filled in."""
    store: Store
    images: ImageFiles
    digest: str
    """Digest of the names, sizes and versions of the input files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSweep:
    """A sweep with its plan: which cells exist, and which must be computed."""

    config: SweepConfig
    store: Store
    sources: Sources
    plan: Plan
    executor: Executor
    inputs_digest: str = ""
    """Digest of the sweep's inputs when they were listed; empty if it does not cover everything that the sweep reads.
    """
    wanted: tuple[str, ...] = ("scores",)
    """Stages whose cells must exist when the sweep is done."""
    verified: VerifiedCells | None = None
    """Result of reading the committed cells if `verify` is set; broken cells are computed again."""
    deletions: int = 0
    """Number of garbage collections in the store before the plan was made; -1 if one was running."""
    rounds: "PromptRounds | None" = None
    seen: "SweepProgress | None" = None
    """Decisions of an adaptive sweep after its last round."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    """Outcomes of cells that were computed in earlier rounds."""
    times: Mapping[str, NodeProgress] = field(default_factory=dict)
    """Times and calls in earlier rounds, by node."""

    @property
    def occupied_seconds(self) -> dict[str, float]:
        """Seconds that workers spent on shards, by node: computing them or waiting for decoded rows."""
        return {node: times.worked + times.waited for node, times in self.times.items()}

    def plan_again(self, renew: Collection[str] = ()) -> Plan:
        """Return a plan based on the current store; cells at the paths in `renew` are computed again."""
        return make_plan(self.config, self.sources, self.store, wanted=self.wanted, renew=frozenset(renew))


def plan_sweep(config: SweepConfig, *, wanted: tuple[str, ...] = ("scores",)) -> PlannedSweep:
    """Check the store, sources and checkpoints, and plan every cell without loading a model.

    The cells of the `wanted` stages are computed, as well as the cells that they read. Raises ConfigError or ModelError
    with a one-line message that includes the remedy.
    """
    return plan_sweep_from_inputs(list_inputs(config), wanted=wanted)


def list_inputs(config: SweepConfig) -> SweepInputs:
    """Check the store and the checkpoints, and list the sources; raise the same errors as `plan_sweep`."""
    if config.image_model is not None:
        raise ConfigError("image_model: this job generates no images; leave it out, and use jobs.generate")
    benchmark, storage = add_ingested_sources(config.benchmark, config.metrics, config.storage), config.storage
    for name, metric in config.metrics.items():
        if why := explain_missing_sources(metric, benchmark):
            raise ConfigError(f"metrics.{name}: {why}")
    store = open_store(config)
    if benchmark.images and store.place.url == storage.locate(benchmark.images).url:
        raise ConfigError(f"store {store.place.url}: it also contains the images; use a separate folder")
    if not config.dry_run:
        store.check()
    texts = [_list_versions(benchmark, storage, key) for key in ("prompts", "questions")]
    if benchmark.prompts is not None:
        skills = locate_skills(storage.locate(benchmark.prompts), benchmark)
        texts += [] if skills is None else [[(skills.url, skills.size, skills.etag)]]
    images = list_images(benchmark, storage)
    rows, bytes = config.shard_rows, config.shard_bytes
    if rows is None:
        stored = load_shard_size(benchmark.name, images, store, remember=not config.dry_run)
        rows, bytes = stored.rows, bytes or stored.bytes

    def find_profile(role: str) -> VqaProfile:
        return find_vqa_profile(config.models[role])

    check_image_inputs(make_nodes(config.metrics), config.models, config.clips)
    # keys and the manifest contain the defaults that metrics take from their models
    metrics = {name: metric.complete_options(find_profile) for name, metric in config.metrics.items()}
    config = replace(config, benchmark=benchmark, metrics=metrics, shard_rows=rows, shard_bytes=bytes)
    return SweepInputs(config, store, images, digest([images.digest, *texts]))


def check_installed(config: SweepConfig) -> None:
    """Raise ConfigError if a package needed by the metrics' models is not installed."""
    for role in {role for node in make_nodes(config.metrics) for role in node.roles.values()}:
        resolution.check_installed(config.models[role])


def _list_versions(benchmark: BenchmarkConfig, storage: StorageConfig, key: str) -> list[tuple[str, int, str]]:
    """Return the path, size and ETag of each file at a benchmark's address `key`, such as `prompts` or `questions`."""
    if (address := getattr(benchmark, key)) is None:
        return []
    place = storage.locate(address)
    with convert_read_errors(place, f"benchmark.{key}"):
        files = sorted((path, entry.size, entry.etag) for path, entry in place.files())
        if not files and key == "prompts" and not place.exists():
            raise FileNotFoundError(place.url)
    return files


def plan_sweep_from_inputs(inputs: SweepInputs, *, wanted: tuple[str, ...] = ("scores",)) -> PlannedSweep:
    """Plan a sweep whose inputs have already been listed, like `plan_sweep`."""
    config, store = inputs.config, inputs.store
    cache = ImageFileCache(store, config.benchmark)
    sources = open_inputs(inputs, cache)
    packed = config.benchmark.find_pack_file(config.storage) or find_words_column(config.benchmark, config.storage)
    if packed is not None and any(map(takes_questions, config.metrics.values())):
        sources = add_pack(sources, packed, config.benchmark.name)
        check_choices(config.metrics, sources.pack_choices, str(config.benchmark.questions))
        for problem in sources.pack_problems:
            LOG.warning("%s", problem)
    rounds = None
    if config.adaptive is not None:
        from plumbline.pipelines.sources.adaptive_rounds import split_rounds  # imports scipy, which takes a second

        uris = open_benchmark_uris(config.benchmark, config.storage, config.limits)
        rounds = split_rounds(sources, config.benchmark, uris, config.adaptive, cache)
        sources = rounds.sources
    sources = add_pairs(sources, config.metrics, config.benchmark.name, store, cache)
    rounds = None if rounds is None else replace(rounds, sources=sources)
    selections = (metric.pair_selection for metric in config.metrics.values())
    ranked = any(selection is not None and selection.ranked_by is not None for selection in selections)
    deletions = count_deletions(store)  # read before the cells are listed
    plan = make_plan(config, sources, store, wanted=wanted)
    verified = verify_cells(plan, store, config.cluster) if config.verify else None
    if verified is not None and verified.broken:
        plan = make_plan(config, sources, store, wanted=wanted, renew=frozenset(verified.broken))
    return PlannedSweep(
        config=config,
        store=store,
        sources=sources,
        plan=plan,
        executor=choose_executor(config.cluster, plan.nodes),
        inputs_digest="" if sources.reads_addresses or sources.has_problems or ranked else inputs.digest,
        wanted=wanted,
        verified=verified,
        deletions=deletions,
        rounds=rounds,
    )


def open_inputs(inputs: SweepInputs, cache: ImageFileCache) -> Sources:
    """Open the sources of a sweep; image files that are described in `cache` are not opened again."""
    config = inputs.config
    assert config.shard_rows is not None, "it was chosen when the inputs were listed"
    size = ShardSize(config.shard_rows, config.shard_bytes)
    sources = open_sources(config.benchmark, config.storage, shard_size=size, files=inputs.images, cache=cache)
    if not config.dry_run:
        cache.save()
    return sources


def add_ingested_sources(
    benchmark: BenchmarkConfig, metrics: Mapping[str, Metric], storage: StorageConfig
) -> BenchmarkConfig:
    """Return the benchmark with the columns of ingested sources, if a metric needs them and none are configured."""
    if benchmark.columns.sources or not list_source_metrics(metrics):
        return benchmark
    ingested = find_ingested_sources(benchmark, storage)
    columns = replace(benchmark.columns, source=ingested.get("source"), source_uri=ingested.get("source_uri"))
    return replace(benchmark, columns=columns)


def explain_missing_sources(metric: Metric, benchmark: BenchmarkConfig) -> str:
    """Return what to do if a metric needs the source images of edits and the benchmark has none; otherwise ''."""
    if benchmark.columns.sources or not metric.needs_sources:
        return ""
    return (
        "it needs the source images of edits; set benchmark.columns.source to their column, or "
        "benchmark.columns.source_uri to the column of their addresses; for folders of images, put the source images "
        "into a folder called source (plugins/edits/README.md)"
    )
