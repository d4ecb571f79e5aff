"""The summary and the pairs of scores that are all at hand."""

from collections.abc import Container, Mapping, Sequence

import pyarrow as pa

from plumbline.operators.comparison import Duel, duels
from plumbline.operators.run_scores import RunScores
from plumbline.operators.summary import Skills, Tally


def summarise(scores: pa.Table, skills: Mapping[str, Sequence[str]]) -> pa.Table:
    """Scores (schema SCORES) to the summary (schema SUMMARY)."""
    tally = Tally(Skills(skills.items()))
    tally.add(scores)
    return tally.summary()


def paired(
    scores: pa.Table,
    skills: Mapping[str, Sequence[str]] | None = None,
    falling: Container[str] = (),
    baseline: str = "",
) -> list[Duel]:
    """Every pair of generators of scores (schema SCORES) by all their metrics."""
    of_run = of_table(scores)
    return duels(of_run, of_run.metrics, Skills((skills or {}).items()), falling, baseline)


def of_table(table: pa.Table) -> RunScores:
    """A run's scores (schema SCORES) that are at hand, as reports read them."""
    return RunScores([lambda columns: table.select(list(columns))])
