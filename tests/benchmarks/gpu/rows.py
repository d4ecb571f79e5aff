"""A row of the table: what is measured of one model, what follows from it, and how it is told; without torch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

QUESTIONS = 10
"""About each image, where an image has several."""
DERIVED = ("times_peer_one", "times_peer_ten", "ten_to_one", "share_of_matmul", "stage_to_model")
COLUMNS = ("model", "weights", "tokens", "batches", "peer", "one text", "ten texts", "one/peer", "ten/peer", "ten/one",
           "Tflop/s", "of matmul", "stage/model", "differs", "memory")  # fmt: skip
UNITS = ("", "", "image + text", "image, pair", "pairs/s", "pairs/s", "pairs/s", "speed", "speed", "time", "", "share",
         "speed", "log", "")  # fmt: skip
WANTED = ("wanted", *[""] * 7, ">= 10", "<= 2", "", ">= 60%", ">= 0.95", "", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts:
    """How much is measured."""

    images: int = 64
    """Scored by us; also how many are encoded together at first, and how many pairs are answered together."""
    peer_pairs: int = 16
    """Scored one at a time."""
    repeats: int = 3
    """Of each measurement, whose median counts."""
    shards: int = 4
    """Of so many images each, for the whole stage."""


@dataclass(kw_only=True, slots=True)
class Measured:
    """One row of the table; rates are of pairs of an image and a text, by wall clock."""

    model: str
    shapes: str
    device: str = ""
    dtype: str = ""
    versions: str = ""
    parameters: int = 0
    image_tokens: int = 0
    """Of the prompt of one image, up to the image's last one; of CLIP-FlanT5 the image's alone."""
    question_tokens: int = 0
    image_batch: int = 0
    """What fits the memory, by halving."""
    pair_batch: int = 0
    matmul: float = 0.0
    """Measured rate of products of matrices in this precision, in operations a second."""
    peer: float = 0.0
    """Pairs a second, one pair at a time and its image encoded for it."""
    one: float = 0.0
    """Pairs a second, ours, with one text for each image."""
    ten: float = 0.0
    """The same with ten."""
    flops: int = 0
    """Of one pair, by tests/benchmarks/gpu/flops.py."""
    difference: float = 0.0
    """The largest between our log-probability of the answer's first token and the peer's, of the same pairs."""
    stage: float | None = None
    """Images a second through the whole stage."""
    memory: int = 0
    """The most bytes that the device held for tensors."""
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    """Why it was not measured."""

    @property
    def times_peer_one(self) -> float:
        return self.one / self.peer

    @property
    def times_peer_ten(self) -> float:
        return self.ten / self.peer

    @property
    def ten_to_one(self) -> float:
        """How much longer ten questions on an image take than one."""
        return QUESTIONS * self.one / self.ten

    @property
    def share_of_matmul(self) -> float:
        """The share of the measured rate that one question for each image reaches, all of its tokens being prefill."""
        return self.one * self.flops / self.matmul

    @property
    def stage_to_model(self) -> float | None:
        return None if self.stage is None else self.stage / self.one

    def record(self) -> dict[str, object]:
        """Its fields, with what follows from them."""
        return asdict(self) | ({} if self.error else {name: getattr(self, name) for name in DERIVED})

    def cells(self) -> tuple[str, ...]:
        stage = "-" if self.stage_to_model is None else f"{self.stage_to_model:.2f}"
        return (
            self.model,
            _short(self.parameters),
            f"{self.image_tokens} + {self.question_tokens}",
            f"{self.image_batch}, {self.pair_batch}",
            f"{self.peer:.2f}",
            f"{self.one:.2f}",
            f"{self.ten:.2f}",
            f"{self.times_peer_one:.1f}",
            f"{self.times_peer_ten:.1f}",
            f"{self.ten_to_one:.2f}",
            f"{self.matmul / 1e12:.3g}",
            f"{self.share_of_matmul:.1%}",
            stage,
            f"{self.difference:.1e}",
            f"{_short(self.memory)}B" if self.memory else "-",
        )


def _short(number: float) -> str:
    """With a unit: 7.6G, 71K."""
    unit = next((unit for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)) if number >= size), "")
    return f"{number / {'G': 1e9, 'M': 1e6, 'K': 1e3, '': 1}[unit]:.3g}{unit}"


def table(rows: Sequence[Measured]) -> str:
    """The rows side by side with what is wanted of them; below it, on what they were measured, and what was not."""
    measured = [row for row in rows if not row.error]
    cells = [COLUMNS, UNITS, *(row.cells() for row in measured), WANTED]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    about = [f"{row.shapes} shapes, random weights, {row.dtype}, {row.device}, {row.versions}" for row in measured]
    notes = [f"{row.model}: {note}" for row in measured for note in row.notes]
    failures = [f"{row.model}: not measured: {row.error}" for row in rows if row.error]
    return "\n".join([*lines, *dict.fromkeys(about), *notes, *failures])
