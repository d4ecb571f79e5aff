"""Options of an export of rewards."""

from dataclasses import asdict, dataclass, field
from typing import Any

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Positive, Share
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.images.generation_settings import COMPARE, Choice
from plumbline.operators.rewards.combination import AnyReward
from plumbline.operators.rewards.formats import FORMATS
from plumbline.operators.rewards.selection import SelectionConfig
from plumbline.operators.rewards.values import Std
from plumbline.pipelines.base.storage import StorageConfig

VERSION = 1
"""Version of the exported files; increase it if the same run and options give other files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardsConfig(BoundsChecked):
    """Options of an export of rewards."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    format: str
    """A format's name (docs/rewards.md lists them)."""
    output: str
    """Folder or cloud prefix of the export. `@run` is replaced by the run's id, as in data/pairs/@run, so that the same
    command works every night."""
    run: str = "latest"
    """A run's id (plumbline status); `latest` is the newest."""
    reward: AnyReward = None
    """A metric's name, or a combination of several, as for jobs.serve: {vqascore: 1, hpsv3: 0.5}, or {weights: {NAME:
    WEIGHT, ...}, unit: score, z_score or noise, join: sum, min or product, clip_parts: [LOW, HIGH], clip: [LOW, HIGH]}
    (docs/rewards.md). null sums all metrics of the run except image statistics, in units of their noise."""
    baseline: str | None = None
    """A run of the store, by its id or `latest`, whose scores define the units of the reward; null uses the exported
    run."""
    baseline_generator: str | None = None
    """Generator whose images of the baseline are used; null uses all generators."""
    std: Std = "population"
    """Standard deviation of z-scores: `population` divides by n, `sample` by n - 1."""
    epsilon: NotNegative = 1e-4
    """Added to the standard deviation of z-scores, in units of the reward's noise."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    held_out: Share = 0.05
    """Fraction of the prompts in the split `test`, chosen by a hash of their text."""
    shard_rows: Positive = 256
    """Number of examples in a shard; their images are in memory together."""
    max_failed: Share = 0.01
    """Largest fraction of examples left out, because an image cannot be read, for which the exit code is 2, not 1."""
    settings: Choice = COMPARE
    """`compare` notes if examples may compare images of generators with different settings (docs/decide.md); `ignore`
    does not."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_known("format", self.format, FORMATS)
        if self.baseline_generator is not None and self.baseline is None:
            raise ConfigError(
                f"baseline_generator: expected baseline=RUN too, the run with images of {self.baseline_generator!r}"
            )

    def semantic(self) -> dict[str, Any]:
        """Return the options that decide the content of the output, except the run."""
        values = asdict(self)
        for name in ("store", "output", "run", "max_failed", "settings", "storage"):
            del values[name]
        return values
