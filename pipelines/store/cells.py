"""Cells: each is the output of one stage for one shard, named by a hash of everything that can change that output."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationInfo

from plumbline.operators.base.usage import Usage
from plumbline.operators.images.rows import EDIT_COLUMNS
from plumbline.pipelines.base.storage import Place, StorageConfig

State = Literal["committed", "draft", "failed"]
PIECE_SUFFIX_PATTERN = re.compile(r"(\+w\d+)+$")
"""Suffix of the names of shards with only some rows of a file: the rows of one round, or of the scored prompts."""


def _restore_place(address: Place | str, info: ValidationInfo) -> Place:
    if isinstance(address, Place):
        return address
    assert isinstance(info.context, StorageConfig), "an address without a StorageConfig cannot be opened"
    return Place(address, info.context)


ShardPlace = Annotated[Place, PlainSerializer(str), PlainValidator(_restore_place)]
"""A Place that is serialized as its address alone, so that no credentials end up in a dataset's rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Consecutive row groups of one source file: the unit of work."""

    group: str
    """Generator of an image shard, or benchmark of a prompt shard."""
    name: str
    """Name of the shard, unique within the group; used in the file names of its cells."""
    place: ShardPlace
    """Source file, or the folder of question files that the prompts are read from."""
    size: int
    etag: str
    """Version of the file: its S3 ETag, or the modification time of a local file. Empty for a folder."""
    row_groups: tuple[int, ...]
    rows: int
    first_row: int = 0
    """Number of rows that precede the shard in its file. The number follows from the row groups, so it is not part of
    keys.
    """
    columns: tuple[tuple[str, str], ...] = ()
    """Pairs of our column name and the file's column name, if they differ; `prompt` is always included if rows have
    prompts.
    """
    prompts: str = ""
    """Digest of the ids and texts of the shard's prompts, or of the prompts that its images were generated from."""
    objects: str = ""
    """Digest of the ETags (or sizes and times) of images that are stored outside the file and referenced by address."""
    sources: str = ""
    """Digest of the source images and masks of edits, if they are referenced by address or stored with the prompts."""
    pack: str = ""
    """Format of the benchmark's own question files, if the prompts are read from these files."""
    skills: "Shard | None" = None
    """File with the skills of the shard's prompts, if they are in a separate file."""
    picked: tuple[int, ...] = ()
    """Rows of the row groups that belong to the shard, in ascending order; empty means all rows."""
    opponent: "Shard | None" = None
    """Shard with another generator's images of the same prompts, if this is a shard of pairs."""

    @property
    def url(self) -> str:
        """Address of the file; it starts with file:// if the file is local."""
        return self.place.uri

    @property
    def contains_prompts(self) -> bool:
        """True if each row contains the text of its own prompt."""
        return any(name == "prompt" for name, _ in self.columns)

    @property
    def edit_columns(self) -> tuple[str, ...]:
        """Our names for the columns that may contain source images, masks and captions of edits."""
        return tuple(name for name, _ in self.columns if name in EDIT_COLUMNS)

    def get_row_in_file(self, row: int) -> int:
        """Convert a row index within the shard to the index within its file."""
        return self.first_row + (self.picked[row] if self.picked else row)

    def describe_source(self, *, compares: bool = False) -> dict[str, Any]:
        """Return the part of a cell's key that identifies the images: the file, and any files that it references.

        If `compares` is True (for stages that compare edits), source images, masks and captions are included.
        """
        file = {"url": _resolve_links(self.url), "size": self.size, "etag": self.etag, "row_groups": self.row_groups}
        sources = {"sources": self.sources} if compares and self.sources else {}
        columns = tuple(names for names in self.columns if compares or names[0] not in EDIT_COLUMNS)
        opponent = {} if self.opponent is None else {"opponent": self.opponent.describe_source()}
        return file | sources | opponent | {"columns": columns, "objects": self.objects, "picked": self.picked}


@lru_cache(maxsize=4096)
def _resolve_links(url: str) -> str:
    """Resolve symbolic links in the address of a local file, so that each file has only one address."""
    return os.path.realpath(url.removeprefix("file://")) if url.startswith("file://") else url


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The recipe of a stage: everything that can change the stage's results, except the input rows."""

    stage: str
    digest: str
    """SHA-256 (hexadecimal) of the stage's version, its configuration and the recipes of its input stages."""
    node: str = ""
    """Pipeline node that computes the recipe's cells, such as `answers:vqa`."""
    metric: str = ""
    """Metric that the recipe was made for. Metrics that ask the same model the same questions share cells."""
    reads: tuple["Recipe", ...] = ()
    compares: bool = False
    """True if this stage, or one of its input stages, uses the source images or captions of edits."""
    asks: bool = False
    """True if this stage, or one of its input stages, uses the benchmark's own questions about its prompts."""
    pairs: bool = False
    """True if one of its input stages compares images with images of other generators."""

    @property
    def folder(self) -> str:
        return f"{self.stage}/{self.digest[:8]}"


