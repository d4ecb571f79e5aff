"""Cells: one stage's output for one shard of rows, named by a hash of everything that can change it."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationInfo

from plumbline.operators.base.usage import Usage
from plumbline.operators.images.rows import EDIT_COLUMNS
from plumbline.pipelines.base.storage import Place, StorageConfig

State = Literal["committed", "draft", "failed"]
PIECE = re.compile(r"(\+w\d+)+$")
"""How the names of shards end that have some rows of a file's: those of a round, or of the prompts that are scored."""


def _restored(address: Place | str, info: ValidationInfo) -> Place:
    if isinstance(address, Place):
        return address
    assert isinstance(info.context, StorageConfig), "an address alone reaches no file"
    return Place(address, info.context)


ShardPlace = Annotated[Place, PlainSerializer(str), PlainValidator(_restored)]
"""Written into rows of a dataset as its address alone, because credentials do not belong there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A run of row groups of one source file: the unit of work."""

    group: str
    """The generator of an images shard; the benchmark of a prompts shard."""
    name: str
    """Unique within the group, and part of the cells' file names."""
    place: ShardPlace
    """Its file, or a folder of questions that prompts are read of."""
    size: int
    """Bytes of the whole file."""
    etag: str
    """What changes when the file does: S3's ETag, or the modification time of a local file; empty for a folder."""
    row_groups: tuple[int, ...]
    rows: int
    first_row: int = 0
    """Rows of the file before it; row groups in the key say as much."""
    columns: tuple[tuple[str, str], ...] = ()
    """Our names of columns with the file's own, where they differ; `prompt` always, where the rows hold prompts."""
    prompts: str = ""
    """The digest of its prompts, ids and texts: those it holds, or those that its images were made of."""
    objects: str = ""
    """Of images that are named by address: the digest of what stands there (ETags, or sizes and times)."""
    sources: str = ""
    """Of edits whose sources or masks are named by address, or are in the prompts file: the digest of what stands
    there."""
    pack: str = ""
    """Layout of the benchmark's own questions, if prompts are read from them."""
    skills: "Shard | None" = None
    """File with the skills of its prompts, if they are in a file of their own."""
    picked: tuple[int, ...] = ()
    """Where some prompts alone are scored, or in rounds, which of those rows it has, ascending; all where empty."""

    @property
    def url(self) -> str:
        """The address of its file, with file:// for a local one."""
        return self.place.uri

    @property
    def holds_prompts(self) -> bool:
        """Whether each row holds the text of its own prompt."""
        return any(name == "prompt" for name, _ in self.columns)

    @property
    def beside(self) -> tuple[str, ...]:
        """Our names of the columns that may hold sources, masks and captions of edits."""
        return tuple(name for name, _ in self.columns if name in EDIT_COLUMNS)

    def row_in_file(self, row: int) -> int:
        """The place in its file of a row of the shard."""
        return self.first_row + (self.picked[row] if self.picked else row)

    def source(self, *, compares: bool = False) -> dict[str, Any]:
        """The images themselves, for keys: their file and what their addresses name; with what edits have beside where
        that is looked at."""
        file = {"url": _followed(self.url), "size": self.size, "etag": self.etag, "row_groups": self.row_groups}
        sources = {"sources": self.sources} if compares and self.sources else {}
        columns = tuple(names for names in self.columns if compares or names[0] not in EDIT_COLUMNS)
        return file | sources | {"columns": columns, "objects": self.objects, "picked": self.picked}


