"""Chooses at random, from a seed, which faults disturb the sweeps of a soak and when they occur."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.histories.damage import FILE_KINDS

DAMAGE_EVENTS = tuple(f"damaged-{kind.replace(' ', '-')}" for kind in FILE_KINDS)
"""Events that damage a file of each kind, by flipping bits or cutting off its end."""

EVENTS_ANYWHERE = (
    "driver-killed",
    "worker-killed",
    "worker-out-of-memory",
    "model-out-of-memory",
    "progress-log-killed",
    "raylet-killed",
    "node-lost",
    "node-leaves",
    "node-joins",
    "head-lost",
    "rival",
    *DAMAGE_EVENTS,
)
EVENTS_ON_S3 = ("s3-errors", "s3-slow", "s3-resets", "s3-truncated", "credentials-expire")
EVENTS_ON_DISK = ("disk-full",)
SWEEP_OPTIONS = ("", "", "limit=3", "adaptive=betting adaptive.range=[-1,1]")
"""Additional options of a round's sweep; an adaptive sweep compares generators, so it needs two."""
JOB_NAMES = ("rewards", "report", "export", "generate")
"""Jobs that read the run of a finished sweep; `generate` creates images for the prompts and replaces damaged ones."""
STORE_KINDS = ("s3", "s3", "folder")
FIRST_SWEEP_EVENTS, LATER_SWEEP_EVENTS = (2, 4), (1, 2)
"""Minimum and maximum number of events during the first sweep on a store, and during later sweeps."""
JOB_PROBABILITY = 0.4
MAX_EVENT_SHARE = 0.9
MAX_PAUSE_SECONDS = 3.0
MIN_EVENT_SECONDS, MAX_EVENT_SECONDS = 1.0, 12.0


class Event(NamedTuple):
    """A fault that occurs during a sweep."""

    kind: str
    share: float
    """Fraction of the sweep's missing cells that must be committed before the event; 0 means no wait."""
    pause: float
    """Seconds to wait between reaching this fraction and the event."""
    seconds: float
    """Duration of the event in seconds, for faults that last, such as network errors."""
    choice: float
    """Number from 0 to 1 that selects a target, such as one of the workers."""


class SweepPhase(NamedTuple):
    """A sweep over one state of the benchmark, repeated until it is complete."""

    bench: str
    """State of the benchmark: fresh, grown (with an additional generator) or edited (with a changed prompt)."""
    options: str
    """Additional command-line arguments of the sweep."""
    events: tuple[Event, ...]
    jobs: tuple[str, ...] = ()
    """Jobs that read the run after the sweep."""


class SoakRound(NamedTuple):
    """A sequence of sweeps on one store that no other round uses."""

    store: str
    """Kind of store: s3 or folder."""
    phases: tuple[SweepPhase, ...]


def draw_rounds(seed: int) -> Iterator[SoakRound]:
    """Yield rounds indefinitely. Each kind of event occurs once before any repeats, if the round's store allows it."""
    chance = random.Random(seed)
    deck: list[str] = []
    while True:
        store = chance.choice(STORE_KINDS)
        benches = ["fresh", *(bench for bench in ("grown", "edited") if chance.random() < 0.5)]
        phases = []
        for bench in benches:
            count = chance.randint(*(FIRST_SWEEP_EVENTS if bench == "fresh" else LATER_SWEEP_EVENTS))
            events = [_draw_event(chance, _draw_kind(chance, deck, store)) for _ in range(count)]
            options = chance.choice(SWEEP_OPTIONS[: 3 if bench == "fresh" else 4])
            jobs = tuple(job for job in JOB_NAMES if chance.random() < JOB_PROBABILITY)
            if "adaptive" in options:
                jobs = tuple(job for job in jobs if job != "rewards")  # it rejects the scores of a subsample
            phases.append(SweepPhase(bench, options, tuple(sorted(events, key=lambda e: (e.share, e.pause))), jobs))
        yield SoakRound(store, tuple(phases))


def _draw_kind(chance: random.Random, deck: list[str], store: str) -> str:
    """Remove from the deck the first kind of event that can occur in this kind of store, and return it.

    If the deck contains no such kind, all kinds are first added to the deck in random order.
    """
    suitable = {*EVENTS_ANYWHERE, *(EVENTS_ON_S3 if store == "s3" else EVENTS_ON_DISK)}
    if not suitable & set(deck):
        deck += chance.sample(
            [*EVENTS_ANYWHERE, *EVENTS_ON_S3, *EVENTS_ON_DISK],
            len(EVENTS_ANYWHERE) + len(EVENTS_ON_S3) + len(EVENTS_ON_DISK),
        )
    kind = next(kind for kind in deck if kind in suitable)
    deck.remove(kind)
    return kind


def _draw_event(chance: random.Random, kind: str) -> Event:
    return Event(
        kind=kind,
        share=max(0.0, round(chance.uniform(-0.3, MAX_EVENT_SHARE), 3)),
        pause=round(chance.uniform(0, MAX_PAUSE_SECONDS), 2),
        seconds=round(chance.uniform(MIN_EVENT_SECONDS, MAX_EVENT_SECONDS), 2),
        choice=round(chance.random(), 3),
    )
