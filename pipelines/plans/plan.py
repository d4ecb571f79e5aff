"""The plan lists every cell of a sweep and determines which are missing, before any model is loaded."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import accumulate, chain
from types import MappingProxyType
from typing import NamedTuple, get_args

from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.results.question_quality import average_content_words
from plumbline.operators.stages.graph import GraphNode, make_node_name, make_nodes
from plumbline.operators.stages.stage import RowKind
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.plans.stored_cells import find_stored_cells, list_committed_cells
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.cells import (
    Cell,
    PlannedCell,
    Recipe,
    Shard,
    Work,
    digest,
    make_recipe,
    to_canonical_json,
)
from plumbline.pipelines.store.reused_rows import (
    EarlierCells,
    FailedRows,
    count_failed_rows,
    find_cells_to_retry,
    select_failed_and_dependents,
)
from plumbline.pipelines.store.store import Store

PAIR_STAGES = tuple(stage.name for stage in STAGES.values() if stage.row_kind == "pairs")
"""Stages that compare images of two generators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One stage with the models it loads. Each actor pool runs one node."""

    name: str
    """Name of the stage, followed by the role of its model if it has one: `answers:vqa`."""
    stage: str
    models: Mapping[str, ResolvedModel]
    """Models by the metric option that names the model's role; the node's own model comes first."""
    metrics: Mapping[str, Metric]

    @property
    def model(self) -> ResolvedModel | None:
        return next(iter(self.models.values()), None)

    def select_metrics(self, metrics: Container[str]) -> "Node":
        """Return the node restricted to the given metrics, and to the models that these metrics use."""
        own = {name: metric for name, metric in self.metrics.items() if name in metrics}
        keys = {key for metric in own.values() for key in metric.roles}
        return replace(self, metrics=own, models={key: self.models[key] for key in self.models if key in keys})

    def find_pool(self, cluster: ClusterConfig) -> PoolConfig:
        """Return the node's pool configuration; it requests no GPUs if none of the node's models runs locally."""
        pool = cluster.find_pool(self.name)
        return pool if any(model.local for model in self.models.values()) else pool.drop_gpus()


class NodePlan(NamedTuple):
    """The work planned for one node."""

    node: Node
    cells: int
    missing: int
    images: int
    """Number of distinct images in the shards of missing cells; for a stage over prompts or pairs, the number of
    prompts or pairs.
    """
    model_calls: int
    """Estimated number of answers, replies or comparisons by the node's model. Encoding an image for them is no call.

    The number of questions still to be written is estimated from the number of words in the prompts. 0 if the node has
    no model.
    """
    calls_of: Mapping[str, float] = MappingProxyType({})
    """Number of model calls and encoded images by metric: those for the metric's own rows, plus an equal share of those
    that serve several metrics.
    """
    encodings: int = 0
    """Number of images, or pairs of images, that the model encodes."""

    @property
    def steps(self) -> int:
        """Number of model calls and encodings, by which progress is measured."""
        return self.model_calls + self.encodings


class ShardCells:
    """One cell per shard and recipe, for shards of one kind: prompts, images, or pairs of images."""

    def __init__(
        self, recipes: Sequence[Recipe], shards: Iterable[Shard], semantic: Callable[[Shard, Recipe], str]
    ) -> None:
        """Create a cell for each shard and recipe.

        `semantic` returns the canonical JSON of everything about a shard that can change the recipe's results. The only
        fields of the recipe that it may use are `compares`, `asks` and `pairs`.
        """
        self.recipes = recipes
        self.index = {recipe.digest: index for index, recipe in enumerate(recipes)}
        self.of_shard: dict[Shard, tuple[PlannedCell, ...]] = {}
        kinds = {(recipe.compares, recipe.asks, recipe.pairs): recipe for recipe in recipes}
        for shard in shards:
            texts = {kind: semantic(shard, recipe) for kind, recipe in kinds.items()}
            self.of_shard[shard] = tuple(
                PlannedCell(recipe, shard, texts[recipe.compares, recipe.asks, recipe.pairs]) for recipe in recipes
            )

    def select(self, recipe: Recipe, shards: Iterable[Shard]) -> tuple[PlannedCell, ...]:
        """Return the recipe's cells for these shards, regardless of the metric that the recipe was made for."""
        index = self.index[recipe.digest]
        return tuple(self.of_shard[shard][index] for shard in shards)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All cells of a sweep, and the work that remains."""

    recipes: Mapping[str, Mapping[str, Recipe]]
    """Recipes by metric and stage."""
    prompts: ShardCells
    pairs: ShardCells
    images: ShardCells
    prompts_of: Mapping[Shard, tuple[Shard, ...]]
    """Shards that contain the prompts of an image shard's images, by image shard."""
    pairs_of: Mapping[Shard, tuple[Shard, ...]]
    """Shards of pairs that contain an image shard's images, by image shard."""
    nodes: tuple[NodePlan, ...] = ()
    missing: frozenset[PlannedCell] = frozenset()
    """Cells to compute: uncommitted scores cells, and the uncommitted cells that they depend on."""
    renewed: frozenset[str] = frozenset()
    """Paths of committed cells that cannot be used and are computed again."""
    earlier: EarlierCells
    untried: frozenset[PlannedCell] = frozenset()
    """Uncommitted cells that no sweep has tried, and that a sweep with `retry_failed` therefore skips."""
    failed: Mapping[str, FailedRows] = field(default_factory=dict)
    """Failed rows to retry, by path of their cell; empty without `retry_failed`."""

    @property
    def cells(self) -> list[PlannedCell]:
        """All cells; a cell comes after the cells that it reads."""
        return [cell for kind in self.kinds for cells in kind.of_shard.values() for cell in cells]

    @property
    def kinds(self) -> tuple[ShardCells, ...]:
        """The cells for prompts, for pairs and for images, in the order in which they are computed."""
        return self.prompts, self.pairs, self.images

    def select_kind(self, kind: RowKind) -> ShardCells:
        """Return the cells of all shards whose rows are of this kind."""
        return {"prompts": self.prompts, "pairs": self.pairs, "images": self.images}[kind]

    @property
    def scores(self) -> dict[str, tuple[PlannedCell, ...]]:
        """Cells of the `scores` stage for all image shards, by metric."""
        shards = self.images.of_shard
        return {name: self.images.select(recipes["scores"], shards) for name, recipes in self.recipes.items()}

    def select_prompt_cells(self, stage: str) -> dict[str, tuple[PlannedCell, ...]]:
        """Return a prompt stage's cells for all prompt shards, by metric; metrics without this stage are left out."""
        asked = {name: recipes[stage] for name, recipes in self.recipes.items() if stage in recipes}
        return {name: self.prompts.select(recipe, self.prompts.of_shard) for name, recipe in asked.items()}

    def list_upstream_cells(self, cell: PlannedCell) -> dict[str, tuple[PlannedCell, ...]]:
        """Return the cells that a cell reads, by the stage that computes them."""
        cells: dict[str, tuple[PlannedCell, ...]] = {}
        for recipe in cell.recipe.reads:
            kind = STAGES[recipe.stage].row_kind
            if kind == "images":
                cells[recipe.stage] = self.images.select(recipe, (cell.shard,))
            elif kind == "pairs":
                cells[recipe.stage] = self.pairs.select(recipe, self.pairs_of.get(cell.shard, ()))
            else:
                cells[recipe.stage] = self.prompts.select(recipe, self.prompts_of.get(cell.shard, (cell.shard,)))
        return cells

    def iterate_work(self, shards: ShardCells) -> Iterator[Work]:
        """Yield each shard that has missing cells, together with these cells."""
        for shard, cells in shards.of_shard.items():
            left = tuple(self.make_cell(cell) for cell in cells if cell in self.missing)
            if left:
                yield Work(shard=shard, cells=left, outcomes={})

    def make_cell(self, cell: PlannedCell) -> Cell:
        """Return a planned cell with all information needed to compute it."""
        path, recipe = cell.path, cell.recipe
        renew = path in self.renewed
        return Cell(
            node=recipe.node,
            stage=recipe.stage,
            metric=recipe.metric,
            key=cell.key,
            path=path,
            inputs={
                stage: tuple(read.path for read in cells) for stage, cells in self.list_upstream_cells(cell).items()
            },
            recipe=recipe.digest,
            earlier=self.earlier.find_similar_cells(path, renew=renew),
            renew=renew,
        )