@lru_cache(maxsize=4096)
def _followed(url: str) -> str:
    """A local file's address with all links followed, so that it is the same however its path is spelled."""
    return os.path.realpath(url.removeprefix("file://")) if url.startswith("file://") else url


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a stage computes: everything semantic but the rows it is given."""

    stage: str
    digest: str
    """SHA-256, hexadecimal, of the operator's version, its configuration and the recipes of the stages it reads."""
    node: str = ""
    """The pipeline node that computes by it, such as `answers:vqa`."""
    metric: str = ""
    """The metric it is computed for; metrics that ask the same of the same model share the cells."""
    reads: tuple["Recipe", ...] = ()
    compares: bool = False
    """Whether it, or a stage that it reads, looks at the sources of edits, or reads their captions."""
    asks: bool = False
    """Whether it, or a stage that it reads, asks what the benchmark asks about its prompts."""

    @property
    def folder(self) -> str:
        """Where its cells stand in the store."""
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
) -> Recipe:
    """A stage's recipe; the stage's `version` is raised when its results change."""
    semantic = {"stage": stage, "version": version, "config": config, "upstream": [recipe.digest for recipe in reads]}
    compares = compares or any(recipe.compares for recipe in reads)
    asks = asks or any(recipe.asks for recipe in reads)
    return Recipe(
        stage=stage, digest=digest(semantic), node=node, metric=metric, reads=reads, compares=compares, asks=asks
    )


class PlannedCell:
    """A cell as the plan names it: small, for there may be millions."""

    __slots__ = ("_digest", "recipe", "shard")

    def __init__(self, recipe: Recipe, shard: Shard, semantic: str) -> None:
        """`semantic` is what of the shard can change a result, as canonical JSON."""
        self.recipe = recipe
        self.shard = shard
        self._digest = hashlib.sha256(f'{{"recipe":"{recipe.digest}","shard":{semantic}}}'.encode()).digest()

    @property
    def key(self) -> str:
        """SHA-256 of the recipe and the inputs, hexadecimal."""
        return self._digest.hex()

    @property
    def path(self) -> str:
        """Where it is committed, relative to the store."""
        return f"{self.recipe.folder}/{self.shard.group}/{self.shard.name}-{self._digest[:4].hex()}.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One output to compute, with all that computing it takes: a PlannedCell and its Recipe, spelled out."""

    node: str
    stage: str
    metric: str
    key: str
    path: str
    inputs: Mapping[str, tuple[str, ...]]
    """By stage that it reads, the paths of the cells upstream."""
    recipe: str = ""
    """The digest of its recipe."""
    earlier: tuple[str, ...] = ()
    """Where rows may stand that need no computing: its draft, and cells on what has changed since; newest first."""
    renew: bool = False
    """Whether what stands at its path is damaged, or stands on what is no more, and is to be replaced."""

    @property
    def upstream(self) -> tuple[str, ...]:
        """The paths of all cells that it reads."""
        return tuple(chain.from_iterable(self.inputs.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a cell in this run."""

    state: State
    rows: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Rows without a result, by the kind of their error."""
    kept: int = 0
    """Rows that an earlier cell had."""
    message: str = ""
    """Why it failed."""
    broken: tuple[str, ...] = ()
    """Paths of the cells upstream that it failed of, which are to be computed anew."""
    usage: Usage | None = None
    """What its model calls took, where they are counted; cells that were computed together share one count."""

    @property
    def errors(self) -> int:
        """Rows without a result."""
        return sum(self.kinds.values())


def is_draft(path: str, outcomes: Mapping[str, Outcome]) -> bool:
    """Whether this run has left the cell of a path as a draft."""
    return path in outcomes and outcomes[path].state == "draft"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One shard with the cells missing on it: the row of a Ray Dataset, a claim check of about a kilobyte."""

    shard: Shard
    cells: tuple[Cell, ...]
    """In the order of the stages."""
    outcomes: Mapping[str, Outcome]
    """By cell path: of the cells computed so far, and of upstream cells that did not commit."""
    benchmark: str = ""
    """Whose sources it is read from."""

    def to_json(self) -> str:
        return _WORK.dump_json(self).decode()

    @staticmethod
    def from_json(text: str, storage: StorageConfig) -> "Work":
        """`storage` reaches the shard's file."""
        return _WORK.validate_json(text, context=storage)


_WORK = TypeAdapter(Work)


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    """A value's JSON, of which there is one."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
