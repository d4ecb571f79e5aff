"""What befalls the sweeps of a soak, and when: drawn from a seed, so that the same seed draws the same."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.histories.damage import KINDS

DAMAGED = tuple(f"damaged-{kind.replace(' ', '-')}" for kind in KINDS)
"""Bits that turn, or an end that is lost, in a file of a kind."""

ANYWHERE = (
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
    *DAMAGED,
)
ON_S3 = ("s3-errors", "s3-slow", "s3-resets", "s3-truncated", "credentials-expire")
ON_DISK = ("disk-full",)
OPTIONS = ("", "", "limit=3", "adaptive=betting adaptive.range=[-1,1]")
"""Further options of a round's sweep; an adaptive sweep compares generators, and needs two."""
JOBS = ("rewards", "report", "export", "generate")
"""Jobs that read the run of a finished sweep; `generate` draws the prompts, and replaces damaged pictures."""
STORES = ("s3", "s3", "folder")
FIRST, LATER = (2, 4), (1, 2)
"""How many events befall the first sweep of a store, and one that follows it."""
SHARE_OF_JOBS = 0.4
LATEST_SHARE = 0.9
LONGEST_PAUSE = 3.0
SHORTEST, LONGEST = 1.0, 12.0


class Event(NamedTuple):
    """Something that befalls a sweep."""

    kind: str
    share: float
    """Of the cells that the sweep has to compute, those that stand when it comes; 0 at once."""
    pause: float
    """Seconds that it comes after that."""
    seconds: float
    """It lasts, where it lasts."""
    choice: float
    """From 0 to 1: which of the victims that there are at that moment."""


class Phase(NamedTuple):
    """A sweep over a benchmark in some state, until it is complete."""

    bench: str
    """fresh, grown (by a generator) or edited (a prompt)."""
    options: str
    """What the sweep is asked for besides, in words of its command line."""
    events: tuple[Event, ...]
    jobs: tuple[str, ...] = ()
    """What reads its run afterwards."""


class Round(NamedTuple):
    """Sweeps one after the other on a store of their own."""

    store: str
    """s3 or folder."""
    phases: tuple[Phase, ...]


def draw_rounds(seed: int) -> Iterator[Round]:
    """Rounds without end. Every kind comes once before any comes again, where its store allows."""
    chance = random.Random(seed)
    deck: list[str] = []
    while True:
        store = chance.choice(STORES)
        benches = ["fresh", *(bench for bench in ("grown", "edited") if chance.random() < 0.5)]
        phases = []
        for bench in benches:
            count = chance.randint(*(FIRST if bench == "fresh" else LATER))
            events = [_draw_event(chance, _draw_kind(chance, deck, store)) for _ in range(count)]
            options = chance.choice(OPTIONS[: 3 if bench == "fresh" else 4])
            jobs = tuple(job for job in JOBS if chance.random() < SHARE_OF_JOBS)
            if "adaptive" in options:
                jobs = tuple(job for job in jobs if job != "rewards")  # which refuses a subsample's scores
            phases.append(Phase(bench, options, tuple(sorted(events, key=lambda e: (e.share, e.pause))), jobs))
        yield Round(store, tuple(phases))


def _draw_kind(chance: random.Random, deck: list[str], store: str) -> str:
    """The uppermost card that suits the store; a deck that has none is laid on the rest anew."""
    suitable = {*ANYWHERE, *(ON_S3 if store == "s3" else ON_DISK)}
    if not suitable & set(deck):
        deck += chance.sample([*ANYWHERE, *ON_S3, *ON_DISK], len(ANYWHERE) + len(ON_S3) + len(ON_DISK))
    kind = next(kind for kind in deck if kind in suitable)
    deck.remove(kind)
    return kind


def _draw_event(chance: random.Random, kind: str) -> Event:
    return Event(
        kind=kind,
        share=max(0.0, round(chance.uniform(-0.3, LATEST_SHARE), 3)),
        pause=round(chance.uniform(0, LONGEST_PAUSE), 2),
        seconds=round(chance.uniform(SHORTEST, LONGEST), 2),
        choice=round(chance.random(), 3),
    )
