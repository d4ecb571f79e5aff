"""Configuration of Ray: the cluster, and the resources of each stage."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from plumbline.operators.base.bounds import BoundsChecked, Natural, NotNegative, Positive, Seconds
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.base.sentences import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig(BoundsChecked):
    """The actor pool of a stage, or of one node of it."""

    section: ClassVar[str] = "pool."
    num_cpus: float = 1.0
    """CPUs each actor reserves."""
    num_gpus: float = 0.0
    """GPUs each actor reserves; fractions share one."""
    accelerator_type: str | None = None
    """The kind of GPU that the actors' machines must have, as Ray names it: `A100`, `H100`, `L4`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the actors' machines must carry, as Ray selects them: `spot`, `!spot`, `in(a, b)` or `!in(a, b)`."""
    min_size: int = 1
    """Actors started at once."""
    max_size: int = 1
    """Actors the pool may grow to."""
    decoders: Positive | None = None
    """Number of images that each actor reads, decodes and preprocesses at once, independent of its reserved CPUs. By
    default the machine's cores per GPU, or `num_cpus` without a GPU."""
    threads: int | None = None
    """Torch threads per actor; torch's own choice by default."""
    deadline: Seconds | None = 3600.0
    """Seconds that reading a shard, or computing 256 of its rows, may take before its process is ended; null waits for
    ever."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.num_cpus <= 0 or self.num_gpus < 0:
            raise ConfigError(f"pool: num_cpus must be > 0 and num_gpus >= 0, got {self.num_cpus} and {self.num_gpus}")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ConfigError(f"pool.num_gpus: above 1 only whole GPUs can be given, got {self.num_gpus}")
        if not 1 <= self.min_size <= self.max_size:
            raise ConfigError(f"pool: expected 1 <= min_size <= max_size, got {self.min_size} and {self.max_size}")

    def decoders_on(self, cpus: float, gpus: float) -> int:
        """Return the number of images that an actor decodes at the same time on a machine with these cores and GPUs."""
        cores = cpus * max(self.num_gpus, 1) / gpus if self.num_gpus and gpus else self.num_cpus
        return self.decoders or max(1, int(cores))

    def describe(self, *, decodes: bool) -> str:
        """Return the number of workers and their resources in one line, with decoders if the stage decodes images."""
        minimum = f"{self.min_size} to " if self.max_size > self.min_size else ""
        decoders = plural(self.decoders, "decoder") if self.decoders else "a decoder for each core of its GPU"
        resources = f"{self.num_gpus:g} GPU{f' and {decoders}' if decodes else ''}"
        return f"{minimum}{plural(self.max_size, 'worker')}{', each' if self.max_size > 1 else ''} with {resources}"

    def drop_gpus(self) -> "PoolConfig":
        """Return the pool without GPUs, on any machine with its labels."""
        return replace(self, num_gpus=0.0, accelerator_type=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig(BoundsChecked):
    """The cluster that stages run on, and the resources of each stage."""

    section: ClassVar[str] = "cluster."
    executor: Literal["here", "ray", "auto"] = "ray"
    """`here` computes in this process, without Ray: a crash, or too little memory, ends the run. `auto` does so for a
    small sweep unless `address` or RAY_ADDRESS names a Ray cluster."""
    address: str | None = None
    """A running Ray cluster (`auto`, or host:port); null uses RAY_ADDRESS, or starts a local Ray if that is not set."""
    num_cpus: int | None = None
    """CPUs a locally started Ray counts with; all of the machine's by default."""
    wait_seconds: NotNegative = 600.0
    """Maximum seconds to wait until a given cluster can place a pool, as its autoscaler may be adding machines."""
    max_attempts: Positive = 5  # applied by pipelines/running/attempts.py
    """Number of workers that may die on a shard before it is given up. After the first death the whole shard is
    repeated by itself; after the second it is computed row by row, and each death leaves out the row that it names."""
    driver_rows: Natural = 1_000_000
    """Maximum rows of scores for which the driver makes results and reports itself; above it, Ray's workers do. `here`
    has no workers, so the driver always does."""
    bundle: Positive | None = None
    """Number of shards that a worker takes at a time, 16 at most; by default few enough for hundreds of turns each."""
    price_per_gpu_hour: NotNegative | None = None
    """Price of one GPU for an hour, for a sweep's totals (docs/cost.md); null leaves GPUs out of them."""
    currency: str = "USD"
    """Currency of this price."""
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    """Pools by stage (`answers`) or node (`answers:vqa`); the pool of a node is preferred to that of its stage."""
    default: PoolConfig = field(default_factory=PoolConfig)
    """The pool of a stage that `pools` does not name."""

    def pool(self, node: str) -> PoolConfig:
        """Return the pool of a node: by the node's name, else by its stage and role, else by its stage."""
        stage, *rest = node.split(":")
        return next(
            (self.pools[name] for name in (node, ":".join([stage, *rest[:1]]), stage) if name in self.pools),
            self.default,
        )

    def check_pools(self, stages: Collection[str], roles: Collection[str]) -> None:
        """Raise ConfigError for a pool whose name is neither a stage nor a stage with a model's role."""
        for name in self.pools:
            stage, _, role = name.partition(":")
            if stage not in stages or (role not in roles if ":" in name else False):
                nodes = [*stages, *(f"{stage}:{role}" for stage in stages for role in roles)]
                raise ConfigError(f"cluster.pools: no stage or node is called {name!r}; {suggest(name, nodes)}")
