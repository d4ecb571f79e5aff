"""The `pictures` stage: an image generator makes images from prompts."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import BatchSize, isolate
from plumbline.operators.base.errors import RowError, check_prompt
from plumbline.operators.images.decoding import ImageLimits, decode_bytes
from plumbline.operators.stages.stage import Inputs, RowStage, StageOptions
from plumbline.plugins.generation.drawing import DrawingModel, DrawingRequest, DrawnImage
from plumbline.plugins.generation.pictures import DrawingMetric, parse_image_id

PICTURES_SCHEMA = pa.schema(
    [
        *schemas.texts("image_id", "prompt_id", "prompt"),
        ("image", pa.binary()),
        *schemas.floats("cfg"),
        *schemas.ints("steps"),
        *schemas.texts("size"),
        *schemas.longs("seed"),
        *schemas.texts("sampler", "checkpoint", "revision"),
        ("error", schemas.ERROR),
    ]
)
"""Schema of generated images (jobs.generate), as a sweep reads them. `image` is encoded, and null if there is an
`error`. The other columns are the generation settings (`size` as in 1024x768) and the checkpoint.
"""
BLANK_IMAGE_REMEDY = "check the prompt and the settings, or set the generator's dtype=float32"


class WantedImage(NamedTuple):
    """An image that should be generated for a shard."""

    image_id: str
    text: str


class PreparedPictures(NamedTuple):
    """The images to generate for a shard, and the images that earlier cells already contain."""

    wanted: Sequence[WantedImage]
    kept: Mapping[str, pa.Table]
    """Reusable rows from earlier cells (schema PICTURES_SCHEMA), by metric."""
    error: RowError | None = None
    """Error to record for all images, if none should be generated."""


class PicturesStage(RowStage):
    """Stage that generates the wanted images, one row per image (schema PICTURES_SCHEMA).

    The rows of the shard have the schema PROMPTS; `prompt_id` is the image's id, and `text` is its prompt.
    """

    name = "pictures"
    version = 1
    schema = PICTURES_SCHEMA
    call_unit = "row"
    row_kind = "prompts"
    metric_type = DrawingMetric
    calls: ClassVar = {"generator": "draw"}
    keeps_rows = True

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"drawing": metric.image_options()}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.model: DrawingModel = models["generator"]
        self.limits = options.limits
        self.batch = BatchSize(options.image_batch)
        self.window = options.image_batch

    def prepare(self, inputs: Inputs) -> PreparedPictures:
        wanted = _read_wanted_images(inputs.rows)
        kept = {name: _find_reusable_rows(inputs.earlier.get(name, ()), wanted) for name in inputs.metrics}
        return PreparedPictures(wanted, kept)

    def refuse(self, inputs: Inputs, error: RowError) -> PreparedPictures:
        none = dict.fromkeys(inputs.metrics, PICTURES_SCHEMA.empty_table())
        return PreparedPictures(_read_wanted_images(inputs.rows), none, error)

    def compute(self, prepared: PreparedPictures) -> Mapping[str, pa.Table]:
        return {name: self._make_table(self.metrics[name], prepared, kept) for name, kept in prepared.kept.items()}

    def _make_table(self, metric: DrawingMetric, prepared: PreparedPictures, kept: pa.Table) -> pa.Table:
        have = set(kept.column("image_id").to_pylist())
        new = [one for one in prepared.wanted if one.image_id not in have]
        made = rows.table(self._make_records(metric, new, prepared.error), PICTURES_SCHEMA)
        both = pa.concat_tables([kept, made])
        places = {image_id: place for place, image_id in enumerate(both.column("image_id").to_pylist())}
        ordered = both.take(pa.array([places[one.image_id] for one in prepared.wanted], pa.int64()))
        return rows.attach_kept_count(ordered, len(kept))

    def _make_records(
        self, metric: DrawingMetric, new: Sequence[WantedImage], error: RowError | None
    ) -> list[dict[str, Any]]:
        requests = [metric.make_request(*one) for one in new]
        if error is not None:
            drawn: list[DrawnImage | RowError] = [error] * len(new)
        else:
            problems = [check_prompt(request.prompt) for request in requests]
            able = [request for request, problem in zip(requests, problems, strict=True) if problem is None]
            done = iter(self._draw_images(metric, able))
            drawn = [next(done) if problem is None else problem for problem in problems]
        return [self._make_record(one, result) for one, result in zip(new, drawn, strict=True)]

    def _draw_images(self, metric: DrawingMetric, requests: Sequence[DrawingRequest]) -> list[DrawnImage | RowError]:
        draw = partial(self.model.draw, settings=metric.make_settings())
        drawn: list[DrawnImage | RowError] = []
        while len(drawn) < len(requests):
            drawn += isolate(draw, requests[len(drawn) : len(drawn) + self.batch.rows], self.batch)
        return drawn

    def _make_record(self, one: WantedImage, drawn: DrawnImage | RowError) -> dict[str, Any]:
        return {
            "image_id": one.image_id,
            "prompt_id": parse_image_id(one.image_id).prompt_id,
            "prompt": one.text,
            "checkpoint": self.model.checkpoint,
            "revision": self.model.revision,
            **_make_columns(drawn, self.limits),
        }


def _make_columns(drawn: DrawnImage | RowError, limits: ImageLimits) -> dict[str, Any]:
    size = drawn if isinstance(drawn, RowError) else _format_size(drawn.encoded, limits)
    if isinstance(drawn, RowError) or isinstance(size, RowError):
        return {"error": rows.error_to_dict(size if isinstance(size, RowError) else None)}
    settings = drawn._asdict()
    return {"image": settings.pop("encoded"), "size": size, **settings}


def _format_size(encoded: bytes, limits: ImageLimits) -> str | RowError:
    """Return an image's size, such as 1024x768, or an error if it is a single colour or cannot be decoded."""
    image = decode_bytes(encoded, limits)
    if isinstance(image, RowError):
        return image
    pixels = np.asarray(image)
    if (pixels == pixels[0, 0]).all():
        colour = "of one colour" if pixels.any() else "black"
        return RowError("blank_picture", f"the generator made an image that is entirely {colour}; {BLANK_IMAGE_REMEDY}")
    return f"{image.width}x{image.height}"


def _read_wanted_images(records: pa.Table) -> list[WantedImage]:
    ids, texts = (records.column(name).to_pylist() for name in ("prompt_id", "text"))
    return [WantedImage(image_id, text or "") for image_id, text in zip(ids, texts, strict=True)]


def _find_reusable_rows(earlier: Sequence[pa.Table], wanted: Sequence[WantedImage]) -> pa.Table:
    """Return the rows of wanted images from earlier cells, newest first, without retryable errors."""
    left, kept = set(wanted), [PICTURES_SCHEMA.empty_table()]
    for table in earlier:
        records = table.select(["image_id", "prompt", "error"]).to_pylist()
        names = [WantedImage(record["image_id"], record["prompt"]) for record in records]
        places = [place for place, name in enumerate(names) if name in left and not rows.is_retryable(records[place])]
        left -= {names[place] for place in places}
        kept.append(table.take(pa.array(places, pa.int64())))
    return pa.concat_tables(kept)
