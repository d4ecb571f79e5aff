"""Configuration of a generation: prompts, generator, and output folder."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from plumbline.operators.base.bounds import BoundsChecked, Positive, Share
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.metrics.generation import PicturesConfig
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.logs import LogConfig
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.plugins.generation.pictures import Pictures

IMAGE_STORE_FOLDER = ".generate"
"""Name of the store below the image folder; it contains the generated images and the tables of wanted images."""
IMAGE_MODEL_ROLE = "image_model"
PICTURES_CHAIN = "pictures"
"""Name of the chain that generates the images, in the sweep of a generation."""
ASSETS_FOLDER = Path(__file__).resolve().parents[2] / "assets"
SWEEP_KEYS = ("benchmark", "pictures", "cluster", "storage", "limits", "max_failed", "dry_run", "log")
"""Options that are copied from a sweep to the generation that makes its images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig(BoundsChecked):
    """Options of jobs.generate: the prompts, the image generator and its settings, and the output folder."""

    benchmark: BenchmarkConfig
    """Benchmark with the prompts; the generator's folder is created in its `images` folder."""
    image_model: AnyModel
    """Image generator: a diffusers pipeline, or a service."""
    pictures: PicturesConfig = field(default_factory=PicturesConfig)
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: ImageLimits = field(default_factory=ImageLimits)
    shard_rows: Positive = 64
    """Number of images per file; they are committed together."""
    max_failed: Share = 0.01
    """Largest fraction of failed images that still gives exit code 2; above it, the exit code is 1."""
    dry_run: bool = False
    """Only show how many images would be generated."""
    log: LogConfig = field(default_factory=LogConfig)
    """Log of each shard (docs/observing.md)."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.benchmark.images is None:
            raise ConfigError("benchmark.images: expected a folder for the images; set images=PATH")
        if self.images.is_local and Path(self.images.path).is_relative_to(ASSETS_FOLDER):
            raise ConfigError(
                f"benchmark.images {self.images}: this folder contains the embedded benchmark's images; choose "
                "another folder, such as images=images"
            )
        if self.benchmark.prompts is None:
            raise ConfigError(
                "benchmark.prompts: expected a file with prompts to generate images from; set prompts=PATH"
            )
        if self.benchmark.columns.edit_columns:
            raise ConfigError(
                f"benchmark: {self.benchmark.name} has edited images, but images are generated from texts; "
                "choose another benchmark"
            )
        if not self.generator or "/" in self.generator or self.generator[0] in "._":
            raise ConfigError(
                f"pictures.name: expected a folder name that does not begin with '.' or '_', got {self.generator!r}"
            )

    @property
    def generator(self) -> str:
        return Path(self.image_model.checkpoint).name if self.pictures.name is None else self.pictures.name

    @property
    def images(self) -> Place:
        """Folder that contains one folder per generator."""
        return self.storage.locate(str(self.benchmark.images), writable=True)

    @property
    def folder(self) -> Place:
        """Folder of this generator's images."""
        return self.images / self.generator

    @property
    def image_store(self) -> Place:
        """Store that contains the generated images."""
        return self.images / IMAGE_STORE_FOLDER

    @property
    def prompts_folder(self) -> str:
        """Folder of the tables that list the images to generate, relative to `image_store`."""
        return f"wanted/{self.generator}"

    @property
    def benchmark_without_images(self) -> BenchmarkConfig:
        return replace(self.benchmark, images=None, generators={})

    @property
    def chain(self) -> Pictures:
        """The chain that generates the images."""
        return Pictures(options=self.pictures)

    def make_drawing_sweep(self) -> SweepConfig:
        """Return the sweep that generates the images: it has one prompt per image and reads no images."""
        return SweepConfig(
            store=self.image_store.url,
            benchmark=BenchmarkConfig(
                name=self.generator, prompts=(self.image_store / self.prompts_folder).url, images=None, generators={}
            ),
            models={IMAGE_MODEL_ROLE: self.image_model},
            metrics={PICTURES_CHAIN: self.chain},
            cluster=self.cluster,
            storage=self.storage,
            limits=self.limits,
            shard_rows=self.shard_rows,
            max_failed=self.max_failed,
            dry_run=self.dry_run,
            log=self.log,
        )


def find_generation(sweep: SweepConfig) -> GenerateConfig | None:
    """Return the generation that must run before a sweep, or None if the sweep has no image model."""
    if sweep.image_model is None:
        return None
    return GenerateConfig(image_model=sweep.image_model, **{name: getattr(sweep, name) for name in SWEEP_KEYS})


def find_scoring_sweep(sweep: SweepConfig) -> SweepConfig:
    """Return the sweep that scores the images once they are generated.

    It is the same sweep as for existing images, so it computes the same cells.
    """
    return replace(sweep, image_model=None, pictures=PicturesConfig())
