"""Configuration of an ingest."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import BoundsChecked, Positive, Share
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.base.tables import Refused
from plumbline.pipelines.ingest.input_rows import check_generator
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.input_columns import InputColumnsConfig

INGEST_VERSION = 1
"""Version of the ingest, raised when the same input would produce different shards."""
InputAddresses = Mapping[str, str | None]
"""Addresses of an ingest's input (its table and images, or its tars), and its generator; they identify the ingest
within an output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestLimits(BoundsChecked):
    """Limits above which an image is refused."""

    section: ClassVar[str] = "limits."
    max_bytes: Positive = 64_000_000
    """Maximum encoded size in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersConfig(BoundsChecked):
    """The machines that write the shards."""

    section: ClassVar[str] = "cluster."
    address: str | None = None
    """A running Ray cluster (`auto`, or host:port); null uses RAY_ADDRESS, or else this machine."""
    num_cpus: Positive | None = None
    """Number of shards that are written at once on this machine; the number of its CPUs by default. With 1, Ray is not
    used.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig(BoundsChecked):
    """Input and output of an ingest."""

    output: str
    """Folder or cloud prefix for <generator>/00000.parquet and so on, prompts.parquet and manifest.json."""
    table: str | None = None
    """CSV, TSV or JSON Lines with a row per image file, or Parquet or Arrow that contains the images. Alternatively,
    set `tars`.
    """
    images: str | None = None
    """Folder that the table's paths are relative to; by default the table's own folder. Without a table, a folder that
    also contains the prompts: in metadata.jsonl, prompts.txt, a .txt next to each image, or the image names
    (docs/ingest.md).
    """
    tars: str | None = None
    """A WebDataset tar, a folder of tars, or a pattern with *. Alternatively, set `table`."""
    prompts_from: PromptsFrom | None = None
    """The layout of a folder that contains its own prompts; null uses the first layout that fits. Image names are used
    as prompts only if the folder has no tables and the names of each generator differ.
    """
    images_inside: str | None = None
    """Name of the subfolders to ingest: if the image folder contains subfolders with this name, all other images are
    skipped. For example, `en` for edits with instructions in two languages.
    """
    copy: bool = True
    """True to copy images into the shards. If false, only their addresses are stored, and the files must stay in place.
    """
    link_roots: tuple[str, ...] = ()
    """Local folders that links in the input may lead to, in addition to the input's own folders."""
    generator: str | None = None
    """The generator of all rows; by default it is read from a column of the table or a field of a sample's JSON."""
    columns: InputColumnsConfig = field(default_factory=InputColumnsConfig)
    shard_rows: Positive = 1024
    """Number of input rows per shard."""
    row_group_rows: Positive = 256
    """Maximum number of rows in a row group, which is a sweep's unit of work."""
    row_group_bytes: Positive = 64_000_000
    """Maximum bytes of images per row group, and so in memory; a larger image gets a row group of its own."""
    limits: IngestLimits = field(default_factory=IngestLimits)
    on_change: Literal["fail", "replace"] = "fail"
    """Action if the output has a shard that was made from different input: `fail`, or `replace` it."""
    max_failed: Share = 0.01
    """Maximum fraction of rejected rows for which the exit code is 2 instead of 1; a damaged tar always gives 1."""
    cluster: WorkersConfig = field(default_factory=WorkersConfig)
    """The machines that write the shards; Ray starts several workers if the ingest takes longer than a few seconds."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if (self.tars is None) == (self.table is None and self.images is None):
            raise ConfigError(
                "expected one input: table=FILE (with images=FOLDER), images=FOLDER alone, or tars=FILE_OR_FOLDER"
            )
        if self.tars is not None and not self.copy:
            raise ConfigError("copy: expected true, got false; images in a tar have no addresses of their own")
        if self.prompts_from is not None and (self.tars or self.table):
            raise ConfigError(
                "prompts_from: expected null together with table or tars, which contain the prompts, "
                f"got {self.prompts_from!r}"
            )
        if any("://" in root or not root for root in self.link_roots):
            raise ConfigError(
                f"link_roots: expected local folders, got {', '.join(map(repr, self.link_roots))}; correct the paths"
            )
        if self.generator is not None:
            try:
                check_generator(self.generator)
            except Refused as refused:
                raise ConfigError(f"generator: {refused}") from refused

    @property
    def recipe(self) -> dict[str, Any]:
        """Options that change the content of shards."""
        names = ("generator", "columns", "shard_rows", "row_group_rows", "row_group_bytes", "limits")
        linked = {} if self.copy else {"copy": False}
        columns = {
            name: asked for name, asked in asdict(self.columns).items() if name not in ("skills", "source") or asked
        }
        return {"version": INGEST_VERSION, **{name: asdict(self)[name] for name in names}, "columns": columns, **linked}

    @property
    def addresses(self) -> InputAddresses:
        """Addresses of the input, and the generator."""
        inputs = {"table": self.table, "images": None if self.tars else self.folder.url, "tars": self.tars}
        urls = {name: self.storage.locate(url).url if url is not None else None for name, url in inputs.items()}
        return {**urls, "generator": self.generator}

    @property
    def folder(self) -> Place:
        """Folder that image paths are relative to."""
        if self.images is not None:
            return self.storage.locate(self.images)
        return self.storage.locate(str(self.table)).parent
