"""Configuration of an evaluation: a sweep with an image model, the generator to compare with, and a gate."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.pipelines.base.storage import convert_read_errors
from plumbline.pipelines.plans.sweep_config import SweepConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateConfig(SweepConfig):
    """Options of an evaluation: the checkpoint, the benchmark, the metrics, the baseline and the gate."""

    image_model: AnyModel
    """Image generator: a diffusers pipeline, or a service."""
    baseline: str | None = None
    """Generator with images in the same folder, such as an earlier checkpoint, that the checkpoint is compared with."""
    gate: str | None = None
    """Rules file that the checkpoint must pass (plugins/gates/README.md): a path or URL."""

    def __post_init__(self) -> None:
        SweepConfig.__post_init__(self)
        if self.baseline == self.name:
            raise ConfigError(
                f"baseline={self.baseline} is the checkpoint itself; name another generator, or set name=NAME"
            )

    @property
    def name(self) -> str:
        """Name of the checkpoint's generator and of its folder."""
        if self.pictures.name is not None:
            return self.pictures.name
        folder = Path(self.image_model.checkpoint).expanduser()
        return folder.resolve().name if folder.is_dir() else folder.name

    def make_sweep(self) -> SweepConfig:
        """Return the sweep that generates and scores the checkpoint's images."""
        sweep = SweepConfig(**{each.name: getattr(self, each.name) for each in fields(SweepConfig)})
        return replace(sweep, pictures=replace(self.pictures, name=self.name))

    def check_baseline(self) -> None:
        """Raise ConfigError if the folder with the checkpoint's images has no images from the baseline."""
        if self.baseline is None:
            return
        folder = self.storage.locate(str(self.benchmark.images))
        with convert_read_errors(folder, "benchmark.images"):
            try:
                names = [name for name in folder.list() if name[0] not in "._"]
            except FileNotFoundError:
                names = []
        if self.baseline not in names:
            raise ConfigError(
                f"baseline={self.baseline}: expected a generator with images in {folder}; "
                f"{suggest(self.baseline, names, 'evaluate that checkpoint first')}"
            )
