"""The plan: every cell of a sweep, which are committed, and which work is left, known before any model loads."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from operators.metrics.metric import Metric
from operators.models.checkpoints import ResolvedModel, resolve_model
from operators.question_quality import mean_content_words
from operators.stages.graph import GraphNode, make_nodes, node_name
from operators.stages.stage import Stage
from operators.stages.table import STAGES
from pipelines.cells.cells import Cell, Recipe, Shard, Work, canonical, make_cell, make_recipe
from pipelines.cells.earlier import EarlierCells
from pipelines.cells.store import Store
from pipelines.config import SweepConfig
from pipelines.sources.sources import Sources


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One stage with the models it loads: what an actor pool runs."""

    name: str
    """The stage, and the role of its own model where it has one: `answers:vqa`."""
    stage: str
    models: Mapping[str, ResolvedModel]
    """By the key of its metrics that names each model's role; its own model first."""
    metrics: Mapping[str, Metric]

    @property
    def model(self) -> ResolvedModel | None:
        """Its own model."""
        return next(iter(self.models.values()), None)


class NodePlan(NamedTuple):
    """What one node has to do."""

    node: Node
    cells: int
    missing: int
    images: int
    """Images (of a stage over prompts: prompts) in the missing cells' shards, each counted once."""
    model_calls: int
    """Estimated: images encoded, and the calls that each metric's rows take. How many questions will be written is
    taken from the prompts' words. 0 without a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All cells of a sweep and the work that is left."""

    nodes: tuple[NodePlan, ...]
    cells: tuple[Cell, ...]
    """Every cell, committed or not, each path once."""
    missing: frozenset[str]
    """Paths of the cells to compute: scores that are not committed, and of the cells upstream what they lack."""
    renewed: frozenset[str] = frozenset()
    """Those of them that are committed and cannot be used."""
    prompt_work: tuple[Work, ...]
    image_work: tuple[Work, ...]
    scores: Mapping[str, tuple[tuple[Shard, Cell], ...]]
    """By metric: the scores cell of every images shard."""
    of_prompts: Mapping[str, Mapping[str, tuple[str, ...]]]
    """By metric and stage over prompts: the paths of the cells of every prompts shard."""


def make_plan(
    config: SweepConfig,
    sources: Sources,
    store: Store,
    *,
    wanted: tuple[str, ...] = ("scores",),
    renew: Set[str] = frozenset(),
) -> Plan:
    """Resolves the models, names every cell and lists what is committed; raises ModelError for a bad checkpoint.

    What is missing are the cells of the stages `wanted`, and those that they stand on, and those to `renew`: paths of
    cells that are committed and cannot be used.
    """
    nodes = [_resolved(node, config, store) for node in make_nodes(config.metrics)]
    links = {name: _links(name, metric, nodes) for name, metric in config.metrics.items()}
    prompt_cells = {shard: _cells_of_prompts(links, shard) for shard in sources.prompt_shards}
    about = {
        holders: {name: _by_stage(name, [prompt_cells[holder] for holder in holders]) for name in links}
        for holders in set(sources.prompts_of.values())
    }
    limits = config.limits.semantic()
    image_cells = {
        shard: _cells_of_images(links, shard, about[holders], limits) for shard, holders in sources.prompts_of.items()
    }
    order = {node.name: place for place, node in enumerate(nodes)}
    prompt_todo = {shard: _each_once(cells, order) for shard, cells in prompt_cells.items()}
    image_todo = {shard: _each_once(cells, order) for shard, cells in image_cells.items()}
    everything = {cell.path: cell for of_shard in (*prompt_todo.values(), *image_todo.values()) for cell in of_shard}
    stored = store.listing(everything.values())
    missing = _missing(everything, stored.keys() - renew, wanted, renew)
    earlier = EarlierCells(stored, everything)
    prompt_work = _work(prompt_todo, missing, earlier, renew)
    image_work = _work(image_todo, missing, earlier, renew)
    words = mean_content_words(sources.prompts.column("text").to_pylist())
    return Plan(
        nodes=_node_plans(nodes, everything.values(), (*prompt_work, *image_work), words),
        cells=tuple(everything.values()),
        missing=missing,
        renewed=frozenset(renew),
        prompt_work=prompt_work,
        image_work=image_work,
        scores={
            name: tuple((shard, cells[name]["scores"]) for shard, cells in image_cells.items())
            for name in config.metrics
        },
        of_prompts={name: _by_stage(name, prompt_cells.values()) for name in config.metrics},
    )


def _resolved(node: GraphNode, config: SweepConfig, store: Store) -> Node:
    """The node with its models pinned to exact files."""
    on_gpu = config.cluster.pool(node.name).num_gpus > 0
    digest = partial(store.digest_file, remember=not config.dry_run)
    models = {key: resolve_model(config.models[role], on_gpu=on_gpu, digest=digest) for key, role in node.roles.items()}
    return Node(name=node.name, stage=node.stage.name, models=models, metrics=node.metrics)


class Link(NamedTuple):
    """One stage of a metric's chain."""

    stage: type[Stage]
    node: str
    recipe: Recipe
    reads: tuple[str, ...]
    """The stages of the chain whose cells it reads."""


def _links(name: str, metric: Metric, nodes: Sequence[Node]) -> list[Link]:
    """A metric's chain, whose recipes hold those that they read: a change is seen in all that stands below it."""
    node_of = {node.name: node for node in nodes}
    links: dict[str, Link] = {}
    for stage in (STAGES[stage_name] for stage_name in metric.chain):
        node, reads = node_of[node_name(stage, metric)], stage.reads(metric)
        config = stage.recipe(name, metric) | _models_of(stage, metric, node)
        recipe = make_recipe(stage.name, stage.version, config, *(links[read].recipe for read in reads))
        links[stage.name] = Link(stage, node.name, recipe, reads)
    return list(links.values())


