"""Prints a plan before it is carried out: its cells, model calls and costs, and problems with its sources."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.display.console import say, show_table, warn
from plumbline.jobs.help import PACKAGE_FOLDER
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.families.vlm import ChatModel
from plumbline.operators.models.model import ModelConfig
from plumbline.operators.stages.graph import list_source_metrics
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.plans.costs import estimate_costs, list_unpriced_nodes
from plumbline.pipelines.plans.plan import PAIR_STAGES, NodePlan
from plumbline.pipelines.plans.sweep_config import BaseSweepConfig, SweepConfig
from plumbline.pipelines.running.executor import Executor
from plumbline.pipelines.sweeps.pairing import measure_selections
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.suite import PlannedSuite

NO_MODEL_TEXT = "none"
"""Text in place of the model calls for a stage that uses no model, such as questions from a template."""
ASSETS_PREFIX = f"{(PACKAGE_FOLDER / 'assets').resolve()}/"
"""Folder with the embedded benchmark."""
MAX_LISTED_BROKEN_CELLS = 10
"""Maximum number of damaged or lost cells that are listed."""
MAX_LISTED_PROBLEMS = 10
"""Maximum number of unreadable rows of a question pack that are listed."""


def show_plan(console: Console, planned: PlannedSweep, *, full: bool = True) -> None:
    """Print the sources, the cells, and the models' workload; stages and metric options are printed only if `full`."""
    _show_sources(console, planned, full=full)
    _show_problems(console, planned)
    show_cells(console, planned, full=full)


def show_cells(console: Console, planned: PlannedSweep, *, full: bool = True) -> None:
    """Print a plan without the sources of its prompts and images."""
    nodes = planned.plan.nodes
    _show_verification(console, planned)
    if full:
        _show_stages(console, nodes)
        _show_pairs(console, planned)
    _show_costs(console, planned)
    _show_work(console, nodes, planned.executor, planned.config, full=full, complete=_explain_no_work(planned))


def show_suite_plan(console: Console, planned: PlannedSuite, *, full: bool = True) -> None:
    """Print the sources of each benchmark, and the cells of all benchmarks, which are computed together."""
    for name, finished in planned.unchanged.items():
        console.print(f"[bold]{escape(name)}[/]: nothing changed since run {finished.run_id}")
    for sweep in planned.sweeps.values():
        _show_sources(console, sweep, full=full)
        _show_verification(console, sweep)
        _show_costs(console, sweep)
        _show_problems(console, sweep)
    for entry in planned.left_out:
        say(console, str(entry))
    nodes = planned.workload.nodes
    if nodes and full:
        _show_stages(console, nodes)
    complete = "everything is in the store" if all(map(_explain_no_work, planned.sweeps.values())) else ""
    _show_work(console, nodes, planned.executor, planned.config, full=full, complete=complete)


def _show_sources(console: Console, planned: PlannedSweep, *, full: bool) -> None:
    sources, config, images = planned.sources, planned.config, _count_images(planned)
    pairs = f" x {len(sources.generators)} generators = {images} images" if sources.generators else ""
    whole = f" of {sources.full_size.prompts}" if sources.full_size is not None else ""
    console.print(
        f"[bold]{escape(config.benchmark.name)}[/]: {len(sources.prompts)}{whole} prompts{pairs}, "
        f"metrics {escape(', '.join(config.metrics))}"
    )
    if sources.rejected:
        count = f"{images} + {len(sources.rejected)} = {images + len(sources.rejected)}"
        say(console, f"with the rejected rows, which have no score, the report counts {count} images")
    for line in (*sources.origin_lines, *map(str, sources.example_pairs)):
        say(console, line)
    for name, metric in config.metrics.items() if full else ():
        # options without a default, whose values come from the sweep or from the model's profile
        options = {field.name: getattr(metric, field.name) for field in fields(metric) if field.default is None}
        values = ", ".join(f"{option}={value}" for option, value in options.items() if value is not None)
        if values:
            say(console, f"{name}: {values}{_describe_penalty(metric, config.models)}")


def _describe_penalty(metric: Metric, models: Mapping[str, ModelConfig]) -> str:
    """Return a note if a model is penalised for repeating tokens of the prompt in its answers."""
    chats = [model for role in metric.roles.values() if isinstance(model := models.get(role), ChatModel)]
    is_penalised = any(model.repetition_penalty == "released" for model in chats)
    return ", with its checkpoint's repetition penalty" if is_penalised else ""


def _count_images(planned: PlannedSweep) -> int:
    return sum(shard.rows for shard in planned.sources.image_shards)


def _show_stages(console: Console, nodes: Sequence[NodePlan]) -> None:
    rows = []
    for planned in nodes:
        if planned.cells:
            counts = (planned.cells, planned.cells - planned.missing, planned.missing, planned.images)
            calls = NO_MODEL_TEXT if planned.node.model is None else str(planned.model_calls)
            rows.append([planned.node.name, *map(str, counts), calls])
    names = ("stage", "cells", "cached", "missing", "rows", "model calls, about")
    show_table(console, "plan", names, rows, numbers=slice(1, None))