def _make_shard_cells(
    config: SweepConfig, sources: Sources, recipes: Sequence[Recipe], pairs_of: Mapping[Shard, Sequence[Shard]]
) -> tuple[ShardCells, ShardCells, ShardCells]:
    over_prompts, over_pairs, over_images = (
        [recipe for recipe in recipes if STAGES[recipe.stage].row_kind == kind] for kind in get_args(RowKind)
    )
    limits, questions = config.limits.list_key_properties(), _digest_questions(sources)

    def describe_prompts(shard: Shard, recipe: Recipe) -> str:
        return to_canonical_json({"prompts": shard.prompts, "asked": questions.get(shard) if recipe.asks else None})

    def describe_images(shard: Shard, recipe: Recipe) -> str:
        source, asked = shard.describe_source(compares=recipe.compares), questions.get(shard) if recipe.asks else None
        described: dict[str, object] = {"source": source, "prompts": shard.prompts, "limits": limits, "asked": asked}
        if recipe.pairs:
            described["pairs"] = sorted(describe_pairs(pair) for pair in pairs_of.get(shard, ()))
        return to_canonical_json(described)

    @cache
    def describe_pairs(shard: Shard) -> str:
        return digest({"source": shard.describe_source(), "prompts": shard.prompts, "limits": limits})

    prompts = ShardCells(over_prompts, sources.prompt_shards, describe_prompts)
    pairs = ShardCells(over_pairs, sources.pairs, lambda shard, recipe: to_canonical_json(describe_pairs(shard)))
    images = ShardCells(over_images, sources.prompts_of, describe_images)
    return prompts, pairs, images


