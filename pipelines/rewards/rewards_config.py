"""What an export of rewards is asked for."""

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
"""To be raised when the same run and options make other files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardsConfig(BoundsChecked):
    """Of which run, in which format, by which reward."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    format: str
    """A name of operators/rewards/formats (docs/rewards.md has them all)."""
    output: str
    """Folder or cloud prefix; it holds one export. `@run` in it is the run's id, as data/pairs/@run, so that the same
    command serves every night."""
    run: str = "latest"
    """A run's id (plumbline status); `latest` is the newest."""
    reward: AnyReward = None
    """A metric's name, or several in one, as for jobs.serve: {vqascore: 1, hpsv3: 0.5}, or {weights: {NAME: WEIGHT,
    ...}, unit: score, z_score or noise, join: sum, min or product, clip_parts: [LOW, HIGH], clip: [LOW, HIGH]}
    (docs/rewards.md). null sums all metrics of the run but image statistics, in units of their noise."""
    baseline: str | None = None
    """A run of the store, by its id or `latest`, whose scores give the units of the reward; null takes the exported
    run's own."""
    baseline_generator: str | None = None
    """Whose images of the baseline; null takes all of its generators."""
    std: Std = "population"
    """Of z-scores: `population` divides by n, `sample` by n - 1."""
    epsilon: NotNegative = 1e-4
    """Added to the standard deviation of z-scores, in units of the metric's noise."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    held_out: Share = 0.05
    """Share of the prompts that go to the split `test`, by a hash of their text."""
    shard_rows: Positive = 256
    """Examples of a shard; their images are in memory together."""
    max_failed: Share = 0.01
    """Share of examples left out, because an image cannot be read, up to which the exit code is 2, not 1."""
    settings: Choice = COMPARE
    """`compare` says where images of generators with different settings may be set against each other
    (docs/decide.md); `ignore` does not."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_known("format", self.format, FORMATS)
        if self.baseline_generator is not None and self.baseline is None:
            raise ConfigError(
                f"baseline_generator: expected baseline=RUN beside {self.baseline_generator!r}, whose images are meant"
            )

    def semantic(self) -> dict[str, Any]:
        """All that decides what stands in the output, but for the run."""
        values = asdict(self)
        for name in ("store", "output", "run", "max_failed", "settings", "storage"):
            del values[name]
        return values