def make_recipe(
    stage: str,
    version: int,
    config: Mapping[str, Any],
    *reads: Recipe,
    node: str = "",
    metric: str = "",
    compares: bool = False,
    asks: bool = False,
    pairs: bool = False,
) -> Recipe:
    """Return the recipe of a stage. Increase `version` whenever the stage's results change."""
    semantic = {"stage": stage, "version": version, "config": config, "upstream": [recipe.digest for recipe in reads]}
    compares = compares or any(recipe.compares for recipe in reads)
    asks = asks or any(recipe.asks for recipe in reads)
    pairs = pairs or any(recipe.pairs for recipe in reads)
    return Recipe(
        stage=stage,
        digest=digest(semantic),
        node=node,
        metric=metric,
        reads=reads,
        compares=compares,
        asks=asks,
        pairs=pairs,
    )


class PlannedCell:
    """A cell of the plan. It only has fields for its key and its path, because a plan may have millions of cells."""

    __slots__ = ("_digest", "recipe", "shard")

    def __init__(self, recipe: Recipe, shard: Shard, semantic: str) -> None:
        """Create a cell; `semantic` is the canonical JSON of everything about the shard that can change a result."""
        self.recipe = recipe
        self.shard = shard
        self._digest = hashlib.sha256(f'{{"recipe":"{recipe.digest}","shard":{semantic}}}'.encode()).digest()

    @property
    def key(self) -> str:
        """SHA-256 (hexadecimal) of the recipe and the inputs."""
        return self._digest.hex()

    @property
    def path(self) -> str:
        """Path of the committed cell, relative to the store."""
        return f"{self.recipe.folder}/{self.shard.group}/{self.shard.name}-{self._digest[:4].hex()}.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A cell to compute, with all information needed to compute it."""

    node: str
    stage: str
    metric: str
    key: str
    path: str
    inputs: Mapping[str, tuple[str, ...]]
    """Paths of the cell's input cells, by stage."""
    recipe: str = ""
    """Digest of the cell's recipe."""
    earlier: tuple[str, ...] = ()
    """Paths of cells whose rows may be reused: the cell's draft, then cells with earlier inputs, newest first."""
    renew: bool = False
    """True if the existing file of the cell is damaged or outdated and must be replaced."""

    @property
    def upstream(self) -> tuple[str, ...]:
        """Paths of all input cells."""
        return tuple(chain.from_iterable(self.inputs.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of computing a cell in this run."""

    state: State
    rows: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Number of rows without a result, by kind of error."""
    kept: int = 0
    """Number of rows that were reused from earlier cells."""
    message: str = ""
    """Reason for a failure."""
    broken: tuple[str, ...] = ()
    """Paths of damaged upstream cells that caused the failure and must be recomputed."""
    usage: Usage | None = None
    """Usage of the cell's model calls, if it was counted; cells that were computed together share one count."""

    @property
    def errors(self) -> int:
        """Number of rows without a result."""
        return sum(self.kinds.values())


def is_draft(path: str, outcomes: Mapping[str, Outcome]) -> bool:
    """Return True if this run saved the cell at a path only as a draft."""
    return path in outcomes and outcomes[path].state == "draft"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One shard with its missing cells."""

    shard: Shard
    cells: tuple[Cell, ...]
    """Cells in stage order."""
    outcomes: Mapping[str, Outcome]
    """Outcomes by path of the cells that are already computed, and of upstream cells that were not committed."""
    benchmark: str = ""
    """Benchmark that the shard belongs to."""

    def select_cells(self, node: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.node == node]


_BUNDLE_ADAPTER = TypeAdapter(tuple[Work, ...])


def dump_bundle(works: Sequence[Work]) -> str:
    """Return a bundle of shards as JSON for one row of a Ray Dataset: about a kilobyte per shard."""
    return _BUNDLE_ADAPTER.dump_json(tuple(works)).decode()


def load_bundle(text: str, storage: StorageConfig) -> tuple[Work, ...]:
    """Parse JSON that dump_bundle returned; `storage` contains the credentials for the shards' files."""
    return _BUNDLE_ADAPTER.validate_json(text, context=storage)


def digest(value: Any) -> str:
    """Return the SHA-256 (hexadecimal) of a value's canonical JSON."""
    return hashlib.sha256(to_canonical_json(value).encode()).hexdigest()


def to_canonical_json(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