def make_plan(
    config: SweepConfig,
    sources: Sources,
    store: Store,
    *,
    wanted: tuple[str, ...] = ("scores",),
    renew: Set[str] = frozenset(),
) -> Plan:
    """Resolve the models, list all cells and find the missing cells; raise ModelError for an invalid checkpoint.

    Cells of the `wanted` stages are always needed. Cells of other stages are computed only if a missing cell reads
    them.

    The cells at the paths in `renew` are computed again: committed cells that cannot be used, or deleted cells that an
    earlier run refers to. If `renew` is not empty, the whole store is listed.
    """
    nodes = resolve_nodes(config, store)
    recipes = _make_recipes(config, sources, nodes)
    unique: dict[str, Recipe] = {}  # the first of several equal recipes
    for recipe in chain.from_iterable(by_stage.values() for by_stage in recipes.values()):
        unique.setdefault(recipe.digest, recipe)
    node_order = [node.name for node in nodes]
    ordered = sorted(unique.values(), key=lambda recipe: node_order.index(recipe.node))
    pairs_of = _group_pairs(sources.pairs)
    kinds = prompts, pairs, images = _make_shard_cells(config, sources, ordered, pairs_of)
    cells_by_recipe = [(recipe, kind.select(recipe, kind.of_shard)) for kind in kinds for recipe in kind.recipes]
    # a run lists every comparison, which its scores only sum up
    needed = (*wanted, *PAIR_STAGES) if "scores" in wanted else wanted
    index = None if renew else cache(partial(list_committed_cells, store, config.benchmark.name, list(config.metrics)))
    committed, others = find_stored_cells(cells_by_recipe, store, needed, index)
    plan = Plan(
        recipes=recipes,
        prompts=prompts,
        pairs=pairs,
        images=images,
        prompts_of=sources.prompts_of,
        pairs_of=pairs_of,
        renewed=frozenset(renew),
        earlier=EarlierCells(others),
    )
    missing = _find_missing_cells(plan, committed, [cell for cell in plan.cells if cell.recipe.stage in needed])
    if config.retry_failed:
        failed = find_cells_to_retry(missing, others.keys(), store, config.benchmark.name)
        again = _find_missing_cells(
            plan, committed, select_failed_and_dependents(failed.keys(), missing, plan.list_upstream_cells)
        )
        counted = count_failed_rows({cell: path for cell, path in failed.items() if cell.recipe.stage in wanted}, store)
        plan, missing = replace(plan, untried=missing - again, failed=counted), again
    return _plan_nodes(plan, nodes, missing, sources)


