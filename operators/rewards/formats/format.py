"""Declaration of a format of training data, and the examples that it converts to rows."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.rewards.selection import Unit

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""Arrow type of an encoded image in Hugging Face datasets."""


class ScoredImage(NamedTuple):
    """An image of an example, with its scores."""

    image_id: str
    generator: str
    reward: float | None
    """Reward, higher is better; None if a metric has no score."""
    z_score: float | None
    rank_advantage: float | None
    raw: Mapping[str, float | None]
    """Score by metric, in the metric's own direction."""
    errors: Mapping[str, str]
    """Error by metric that has no score."""
    elements: Mapping[str, Sequence[Mapping[str, Any]]]
    """Scores of single questions by metric, if the format has `elements`."""
    content: bytes = b""
    """Encoded image as in the source; empty if the format has no images."""
    digest: str = ""
    """SHA-256 of the content, hexadecimal."""
    path: str = ""
    """Path below the output, if the format writes images as files."""
    uri: str = ""
    """Address in the source, if it has one."""

    @property
    def uid(self) -> str:
        """Name that is unique in the run."""
        return f"{self.generator}/{self.image_id}"


class Source(NamedTuple):
    """An image that an example's images were edited from."""

    content: bytes
    path: str
    """Path below the output, if the format writes images as files."""


class Sample(NamedTuple):
    """An example with everything that its rows may contain."""

    number: int
    """Number of the example in its split, from 0; examples that could not be written leave gaps."""
    split: str
    prompt_id: str
    prompt: str
    skills: Sequence[str]
    images: Sequence[ScoredImage]
    """Images, best first."""
    n_of_prompt: int
    """Number of examples of this prompt in the export."""
    run_ended: datetime
    scorer: str
    """Digest of the metrics, their models and conventions, hexadecimal."""
    sources: Sequence[Source] = ()
    """Sources of edits, the same for all images."""

    @property
    def best(self) -> ScoredImage:
        return self.images[0]

    @property
    def worst(self) -> ScoredImage:
        return self.images[-1]


Files = Mapping[str, bytes]
"""Files of a sample in a tar, by extension."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A file layout that an unmodified trainer can load; docs/rewards.md names its source."""

    unit: Unit
    """Kind of example."""
    container: Literal["parquet", "tar", "json", "jsonl"]
    """`parquet` and `tar` are sharded; `json` (one list) and `jsonl` have one file for each split."""
    images: Literal["none", "embedded", "files"]
    """Form of the images: bytes in the rows (`embedded`), or paths below the output (`files`)."""
    edits: Literal["no", "too", "only"] = "no"
    """Policy for runs of edited images: refused (`no`), written with their sources (`too`), or required (`only`)."""
    rows: Callable[[Sample], Sequence[Mapping[str, Any]]]
    """Returns the rows of an example, none if the format cannot represent it. A tar has one row, with a value for each
    extension."""
    schema: pa.Schema | None = None
    """Schema of a Parquet format, written with its metadata."""
    elements: bool = False
    """True if the rows contain the scores of single questions."""
    held_out_rows: Callable[[Sample], Sequence[Mapping[str, Any]]] | None = None
    """Returns the rows of the held-out split, if a `json` format has other rows there."""


def embed_image(picture: ScoredImage | Source) -> dict[str, Any]:
    """Return an image as a value of IMAGE."""
    return {"bytes": picture.content, "path": None}


def with_images(schema: pa.Schema, *names: str) -> pa.Schema:
    """Add the metadata that make Hugging Face datasets decode these columns, or lists, as images."""
    features = {field.name: _value(field.type) for field in schema}
    for name in names:
        image = {"_type": "Image"}
        features[name] = {"_type": "List", "feature": image} if pa.types.is_list(schema.field(name).type) else image
    info = {"info": {"features": features}}
    return schema.with_metadata({"huggingface": json.dumps(info, sort_keys=True)})


def _value(dtype: pa.DataType) -> Any:
    if pa.types.is_list(dtype):
        return {"_type": "List", "feature": _value(dtype.value_type)}
    if pa.types.is_struct(dtype):
        return {field.name: _value(field.type) for field in dtype}
    return {"_type": "Value", "dtype": {"double": "float64"}.get(str(dtype), str(dtype))}
