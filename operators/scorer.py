"""Metrics in this process: images and prompts in, scores with their elements out, by the stages that sweeps run."""

import hashlib
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from plumbline.operators import rows, schemas
from plumbline.operators.errors import ConfigError, suggest
from plumbline.operators.image_decoding import ImageLimits
from plumbline.operators.metrics.ablation import shown_instead
from plumbline.operators.metrics.metric import Metric, PackedMetric
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.operators.stages.graph import GraphNode, check_clips, check_models, make_nodes
from plumbline.operators.stages.stage import Inputs, Rows, Stage, StageOptions, Upstream
from plumbline.operators.videos import Clips

Picture = Image.Image | np.ndarray | bytes | str | Path
"""An image: decoded, as uint8 of shape (height, width), (height, width, 3) or (height, width, 4), encoded, or where its
file is."""
Shown = Picture | Sequence[Picture]
"""What a prompt was made into: an image, or the frames or views of a video or a 3D model."""
IN_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
IN_TIFF = ("CMYK", "LAB", "F")
"""Modes of decoded images that these formats keep as they are; all others become RGB."""
NO_IMAGE = b"\0"
"""In the place of an image whose pixels cannot be had: it fails as other bytes do that are no image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerConfig:
    """Which metrics, by which models."""

    models: Mapping[str, AnyModel]
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
        packed = [name for name, metric in self.metrics.items() if isinstance(metric, PackedMetric)]
        if packed:
            raise ConfigError(
                f"metrics.{packed[0]}: it scores by questions that a benchmark ships, and there is none here; run a "
                "sweep"
            )
        check_models(make_nodes(self.metrics), self.models)


Part = Literal["decode", "model"]
"""What a stage does of a call: its preparation, which decodes images, and its work, which calls its models."""
Watch = Callable[[Part], AbstractContextManager[object]]


class LoadedNode(NamedTuple):
    """A stage with its models, ready to compute."""

    node: GraphNode
    stage: Stage


class Scorer:
    """Scores images in the process that calls it, every model loaded once.

    Several threads may call it: models work for one at a time, while images are decoded for the next.
    """

    def __init__(self, config: ScorerConfig, watch: Watch = nullcontext) -> None:
        """Loads the models; raises ModelError where one cannot be found or does not load.

        `watch` is entered for each part of a call, as by who ends what hangs; by the thread that calls `score`.
        """
        self.metrics: dict[str, Metric] = {
            name: metric.settled(lambda role: find_vqa_profile(config.models[role]))
            for name, metric in config.metrics.items()
        }
        nodes = make_nodes(self.metrics)
        check_clips(nodes, config.models, config.clips)
        self.nodes = [_loaded(node, config) for node in nodes]
        self.calls = count()
        self.watch = watch
        self.computing = Lock()

    def score(
        self,
        images: Picture | Sequence[Shown | None],
        prompts: str | Sequence[str | None],
        metrics: str | Collection[str] | None = None,
    ) -> pa.Table:
        """Scores (schema ELEMENT_SCORES) of each image for the prompt beside it: one row for each image and metric, of
        `metrics` or of all.

        One text that is in no list is the prompt of every image, one image or metric the only one. The rows of a metric
        stand together, in the order of the images; `image_id` is an image's place in that order, and `prompt_id` is
        made of the prompt's text. An image that cannot be scored has a null score and its error, and so has one without
        a prompt. docs/python.md has the columns. Raises ConfigError for lists of other lengths, for what is no image
        and no text, and for a metric that is not there.
        """
        wanted = self._wanted([metrics] if isinstance(metrics, str) else metrics)
        source = _source_rows(images, prompts)
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
            with self.watch("decode"):
                prepared = stage.prepare(Inputs("", shard_rows, names, read, prompt_texts))
            with nullcontext() if stage.side_by_side else self.computing, self.watch("model"):
                made = stage.compute(prepared)
            tables |= {(name, node.stage.name): table.replace_schema_metadata(None) for name, table in made.items()}
        return pa.concat_tables([schemas.ELEMENT_SCORES.empty_table(), *(tables[name, "scores"] for name in wanted)])

    def _wanted(self, metrics: Collection[str] | None) -> list[str]:
        """The metrics of these names, or all, in the scorer's order."""
        for name in set(metrics or ()) - self.metrics.keys():
            raise ConfigError(f"metrics: the scorer has none called {name!r}; {suggest(name, [*self.metrics])}")
        return [name for name in self.metrics if metrics is None or name in metrics]


