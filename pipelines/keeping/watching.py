"""How far running sweeps are, as they say it in the store: for whoever watches from elsewhere."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.keeping.presence import signs
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.events import NodeProgress


@dataclass(frozen=True, kw_only=True, slots=True)
class StageState:
    """How far one node of a sweep is."""

    cells: int
    """All of its cells."""
    missing: int
    """Those that the sweep is to compute."""
    done: int
    """Those of them that it has computed."""
    rows: int
    failed_rows: int
    seconds: float
    """From the node's first cell to its last report."""
    calls: int = 0
    """Of its models that have been answered, also about cells that are at work."""

    @property
    def seconds_left(self) -> float | None:
        """At its rate so far; None before it has begun."""
        return self.seconds / self.done * max(self.missing - self.done, 0) if self.done else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSign:
    """What a sweep at work says of itself in the store."""

    run: str = ""
    """The id of its run; empty for one that makes no run."""
    benchmark: str = ""
    host: str = ""
    process: int = 0
    began: str = ""
    stages: Mapping[str, StageState] = field(default_factory=dict)
    """By node with something to compute."""


class RunningSweep(NamedTuple):
    """A sweep that is at work in a store."""

    said: SweepSign
    silent: float
    """Seconds since it said so."""


_SAID = TypeAdapter(SweepSign)


def progress_of(plan: Plan, progress: Mapping[str, NodeProgress]) -> dict[str, Any]:
    """What a sweep's sign says of its progress: a StageState by node with something to compute."""
    stages = {}
    for item in plan.nodes:
        if (state := progress.get(item.node.name)) is not None:
            stages[item.node.name] = StageState(
                cells=item.cells,
                missing=state.missing,
                done=state.cells,
                rows=state.rows,
                failed_rows=state.failed_rows,
                seconds=round(state.seconds, 1),
                calls=state.calls,
            )
    return {"stages": {name: asdict(state) for name, state in stages.items()}}


def running_sweeps(store: Store, now: float) -> list[RunningSweep]:
    """The sweeps at work, by the time they began; `now` is in seconds since 1970. A sign that is no sweep's is passed
    over.
    """
    running = []
    for sign in signs(store):
        with suppress(ValidationError):
            if sign.alive(now):
                running.append(RunningSweep(_SAID.validate_python(sign.content), max(0.0, now - sign.written)))
    return sorted(running, key=lambda sweep: sweep.said.began)
