"""Options for exporting rewards."""

from dataclasses import asdict, dataclass, field
from typing import Any

from plumbline.operators.base.bounds import BoundsChecked, NonNegative, Positive, Share
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.images.generation_settings import COMPARE, SettingsPolicy
from plumbline.operators.rewards.combination import AnyReward
from plumbline.operators.rewards.formats import FORMATS
from plumbline.operators.rewards.selection import SelectionConfig
from plumbline.operators.rewards.values import StdKind
from plumbline.pipelines.base.storage import StorageConfig

EXPORT_VERSION = 1
"""Version of the exported files; increase it when the same run and options produce different files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardsConfig(BoundsChecked):
    store: str = "store"
    """Folder or cloud prefix of the store."""
    format: str
    """Name of the output format (docs/rewards.md lists them)."""
    output: str
    """Folder or cloud prefix for the export. `@run` is replaced with the run's id, as in data/pairs/@run, so that the
    same command works every night.
    """
    run: str = "latest"
    """Id of a run (see plumbline status); `latest` is the newest run."""
    reward: AnyReward = None
    """Name of a metric, or a combination of several, as for jobs.serve: {vqascore: 1, hpsv3: 0.5}, or {weights: {NAME:
    WEIGHT, ...}, unit: score, z_score or noise, join: sum, min or product, clip_parts: [LOW, HIGH], clip: [LOW, HIGH]}
    (docs/rewards.md). null sums all metrics of the run except image statistics, in units of their noise.
    """
    baseline: str | None = None
    """Run whose scores define the units of the reward: an id, or `latest`. null uses the exported run."""
    baseline_generator: str | None = None
    """Generator whose images define the units of the reward; null uses the images of all generators."""
    std: StdKind = "population"
    """Standard deviation for z-scores: `population` divides by n, `sample` by n - 1."""
    epsilon: NonNegative = 1e-4
    """Constant added to the standard deviation of z-scores, in units of the reward's noise."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    held_out: Share = 0.05
    """Fraction of the prompts that go to the split `test`, chosen by a hash of their text."""
    shard_rows: Positive = 256
    """Number of examples per shard; all images of a shard are in memory at the same time."""
    max_failed: Share = 0.01
    """Maximum fraction of examples that may be left out because an image cannot be read. Up to this fraction the exit
    code is 2, above it 1.
    """
    settings: SettingsPolicy = COMPARE
    """`compare` adds a note if examples may compare images of generators with different settings (docs/decide.md);
    `ignore` does not.
    """
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_known("format", self.format, FORMATS)
        if self.baseline_generator is not None and self.baseline is None:
            raise ConfigError(
                f"baseline_generator: expected baseline as well, got none; set it to a run with images from "
                f"{self.baseline_generator!r}"
            )

    def describe_content(self) -> dict[str, Any]:
        """Return the options that determine the content of the export, except the run."""
        values = asdict(self)
        for name in ("store", "output", "run", "max_failed", "settings", "storage"):
            del values[name]
        return values
