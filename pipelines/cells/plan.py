"""The plan: every cell of a sweep, which are committed, and which work is left, known before any model loads."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from operators import answers, scores, similarities
from operators import entailment as entailment_stage
from operators import questions as questions_stage
from operators.errors import ConfigError
from operators.images import ImageLimits
from operators.metrics.configs import MetricConfig, WritingConfig
from operators.metrics.tifa import TifaConfig
from operators.models.checkpoints import ResolvedModel, resolve_model
from operators.question_quality import mean_content_words
from pipelines.cells.cells import IMAGE_STAGES, Cell, Recipe, Shard, Stage, Work, make_cell, make_recipe
from pipelines.cells.earlier import EarlierCells
from pipelines.cells.store import Store
from pipelines.config import SweepConfig
from pipelines.sources.sources import Sources

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
    renewed: frozenset[str] = frozenset()
    """Those of them that are committed and cannot be used."""
    prompt_work: tuple[Work, ...]
    image_work: tuple[Work, ...]
    scores: Mapping[str, tuple[tuple[Shard, Cell], ...]]
    """By metric: the scores cell of every images shard."""
    questions: Mapping[str, tuple[Cell, ...]]
    """By metric that asks any: the cells of every prompts shard."""


def make_plan(
    config: SweepConfig,
    sources: Sources,
    store: Store,
    *,
    wanted: tuple[Stage, ...] = ("scores",),
    renew: Set[str] = frozenset(),
) -> Plan:
    """Resolves the models, names every cell and lists what is committed; raises ModelError for a bad checkpoint.

    What is missing are the cells of the stages `wanted`, and those that they stand on, and those to `renew`: paths of
    cells that are committed and cannot be used.
    """
    nodes = _nodes(config, store)
    chains = {name: _chain(name, metric, nodes) for name, metric in config.metrics.items()}
    cells_of = {shard: _cells_of_prompts(chains, shard) for shard in sources.prompt_shards}
    prompt_cells = {shard: _each_once(cells.values()) for shard, cells in cells_of.items()}
    image_cells = {
        shard: _cells_of_images(chains, shard, [cells_of[holder] for holder in holders], config.limits)
        for shard, holders in sources.prompts_of.items()
    }
    everything = {cell.path: cell for cells in [*prompt_cells.values(), *image_cells.values()] for cell in cells}
    stored = store.listing(everything.values())
    missing = _missing(everything, stored.keys() - renew, wanted, renew)
    earlier = EarlierCells(stored, everything)
    prompt_work = _work(prompt_cells, missing, earlier, renew)
    image_work = _work(image_cells, missing, earlier, renew)
    work = (*prompt_work, *image_work)
    words = mean_content_words(sources.prompts.column("text").to_pylist())
    return Plan(
        nodes=tuple(_node_plan(node, everything.values(), work, words) for node in nodes),
        cells=tuple(everything.values()),
        missing=missing,
        renewed=frozenset(renew),
        prompt_work=prompt_work,
        image_work=image_work,
        scores={metric: _score_cells(metric, image_cells) for metric in config.metrics},
        questions=_question_cells(cells_of.values()),
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


class Step(NamedTuple):
    """One stage of a metric."""

    node: str
    recipe: Recipe


class Chain(NamedTuple):
    """One metric's stages, from its questions to its scores; None for those that it has not."""

    questions: Step | None
    entailment: Step | None
    measured: Step
    """Its answers or similarities."""
    scores: Step
    elements: bool
    """Whether its scores read the questions, and their entailment, as well."""


def _chain(name: str, metric: MetricConfig, nodes: Sequence[Node]) -> Chain:
    """A metric's stages, whose recipes hold those that they read: a change is seen in all that stands below it."""
    used = {node.stage: node for node in nodes if name in node.metrics}
    questions = entailment = None
    if "questions" in used:
        config = _asking(metric) | _model(used["questions"])
        questions = _step(used["questions"], questions_stage.VERSION, config)
    if "entailment" in used:
        entailment = _step(used["entailment"], entailment_stage.VERSION, _model(used["entailment"]), questions)
    measured = _measured(metric, used, questions)
    elements = _has_elements(metric)
    config = {"name": name, "kind": metric.kind, **metric.scoring()}
    written = (questions, entailment) if elements else ()
    return Chain(
        questions, entailment, measured, _step(used["scores"], scores.VERSION, config, measured, *written), elements
    )


def _step(node: Node, version: int, config: Mapping[str, Any], *reads: Step | None) -> Step:
    upstream = (step.recipe for step in reads if step is not None)
    return Step(node.name, make_recipe(node.stage, version, config, *upstream))


