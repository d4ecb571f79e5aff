"""Cells: one stage's output for one shard of rows, named by a hash of everything that can change it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from operators.models.calls import Usage

Stage = Literal["questions", "entailment", "answers", "similarities", "scores"]
State = Literal["committed", "draft", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A run of row groups of one source file: the unit of work."""

    group: str
    """The generator of an images shard; the benchmark of a prompts shard."""
    name: str
    """Unique within the group, and part of the cells' file names."""
    url: str
    size: int
    """Bytes of the whole file."""
    etag: str
    """What changes when the file does: S3's ETag, or the modification time of a local file."""
    row_groups: tuple[int, ...]
    rows: int
    first_row: int = 0
    """Rows of the file before it; row groups in the key say as much."""
    columns: tuple[tuple[str, str], ...] = ()
    """Our names of columns with the file's own, where they differ; `prompt` always, where the rows hold prompts."""
    content: str = ""
    """Of a prompts shard made from images' rows: the digest of its prompts, which takes the file's place in keys."""

    @property
    def holds_prompts(self) -> bool:
        """Whether each row holds the text of its own prompt."""
        return any(name == "prompt" for name, _ in self.columns)

    def semantic(self) -> dict[str, Any]:
        """The part that enters the keys of cells made from it."""
        if self.content:
            return {"prompts": self.content}
        file = {"url": self.url, "size": self.size, "etag": self.etag, "row_groups": self.row_groups}
        return file | ({"columns": self.columns} if self.columns else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a stage computes: everything semantic but its inputs."""

    stage: Stage
    version: int
    """The operator's version, raised when its results change."""
    config: Mapping[str, Any]

    def semantic(self) -> dict[str, Any]:
        return {"stage": self.stage, "version": self.version, "config": self.config}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One output to compute, or found computed."""

    node: str
    """The pipeline node that computes it, such as `answers:vqa`."""
    stage: Stage
    metric: str
    """The metric it is computed for; metrics that ask the same of the same model share the cell."""
    key: str
    """SHA-256 of the recipe and the inputs, hexadecimal."""
    path: str
    """Where it is committed, relative to the store."""
    inputs: tuple[str, ...]
    """Paths of the cells upstream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a cell in this run."""

    state: State
    rows: int = 0
    errors: int = 0
    """Rows without a result."""
    message: str = ""
    """Why it failed."""
    usage: Usage | None = None
    """What its model calls took, where they are counted; cells that were computed together share one count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One shard with the cells missing on it: the row of a Ray Dataset, a claim check of about a kilobyte."""

    shard: Shard
    cells: tuple[Cell, ...]
    """In the order of the stages."""
    outcomes: Mapping[str, Outcome]
    """By cell path: of the cells computed so far, and of upstream cells that did not commit."""

    def to_json(self) -> str:
        return _WORK.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> "Work":
        return _WORK.validate_json(text)


_WORK = TypeAdapter(Work)


def make_cell(
    recipe: Recipe, shard: Shard, *, node: str, metric: str, upstream: tuple[Cell, ...] = (), source: bool = True
) -> Cell:
    """The cell of a recipe on a shard; `source` tells whether it reads the shard itself or only cells upstream."""
    inputs = [shard.semantic()] if source else []
    key = digest({"recipe": recipe.semantic(), "inputs": inputs, "upstream": [cell.key for cell in upstream]})
    folder = f"{recipe.stage}/{digest(recipe.semantic())[:8]}"
    return Cell(
        node=node,
        stage=recipe.stage,
        metric=metric,
        key=key,
        path=f"{folder}/{shard.group}/{shard.name}-{key[:8]}.parquet",
        inputs=tuple(cell.path for cell in upstream),
    )


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
