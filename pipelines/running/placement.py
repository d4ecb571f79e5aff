"""Which pools can stand on the cluster together: all at once, or in waves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from operators.errors import PlumblineError
from pipelines.running.pools import PoolConfig

SPARE_CPUS = 0.25
"""Left for Ray Data's own tasks: pools that take every CPU starve them and hang for ever."""
TOLERANCE = 1e-9


class PlacementError(PlumblineError):
    """A pool that the cluster cannot place, now or ever."""


class NodeResources(NamedTuple):
    """What one machine of the cluster offers."""

    cpus: float
    gpus: float


def plan_waves(pools: Mapping[str, PoolConfig], machines: Sequence[NodeResources]) -> list[list[str]]:
    """The pools, in their order, in as few consecutive waves as can each be placed together.

    Raises PlacementError for a pool that could not be placed even alone; nothing unplaceable is ever started.
    """
    waves: list[list[str]] = []
    for name, pool in pools.items():
        if not fits([pool], machines):
            raise PlacementError(_refusal(name, pool, machines))
        if waves and fits([*(pools[other] for other in waves[-1]), pool], machines):
            waves[-1].append(name)
        else:
            waves.append([name])
    return waves


def fits(pools: Sequence[PoolConfig], machines: Sequence[NodeResources]) -> bool:
    """Whether every pool's first actors can be placed at once: largest first, each where it leaves least over."""
    actors = [pool for pool in pools for _ in range(pool.min_size)]
    free = [_Room(machine.cpus, [1.0] * int(machine.gpus)) for machine in machines]
    for actor in sorted(actors, key=lambda pool: (pool.num_gpus, pool.num_cpus), reverse=True):
        room = next((room for room in sorted(free, key=_Room.size) if room.admits(actor)), None)
        if room is None:
            return False
        room.take(actor)
    return max((room.cpus for room in free), default=0.0) >= SPARE_CPUS - TOLERANCE


@dataclass(slots=True)
class _Room:
    """What is left of one machine; a share of a GPU cannot be put together from two."""

    cpus: float
    gpus: list[float]

    def size(self) -> tuple[float, float]:
        return (sum(self.gpus), self.cpus)

    def admits(self, actor: PoolConfig) -> bool:
        return self.cpus >= actor.num_cpus - TOLERANCE and self._chosen(actor) is not None

    def take(self, actor: PoolConfig) -> None:
        self.cpus -= actor.num_cpus
        for index in self._chosen(actor) or ():
            self.gpus[index] -= min(actor.num_gpus, 1.0)

    def _chosen(self, actor: PoolConfig) -> list[int] | None:
        """The GPUs an actor would get: as many whole ones as it wants, or the fullest that has room for its share."""
        count, share = (int(actor.num_gpus), 1.0) if actor.num_gpus >= 1 else (1, actor.num_gpus)
        if actor.num_gpus == 0:
            return []
        able = [index for index, left in enumerate(self.gpus) if left >= share - TOLERANCE]
        return sorted(able, key=lambda index: self.gpus[index])[:count] if len(able) >= count else None


def _refusal(name: str, pool: PoolConfig, machines: Sequence[NodeResources]) -> str:
    offered = ", ".join(f"{machine.cpus:g} CPUs and {machine.gpus:g} GPUs" for machine in machines) or "nothing"
    return (
        f"stage {name}: {pool.min_size} actor(s) of {pool.num_cpus:g} CPUs and {pool.num_gpus:g} GPUs cannot be "
        f"placed; the machines offer {offered}, of which {SPARE_CPUS:g} CPUs stay free for Ray Data. Lower "
        "cluster.pools' num_cpus, num_gpus or min_size, or use another cluster (cluster=local needs no GPU)"
    )