def _measured(metric: MetricConfig, used: Mapping[Stage, Node], questions: Step | None) -> Step:
    """How a metric's answers or similarities come about."""
    if "similarities" in used:
        node = used["similarities"]
        return _step(node, similarities.VERSION, _model(node) | {"asking": _asking(metric)})
    node = used["answers"]
    config = _model(node) | {"asking": metric.answering() if isinstance(metric, WritingConfig) else _asking(metric)}
    if isinstance(metric, TifaConfig) and node.matcher is not None:
        config["matcher"] = node.matcher.semantic()
    return _step(node, answers.VERSION, config, questions)


class PromptCells(NamedTuple):
    """One metric's cells on one shard of prompts."""

    questions: Cell
    entailment: Cell | None

    @property
    def all(self) -> tuple[Cell, ...]:
        return (self.questions,) if self.entailment is None else (self.questions, self.entailment)


def _cells_of_prompts(chains: Mapping[str, Chain], shard: Shard) -> dict[str, PromptCells]:
    """The questions cell of each metric that asks any, and its entailment cell where it has one."""
    return {
        name: _prompt_cells(name, chain, chain.questions, shard)
        for name, chain in chains.items()
        if chain.questions is not None
    }


def _prompt_cells(name: str, chain: Chain, asking: Step, shard: Shard) -> PromptCells:
    questions = make_cell(asking.recipe, shard, shard.prompts, node=asking.node, metric=name)
    if chain.entailment is None:
        return PromptCells(questions, None)
    step = chain.entailment
    entailment = make_cell(step.recipe, shard, shard.prompts, node=step.node, metric=name, upstream=(questions,))
    return PromptCells(questions, entailment)


def _cells_of_images(
    chains: Mapping[str, Chain], shard: Shard, holders: Sequence[Mapping[str, PromptCells]], limits: ImageLimits
) -> tuple[Cell, ...]:
    """The cells of an images shard, those of models first; metrics that ask the same share one.

    `holders` are the cells of the shards that hold its images' prompts.
    """
    semantic = {"source": shard.source(), "prompts": shard.prompts, "limits": limits.semantic()}
    measured: dict[str, Cell] = {}
    scored: list[Cell] = []
    for name, chain in chains.items():
        asked = [cells[name] for cells in holders if name in cells]
        step = chain.measured
        upstream = tuple(cells.questions for cells in asked)
        cell = make_cell(step.recipe, shard, semantic, node=step.node, metric=name, upstream=upstream)
        measured.setdefault(cell.path, cell)
        written = tuple(one for cells in asked for one in cells.all) if chain.elements else ()
        step = chain.scores
        scored.append(make_cell(step.recipe, shard, semantic, node=step.node, metric=name, upstream=(cell, *written)))
    return (*measured.values(), *scored)


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


def _question_cells(prompt_cells: Iterable[Mapping[str, PromptCells]]) -> dict[str, tuple[Cell, ...]]:
    """By metric, its cells on every prompts shard."""
    of_metric: dict[str, list[Cell]] = defaultdict(list)
    for cells in prompt_cells:
        for metric, written in cells.items():
            of_metric[metric] += written.all
    return {metric: tuple(cells) for metric, cells in of_metric.items()}


def _missing(
    cells: Mapping[str, Cell], committed: Set[str], stages: tuple[Stage, ...], renew: Set[str]
) -> frozenset[str]:
    """What is not committed and something wanted stands on; answers pruned under committed scores are not missed."""
    missing: set[str] = set()
    wanted = [path for path, cell in cells.items() if cell.stage in stages or path in renew]
    while wanted:
        path = wanted.pop()
        if path not in committed and path not in missing:
            missing.add(path)
            wanted += cells[path].inputs
    return frozenset(missing)


def _work(
    cells: Mapping[Shard, tuple[Cell, ...]], missing: frozenset[str], earlier: EarlierCells, renew: Set[str]
) -> tuple[Work, ...]:
    """The shards with something to compute, each with its cells."""
    left = {shard: tuple(cell for cell in all_ if cell.path in missing) for shard, all_ in cells.items()}
    return tuple(
        Work(shard=shard, cells=tuple(earlier.beside(cell, renew=cell.path in renew) for cell in todo), outcomes={})
        for shard, todo in left.items()
        if todo
    )


def _score_cells(metric: str, image_cells: Mapping[Shard, tuple[Cell, ...]]) -> tuple[tuple[Shard, Cell], ...]:
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
