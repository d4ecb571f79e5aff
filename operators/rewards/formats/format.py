"""Defines what a format of training data consists of, and the examples that a format converts to rows."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.rewards.selection import ExampleUnit

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""Arrow type of an encoded image, as used by Hugging Face datasets."""


class ScoredImage(NamedTuple):
    """An image of a training example, with its reward and its scores."""

    image_id: str
    generator: str
    reward: float | None
    """Reward; higher is better. None if the score of a metric is missing."""
    z_score: float | None
    rank_advantage: float | None
    raw: Mapping[str, float | None]
    """Scores by metric, as the metric returns them."""
    errors: Mapping[str, str]
    """Errors by metric, for metrics without a score."""
    elements: Mapping[str, Sequence[Mapping[str, Any]]]
    """Scores of individual questions by metric, if the format needs them (Format.elements)."""
    content: bytes = b""
    """Encoded image as in the source; empty if the format contains no images."""
    digest: str = ""
    """SHA-256 of the content in hexadecimal."""
    path: str = ""
    """Path relative to the output folder, if the format writes images as files."""
    uri: str = ""
    """URI of the image in the source, if it has one."""

    @property
    def uid(self) -> str:
        """Name of the image, unique within the run."""
        return f"{self.generator}/{self.image_id}"


class Source(NamedTuple):
    """The image from which an example's image was edited."""

    content: bytes
    path: str
    """Path relative to the output folder, if the format writes images as files."""


class Sample(NamedTuple):
    """An example of training data, with everything that a format may write about it."""

    number: int
    """Number of the example within its split, starting at 0. Examples that could not be written leave gaps."""
    split: str
    prompt_id: str
    prompt: str
    skills: Sequence[str]
    images: Sequence[ScoredImage]
    """Images of the example, best first."""
    n_of_prompt: int
    """Number of examples for the same prompt in the export."""
    run_ended: datetime
    scorer: str
    """Digest of the metrics, their models and the scoring conventions, in hexadecimal."""
    sources: Sequence[Source] = ()
    """Images that were edited; the same for all images of the example."""

    @property
    def best(self) -> ScoredImage:
        return self.images[0]

    @property
    def worst(self) -> ScoredImage:
        return self.images[-1]


FileContents = Mapping[str, bytes]
"""The files that represent an example in a tar, by extension."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A file layout that a trainer can load as it is. docs/rewards.md says where each layout comes from."""

    unit: ExampleUnit
    """Kind of example that the format contains."""
    container: Literal["parquet", "tar", "json", "jsonl"]
    """`parquet` and `tar` are sharded; `json` (a single list) and `jsonl` have one file per split."""
    images: Literal["none", "embedded", "files"]
    """Storage of images: as bytes in the rows (`embedded`), or as files, with paths relative to the output folder."""
    edits: Literal["no", "too", "only"] = "no"
    """Support for runs of edited images: refused (`no`), written together with their sources (`too`), or required
    (`only`).
    """
    rows: Callable[[Sample], Sequence[Mapping[str, Any]]]
    """Function that converts an example to rows; it returns no rows if the format cannot represent the example. In a
    tar, each example has one row, with a value for each extension.
    """
    schema: pa.Schema | None = None
    """Schema of a Parquet format. Its metadata is written too."""
    elements: bool = False
    """True if the rows contain the scores of individual questions."""
    held_out_rows: Callable[[Sample], Sequence[Mapping[str, Any]]] | None = None
    """Function that converts an example of the held-out split to rows, for a `json` format in which that split differs.
    """


def embed_image(image: ScoredImage | Source) -> dict[str, Any]:
    """Return the image's bytes, without a path, as a dictionary for a column of the Arrow type IMAGE_TYPE."""
    return {"bytes": image.content, "path": None}


def mark_image_columns(schema: pa.Schema, *names: str) -> pa.Schema:
    """Return the schema with metadata that makes Hugging Face datasets decode the columns (or lists) as images."""
    features = {field.name: _describe_type(field.type) for field in schema}
    for name in names:
        image = {"_type": "Image"}
        features[name] = {"_type": "List", "feature": image} if pa.types.is_list(schema.field(name).type) else image
    info = {"info": {"features": features}}
    return schema.with_metadata({"huggingface": json.dumps(info, sort_keys=True)})


def _describe_type(dtype: pa.DataType) -> Any:
    if pa.types.is_list(dtype):
        return {"_type": "List", "feature": _describe_type(dtype.value_type)}
    if pa.types.is_struct(dtype):
        return {field.name: _describe_type(field.type) for field in dtype}
    return {"_type": "Value", "dtype": {"double": "float64"}.get(str(dtype), str(dtype))}
