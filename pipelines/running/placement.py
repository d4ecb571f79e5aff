"""Placement of pools on the cluster: all together, or in several waves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.cluster_config import PoolConfig

SPARE_CPUS = 0.25
"""CPUs left for Ray Data's own tasks. If pools took every CPU, these tasks could never run, and the pools would wait
forever.
"""
CPU_TOLERANCE = 1e-9


class PlacementError(PlumblineError):
    """Raised if a pool does not fit on the cluster's current machines."""

    def __init__(self, message: str, pool: PoolConfig) -> None:
        super().__init__(message)
        self.pool = pool


class NodeResources(NamedTuple):
    """Resources of one machine of the cluster."""

    cpus: float
    gpus: float
    accelerators: frozenset[str] = frozenset()
    """GPU types of the machine, in Ray's naming."""
    labels: Mapping[str, str] = {}

    def suits(self, pool: PoolConfig) -> bool:
        """Return True if the machine has the GPU type and labels that a pool needs, regardless of its current load."""
        if pool.accelerator_type is not None and pool.accelerator_type not in self.accelerators:
            return False
        for name, selector in pool.labels.items():
            wanted = selector.removeprefix("!")
            values = wanted[3:-1].split(",") if wanted.startswith("in(") else [wanted]
            if (self.labels.get(name) in [value.strip() for value in values]) == selector.startswith("!"):
                return False
        return True


def plan_waves(pools: Mapping[str, PoolConfig], machines: Sequence[NodeResources]) -> list[list[str]]:
    """Split the pools, in order, into as few waves as possible; raise PlacementError if a pool never fits."""
    waves: list[list[str]] = []
    for name, pool in pools.items():
        if not pools_fit([pool], machines):
            raise PlacementError(_explain_refusal(name, pool, machines), pool)
        if waves and pools_fit([*(pools[other] for other in waves[-1]), pool], machines):
            waves[-1].append(name)
        else:
            waves.append([name])
    return waves


def pools_fit(pools: Iterable[PoolConfig], machines: Sequence[NodeResources]) -> bool:
    """Return True if the first actors of all pools fit at the same time, placed best-fit, largest first.

    Ray does not reserve machines for actors that only fit on certain machines. To be sure that these selective actors
    still fit, this places all other actors first, on the machines that the selective actors need.
    """
    actors = [pool for pool in pools for _ in range(pool.min_size)]
    selective = [actor for actor in actors if not all(machine.suits(actor) for machine in machines)]
    free = [
        _FreeResources(
            machine, machine.cpus, [1.0] * int(machine.gpus), sum(machine.suits(actor) for actor in selective)
        )
        for machine in machines
    ]
    for actor in sorted(actors, key=lambda pool: (pool in selective, -pool.num_gpus, -pool.num_cpus)):
        best = next((each for each in sorted(free, key=_FreeResources.sort_key) if each.has_room_for(actor)), None)
        if best is None:
            return False
        best.allocate(actor)
    return max((each.cpus for each in free), default=0.0) >= SPARE_CPUS - CPU_TOLERANCE


@dataclass(slots=True)
class _FreeResources:
    """The free resources of one machine. A fractional GPU must come from a single GPU."""

    machine: NodeResources
    cpus: float
    gpus: list[float]
    n_selective: int
    """Number of selective actors that could run on this machine."""

    def sort_key(self) -> tuple[int, float, float]:
        return (-self.n_selective, sum(self.gpus), self.cpus)

    def has_room_for(self, actor: PoolConfig) -> bool:
        enough = self.cpus >= actor.num_cpus - CPU_TOLERANCE
        return enough and self.machine.suits(actor) and self._choose_gpus(actor) is not None

    def allocate(self, actor: PoolConfig) -> None:
        self.cpus -= actor.num_cpus
        for index in self._choose_gpus(actor) or ():
            self.gpus[index] -= min(actor.num_gpus, 1.0)

    def _choose_gpus(self, actor: PoolConfig) -> list[int] | None:
        """Return GPUs for an actor: free GPUs or, for a fraction, the fullest GPU with room; None if too few exist."""
        if actor.num_gpus == 0:
            return []
        count, fraction = (int(actor.num_gpus), 1.0) if actor.num_gpus >= 1 else (1, actor.num_gpus)
        able = [index for index, free in enumerate(self.gpus) if free >= fraction - CPU_TOLERANCE]
        return sorted(able, key=lambda index: self.gpus[index])[:count] if len(able) >= count else None


def _explain_refusal(name: str, pool: PoolConfig, machines: Sequence[NodeResources]) -> str:
    able = [machine for machine in machines if machine.suits(pool)]
    kind = "".join(f" with {label}={selector}" for label, selector in pool.labels.items())
    gpus = f"{pool.num_gpus:g} {pool.accelerator_type or ''} GPUs".replace("  ", " ")
    offered = ", ".join(f"{machine.cpus:g} CPUs and {machine.gpus:g} GPUs" for machine in able) or "nothing"
    return (
        f"stage {name}: {pool.min_size} actor(s) of {pool.num_cpus:g} CPUs and {gpus}{kind} cannot be "
        f"placed; the machines{' of that kind' if able != list(machines) else ''} offer {offered}, of which "
        f"{SPARE_CPUS:g} CPUs stay free for Ray Data. Lower cluster.pools' num_cpus, num_gpus or min_size, or use "
        "another cluster (cluster=local needs no GPU)"
    )