def _loaded(node: GraphNode, config: ScorerConfig) -> LoadedNode:
    from plumbline.operators.models.loading import load  # takes torch, which a look at the configuration does not

    resolved = {key: resolve_model(config.models[role], on_gpu=config.on_gpu) for key, role in node.roles.items()}
    models = {key: load(model, node.stage.calls[key]) for key, model in resolved.items()}
    options = StageOptions(config.limits, lambda path: Path(path).read_bytes(), decoders=config.decoders)
    options = options._replace(clips=config.clips)
    for model in list(resolved.values())[:1]:
        options = options._replace(image_batch=model.config.image_batch)
    return LoadedNode(node, node.stage(node.metrics, models, options))


def _source_rows(
    images: Picture | Sequence[Shown | None], prompts: str | Sequence[str | None]
) -> Mapping[Rows, pa.Table]:
    """The rows that a sweep would read from its sources."""
    shown = [_pictures(image, f"images[{place}]") for place, image in enumerate(_listed(images))]
    texts = [prompts] * len(shown) if isinstance(prompts, str) else [*map(_text, prompts, count())]
    if len(shown) != len(texts):
        raise ConfigError(
            f"expected one prompt beside every image, got {len(shown)} images and {len(texts)} prompts; one text that "
            "is in no list is the prompt of all"
        )
    return {"prompts": _prompt_rows(texts), "images": _image_rows(shown, texts)}


def _prompt_rows(prompts: Sequence[str]) -> pa.Table:
    return rows.table([{"prompt_id": _id_of(text), "text": text} for text in dict.fromkeys(prompts)], schemas.PROMPTS)


def _image_rows(images: Sequence[Sequence[Picture | None]], prompts: Sequence[str]) -> pa.Table:
    columns = {
        "image_id": [str(place) for place in range(len(images))],
        "prompt_id": [_id_of(text) for text in prompts],
        "image": pa.array([[_encoded(image) for image in shown] for shown in images], pa.list_(pa.large_binary())),
        "uri": pa.array([[_address(image) for image in shown] for shown in images], pa.list_(pa.string())),
    }
    return pa.table(columns)


def _listed(images: Picture | Sequence[Shown | None]) -> Sequence[Shown | None]:
    """The images of a call; an array of four dimensions holds several."""
    alone = images.ndim < 4 if isinstance(images, np.ndarray) else isinstance(images, Picture)
    return [images] if alone else images  # type: ignore[list-item,return-value]


def _pictures(shown: object, where: str) -> list[Picture | None]:
    """An image, or each of several, None where one is missing; raises ConfigError for what is no image."""
    if shown is None:
        return [None]
    if isinstance(shown, list | tuple):
        return [picture for place, each in enumerate(shown) for picture in _pictures(each, f"{where}[{place}]")]
    if isinstance(shown, np.ndarray) and not _holds_colours(shown):
        found = f"an array of {shown.dtype} and shape {shown.shape}"
    elif isinstance(shown, Picture):
        return [shown]
    else:
        found = f"a value of type {type(shown).__module__}.{type(shown).__name__}"
    raise ConfigError(
        f"{where}: expected a path, encoded bytes, a PIL.Image, an array of uint8 and shape (height, width, 3), or a "
        f"list of these, got {found}; convert it, as by torchvision's to_pil_image"
    )


def _holds_colours(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)))


def _text(prompt: object, place: int) -> str:
    """A prompt; without one the text is empty, for which no image is scored. Raises ConfigError for other values."""
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    raise ConfigError(f"prompts[{place}]: expected a text, got a value of type {type(prompt).__name__}")


def _address(image: Picture | None) -> str | None:
    return str(image) if isinstance(image, str | Path) else None


def _id_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _encoded(image: Picture | None) -> bytes | None:
    """The image's bytes, but for a file, which is read where it is decoded."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        return _saved(Image.fromarray(image))
    return _saved(image) if isinstance(image, Image.Image) else None


def _saved(image: Image.Image) -> bytes:
    """The pixels without loss; where they do not decode, the bytes that they should be decoded from."""
    file = io.BytesIO()
    try:
        kept = image if image.mode in (*IN_PNG, *IN_TIFF) else image.convert("RGB")
        kept.save(file, "TIFF" if kept.mode in IN_TIFF else "PNG", compress_level=1)
    except Exception:
        return _source(image) or NO_IMAGE
    return file.getvalue()


def _source(image: Image.Image) -> bytes | None:
    """What an image that was opened and not yet read is read from."""
    stream = getattr(image, "fp", None)
    if stream is None or stream.closed:
        return None
    stream.seek(0)
    return bytes(stream.read())
