"""The processes of a distributed training run: each generates some of a step's images, and the first scores them."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

from plumbline.operators.base.errors import PlumblineError

T = TypeVar("T")
MAX_RANK_WAIT = timedelta(hours=6)
"""Maximum time that the other processes wait while the first one scores. PyTorch's own limit is 10 to 30 minutes."""


class RankError(PlumblineError):
    """Raised if another process of the training run failed in the same step, or did not take part in the step."""


class Ranks:
    """The processes of the training run, as seen from this process.

    Without torch.distributed, there is only this process.
    """

    @cached_property
    def group(self) -> Any:
        """Process group for communication between all processes on CPUs; None if there is only one process.

        The group is created at the first step, by all processes together; raises RankError if a process is missing.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return None
        try:
            dist.new_group(backend="gloo")  # waits for PyTorch's default time, not MAX_RANK_WAIT
        except dist.DistError as error:
            raise RankError(
                f"step: expected all {dist.get_world_size()} processes to call it, but some did not; call it on "
                "every process, not only on the first one"
            ) from error
        return dist.new_group(backend="gloo", timeout=MAX_RANK_WAIT)

    @property
    def rank(self) -> int:
        """Index of this process, from 0.

        Before torch.distributed is initialised, the index is read from the environment variable RANK.
        """
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return int(dist.get_rank())
        launched = os.environ.get("RANK", "")
        return int(launched) if launched.isdecimal() else 0

    @property
    def count(self) -> int:
        """Number of processes."""
        import torch.distributed as dist

        return 1 if self.group is None else int(dist.get_world_size())

    def compute_on_first_rank(self, compute: Callable[[], T]) -> T:
        """Compute a value on the first process and return it on every process; if that fails, every process raises."""
        import torch.distributed as dist

        if self.group is None:
            return compute()
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome = [compute(), None]
            except Exception as error:
                dist.broadcast_object_list([None, _describe_error(error)], src=0, group=self.group)
                raise
        dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise RankError(f"the first process failed: {outcome[1]}; its own message has the details")
        return outcome[0]  # type: ignore[no-any-return]

    def map_across_processes(self, items: Sequence[Any], compute: Callable[[Sequence[Any]], Sequence[T]]) -> list[T]:
        """Process each item on one of the processes; return all values on the first process, and none on the others.

        Every process gets the same number of items, because a model that is split over processes needs all of them for
        each of its calls. Some items are therefore processed twice. If one process fails, every process raises.
        """
        import torch.distributed as dist

        if self.group is None:
            return list(compute(items))
        filled = [*items, *(items[number % len(items)] for number in range(-len(items) % self.count))]
        own: tuple[Sequence[T], str] = ((), "")
        failure: Exception | None = None
        try:
            own = (compute(filled[self.rank :: self.count]), "")
        except Exception as error:
            own, failure = ((), _describe_error(error)), error
        gathered: list[Any] | None = [None] * self.count if self.rank == 0 else None
        dist.gather_object(own, gathered, dst=0, group=self.group)
        problems = self.compute_on_first_rank(lambda: [problem for _, problem in gathered or () if problem])
        if failure is not None:
            raise failure
        if problems:
            raise RankError(f"another process failed: {problems[0]}; its own message has the details")
        parts = [part for part, _ in gathered or ()]
        return [parts[number % self.count][number // self.count] for number in range(len(items))] if parts else []


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]
