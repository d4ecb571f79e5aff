"""What an export of rewards is asked for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from plumbline.operators.bounds import Checked, NotNegative, Positive, Share
from plumbline.operators.errors import ConfigError, check_known
from plumbline.operators.rewards.formats import FORMATS
from plumbline.operators.rewards.selection import SelectionConfig
from plumbline.operators.rewards.values import Combine, Std
from plumbline.pipelines.base.storage import StorageConfig

VERSION = 2
"""To be raised when the same run and options make other files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardsConfig(Checked):
    """Of which run, in which format, by which reward."""

    store: str = "store"
    """Folder or s3:// prefix of the store."""
    format: str
    """A name of operators/rewards/formats (docs/rewards.md has them all)."""
    output: str
    """Folder or s3:// prefix; it holds one export. `@run` in it is the run's id, as data/pairs/@run, so that the same
    command serves every night."""
    run: str = "latest"
    """A run's id (python -m jobs.status); `latest` is the newest."""
    metrics: tuple[str, ...] | Mapping[str, float] | None = None
    """The metrics that the reward is made of, [NAME, ...] or {NAME: WEIGHT, ...}; null takes all of the run's but image
    statistics."""
    combine: Combine = "normalise_then_sum"
    """How several metrics become one reward (operators/rewards/values.py)."""
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
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        check_known("format", self.format, FORMATS)
        if self.metrics is not None and not self.metrics:
            raise ConfigError("metrics: expected at least one, or null for all of the run's; got none")
        for metric, weight in self.weights(()).items():
            if not 0 < weight < float("inf"):
                raise ConfigError(
                    f"metrics.{metric}: expected a weight above 0, got {weight:g}; a metric's direction is known"
                )

    def weights(self, of_run: tuple[str, ...]) -> dict[str, float]:
        """By metric its weight; raises ConfigError for one that the run does not have."""
        if isinstance(self.metrics, Mapping):
            return dict(self.metrics)
        return dict.fromkeys(of_run if self.metrics is None else self.metrics, 1.0)

    def semantic(self) -> dict[str, Any]:
        """All that decides what stands in the output, but for the run."""
        values = asdict(self)
        for name in ("store", "output", "run", "max_failed", "storage"):
            del values[name]
        return values