def replace_missing_cells(plan: Plan, missing: Set[PlannedCell], sources: Sources) -> Plan:
    """Return the plan with its missing cells replaced by `missing`."""
    return _plan_nodes(plan, [item.node for item in plan.nodes], missing, sources)


def _plan_nodes(plan: Plan, nodes: Iterable[Node], missing: Set[PlannedCell], sources: Sources) -> Plan:
    words = average_content_words(sources.prompts.column("text").to_pylist())
    return replace(
        plan, nodes=tuple(_make_node_plan(node, plan, missing, words) for node in nodes), missing=frozenset(missing)
    )


def resolve_nodes(config: SweepConfig, store: Store) -> list[Node]:
    """Return the nodes of the metrics, with models pinned to exact files; raise ModelError for an invalid model."""
    digest_model = partial(store.digest_file, remember=not config.dry_run)

    def resolve(node: GraphNode) -> Node:
        on_gpu = config.cluster.find_pool(node.name).num_gpus > 0
        models = {
            key: resolve_model(config.models[role], on_gpu=on_gpu, digest=digest_model)
            for key, role in node.roles.items()
        }
        return Node(name=node.name, stage=node.stage.name, models=models, metrics=node.metrics)

    return [resolve(node) for node in make_nodes(config.metrics)]


def _make_recipes(config: SweepConfig, sources: Sources, nodes: Sequence[Node]) -> dict[str, dict[str, Recipe]]:
    pack = sources.packed.digest if sources.packed is not None and not sources.packed.by_prompt else ""
    skills = ""
    stages = [(STAGES[name], metric) for metric in config.metrics.values() for name in metric.chain]
    if any("skills" in stage.list_benchmark_parts(metric) for stage, metric in stages):
        ids, names = (sources.prompts.column(name).to_pylist() for name in ("prompt_id", "skills"))
        skills = digest(sorted(zip(ids, names, strict=True)))  # the order of the prompts does not matter
    return {
        name: make_metric_recipes(name, metric, nodes, config.clips, pack, skills)
        for name, metric in config.metrics.items()
    }


def make_metric_recipes(
    name: str, metric: Metric, nodes: Sequence[Node], clips: Clips, pack: str = "", skills: str = ""
) -> dict[str, Recipe]:
    """Return a metric's recipes by stage. A recipe contains the recipes of its input stages, so that changes propagate.

    `pack` is the digest of the benchmark's own questions, and `skills` is the digest of the skills of all prompts.
    """
    node_of = {node.name: node for node in nodes}
    recipes: dict[str, Recipe] = {}
    for stage in (STAGES[stage_name] for stage_name in metric.chain):
        node = node_of[make_node_name(stage, metric)]
        own, *others = stage.roles(metric) or (None,)
        models = {key: node.models[key].list_key_properties() for key in others}
        if own is not None:
            models = {"model": node.models[own].list_key_properties(), **models}
        config = stage.recipe(name, metric) | models | {"ablation": stage.ablation(metric)}
        parts = stage.list_benchmark_parts(metric)
        if "pack" in parts:
            config["pack"] = pack
        if "skills" in parts:
            config["skills"] = skills
        if stage.looks_at_images():
            config["clips"] = asdict(clips)
        reads = (recipes[read] for read in stage.list_input_stages(metric))
        recipes[stage.name] = make_recipe(
            stage.name,
            stage.version,
            config,
            *reads,
            node=node.name,
            metric=name,
            compares=stage.looks_at_images() and (metric.needs_sources or bool(metric.captions)),
            asks="pack" in parts,
            pairs=any(STAGES[read].row_kind == "pairs" for read in stage.list_input_stages(metric)),
        )
    return recipes