def _models_of(stage: type[Stage], metric: Metric, node: Node) -> dict[str, Any]:
    """What of a node's models can change a metric's result: its own as `model`, others by their key."""
    own, *others = stage.roles(metric) or (None,)
    semantic = {key: node.models[key].semantic() for key in others}
    return semantic if own is None else {"model": node.models[own].semantic(), **semantic}


MetricCells = Mapping[str, Mapping[str, Cell]]
"""A shard's cells, by metric and stage."""


def _cells_of_prompts(links: Mapping[str, Sequence[Link]], shard: Shard) -> MetricCells:
    semantic = canonical(shard.prompts)
    cells: dict[str, dict[str, Cell]] = {name: {} for name in links}
    for name, chain in links.items():
        for link in (link for link in chain if link.stage.over == "prompts"):
            inputs = {read: (cells[name][read].path,) for read in link.reads}
            cells[name][link.stage.name] = _cell(link, shard, semantic, name, inputs)
    return cells


def _cells_of_images(
    links: Mapping[str, Sequence[Link]],
    shard: Shard,
    about: Mapping[str, Mapping[str, tuple[str, ...]]],
    limits: Mapping[str, int],
) -> MetricCells:
    """`about` are the paths of the cells about the images' prompts, by metric and stage."""
    semantic = canonical({"source": shard.source(), "prompts": shard.prompts, "limits": limits})
    cells: dict[str, dict[str, Cell]] = {name: {} for name in links}
    for name, chain in links.items():
        own = cells[name]
        for link in (link for link in chain if link.stage.over == "images"):
            inputs = {read: (own[read].path,) if read in own else about[name].get(read, ()) for read in link.reads}
            own[link.stage.name] = _cell(link, shard, semantic, name, inputs)
    return cells


def _cell(link: Link, shard: Shard, semantic: str, metric: str, inputs: Mapping[str, tuple[str, ...]]) -> Cell:
    return make_cell(link.recipe, shard, semantic, node=link.node, metric=metric, inputs=inputs)


def _each_once(cells: MetricCells, order: Mapping[str, int]) -> tuple[Cell, ...]:
    """A shard's cells in the order of the nodes; metrics that ask the same share one."""
    paths: dict[str, Cell] = {}
    for of_metric in cells.values():
        for cell in of_metric.values():
            paths.setdefault(cell.path, cell)
    return tuple(sorted(paths.values(), key=lambda cell: order[cell.node]))


def _by_stage(metric: str, shards: Iterable[MetricCells]) -> dict[str, tuple[str, ...]]:
    """The paths of a metric's cells on shards of prompts, by stage."""
    paths: dict[str, list[str]] = defaultdict(list)
    for cells in shards:
        for stage, cell in cells[metric].items():
            paths[stage].append(cell.path)
    return {stage: tuple(of_stage) for stage, of_stage in paths.items()}


def _missing(
    cells: Mapping[str, Cell], committed: Set[str], stages: tuple[str, ...], renew: Set[str]
) -> frozenset[str]:
    """What is not committed and something wanted stands on; answers pruned under committed scores are not missed."""
    missing: set[str] = set()
    wanted = [path for path, cell in cells.items() if cell.stage in stages or path in renew]
    while wanted:
        path = wanted.pop()
        if path not in committed and path not in missing:
            missing.add(path)
            wanted += cells[path].upstream
    return frozenset(missing)


def _work(
    cells: Mapping[Shard, tuple[Cell, ...]], missing: frozenset[str], earlier: EarlierCells, renew: Set[str]
) -> tuple[Work, ...]:
    """The shards with something to compute, each with its cells."""
    left = {shard: [cell for cell in of_shard if cell.path in missing] for shard, of_shard in cells.items()}
    return tuple(
        Work(shard=shard, cells=tuple(earlier.beside(cell, renew=cell.path in renew) for cell in todo), outcomes={})
        for shard, todo in left.items()
        if todo
    )


def _node_plans(
    nodes: Sequence[Node], cells: Iterable[Cell], work: Sequence[Work], words: float
) -> tuple[NodePlan, ...]:
    """What each node has to do, where a prompt has so many content words on average."""
    total: dict[str, int] = defaultdict(int)
    for cell in cells:
        total[cell.node] += 1
    left: dict[str, list[tuple[Shard, list[Cell]]]] = defaultdict(list)
    for item in work:
        by_node: dict[str, list[Cell]] = defaultdict(list)
        for cell in item.cells:
            by_node[cell.node].append(cell)
        for name, of_node in by_node.items():
            left[name].append((item.shard, of_node))
    return tuple(_node_plan(node, total[node.name], left[node.name], words) for node in nodes)


def _node_plan(node: Node, cells: int, left: Sequence[tuple[Shard, list[Cell]]], words: float) -> NodePlan:
    stage = STAGES[node.stage]
    images = sum(shard.rows for shard, _ in left)
    calls = images if stage.encodes else 0.0
    for shard, missing in left:
        calls += shard.rows * sum(stage.calls_of_row(node.metrics[cell.metric], words) for cell in missing)
    return NodePlan(
        node=node,
        cells=cells,
        missing=sum(len(missing) for _, missing in left),
        images=images,
        model_calls=round(calls) if node.model is not None else 0,
    )
