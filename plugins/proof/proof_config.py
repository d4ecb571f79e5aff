"""Configuration of a proof: released checkpoints, and the published scores that ours are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from plumbline.operators.base.bounds import BoundsChecked, Natural, NonNegative, Positive, PositiveFloat
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.models.model import Precision

Device = Literal["auto", "cpu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRow:
    """One public image with its prompt, and its published score if there is one."""

    image: str
    """Address of the image file (see downloads.py)."""
    prompt: str | None = None
    prompt_file: str | None = None
    """Address of a text file with the prompt, if `prompt` is null."""
    score: float | None = None
    sha256: str | None = None
    """Expected SHA-256 of the image file; another file is refused."""

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.prompt_file is None):
            raise ConfigError(f"row of {self.image}: expected either prompt or prompt_file; set one of them")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageTable:
    """A table with one row per image: CSV, or Parquet, which may contain the images themselves."""

    file: str
    """Address of the table (see downloads.py)."""
    image: str
    """Column with the images: their bytes, or their paths below `images`."""
    images: str | None = None
    """Address of the folder of the images, if the column has paths."""
    prompt: str
    """Column with the prompts."""
    score: str | None = None
    """Column with the published scores, if they are in the same table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreTable:
    """A table with published scores but without images."""

    file: str
    """Address of the table (see downloads.py)."""
    score: str
    """Column with the scores."""
    key: str | None = None
    """Column that identifies a row in both tables. Null if the rows of both tables are in the same order."""
    same: tuple[str, ...] = ()
    """Columns that must be equal in both tables, row by row, if `key` is null."""
    missing: float | None = None
    """Value of rows that have no score, such as -1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedScores:
    """Public images and their published scores."""

    source: str
    """Publisher of the scores, and the place: repository, file, commit."""
    rows: tuple[PublishedRow, ...] = ()
    """The images, if they are listed one by one."""
    table: ImageTable | None = None
    """The images, if a table lists them."""
    scores: ScoreTable | None = None
    """The scores for the images in `table`, if another table contains them."""
    expected: Mapping[Precision, NonNegative] = field(default_factory=dict)
    """Largest difference from the published scores that counts as agreement, by the precision of our model. A precision
    without an entry is reported without a verdict.
    """
    reason: str = ""
    """Reason why a difference is expected."""

    def __post_init__(self) -> None:
        if bool(self.rows) == (self.table is not None):
            raise ConfigError(f"published scores of {self.source!r}: expected either rows or a table; set one of them")
        if self.scores is not None and self.table is None:
            raise ConfigError(f"published scores of {self.source!r}: scores requires table, found none; set table")


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """Conversion of a release that no model family can load (`plumbline convert`)."""

    release: str
    """The kind of release, as in `plumbline convert`."""
    weights: str
    """Address of the released weights, a .safetensors file."""
    base: str
    """Hub id of the checkpoint with the configuration and the tokenizer."""

    def __post_init__(self) -> None:
        if not self.weights.endswith(".safetensors"):
            raise ConfigError(f"conversion of {self.weights}: expected a .safetensors file; pickles are never loaded")


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof(BoundsChecked):
    """One released checkpoint, the metric that uses it, and published scores from this metric."""

    section: ClassVar[str] = "proof "
    metric: str
    """The metric's name, as in `plumbline score metrics=[NAME]`."""
    options: tuple[str, ...] = ()
    """Other arguments of `plumbline score`, such as `model@models.vqa=qwen3_vl_8b`."""
    memory: PositiveFloat
    """Estimated gigabytes that scoring needs in bfloat16, with the weights; float32 needs twice as much."""
    conversion: Conversion | None = None
    published: tuple[PublishedScores, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProveConfig(BoundsChecked):
    """Options of `plumbline prove`."""

    proofs: Mapping[str, Proof] = field(default_factory=dict)
    """Checkpoints by name; `proof=[NAME,...]` chooses them."""
    device: Device = "auto"
    """`auto` is this machine's first CUDA GPU, without which the command stops; `cpu` is for trials."""
    precisions: tuple[Precision, ...] = ("bfloat16", "float32")
    """Precisions of the compared scores. Each checkpoint is loaded once in each precision."""
    memory: PositiveFloat | None = None
    """Gigabytes that a checkpoint may use; by default the GPU's free memory, or the memory of this machine."""
    limit: Positive = 100
    """Number of images per table, evenly spaced over its rows."""
    timed_pairs: Natural = 256
    """Number of pairs of image and prompt that are timed; the images are repeated until there are as many. 0: none."""
    max_download: PositiveFloat = 60
    """Largest number of gigabytes that may be downloaded for one checkpoint."""
    folder: str = "proof"
    """Folder for converted checkpoints, which later runs reuse."""
    output: str = "proof/report.md"
    """Report to write: Markdown, with all numbers as JSON at its end."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not self.proofs:
            raise ConfigError("proofs: no checkpoint was chosen; choose some, as in proof=[pickscore]")
        if not self.precisions:
            raise ConfigError("precisions: expected float32, bfloat16 or both, got none")