def _group_pairs(pairs: Mapping[Shard, tuple[Shard, Shard]]) -> dict[Shard, tuple[Shard, ...]]:
    grouped: dict[Shard, list[Shard]] = {}
    for pair, images in pairs.items():
        for shard in images:
            grouped.setdefault(shard, []).append(pair)
    return {shard: tuple(of_shard) for shard, of_shard in grouped.items()}


def _digest_questions(sources: Sources) -> dict[Shard, str]:
    """Return a digest of the benchmark's own questions for each shard; omit shards without such questions."""
    if not sources.question_digests:
        return {}
    ids = sources.prompts.column("prompt_id").to_pylist()
    starts = accumulate((shard.rows for shard in sources.prompt_shards), initial=0)
    prompts_of = {
        shard: ids[start : start + shard.rows] for shard, start in zip(sources.prompt_shards, starts, strict=False)
    }
    prompts_of |= {shard: [ids[row] for row in rows] for shard, rows in sources.prompt_rows.items()}
    digests = {}
    for shard, prompt_ids in prompts_of.items():
        if asked := sorted(
            (prompt_id, sources.question_digests[prompt_id])
            for prompt_id in prompt_ids
            if prompt_id in sources.question_digests
        ):
            digests[shard] = digest(asked)
    return digests


def _find_missing_cells(
    plan: Plan, committed: Set[PlannedCell], cells: Iterable[PlannedCell]
) -> frozenset[PlannedCell]:
    """Return the uncommitted cells among `cells`, the cells to renew, and the uncommitted cells that these depend on.

    Inputs that are read only by committed cells are left out.
    """
    missing: set[PlannedCell] = set()
    renewed = {cell for cell in plan.cells if cell.path in plan.renewed} if plan.renewed else set()
    wanted = [*cells, *renewed]
    while wanted:
        cell = wanted.pop()
        if cell not in missing and (cell not in committed or cell in renewed):
            missing.add(cell)
            wanted += chain.from_iterable(plan.list_upstream_cells(cell).values())
    return frozenset(missing)


def _make_node_plan(node: Node, plan: Plan, missing: Set[PlannedCell], words: float) -> NodePlan:
    """Return the plan of a node; `words` is the mean number of content words per prompt."""
    shard_cells = plan.select_kind(STAGES[node.stage].row_kind)
    n_cells = n_missing = images = 0
    rows_of: Counter[tuple[str, ...]] = Counter()
    for shard, of_shard in shard_cells.of_shard.items():
        cells = [cell for cell in of_shard if cell.recipe.node == node.name]
        left = tuple(cell.recipe.digest for cell in cells if cell in missing)
        n_cells += len(cells)
        n_missing += len(left)
        if left:
            images += shard.rows
            rows_of[left] += shard.rows
    calls = _estimate_calls(node, plan, rows_of, words) if node.model is not None else {}
    encodings = images if node.model is not None and STAGES[node.stage].looks_at_images() else 0
    n_calls = round(sum(calls.values())) - encodings
    return NodePlan(node, n_cells, n_missing, images, model_calls=n_calls, calls_of=calls, encodings=encodings)


def _estimate_calls(node: Node, plan: Plan, rows_of: Mapping[tuple[str, ...], int], words: float) -> dict[str, float]:
    """Estimate NodePlan.calls_of; `rows_of` counts the rows for each combination of missing recipes."""
    stage = STAGES[node.stage]
    metrics_of: dict[str, list[str]] = {}
    for metric, recipes in plan.recipes.items():
        if node.stage in recipes:
            metrics_of.setdefault(recipes[node.stage].digest, []).append(metric)
    calls: dict[str, float] = {}
    for digests, rows in rows_of.items():
        # an image is encoded once for all metrics
        encodings = bool(stage.looks_at_images() and stage.calls) / len(digests)
        for metrics in (metrics_of[each] for each in digests):
            of_row = encodings + stage.estimate_calls_per_row(node.metrics[metrics[0]], words)
            for metric in metrics:
                calls[metric] = calls.get(metric, 0.0) + rows * of_row / len(metrics)
    return calls
