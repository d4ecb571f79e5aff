"""Where stages run, and how much of it each may take."""

from collections.abc import Mapping
from dataclasses import dataclass

from operators.errors import ConfigError
from operators.stages.table import STAGES


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig:
    """One stage's actor pool."""

    num_cpus: float = 1.0
    """CPUs each actor reserves."""
    num_gpus: float = 0.0
    """GPUs each actor reserves; fractions share one."""
    min_size: int = 1
    """Actors started at once."""
    max_size: int = 1
    """Actors the pool may grow to."""
    threads: int | None = None
    """Torch threads per actor; torch's own choice by default."""
    deadline: float | None = 3600.0
    """Seconds that reading or computing one shard may take before its process is ended; null waits for ever."""

    def __post_init__(self) -> None:
        if self.num_cpus <= 0 or self.num_gpus < 0:
            raise ConfigError(f"pool: num_cpus must be > 0 and num_gpus >= 0, got {self.num_cpus} and {self.num_gpus}")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ConfigError(f"pool.num_gpus: above 1 only whole GPUs can be given, got {self.num_gpus}")
        if self.deadline is not None and self.deadline <= 0:
            raise ConfigError(f"pool.deadline: expected seconds above 0 or null, got {self.deadline}")
        if not 1 <= self.min_size <= self.max_size:
            raise ConfigError(f"pool: expected 1 <= min_size <= max_size, got {self.min_size} and {self.max_size}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """Where the stages run and how much of it each may take."""

    address: str | None = None
    """A running Ray cluster (`auto`, or host:port); null takes RAY_ADDRESS, or else starts a local Ray."""
    num_cpus: int | None = None
    """CPUs a locally started Ray counts with; all of the machine's by default."""
    max_attempts: int = 5
    """How often a worker may die on a shard before it is given up; after the first time it goes row by row."""
    pools: Mapping[str, PoolConfig]
    """One pool per stage."""

    def __post_init__(self) -> None:
        for stage in STAGES:
            if stage not in self.pools:
                raise ConfigError(f"cluster.pools: no pool for stage {stage!r}; add one")
        if self.max_attempts < 1:
            raise ConfigError(f"cluster.max_attempts: expected at least 1, got {self.max_attempts}")
