"""The plan: every cell of a sweep, which are committed, and which work is left, known before any model loads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from operators import answers, questions, scores, similarities
from operators.metrics.clipscore import ClipScoreConfig
from operators.metrics.vqascore import VqaScoreConfig
from operators.models.checkpoints import ResolvedModel, resolve_model
from operators.scores import MetricConfig
from pipelines.cells import Cell, Recipe, Shard, Stage, Work, make_cell
from pipelines.config import SweepConfig
from pipelines.sources import Sources
from pipelines.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One stage with the model it loads: what an actor pool runs."""

    name: str
    """The stage, and the model's role where it has one: `answers:vqa`."""
    stage: Stage
    model: ResolvedModel | None
    metrics: Mapping[str, MetricConfig]


class NodePlan(NamedTuple):
    """What one node has to do."""

    node: Node
    cells: int
    missing: int
    images: int
    """Images (of questions: prompts) in the missing cells' shards, each counted once."""
    model_calls: int
    """Estimated: images encoded plus (image, question) or (image, text) pairs compared; 0 without a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All cells of a sweep and the work that is left."""

    nodes: tuple[NodePlan, ...]
    cells: tuple[Cell, ...]
    """Every cell, committed or not, each path once."""
    missing: frozenset[str]
    """Paths of the cells to compute: scores that are not committed, and of the cells upstream what they lack."""
    prompt_work: tuple[Work, ...]
    image_work: tuple[Work, ...]
    scores: Mapping[str, tuple[tuple[Shard, Cell], ...]]
    """By metric: the scores cell of every images shard."""


def make_plan(config: SweepConfig, sources: Sources, store: Store) -> Plan:
    """Resolves the models, names every cell and lists what is committed; raises ModelError for a bad checkpoint."""
    nodes = _nodes(config, store)
    prompt_cells = {shard: _question_cells(nodes, shard) for shard in sources.prompt_shards}
    image_cells = _cells_of_images(nodes, sources, prompt_cells)
    everything = {
        cell.path: cell
        for cells in [*(tuple(cells.values()) for cells in prompt_cells.values()), *image_cells.values()]
        for cell in cells
    }
    missing = _missing(everything, store.committed(everything.values()))
    prompt_work = _work({shard: tuple(cells.values()) for shard, cells in prompt_cells.items()}, missing)
    image_work = _work(image_cells, missing)
    work = (*prompt_work, *image_work)
    return Plan(
        nodes=tuple(_node_plan(node, everything.values(), work) for node in nodes),
        cells=tuple(everything.values()),
        missing=missing,
        prompt_work=prompt_work,
        image_work=image_work,
        scores={metric: _score_cells(metric, nodes, image_cells) for metric in config.metrics},
    )


def _nodes(config: SweepConfig, store: Store) -> list[Node]:
    """The nodes in the order data flows, only those that some metric uses."""
    vqa = {name: metric for name, metric in config.metrics.items() if isinstance(metric, VqaScoreConfig)}
    clip = {name: metric for name, metric in config.metrics.items() if isinstance(metric, ClipScoreConfig)}
    nodes = [Node(name="questions", stage="questions", model=None, metrics=vqa)] if vqa else []
    nodes += _model_nodes("answers", vqa, config, store)
    nodes += _model_nodes("similarities", clip, config, store)
    return [*nodes, Node(name="scores", stage="scores", model=None, metrics=config.metrics)]


def _model_nodes(stage: Stage, metrics: Mapping[str, Any], config: SweepConfig, store: Store) -> list[Node]:
    """One node per model, so that metrics that share it share one pass."""
    roles = list(dict.fromkeys(metric.model for metric in metrics.values()))
    return [
        Node(
            name=f"{stage}:{role}",
            stage=stage,
            model=resolve_model(
                config.models[role],
                on_gpu=config.cluster.pools[stage].num_gpus > 0,
                digest=partial(store.digest_file, remember=not config.dry_run),
            ),
            metrics={name: metric for name, metric in metrics.items() if metric.model == role},
        )
        for role in roles
    ]


def _question_cells(nodes: Sequence[Node], shard: Shard) -> dict[str, Cell]:
    """The questions cell of each metric that asks any."""
    node = next((node for node in nodes if node.stage == "questions"), None)
    if node is None:
        return {}
    return {
        name: make_cell(
            Recipe(stage="questions", version=questions.VERSION, config=_asking(metric)),
            shard,
            node=node.name,
            metric=name,
        )
        for name, metric in node.metrics.items()
    }


