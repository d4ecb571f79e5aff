"""Graph of all metrics' chains, with a node per stage and model, and checks that the models can serve it."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import require_extra
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.metric import DOUBLE_VIEWS, TRIPLE_VIEWS, Metric
from plumbline.operators.models.engines.conversation import LIKELIHOOD_PROBLEM
from plumbline.operators.models.engines.engine_options import find_image_limit
from plumbline.operators.models.families import FAMILIES, list_families_serving
from plumbline.operators.models.model import ModelConfig
from plumbline.operators.models.resolution import takes_several_images, takes_videos
from plumbline.operators.stages.stage import Stage
from plumbline.operators.stages.table import STAGES


class GraphNode(NamedTuple):
    """A stage together with the models that it uses; the plan gives each node a pool of workers."""

    name: str
    """Name composed of the stage, the role of its own model and, if the model sees other images than the scored images,
    the kind of these images: `answers:vqa`, `answers:vqa:blank_images`, `inspections:judge:edit+result`.
    """
    stage: type[Stage]
    roles: Mapping[str, str]
    """Role of each model, by the metrics' option that sets the role; the role of the stage's own model comes first."""
    metrics: Mapping[str, Metric]
    """Metrics that use this node; all metrics that share a model are computed in one pass."""


def make_nodes(metrics: Mapping[str, Metric]) -> list[GraphNode]:
    """Return a node for each stage and model that the metrics' chains need, in the order of the data flow.

    Raise ConfigError for an invalid chain.
    """
    for name, metric in metrics.items():
        check_chain(name, metric)
    nodes = []
    for stage in STAGES.values():
        served: dict[str, dict[str, Metric]] = {}
        for name, metric in metrics.items():
            if stage.name in metric.chain:
                served.setdefault(make_node_name(stage, metric), {})[name] = metric
        nodes += [GraphNode(name, stage, _merge_roles(stage, of_node), of_node) for name, of_node in served.items()]
    return nodes


def check_models(nodes: Sequence[GraphNode], models: Mapping[str, ModelConfig]) -> None:
    """Raise ConfigError if a model is missing, or does not support a call that a stage or a metric's option requires.

    Raise MissingExtraError if a local model must follow a schema and the library for schemas is not installed.
    """
    for node in nodes:
        for key, role in node.roles.items():
            name, metric = next((name, metric) for name, metric in node.metrics.items() if key in metric.roles)
            _check_model(f"metrics.{name}.{key}", metric.kind, node, key, models)
            weighs = node.stage.calls[key] != "likelihood" and (
                node.stage.choose_trial_call(key, node.metrics.values()) == "likelihood"
            )
            if weighs and models[role].thinking == "allowed":
                raise ConfigError(f"metrics.{name}.{key}, role {role!r}: {LIKELIHOOD_PROBLEM}")
            if key == metric.json_role and FAMILIES[models[role].family].local:
                require_extra("judges", f"metrics.{name}.replies=json")
        for name, metric in node.metrics.items() if node.roles else ():
            role = next(iter(node.roles.values()))
            refusal = node.stage.explain_unsuitable_model(metric, FAMILIES[models[role].family])
            if refusal is not None:
                raise ConfigError(
                    f"metrics.{name}: the model for role {role!r} is a {models[role].family}, which {refusal}"
                )


def _check_model(where: str, kind: str, node: GraphNode, key: str, models: Mapping[str, ModelConfig]) -> None:
    role = node.roles[key]
    if role not in models:
        roles = ", ".join(models) or "none"
        raise ConfigError(
            f"{where}: no model has the role {role!r}; the sweep's roles are {roles}; "
            f"add it with +model@models.{role}=NAME, where NAME is a file in conf/model (docs/models.md)"
        )
    family, engine = models[role].family, models[role].engine
    call = node.stage.choose_needed_call(key, node.metrics.values(), FAMILIES[family])
    if call not in FAMILIES[family].select_loaders(models[role]):
        served = f"a {family} on {engine}" if call in FAMILIES[family].calls else f"a {family}"
        raise ConfigError(
            f"{where}: {kind} needs a {list_families_serving(call)} model, but the model for role {role!r} is "
            f"{served}; use such a model"
        )
    if call == "likelihood" and models[role].thinking == "allowed":
        raise ConfigError(f"{where}, role {role!r}: {LIKELIHOOD_PROBLEM}")


def list_source_metrics(metrics: Mapping[str, Metric]) -> list[str]:
    """Return the names of the metrics that compare edited images with their source images."""
    return [name for name, metric in metrics.items() if metric.needs_sources]


def require_source_metric(wanted: Collection[str], comparing: Collection[str]) -> None:
    """Raise ConfigError if sources of edits are given but none of the requested metrics uses them."""
    if not comparing:
        raise ConfigError(
            f"sources: {' and '.join(wanted)} would ignore them; leave them out, or use a metric that uses them, "
            "such as source_ssim (plugins/edits/README.md)"
        )


def list_caption_columns(metrics: Mapping[str, Metric]) -> dict[str, tuple[str, ...]]:
    """Return, for each metric that needs captions of edits, the columns that contain these captions."""
    return {name: metric.captions for name, metric in metrics.items() if metric.captions}


def check_image_inputs(nodes: Sequence[GraphNode], models: Mapping[str, ModelConfig], clips: Clips) -> None:
    """Raise ConfigError if a model does not support its image input: videos, single images, or several at once."""
    for node in nodes:
        if not (node.stage.looks_at_images() and node.roles):
            continue
        role = next(iter(node.roles.values()))
        model = models[role]
        _check_views(node, role, model, clips)
        if clips.shown != "video" and FAMILIES[model.family].reads_videos:
            raise ConfigError(
                f"clips.shown: the model for role {role!r} is a {model.family}, which sees a video as a whole, but "
                f"clips.shown={clips.shown}; set clips.shown=video and clips.rate=2"
            )
        if clips.shown == "video" and not takes_videos(model):
            raise ConfigError(
                f"clips.shown: video requires a model that takes videos, but the model for role {role!r} is "
                f"{model.checkpoint}; set clips.shown=each or clips.shown=grid, or use another model (a Qwen2-VL or "
                "Qwen2.5-VL with family=vlm and engine=transformers, or VideoAlign)"
            )


def _check_views(node: GraphNode, role: str, model: ModelConfig, clips: Clips) -> None:
    """Raise ConfigError if the images to be compared are videos, or if a model cannot take all of them at once."""
    comparing = list_source_metrics(node.metrics)
    triple = [name for name, metric in node.metrics.items() if not TRIPLE_VIEWS.isdisjoint(metric.views)]
    showing = triple or [name for name, metric in node.metrics.items() if not DOUBLE_VIEWS.isdisjoint(metric.views)]
    needed, words = (3, "three images") if triple else (2, "two images")
    if comparing and clips.shown == "video":
        raise ConfigError(
            f"clips.shown: metrics.{comparing[0]} compares images with their sources, but videos have no sources; set "
            "clips.shown=each"
        )
    if showing and clips.shown == "video":
        raise ConfigError(f"clips.shown: metrics.{showing[0]} compares images, not videos; set clips.shown=each")
    if showing and not takes_several_images(model):
        raise ConfigError(
            f"metrics.{showing[0]}: it shows a model {words} in one question, but the model for role {role!r}, "
            f"{model.checkpoint}, takes one image; use a model that takes several, such as a Qwen2.5-VL with "
            "family=vlm, or a service with family=openai (docs/models.md)"
        )
    limit = find_image_limit(model)
    if showing and limit is not None and limit < needed:
        raise ConfigError(
            f"models.{role}.engine_options.limit_mm_per_prompt: it allows {limit} image(s) in a question, but "
            f"metrics.{showing[0]} shows {words} together; set image to {needed}, or leave it out"
        )


def make_node_name(stage: type[Stage], metric: Metric) -> str:
    """Return the name of the node for a metric's stage; metrics that see different images have different nodes."""
    role = next(iter(stage.roles(metric).values()), None)
    views = "+".join(metric.views) if metric.needs_sources else None
    shown = (metric.image_ablation, views) if stage.looks_at_images() else ()
    return ":".join(filter(None, (stage.name, role, *shown)))


