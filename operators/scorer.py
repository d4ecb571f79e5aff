"""Metrics in this process: images and prompts in, scores with their elements out, by the stages that sweeps run."""

import hashlib
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import pyarrow as pa
from PIL import Image

from operators import rows
from operators.clips import Clips
from operators.errors import ConfigError, suggest
from operators.images import ImageLimits
from operators.metrics.ablation import shown_instead
from operators.metrics.metric import Metric
from operators.metrics.table import AnyMetric
from operators.models.checkpoints import ModelConfig, find_vqa_kind, resolve_model
from operators.stages.graph import GraphNode, check_clips, check_models, make_nodes
from operators.stages.stage import Inputs, Stage, StageOptions, Upstream

Picture = Image.Image | bytes | str | Path
"""An image: decoded, encoded, or where its file is."""
Shown = Picture | Sequence[Picture]
"""What a prompt was made into: an image, or the frames or views of a video or a 3D model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerConfig:
    """Which metrics, by which models."""

    models: Mapping[str, ModelConfig]
    """By role."""
    metrics: Mapping[str, AnyMetric]
    """By name."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    on_gpu: bool = False
    """Whether the models run on this machine's GPU."""
    decoders: int = 1
    """Images that are decoded at once."""

    def __post_init__(self) -> None:
        packed = [name for name, metric in self.metrics.items() if metric.packed]
        if packed:
            raise ConfigError(
                f"metrics.{packed[0]}: it scores by questions that a benchmark ships, and there is none here; run a "
                "sweep"
            )
        check_models(make_nodes(self.metrics), self.models)


class LoadedNode(NamedTuple):
    """A stage with its models, ready to compute."""

    node: GraphNode
    stage: Stage


class Scorer:
    """Scores images in the process that calls it, every model loaded once.

    Several threads may call it: models work for one at a time, while images are decoded for the next.
    """

    def __init__(
        self, config: ScorerConfig, deadline: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """Loads the models; raises ModelError where one cannot be found or does not load.

        `deadline` is entered for what may hang: decoding, and a stage's work.
        """
        self.metrics: dict[str, Metric] = {
            name: metric.settled(lambda role: find_vqa_kind(config.models[role]))
            for name, metric in config.metrics.items()
        }
        nodes = make_nodes(self.metrics)
        check_clips(nodes, config.models, config.clips)
        self.nodes = [_loaded(node, config) for node in nodes]
        self.calls = count()
        self.deadline = deadline
        self.computing = Lock()

    def score(
        self, images: Sequence[Shown], prompts: Sequence[str], metrics: Collection[str] | None = None
    ) -> pa.Table:
        """Scores (schema ELEMENT_SCORES) of each image for the prompt beside it: one row for each image and metric, of
        `metrics` or of all.

        The rows of a metric stand together, in the order of the images; `image_id` is an image's place in that order,
        and `prompt_id` is made of the prompt's text. An image that cannot be scored has a null score and its error.
        docs/python.md has the columns. Raises ConfigError for other than lists of equal length, and for a metric that
        is not there.
        """
        if isinstance(prompts, str) or isinstance(images, Image.Image | bytes | str | Path):
            raise ConfigError("expected lists of images and of prompts, got one; put it into brackets")
        for name in set(metrics or ()) - self.metrics.keys():
            raise ConfigError(f"metrics: the scorer has none called {name!r}; {suggest(name, [*self.metrics])}")
        if len(images) != len(prompts):
            raise ConfigError(f"expected one prompt beside every image, got {len(images)} and {len(prompts)}")
        wanted = [name for name in self.metrics if metrics is None or name in metrics]
        source = {"prompts": _prompt_rows(prompts), "images": _image_rows(images, prompts)}
        call = next(self.calls)
        tables: dict[tuple[str, str], pa.Table] = {}

        def upstream(name: str, table: pa.Table) -> Upstream:
            return Upstream((name,), lambda: [table], table.schema, state=call)

        for node, stage in self.nodes:
            names = tuple(name for name in node.metrics if name in wanted)
            if not names:
                continue
            read = {
                name: {other: upstream(other, tables[name, other]) for other in node.stage.reads(node.metrics[name])}
                for name in names
            }
            shard_rows = source[node.stage.over] if node.stage.reads_rows else pa.table({})
            if node.stage.decodes:
                shard_rows = shown_instead(shard_rows, node.metrics[names[0]].shown)
            prompt_texts = upstream("prompts", source["prompts"])
            with self.deadline():
                prepared = stage.prepare(Inputs("", shard_rows, names, read, prompt_texts))
            with nullcontext() if stage.side_by_side else self.computing, self.deadline():
                made = stage.compute(prepared)
            tables |= {(name, node.stage.name): table.replace_schema_metadata(None) for name, table in made.items()}
        return pa.concat_tables([rows.ELEMENT_SCORES.empty_table(), *(tables[name, "scores"] for name in wanted)])


def _loaded(node: GraphNode, config: ScorerConfig) -> LoadedNode:
    from operators.models.loading import load  # takes torch, which a look at the configuration does not

    resolved = {key: resolve_model(config.models[role], on_gpu=config.on_gpu) for key, role in node.roles.items()}
    models = {key: load(model, node.stage.calls[key]) for key, model in resolved.items()}
    options = StageOptions(config.limits, _read_file, decoders=config.decoders, clips=config.clips)
    for model in list(resolved.values())[:1]:
        options = options._replace(image_batch=model.image_batch)
    return LoadedNode(node, node.stage(node.metrics, models, options))


def _read_file(path: str) -> bytes:
    return Path(path).read_bytes()


def _prompt_rows(prompts: Sequence[str]) -> pa.Table:
    return rows.table([{"prompt_id": _id_of(text), "text": text} for text in dict.fromkeys(prompts)], rows.PROMPTS)


def _image_rows(images: Sequence[Shown], prompts: Sequence[str]) -> pa.Table:
    each: list[Sequence[Picture]] = [
        [shown] if isinstance(shown, Image.Image | bytes | str | Path) else shown for shown in images
    ]
    columns = {
        "image_id": [str(place) for place in range(len(images))],
        "prompt_id": [_id_of(text) for text in prompts],
        "image": pa.array([[_encoded(image) for image in shown] for shown in each], pa.list_(pa.large_binary())),
        "uri": pa.array([[_address(image) for image in shown] for shown in each], pa.list_(pa.string())),
    }
    return pa.table(columns)


def _address(image: Picture) -> str | None:
    return str(image) if isinstance(image, str | Path) else None


def _id_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _encoded(image: Picture) -> bytes | None:
    """The image's bytes, but for a file, which is read where it is decoded."""
    if isinstance(image, bytes):
        return image
    if not isinstance(image, Image.Image):
        return None
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