def _show_pairs(console: Console, planned: PlannedSweep) -> None:
    nodes = {item.node.name: item.node for item in planned.plan.nodes if item.node.stage in PAIR_STAGES}
    selections = [metric.pair_selection for node in nodes.values() for metric in node.metrics.values()]
    if not selections or selections[0] is None:
        return
    calls = {
        name: sum(metric.estimate_calls(0).calls for metric in node.metrics.values()) for name, node in nodes.items()
    }
    costs = {one.node: one for one in estimate_costs(planned.plan, planned.store) if one.node in nodes}
    rows = []
    for size in measure_selections(planned.sources.pair_counts, selections[0]):
        amounts = {name: one.cost.amount / one.calls * calls[name] * size.images for name, one in costs.items()}
        prices = [str(costs[name].cost._replace(amount=amount)) for name, amount in amounts.items()]
        counts = (size.generators, size.images, round(sum(calls.values()) * size.images))
        rows.append([size.pairs, *map(str, counts), *prices])
    names = ("pairs", "of generators", "of images", "calls", *(f"cost of {name}, about" for name in costs))
    show_table(console, "pairs to compare if none is in the store", names, rows, numbers=slice(1, None))


def _show_verification(console: Console, planned: PlannedSweep) -> None:
    if planned.verified is None:
        return
    read, broken = planned.verified
    found = f"{len(broken)} damaged or lost" if broken else "all are intact"
    say(console, f"verify: {format_quantity(read, 'cell')} read, {found}")
    for path in broken[:MAX_LISTED_BROKEN_CELLS]:
        warn(console, f"{planned.store.place.url}/{path}: damaged or lost, will be recomputed")
    if len(broken) > MAX_LISTED_BROKEN_CELLS:
        warn(console, f"{len(broken) - MAX_LISTED_BROKEN_CELLS} other damaged or lost cells will be recomputed")


def _show_problems(console: Console, planned: PlannedSweep) -> None:
    sources, config, plan = planned.sources, planned.config, planned.plan
    for broken in sources.broken:
        warn(console, f"{broken.generator}: {broken.message}")
    if sources.unknown.images:
        unknown = f"{sources.unknown.images} of {_count_images(planned)} images"
        warn(
            console,
            f"{unknown} belong to prompts that are not in benchmark.prompts, such as "
            f"{sources.unknown.prompt_id!r}, and will fail for every metric that reads the prompt; "
            "set benchmark.require_every_image=false to leave them out",
        )
    paired = {shard.group for both in sources.pairs.values() for shard in both}
    if alone := [generator for generator in sources.generators if sources.pairs and generator not in paired]:
        warn(console, f"{', '.join(alone)}: no prompt in common with a generator to compare with; check the prompt ids")
    blind = [name for name in config.metrics if name not in list_source_metrics(config.metrics)]
    if config.benchmark.columns.sources and blind:
        warn(console, f"{', '.join(blind)}: scores edited images without looking at their sources")
    for problem in sources.pack_problems[:MAX_LISTED_PROBLEMS]:
        warn(console, problem)
    if len(sources.pack_problems) > MAX_LISTED_PROBLEMS:
        others = len(sources.pack_problems) - MAX_LISTED_PROBLEMS
        warn(console, f"{others} other rows of benchmark.questions; log.format=text lists all")
    if config.retry_failed:
        rows = sum(failed.retryable for failed in plan.failed.values())
        say(console, f"retry_failed: {rows} failed rows of {len(plan.failed)} cells will be retried")
        if plan.untried:
            warn(
                console,
                f"{len(plan.untried)} cells that were never computed are skipped; run without retry_failed to compute "
                "them",
            )


def _explain_no_work(planned: PlannedSweep) -> str:
    """Return the reason why there is nothing to compute; empty for `retry_failed`, which has its own message."""
    if planned.config.retry_failed:
        return ""
    return "everything is in the store" if planned.plan.cells else "no image can be read"


def _show_work(
    console: Console,
    nodes: Sequence[NodePlan],
    executor: Executor,
    config: BaseSweepConfig,
    *,
    full: bool,
    complete: str,
) -> None:
    missing = [item for item in nodes if item.missing]
    if not missing:
        if complete:
            console.print(f"0 cells to compute: {complete}")
        return
    if not full:
        total, calls = sum(item.cells for item in nodes), sum(item.model_calls for item in missing)
        say(
            console,
            f"{sum(item.missing for item in missing)} of {format_quantity(total, 'cell')} to compute, with about "
            f"{format_quantity(calls, 'model call')} (dry_run=true lists the stages)",
        )
    say(console, f"runs {executor.location}")
    models = {id(model): model for item in missing for model in item.node.models.values()}.values()
    downloads = {source: size for model in models for source, size in model.count_downloads().items()}
    for source, size in sorted(downloads.items()):
        say(console, f"downloads {source}: {size / 1e9:.1f} GB" if size > 1e8 else f"downloads {source}: {size} bytes")
    embedded = any(part.source.startswith(ASSETS_PREFIX) for model in models for part in model.parts.values())
    images = config.benchmark.images if isinstance(config, SweepConfig) else None
    if embedded and images is not None and not config.storage.locate(images).url.startswith(ASSETS_PREFIX):
        say(console, "models=shapes only knows coloured shapes; its scores for other images are meaningless")
    for node in (item.node for item in missing):
        pool = node.find_pool(config.cluster)
        if pool.num_gpus:
            say(console, f"{node.name}: {pool.describe(decodes=STAGES[node.stage].looks_at_images())}")


def _show_costs(console: Console, planned: PlannedSweep) -> None:
    for node, calls, read, written, cost, run_id in estimate_costs(planned.plan, planned.store):
        source = "according to the model's prices" if run_id is None else f"as in run {run_id}"
        each = f"{read:.0f} tokens read and {written:.0f} written each, {source}"
        say(console, f"{node}: about {cost} for {calls} calls of a service, {each}")
    for node, calls in list_unpriced_nodes(planned.plan):
        role = node.split(":")[1]
        say(console, f"{node}: {calls} calls of a service; models.{role}.prices adds their cost (docs/models.md)")
