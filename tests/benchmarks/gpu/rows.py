"""A row of the table: measurements of one model, derived numbers, and their format. This module does not need torch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

N_QUESTIONS = 10
"""Number of questions per image in measurements with several questions."""
DERIVED_NUMBERS = ("times_peer_one", "times_peer_ten", "ten_to_one", "share_of_matmul", "stage_to_model")
COLUMNS = ("model", "weights", "tokens", "batches", "peer", "ready peer", "one text", "ten texts", "one/peer",
           "ten/peer", "ten/one", "Tflop/s", "of matmul", "stage", "stage/model", "busy", "decoders", "differs",
           "memory")  # fmt: skip
UNITS = ("", "", "image + text", "image, pair", "pairs/s", "pairs/s", "pairs/s", "pairs/s", "speed", "speed", "time",
         "", "share", "images/s", "speed", "share", "", "log", "")  # fmt: skip
TARGETS = ("wanted", *[""] * 8, ">= 15", "", "", ">= 60%; XL 45%", "", ">= 0.95", *[""] * 4)


STAGE_FORMATS = ("{:.1f}", "{:.2f}", "{:.0%}", "{}")
MIN_SHARDS, MIN_STAGE_SECONDS = 4, 10
"""Minimum shards and seconds of a measured sweep, because no model works while the first shard is prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkAmounts:
    images: int = 64
    """Images that we score; also the initial number of images encoded together, and of pairs answered together."""
    peer_pairs: int = 16
    """Pairs scored one at a time."""
    repeats: int = 3
    """Repetitions of each measurement; the median is used."""
    shards: int | None = None
    """Number of shards of `images` images for the sweep.

    None means MIN_SHARDS or, for a full-size model, enough for MIN_STAGE_SECONDS.
    """


@dataclass(kw_only=True, slots=True)
class MeasuredModel:
    """One row of the table; rates are (image, text) pairs per wall-clock second."""

    model: str
    shapes: str
    device: str = ""
    dtype: str = ""
    versions: str = ""
    parameters: int = 0
    image_tokens: int = 0
    """Prompt tokens for one image, up to the image's last token; for CLIP-FlanT5 only the image's tokens."""
    question_tokens: int = 0
    image_batch: int = 0
    """Number of images encoded together: WorkAmounts.images, halved until the images fit into memory."""
    pair_batch: int = 0
    matmul: float = 0.0
    """Measured rate of matrix products in this precision, in floating-point operations per second."""
    peer: float = 0.0
    """Pairs per second of the released scripts' algorithm.

    It processes one pair at a time: the image is decoded, preprocessed and encoded for this pair alone, and the first
    token of a decoder-only model comes from `generate`.
    """
    ready_peer: float = 0.0
    """Pairs per second of the scripts' algorithm with preprocessed pixels, and one pass instead of `generate`."""
    one: float = 0.0
    """Our pairs per second with one text per image."""
    ten: float = 0.0
    """Our pairs per second with ten texts per image."""
    flops: int = 0
    """Floating-point operations for one pair of an image and a text, counted by tests/benchmarks/gpu/flops.py."""
    difference: float = 0.0
    """Largest difference between our and the peers' log-probability of the answer's first token, for the same pairs."""
    stage: float | None = None
    """Images per second from S3 to committed cells."""
    busy: float | None = None
    """Fraction of the sweep's time that the device was computing."""
    decoders: int | None = None
    """Number of images decoded in parallel."""
    memory: int = 0
    """Maximum bytes of tensors on the device."""
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    """Reason why the model was not measured."""

    @property
    def times_peer_one(self) -> float:
        return self.one / self.peer

    @property
    def times_peer_ten(self) -> float:
        return self.ten / self.peer

    @property
    def ten_to_one(self) -> float:
        """Return the time for ten questions about an image as a multiple of the time for one question."""
        return N_QUESTIONS * self.one / self.ten

    @property
    def share_of_matmul(self) -> float:
        """Return the operations per second with one question per image, as a fraction of the measured matmul rate."""
        return self.one * self.flops / self.matmul

    @property
    def stage_to_model(self) -> float | None:
        return None if self.stage is None else self.stage / self.one

    def record(self) -> dict[str, object]:
        """Return the fields and the derived numbers, keyed by name."""
        return asdict(self) | ({} if self.error else {name: getattr(self, name) for name in DERIVED_NUMBERS})

    def format_cells(self) -> tuple[str, ...]:
        stage = self.stage, self.stage_to_model, self.busy, self.decoders
        return (
            self.model,
            _format_number(self.parameters),
            f"{self.image_tokens} + {self.question_tokens}",
            f"{self.image_batch}, {self.pair_batch}",
            f"{self.peer:.2f}",
            f"{self.ready_peer:.2f}",
            f"{self.one:.2f}",
            f"{self.ten:.2f}",
            f"{self.times_peer_one:.1f}",
            f"{self.times_peer_ten:.1f}",
            f"{self.ten_to_one:.2f}",
            f"{self.matmul / 1e12:.3g}",
            f"{self.share_of_matmul:.1%}",
            *("-" if told is None else form.format(told) for told, form in zip(stage, STAGE_FORMATS, strict=True)),
            f"{self.difference:.1e}",
            f"{_format_number(self.memory)}B" if self.memory else "-",
        )


def _format_number(number: float) -> str:
    """Format a number with a unit, such as 7.6G or 71K."""
    unit = next((unit for unit, size in (("G", 1e9), ("M", 1e6), ("K", 1e3)) if number >= size), "")
    return f"{number / {'G': 1e9, 'M': 1e6, 'K': 1e3, '': 1}[unit]:.3g}{unit}"


def format_table(rows: Sequence[MeasuredModel]) -> str:
    """Return a table of the rows and their targets, followed by lines about the machine, notes and failures."""
    measured = [row for row in rows if not row.error]
    cells = [COLUMNS, UNITS, *(row.format_cells() for row in measured), TARGETS]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    about = [f"{row.shapes} shapes, random weights, {row.dtype}, {row.device}, {row.versions}" for row in measured]
    notes = [f"{row.model}: {note}" for row in measured for note in row.notes]
    failures = [f"{row.model}: not measured: {row.error}" for row in rows if row.error]
    return "\n".join([*lines, *dict.fromkeys(about), *notes, *failures])