def _merge_roles(stage: type[Stage], metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Return the roles of a node's models by option; raise ConfigError if metrics set an option to different roles."""
    roles: dict[str, str] = {}
    for key in stage.calls:
        named = list(dict.fromkeys(metric.roles[key] for metric in metrics.values() if key in metric.roles))
        if len(named) > 1:
            own = next(iter(stage.calls))
            raise ConfigError(
                f"metrics: metrics with the same {own} must have the same {key}, got {', '.join(named)}; choose one"
            )
        if named:
            roles[key] = named[0]
    return roles


def check_chain(name: str, metric: Metric) -> None:
    """Raise ConfigError if a chain has an unknown stage or option, or if a stage that it needs is missing."""
    where = f"metrics.{name}: the chain of {metric.kind}"
    order = list(STAGES)
    for stage_name in metric.chain:
        if stage_name not in STAGES:
            raise ConfigError(
                f"{where} has the unknown stage {stage_name!r}; the stages are {', '.join(order)}; replace it"
            )
    if list(metric.chain) != sorted(metric.chain, key=order.index) or metric.chain[-1:] != (metric.final_stage,):
        raise ConfigError(
            f"{where} is {', '.join(metric.chain)}; expected the order {', '.join(order)}; put its stages in this "
            f"order, ending with {metric.final_stage}"
        )
    stages = [STAGES[stage_name] for stage_name in metric.chain]
    for stage in stages:
        if not isinstance(metric, stage.metric_type):
            raise ConfigError(
                f"{where} has the stage {stage.name}, which requires a {stage.metric_type.__name__}; implement it"
            )
        absent = [other for other in stage.list_input_stages(metric) if other not in metric.chain]
        if absent:
            raise ConfigError(
                f"{where} has the stage {stage.name} without {', '.join(absent)}, which it reads; add them"
            )
        unnamed = [key for key in stage.calls if key not in stage.optional_calls and key not in metric.roles]
        if unnamed:
            raise ConfigError(
                f"{where} has the stage {stage.name} but sets no {', '.join(unnamed)} for it; set the model's role"
            )
    if metric.ablation is not None and not any(stage.ablation(metric) for stage in stages):
        raise ConfigError(f"{where} has no stage that ablation={metric.ablation} affects; leave it out")
    unused = metric.roles.keys() - {key for stage in stages for key in stage.calls}
    if unused:
        raise ConfigError(f"{where} has no stage that uses its {', '.join(sorted(unused))}; leave them out")
