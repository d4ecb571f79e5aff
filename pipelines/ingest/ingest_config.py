"""What an ingest is asked for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import Checked, Positive, Share
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.base.tables import Refused
from plumbline.pipelines.ingest.input_rows import check_generator
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.input_columns import InputColumnsConfig

VERSION = 1
"""To be raised when the same input makes other shards."""
Identity = Mapping[str, str | None]
"""What an ingest takes in: its table and images or its tars, and its generator. It says which ingest it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestLimits(Checked):
    """What an image may cost before it is refused."""

    section: ClassVar[str] = "limits."
    max_bytes: Positive = 64_000_000
    """Largest encoded size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersConfig(Checked):
    """Where shards are made."""

    section: ClassVar[str] = "cluster."
    address: str | None = None
    """A running Ray cluster (`auto`, or host:port); null takes RAY_ADDRESS, or else this machine."""
    num_cpus: Positive | None = None
    """How many shards are made at once on this machine; as many as it has CPUs by default, and with 1 without Ray."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig(Checked):
    """What is taken in, and where it goes."""

    output: str
    """Folder or cloud prefix that gets <generator>/00000.parquet and so on, prompts.parquet and manifest.json."""
    table: str | None = None
    """CSV, TSV or JSON Lines with one row per image file, or Parquet or Arrow with the images in it; or `tars`."""
    images: str | None = None
    """Folder that the table's paths start from, the table's own by default; without a table, a folder whose files tell
    their prompts themselves: by metadata.jsonl, prompts.txt, a .txt beside each image, or the images' names
    (docs/ingest.md)."""
    tars: str | None = None
    """A WebDataset tar, a folder of them, or a pattern with *; or `table`."""
    prompts_from: PromptsFrom | None = None
    """How such a folder tells them; null looks for the first way that does, and takes the images' names only where no
    table lies there and each generator's names differ."""
    images_inside: str | None = None
    """Of a folder of image files, only those in inner folders of this name are taken, where any lies in one: `en` of
    edits by instructions in two languages."""
    copy: bool = True
    """Whether the shards hold the images; or the addresses of their files, which must then stay where they are."""
    link_roots: tuple[str, ...] = ()
    """Local folders, besides the input's own, that links in it may lead to."""
    generator: str | None = None
    """The generator of all rows; by default a column of the table or a field of a sample's JSON."""
    columns: InputColumnsConfig = field(default_factory=InputColumnsConfig)
    shard_rows: Positive = 1024
    """Rows of the input that make a shard."""
    row_group_rows: Positive = 256
    """Rows of a row group at most: a sweep's unit of work."""
    row_group_bytes: Positive = 64_000_000
    """Bytes of images in a row group at most, and so in memory; a larger image is a row group of its own."""
    limits: IngestLimits = field(default_factory=IngestLimits)
    on_change: Literal["fail", "replace"] = "fail"
    """What to do with a shard that stands and was made from other input: `fail`, or `replace` it."""
    max_failed: Share = 0.01
    """Share of rejected rows up to which the exit code is 2 instead of 1; a damaged tar is always over it."""
    cluster: WorkersConfig = field(default_factory=WorkersConfig)
    """Where shards are made: by several workers on Ray where that takes longer than seconds."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if (self.tars is None) == (self.table is None and self.images is None):
            raise ConfigError(
                "expected one input: table=FILE (with images=FOLDER), images=FOLDER alone, or tars=FILE_OR_FOLDER"
            )
        if self.tars is not None and not self.copy:
            raise ConfigError("copy: expected true, got false; what is in a tar has no address of its own")
        if self.prompts_from is not None and (self.tars or self.table):
            raise ConfigError(
                f"prompts_from: expected null beside table or tars, which tell the prompts, got {self.prompts_from!r}"
            )
        if any("://" in root or not root for root in self.link_roots):
            raise ConfigError(f"link_roots: expected local folders, got {', '.join(map(repr, self.link_roots))}")
        if self.generator is not None:
            try:
                check_generator(self.generator)
            except Refused as refused:
                raise ConfigError(f"generator: {refused}") from refused

    @property
    def recipe(self) -> dict[str, Any]:
        """The options that change what is in the shards."""
        names = ("generator", "columns", "shard_rows", "row_group_rows", "row_group_bytes", "limits")
        linked = {} if self.copy else {"copy": False}
        columns = {
            name: asked for name, asked in asdict(self.columns).items() if name not in ("skills", "source") or asked
        }
        return {"version": VERSION, **{name: asdict(self)[name] for name in names}, "columns": columns, **linked}

    @property
    def identity(self) -> Identity:
        """What is taken in, which says which of an output's ingests this is."""
        places = {"table": self.table, "images": None if self.tars else self.folder.url, "tars": self.tars}
        urls = {name: self.storage.locate(url).url if url is not None else None for name, url in places.items()}
        return {**urls, "generator": self.generator}

    @property
    def place(self) -> str:
        """Where the input is."""
        return str(self.tars or self.table or self.images)

    @property
    def folder(self) -> Place:
        """The folder that the images' paths start from."""
        if self.images is not None:
            return self.storage.locate(self.images)
        return self.storage.locate(str(self.table)).parent
