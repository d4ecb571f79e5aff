"""Configuration of Ray: the cluster, and the resources of each stage."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import ClassVar, Literal

from plumbline.operators.base.bounds import BoundsChecked, Natural, NonNegative, Positive, Seconds
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.base.sentences import format_quantity


def is_ray_installed() -> bool:
    return find_spec("ray") is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig(BoundsChecked):
    """Actor pool of a stage, or of a single node: a stage with one of its models, such as `answers:vqa`."""

    section: ClassVar[str] = "pool."
    num_cpus: float = 1.0
    """Number of CPUs that each actor reserves."""
    num_gpus: float = 0.0
    """Number of GPUs that each actor reserves; with a fraction, several actors share a GPU."""
    accelerator_type: str | None = None
    """GPU type that the actors' machines must have, by Ray's name: `A100`, `H100`, `L4`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the actors' machines must have, in Ray's syntax: `spot`, `!spot`, `in(a, b)` or `!in(a, b)`."""
    min_size: int = 1
    """Number of actors that are started immediately."""
    max_size: int = 1
    """Maximum number of actors that the pool may grow to."""
    decoders: Positive | None = None
    """Number of images that each actor reads, decodes and preprocesses at once, independently of its reserved CPUs.
    Defaults to the machine's cores per GPU, or to `num_cpus` without a GPU.
    """
    threads: int | None = None
    """Number of Torch threads per actor; by default Torch chooses."""
    deadline: Seconds | None = 3600.0
    """Seconds allowed for reading a shard, or for computing 256 of its rows, before the process is killed; null waits
    forever.
    """

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.num_cpus <= 0 or self.num_gpus < 0:
            raise ConfigError(f"pool: expected num_cpus > 0 and num_gpus >= 0, got {self.num_cpus} and {self.num_gpus}")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ConfigError(f"pool.num_gpus: expected a fraction below 1 or a whole number, got {self.num_gpus}")
        if not 1 <= self.min_size <= self.max_size:
            raise ConfigError(f"pool: expected 1 <= min_size <= max_size, got {self.min_size} and {self.max_size}")

    def count_decoders(self, cpus: float, gpus: float) -> int:
        """Return the number of images that an actor decodes at once on a machine with these cores and GPUs."""
        cores = cpus * max(self.num_gpus, 1) / gpus if self.num_gpus and gpus else self.num_cpus
        return self.decoders or max(1, int(cores))

    def describe(self, *, decodes: bool) -> str:
        """Describe the number of workers and their resources, including decoders if the stage decodes images."""
        minimum = f"{self.min_size} to " if self.max_size > self.min_size else ""
        decoders = format_quantity(self.decoders, "decoder") if self.decoders else "a decoder for each of its CPU cores"
        resources = f"{self.num_gpus:g} GPU{f' and {decoders}' if decodes else ''}"
        workers = format_quantity(self.max_size, "worker")
        return f"{minimum}{workers}{', each' if self.max_size > 1 else ''} with {resources}"

    def drop_gpus(self) -> "PoolConfig":
        """Return the pool without GPUs; its actors can run on any machine that has the pool's labels."""
        return replace(self, num_gpus=0.0, accelerator_type=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig(BoundsChecked):
    """The cluster that stages run on, and the resources of each stage."""

    section: ClassVar[str] = "cluster."
    executor: Literal["here", "ray", "auto"] = "ray"
    """`here` computes in this process, without Ray; a crash or running out of memory ends the run. `auto` does the same
    for a small sweep, or for any sweep if Ray is not installed, unless `address` or RAY_ADDRESS specifies a cluster.
    """
    address: str | None = None
    """A running Ray cluster (`auto`, or host:port); null uses RAY_ADDRESS or, if that is not set, starts Ray locally.
    """
    num_cpus: int | None = None
    """Number of CPUs that a locally started Ray may use; by default all CPUs of the machine."""
    wait_seconds: NonNegative = 600.0
    """Maximum seconds to wait until the cluster has room for a pool, because its autoscaler may still be adding
    machines.
    """
    max_attempts: Positive = 5  # applied by pipelines/running/attempts.py
    """Number of workers that may die while computing a shard before the shard fails. After the first death, the shard
    is retried on its own. After the second, it is computed row by row, and each further death excludes the row that
    caused it.
    """
    driver_rows: Natural = 1_000_000
    """Maximum number of score rows of runs whose results and reports the driver computes itself. For larger runs, Ray
    workers compute results and reports, except with `here`, which has no workers.
    """
    bundle: Positive | None = None
    """Number of shards in a bundle, which a worker takes at once; at most 16. The default is small enough for each
    worker to get hundreds of bundles.
    """
    price_per_gpu_hour: NonNegative | None = None
    """Price of one GPU hour, for a sweep's total cost (docs/cost.md); null excludes GPUs from the total."""
    currency: str = "USD"
    """Currency of `price_per_gpu_hour`."""
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    """Pools by stage (`answers`) or node (`answers:vqa`); the pool of a node takes precedence over the pool of its
    stage.
    """
    default: PoolConfig = field(default_factory=PoolConfig)
    """The pool of stages that are not listed in `pools`."""

    def find_pool(self, node: str) -> PoolConfig:
        """Return the pool for a node, such as `answers:vqa`.

        This is the pool that is configured for the node, or else for the stage and role in its name, or else for the
        stage; if none of these is configured, it is the default pool.
        """
        stage, *rest = node.split(":")
        return next(
            (self.pools[name] for name in (node, ":".join([stage, *rest[:1]]), stage) if name in self.pools),
            self.default,
        )

    def check_pools(self, stages: Collection[str], roles: Collection[str]) -> None:
        """Raise ConfigError if the key of a pool is neither a stage nor a node, such as `answers:vqa`."""
        for name in self.pools:
            stage, _, role = name.partition(":")
            if stage not in stages or (role not in roles if ":" in name else False):
                nodes = [*stages, *(f"{stage}:{role}" for stage in stages for role in roles)]
                raise ConfigError(f"cluster.pools: no stage or node is called {name!r}; {suggest(name, nodes)}")
