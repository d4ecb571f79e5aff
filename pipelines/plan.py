"""The plan: every cell of a sweep, which are committed, and which work is left, known before any model loads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from operators import answers, scores, similarities
from operators import entailment as entailment_stage
from operators import questions as questions_stage
from operators.errors import ConfigError
from operators.metrics.configs import MetricConfig, WritingConfig
from operators.metrics.tifa import TifaConfig
from operators.models.checkpoints import ResolvedModel, resolve_model
from operators.question_quality import mean_content_words
from pipelines.cells import Cell, Recipe, Shard, Stage, Work, make_cell
from pipelines.config import SweepConfig
from pipelines.sources import Sources
from pipelines.store import Store

IMAGE_STAGES: tuple[Stage, ...] = ("answers", "similarities")
MODEL_STAGES: tuple[Stage, ...] = ("questions", "entailment", *IMAGE_STAGES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One stage with the model it loads: what an actor pool runs."""

    name: str
    """The stage, and the model's role where it has one: `answers:vqa`."""
    stage: Stage
    model: ResolvedModel | None
    matcher: ResolvedModel | None
    """The text embedder beside a VQA model whose answers in its own words are matched to choices."""
    metrics: Mapping[str, MetricConfig]


class NodePlan(NamedTuple):
    """What one node has to do."""

    node: Node
    cells: int
    missing: int
    images: int
    """Images (of questions and entailment: prompts) in the missing cells' shards, each counted once."""
    model_calls: int
    """Estimated: images encoded plus each metric's answers or comparisons; of questions and entailment, the requests
    that each metric expects. How many questions will be written is taken from the prompts' words. 0 without a model."""


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
    questions: Mapping[str, tuple[Cell, ...]]
    """By metric that asks any: the cells of every prompts shard."""


def make_plan(config: SweepConfig, sources: Sources, store: Store, *, wanted: tuple[Stage, ...] = ("scores",)) -> Plan:
    """Resolves the models, names every cell and lists what is committed; raises ModelError for a bad checkpoint.

    What is missing are the cells of the stages `wanted`, and those that they stand on.
    """
    nodes = _nodes(config, store)
    cells_of = {shard: _cells_of_prompts(nodes, shard) for shard in sources.prompt_shards}
    prompt_cells = {shard: _each_once(cells.values()) for shard, cells in cells_of.items()}
    image_cells = _cells_of_images(nodes, sources, cells_of)
    everything = {cell.path: cell for cells in [*prompt_cells.values(), *image_cells.values()] for cell in cells}
    missing = _missing(everything, store.committed(everything.values()), wanted)
    prompt_work = _work(prompt_cells, missing)
    image_work = _work(image_cells, missing)
    work = (*prompt_work, *image_work)
    words = mean_content_words(sources.prompts.column("text").to_pylist())
    return Plan(
        nodes=tuple(_node_plan(node, everything.values(), work, words) for node in nodes),
        cells=tuple(everything.values()),
        missing=missing,
        prompt_work=prompt_work,
        image_work=image_work,
        scores={metric: _score_cells(metric, nodes, image_cells) for metric in config.metrics},
        questions={
            metric: tuple(cell for cells in its for cell in cells.all)
            for metric, its in _asked(list(cells_of.values())).items()
        },
    )


def _nodes(config: SweepConfig, store: Store) -> list[Node]:
    """The nodes in the order data flows, only those that some metric uses: one per stage and model role."""
    nodes = [node for stage in MODEL_STAGES for node in _stage_nodes(stage, config, store)]
    return [*nodes, Node(name="scores", stage="scores", model=None, matcher=None, metrics=config.metrics)]


def _stage_nodes(stage: Stage, config: SweepConfig, store: Store) -> list[Node]:
    """One node per model, so that metrics that share it share one pass."""
    using = {name: metric for name, metric in config.metrics.items() if stage in metric.roles}
    roles = dict.fromkeys(metric.roles[stage] for metric in using.values())
    return [
        _node(
            stage, role, {name: metric for name, metric in using.items() if metric.roles[stage] == role}, config, store
        )
        for role in roles
    ]


