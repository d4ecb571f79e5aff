"""What the questions of each kind come to, pooled over images, as benchmarks report their categories and levels."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

Kinds = Mapping[tuple[str, str], str | None]
"""By prompt_id and question_id, what a question asks about."""


class Pooled(NamedTuple):
    """The questions of one kind about one generator's images."""

    generator: str
    level: int
    """1 for what stands before the dash of a kind, 2 for the whole of a kind that has one."""
    kind: str
    mean: float
    n: int
    """Answers: of a row of several images each question has one, their mean."""


class KindPool:
    """The sums of the scores of questions, or of a judge's ratings, by generator and kind."""

    def __init__(self) -> None:
        self._scores: dict[tuple[str, int, str], list[float]] = defaultdict(list)

    def add(self, scores: pa.Table, kinds: Kinds) -> None:
        """Takes a table of scores (schema ELEMENT_SCORES); rows with an error and questions left out do not count."""
        for row in scores.to_pylist():
            if row["error"] is not None:
                continue
            for kind, score in _scored(row, kinds):
                for level, name in _levels(kind):
                    self._scores[row["generator"], level, name].append(score)

    def pooled(self) -> list[Pooled]:
        """By level, kind and generator."""
        rows = (
            Pooled(generator, level, kind, math.fsum(scores) / len(scores), len(scores))
            for (generator, level, kind), scores in self._scores.items()
        )
        return sorted(rows, key=lambda row: (row.level, row.kind, row.generator))


def _scored(row: Mapping[str, Any], kinds: Kinds) -> Iterator[tuple[str, float]]:
    """Each question, or rating, of an image that has a kind and a score."""
    if row["elements"] is None:
        yield from ((rating["name"].rstrip(" 0123456789"), rating["value"]) for rating in row["ratings"] or ())
        return
    for element in row["elements"]:
        kind = kinds.get((row["prompt_id"], element["question_id"]))
        if kind and element["score"] is not None:
            yield kind, element["score"]


def _levels(kind: str) -> list[tuple[int, str]]:
    broad, dash, _ = kind.partition("-")
    return [(1, broad.strip()), (2, kind)] if dash else [(1, kind)]
