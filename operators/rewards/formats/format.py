"""What a format of training data declares, and what it makes its rows of."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.rewards.selection import Unit

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""An encoded image as Hugging Face datasets keep it."""


class Picture(NamedTuple):
    """One image of an example, with what the run says of it."""

    image_id: str
    generator: str
    reward: float | None
    """Higher is better; null where a metric has no score."""
    z_score: float | None
    rank_advantage: float | None
    raw: Mapping[str, float | None]
    """By metric its score as the metric gives it."""
    errors: Mapping[str, str]
    """By metric why it has none."""
    elements: Mapping[str, Sequence[Mapping[str, Any]]]
    """By metric the score of each of its questions, where the format wants them and the metric asks any."""
    content: bytes = b""
    """The encoded image as the source has it; empty where the format wants none."""
    digest: str = ""
    """Its SHA-256, hexadecimal."""
    path: str = ""
    """Where the format has it in a file of its own, below the output."""
    uri: str = ""
    """Its address in the source, where it has one."""

    @property
    def uid(self) -> str:
        """A name that no other image of the run has."""
        return f"{self.generator}/{self.image_id}"


class Source(NamedTuple):
    """An image that an example's images were edited from."""

    content: bytes
    path: str
    """Where the format has it in a file of its own, below the output."""


class Sample(NamedTuple):
    """One example with all that its row may say."""

    number: int
    """Among the examples of its split, from 0; those that had to be left out leave a gap."""
    split: str
    prompt_id: str
    prompt: str
    skills: Sequence[str]
    pictures: Sequence[Picture]
    """The best first."""
    of_prompt: int
    """How many examples of the export this prompt has."""
    run_ended: datetime
    scorer: str
    """A digest of the metrics, their models and conventions, hexadecimal."""
    sources: Sequence[Source] = ()
    """Of edits, the same for all pictures."""

    @property
    def best(self) -> Picture:
        return self.pictures[0]

    @property
    def worst(self) -> Picture:
        return self.pictures[-1]


Files = Mapping[str, bytes]
"""By extension, the files that a sample has in a tar."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A file layout that some trainer loads unmodified; its source is in docs/rewards.md."""

    unit: Unit
    """What one example is."""
    container: Literal["parquet", "tar", "json", "jsonl"]
    """`parquet` and `tar` are sharded; `json` (one list) and `jsonl` are one file for each split."""
    images: Literal["none", "embedded", "files"]
    """Whether rows hold the images' bytes, or paths below the output."""
    edits: Literal["no", "too", "only"] = "no"
    """Whether rows with images have a place for the sources of edits, or want one."""
    rows: Callable[[Sample], Sequence[Mapping[str, Any]]]
    """The rows of an example, none where the format cannot hold it; of a tar, one with a value for each extension."""
    schema: pa.Schema | None = None
    """Of a Parquet format; its metadata are kept."""
    elements: bool = False
    """Whether it wants the scores of single questions."""
    beside: Callable[[Sample], Sequence[Mapping[str, Any]]] | None = None
    """Of a `json` format whose held-out split has rows of another form."""


def embedded(picture: Picture | Source) -> dict[str, Any]:
    """An image as IMAGE holds it."""
    return {"bytes": picture.content, "path": None}


def with_images(schema: pa.Schema, *names: str) -> pa.Schema:
    """The schema with what makes Hugging Face datasets decode these columns, or lists, as images."""
    features = {name: _feature(schema.field(name), image=name in names) for name in schema.names}
    info = {"info": {"features": features}}
    return schema.with_metadata({"huggingface": json.dumps(info, sort_keys=True)})


def _feature(field: pa.Field, *, image: bool) -> Any:
    if image:
        one = {"_type": "Image"}
        return {"_type": "List", "feature": one} if pa.types.is_list(field.type) else one
    return _value(field.type)


def _value(dtype: pa.DataType) -> Any:
    if pa.types.is_list(dtype):
        return {"_type": "List", "feature": _value(dtype.value_type)}
    if pa.types.is_struct(dtype):
        return {dtype.field(place).name: _value(dtype.field(place).type) for place in range(dtype.num_fields)}
    return {"_type": "Value", "dtype": {"double": "float64"}.get(str(dtype), str(dtype))}