def _node(
    stage: Stage, role: str | None, metrics: Mapping[str, MetricConfig], config: SweepConfig, store: Store
) -> Node:
    matchers = dict.fromkeys(metric.matcher for metric in metrics.values() if isinstance(metric, TifaConfig))
    if stage != "answers":
        matchers = {}
    if len(matchers) > 1:
        raise ConfigError(f"metrics: those of one VQA model share one matcher, got {', '.join(matchers)}; choose one")
    return Node(
        name=stage if role is None else f"{stage}:{role}",
        stage=stage,
        model=_resolve(role, stage, config, store) if role is not None else None,
        matcher=_resolve(next(iter(matchers)), stage, config, store) if matchers else None,
        metrics=metrics,
    )


def _resolve(role: str, stage: Stage, config: SweepConfig, store: Store) -> ResolvedModel:
    return resolve_model(
        config.models[role],
        on_gpu=config.cluster.pools[stage].num_gpus > 0,
        digest=partial(store.digest_file, remember=not config.dry_run),
    )


class PromptCells(NamedTuple):
    """One metric's cells on one shard of prompts."""

    questions: Cell
    entailment: Cell | None

    @property
    def all(self) -> tuple[Cell, ...]:
        return (self.questions,) if self.entailment is None else (self.questions, self.entailment)


def _cells_of_prompts(nodes: Sequence[Node], shard: Shard) -> dict[str, PromptCells]:
    """The questions cell of each metric that asks any, and its entailment cell where it has one."""
    questions = {
        name: make_cell(
            Recipe(stage="questions", version=questions_stage.VERSION, config=_asking(metric) | _model(node)),
            shard,
            node=node.name,
            metric=name,
        )
        for node in nodes
        if node.stage == "questions"
        for name, metric in node.metrics.items()
    }
    entailment = {
        name: make_cell(
            Recipe(stage="entailment", version=entailment_stage.VERSION, config=_model(node)),
            shard,
            node=node.name,
            metric=name,
            upstream=(questions[name],),
        )
        for node in nodes
        if node.stage == "entailment"
        for name in node.metrics
    }
    return {name: PromptCells(cell, entailment.get(name)) for name, cell in questions.items()}


def _cells_of_images(
    nodes: Sequence[Node], sources: Sources, prompt_cells: Mapping[Shard, Mapping[str, PromptCells]]
) -> dict[Shard, tuple[Cell, ...]]:
    """The cells of every images shard: they stand on all prompts, or on those that the shard's own rows hold."""
    if sources.own_prompts:
        own = {shard: _asked([prompt_cells[prompts]]) for shard, prompts in sources.own_prompts.items()}
        return {shard: _image_cells(nodes, shard, own[shard], ()) for shard in sources.image_shards}
    asked, prompts = _asked(list(prompt_cells.values())), tuple(sources.prompt_shards)
    return {shard: _image_cells(nodes, shard, asked, prompts) for shard in sources.image_shards}


def _asked(prompt_cells: Sequence[Mapping[str, PromptCells]]) -> dict[str, tuple[PromptCells, ...]]:
    """The prompts' cells of each metric."""
    metrics = dict.fromkeys(metric for cells in prompt_cells for metric in cells)
    return {metric: tuple(cells[metric] for cells in prompt_cells if metric in cells) for metric in metrics}


def _image_cells(
    nodes: Sequence[Node], shard: Shard, asked: Mapping[str, tuple[PromptCells, ...]], prompts: tuple[Shard, ...]
) -> tuple[Cell, ...]:
    """The cells of an images shard in the order of the stages; metrics that ask the same share one."""
    found: dict[str, Cell] = {}
    measured: dict[str, Cell] = {}
    for node in nodes:
        for name, metric in node.metrics.items():
            if node.stage == "scores":
                cell = _scores_cell(node, name, metric, measured[name], asked.get(name, ()), shard)
            elif node.stage in IMAGE_STAGES:
                cell = _measured_cell(node, name, metric, asked.get(name, ()), prompts, shard)
                measured[name] = cell
            else:
                continue
            found.setdefault(cell.path, cell)
    return tuple(found.values())


