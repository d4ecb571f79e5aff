"""What pictures are made of, by which generator, and where they are put."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from plumbline.operators.base.bounds import Checked, Positive, Share
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.metrics.generation import Pictures, PicturesConfig
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.logs import LogConfig
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig

KEPT = ".generate"
"""The store, in the folder of images, that keeps what was made, and the tables of what was wanted."""
ROLE = "image_model"
ASSETS = Path(__file__).resolve().parents[2] / "assets"
OF_SWEEPS = ("benchmark", "pictures", "cluster", "storage", "limits", "max_failed", "dry_run", "log")
"""What a sweep that draws first has in common with a generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig(Checked):
    """Prompts x generator x settings."""

    benchmark: BenchmarkConfig
    """Its prompts are drawn; its `images` is the folder that the generator's own folder is put into."""
    image_model: AnyModel
    """What draws: a pipeline of diffusers, or a service."""
    pictures: PicturesConfig = field(default_factory=PicturesConfig)
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: ImageLimits = field(default_factory=ImageLimits)
    shard_rows: Positive = 64
    """Pictures of a file, which are committed together."""
    max_failed: Share = 0.01
    """Share of pictures that could not be made up to which the exit code is 2 instead of 1."""
    dry_run: bool = False
    """Show how many pictures would be made, and stop."""
    log: LogConfig = field(default_factory=LogConfig)
    """What is written of each shard while the job goes on (docs/observing.md)."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.benchmark.images is None:
            raise ConfigError("benchmark.images: expected the folder that the pictures are put into; name it")
        if self.images.is_local and Path(self.images.path).is_relative_to(ASSETS):
            raise ConfigError(
                f"benchmark.images {self.images}: the embedded benchmark's own images are there; name another folder, "
                "as in images=images"
            )
        if self.benchmark.prompts is None:
            raise ConfigError("benchmark.prompts: expected the prompts that are drawn; name their file")
        if self.benchmark.columns.edit_columns:
            raise ConfigError(f"benchmark: {self.benchmark.name} is of edited images, and pictures are drawn of texts")
        if not self.called or "/" in self.called or self.called[0] in "._":
            raise ConfigError(
                f"pictures.name: expected a folder's name that does not begin with '.' or '_', got {self.called!r}"
            )

    @property
    def called(self) -> str:
        """The generator's name."""
        return Path(self.image_model.checkpoint).name if self.pictures.name is None else self.pictures.name

    @property
    def images(self) -> Place:
        """The folder of generators' folders."""
        return self.storage.locate(str(self.benchmark.images), writable=True)

    @property
    def folder(self) -> Place:
        """The generator's own."""
        return self.images / self.called

    @property
    def kept(self) -> Place:
        """The store of what was made."""
        return self.images / KEPT

    @property
    def wanted_folder(self) -> str:
        """Folder of the tables that list the generator's wanted pictures, relative to the store `kept`."""
        return f"wanted/{self.called}"

    @property
    def texts(self) -> BenchmarkConfig:
        """The benchmark without any images."""
        return replace(self.benchmark, images=None, generators={})

    def drawing(self) -> SweepConfig:
        """What has the generator draw: a sweep without images, of a prompt for each picture."""
        return SweepConfig(
            store=self.kept.url,
            benchmark=BenchmarkConfig(
                name=self.called, prompts=(self.kept / self.wanted_folder).url, images=None, generators={}
            ),
            models={ROLE: self.image_model},
            metrics={"pictures": Pictures(options=self.pictures)},
            cluster=self.cluster,
            storage=self.storage,
            limits=self.limits,
            shard_rows=self.shard_rows,
            max_failed=self.max_failed,
            dry_run=self.dry_run,
            log=self.log,
        )


def generation_of(sweep: SweepConfig) -> GenerateConfig | None:
    """What a sweep has drawn before it scores; None where it names no generator."""
    if sweep.image_model is None:
        return None
    return GenerateConfig(image_model=sweep.image_model, **{name: getattr(sweep, name) for name in OF_SWEEPS})


def scoring_of(sweep: SweepConfig) -> SweepConfig:
    """What such a sweep is once the pictures stand: the same as one that finds them there."""
    return replace(sweep, image_model=None, pictures=PicturesConfig())
