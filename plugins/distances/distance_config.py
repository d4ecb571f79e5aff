"""Configuration of jobs.distance: the images of generators, the reference images, and the distances."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from plumbline.operators.base.bounds import BoundsChecked, Positive, Share, at_least
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.logs import LogConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.plugins.distances.features_stage import ImageFeatures

DistanceName = Literal["cmmd", "fid"]


class DistanceInputs(NamedTuple):
    """The model and the part of an image that a distance uses."""

    role: str
    """Role of the model that computes the features."""
    square: bool
    """True if only the middle square of an image counts."""


INPUTS: Mapping[DistanceName, DistanceInputs] = {
    "cmmd": DistanceInputs("clip", square=True),
    "fid": DistanceInputs("inception", square=False),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DistanceConfig(BoundsChecked):
    """Options of jobs.distance."""

    run: str = "latest"
    """Run of the store whose images are compared; its report then shows the distances."""
    benchmark: BenchmarkConfig | None = None
    """Images of generators to compare instead of a run's. They need no prompts."""
    reference: str
    """Reference images, such as photographs: a folder of image files, or Parquet tables."""
    distances: tuple[DistanceName, ...] = ("cmmd",)
    """Distances to measure: `cmmd` with the model `clip`, `fid` with the model `inception`."""
    models: Mapping[str, AnyModel]
    """Models by role."""
    store: str = "store"
    """Folder or cloud prefix of the store. It keeps the features of all images; results are written to distances/ID/ in
    it, or in the run's folder.
    """
    cmmd_images: Annotated[int, at_least(100)] = 50_000
    """Maximum number of images per set that CMMD compares, because its time grows with their square; of a larger set, a
    random part of about this size is compared.
    """
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: ImageLimits = field(default_factory=ImageLimits)
    shard_rows: Positive | None = None
    """Maximum number of rows in a shard; null chooses it as for a sweep."""
    max_failed: Share = 0.01
    """Largest fraction of images without features that still gives exit code 2; above it, the exit code is 1."""
    dry_run: bool = False
    """True to print the plan and stop."""
    log: LogConfig = field(default_factory=LogConfig)
    """Log of each shard (docs/observing.md)."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not self.distances:
            raise ConfigError(
                f"distances: expected one or more of {', '.join(INPUTS)}, got none; write distances=[cmmd]"
            )
        for distance in self.distances:
            role = INPUTS[distance].role
            if role not in self.models:
                raise ConfigError(f"models: {distance} needs a model for role {role!r}; set +model@models.{role}=NAME")

    def make_sweep(self, benchmark: BenchmarkConfig) -> SweepConfig:
        """Return the sweep that computes the features of a set of images."""
        chains: dict[str, Metric] = {
            name: ImageFeatures(model=INPUTS[name].role, square=INPUTS[name].square) for name in self.distances
        }
        return SweepConfig(
            store=self.store,
            benchmark=benchmark,
            models={INPUTS[name].role: self.models[INPUTS[name].role] for name in self.distances},
            metrics=chains,
            cluster=self.cluster,
            storage=self.storage,
            limits=self.limits,
            shard_rows=self.shard_rows,
            max_failed=self.max_failed,
            dry_run=self.dry_run,
            log=self.log,
        )