def _measured_cell(
    node: Node,
    name: str,
    metric: MetricConfig,
    asked: tuple[PromptCells, ...],
    prompts: tuple[Shard, ...],
    shard: Shard,
) -> Cell:
    """The answers or similarities of a metric; answers stand on the questions, similarities on the prompts.

    Where rows hold their own prompts, the shard itself stands for them.
    """
    config = _model(node)
    if node.stage == "similarities":
        config |= {"asking": _asking(metric), "prompts": [prompt.semantic() for prompt in prompts]}
        version = similarities.VERSION
    else:
        config |= {"asking": metric.answering() if isinstance(metric, WritingConfig) else _asking(metric)}
        version = answers.VERSION
    if isinstance(metric, TifaConfig) and node.matcher is not None:
        config["matcher"] = node.matcher.semantic()
    recipe = Recipe(stage=node.stage, version=version, config=config)
    return make_cell(
        recipe, shard, node=node.name, metric=name, upstream=tuple(dict.fromkeys(cells.questions for cells in asked))
    )


def _scores_cell(
    node: Node, name: str, metric: MetricConfig, measured: Cell, asked: tuple[PromptCells, ...], shard: Shard
) -> Cell:
    """The scores of a metric; where it has elements, they stand on the questions too, and on their entailment."""
    upstream = (measured, *(cell for cells in asked for cell in cells.all)) if _has_elements(metric) else (measured,)
    config = {"name": name, "kind": metric.kind, **metric.scoring()}
    recipe = Recipe(stage="scores", version=scores.VERSION, config=config)
    return make_cell(recipe, shard, node=node.name, metric=name, upstream=upstream, source=False)


def _has_elements(metric: MetricConfig) -> bool:
    return isinstance(metric, WritingConfig)


def _model(node: Node) -> dict[str, Any]:
    return {"model": node.model.semantic()} if node.model is not None else {}


def _asking(metric: MetricConfig) -> dict[str, Any]:
    return {"kind": metric.kind, **metric.asking()}


def _each_once(cells: Iterable[PromptCells]) -> tuple[Cell, ...]:
    """The cells in the order of the stages; metrics that ask the same share one."""
    asked = list(cells)
    found: dict[str, Cell] = {}
    for cell in [one.questions for one in asked] + [one.entailment for one in asked if one.entailment is not None]:
        found.setdefault(cell.path, cell)
    return tuple(found.values())


def _missing(cells: Mapping[str, Cell], committed: set[str], stages: tuple[Stage, ...]) -> frozenset[str]:
    """What is not committed and something wanted stands on; answers pruned under committed scores are not missed."""
    missing: set[str] = set()
    wanted = [path for path, cell in cells.items() if cell.stage in stages]
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


def _node_plan(node: Node, cells: Any, work: Sequence[Work], words: float) -> NodePlan:
    """What the node has to do, where a prompt has so many content words on average."""
    mine = {item.shard: [cell for cell in item.cells if cell.node == node.name] for item in work}
    images = sum(shard.rows for shard, left in mine.items() if left)
    calls = sum(shard.rows * _calls(node, cell, words) for shard, left in mine.items() for cell in left)
    return NodePlan(
        node=node,
        cells=sum(1 for cell in cells if cell.node == node.name),
        missing=sum(len(left) for left in mine.values()),
        images=images,
        model_calls=round(calls) + (images if node.stage in IMAGE_STAGES else 0) if node.model is not None else 0,
    )


def _calls(node: Node, cell: Cell, words: float) -> float:
    """The calls that one row of the cell takes."""
    metric = node.metrics[cell.metric]
    if not isinstance(metric, WritingConfig):
        return 1
    expected = metric.expected(words)
    return expected.calls if node.stage == "questions" else expected.questions