def _cells_of_images(
    nodes: Sequence[Node], sources: Sources, prompt_cells: Mapping[Shard, Mapping[str, Cell]]
) -> dict[Shard, tuple[Cell, ...]]:
    """The cells of every images shard: they stand on all prompts, or on those that the shard's own rows hold."""
    if sources.own_prompts:
        own = {shard: _asked([prompt_cells[prompts]]) for shard, prompts in sources.own_prompts.items()}
        return {shard: _image_cells(nodes, shard, own[shard], ()) for shard in sources.image_shards}
    asked, prompts = _asked(list(prompt_cells.values())), tuple(sources.prompt_shards)
    return {shard: _image_cells(nodes, shard, asked, prompts) for shard in sources.image_shards}


def _asked(prompt_cells: Sequence[Mapping[str, Cell]]) -> dict[str, tuple[Cell, ...]]:
    """The questions cells of each metric."""
    metrics = dict.fromkeys(metric for cells in prompt_cells for metric in cells)
    return {metric: tuple(cells[metric] for cells in prompt_cells if metric in cells) for metric in metrics}


def _image_cells(
    nodes: Sequence[Node], shard: Shard, asked: Mapping[str, tuple[Cell, ...]], prompts: tuple[Shard, ...]
) -> tuple[Cell, ...]:
    """The cells of an images shard in the order of the stages; metrics that ask the same share one."""
    found: dict[str, Cell] = {}
    measured: dict[str, Cell] = {}
    for node in nodes:
        for name, metric in node.metrics.items():
            if node.stage == "scores":
                cell = _scores_cell(node, name, metric, measured[name], shard)
            elif node.stage != "questions":
                cell = _measured_cell(node, name, metric, asked.get(name, ()), prompts, shard)
                measured[name] = cell
            else:
                continue
            found.setdefault(cell.path, cell)
    return tuple(found.values())


def _measured_cell(
    node: Node, name: str, metric: MetricConfig, asked: tuple[Cell, ...], prompts: tuple[Shard, ...], shard: Shard
) -> Cell:
    """The answers or similarities of a metric; answers stand on the questions, similarities on the prompts.

    Where rows hold their own prompts, the shard itself stands for them.
    """
    assert node.model is not None
    config: dict[str, Any] = {"asking": _asking(metric), "model": node.model.semantic()}
    version = answers.VERSION
    if node.stage == "similarities":
        config["prompts"] = [prompt.semantic() for prompt in prompts]
        version = similarities.VERSION
    recipe = Recipe(stage=node.stage, version=version, config=config)
    return make_cell(recipe, shard, node=node.name, metric=name, upstream=asked)


def _scores_cell(node: Node, name: str, metric: MetricConfig, measured: Cell, shard: Shard) -> Cell:
    config = {"name": name, "kind": metric.kind, "reduction": _reduction(metric)}
    recipe = Recipe(stage="scores", version=scores.VERSION, config=config)
    return make_cell(recipe, shard, node=node.name, metric=name, upstream=(measured,), source=False)


def _asking(metric: MetricConfig) -> dict[str, str]:
    return {"kind": metric.kind, **metric.asking()}


def _reduction(metric: MetricConfig) -> str:
    return metric.reduction if isinstance(metric, VqaScoreConfig) else metric.variant


def _missing(cells: Mapping[str, Cell], committed: set[str]) -> frozenset[str]:
    """What is not committed and something wanted stands on; answers pruned under committed scores are not missed."""
    missing: set[str] = set()
    wanted = [path for path, cell in cells.items() if cell.stage == "scores"]
    while wanted:
        path = wanted.pop()
        if path not in committed and path not in missing:
            missing.add(path)
            wanted += cells[path].inputs
    return frozenset(missing)


def _work(cells: Mapping[Shard, tuple[Cell, ...]], missing: frozenset[str]) -> tuple[Work, ...]:
    """The shards with something to compute, each with its cells."""
    left = {shard: tuple(cell for cell in all_ if cell.path in missing) for shard, all_ in cells.items()}
    return tuple(Work(shard=shard, cells=todo, outcomes={}) for shard, todo in left.items() if todo)


def _score_cells(
    metric: str, nodes: Sequence[Node], image_cells: Mapping[Shard, tuple[Cell, ...]]
) -> tuple[tuple[Shard, Cell], ...]:
    return tuple(
        (shard, cell)
        for shard, cells in image_cells.items()
        for cell in cells
        if cell.stage == "scores" and cell.metric == metric
    )


def _node_plan(node: Node, cells: Any, work: Sequence[Work]) -> NodePlan:
    mine = {item.shard: [cell for cell in item.cells if cell.node == node.name] for item in work}
    images = sum(shard.rows for shard, left in mine.items() if left)
    pairs = sum(shard.rows * len(left) for shard, left in mine.items())
    return NodePlan(
        node=node,
        cells=sum(1 for cell in cells if cell.node == node.name),
        missing=sum(len(left) for left in mine.values()),
        images=images,
        model_calls=images + pairs if node.model is not None else 0,
    )
