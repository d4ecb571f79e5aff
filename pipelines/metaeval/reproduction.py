"""Published numbers, recomputed from the releases' own files, and the page that compares both."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from jinja2 import Environment, StrictUndefined

from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.metaeval.metaeval import judge, open_release
from plumbline.pipelines.metaeval.published_graphs import graph_numbers
from plumbline.pipelines.metaeval.published_numbers import PublishedNumber, ReproductionConfig

POINT = Sampling(resamples=1, permutations=1)
"""Published numbers have no intervals, so nothing is resampled."""
FOLDER = Path(__file__).parent
PUBLISHED = FOLDER / "published.csv"
"""Published numbers that a protocol computes, as printed. Those of T2IScoreScore are results of
src/T2IScoreScore/evaluators (michaelsaxon/T2IScoreScore, commit 93ebf89, April 2025): of a metric with all scores, and
of four that lack a score, overall and for the subset of graph 164."""
MAX_NAMED_COLUMNS = 8
"""Tables with more columns have numbered rows and columns."""


def reproduce(config: ReproductionConfig) -> list[PublishedNumber]:
    """Compare every published number with ours; raise SourceError if a file is missing or damaged."""
    by_protocol = dict(list(pd.read_csv(PUBLISHED, dtype=str, keep_default_na=False).groupby("protocol", sort=False)))
    error_graphs = by_protocol.pop("t2iscorescore")
    return [
        *(check for name, numbers in by_protocol.items() for check in _computed(config, str(name), numbers)),
        *graph_numbers(config),
        *_computed(config, "t2iscorescore", error_graphs),
    ]


def _computed(config: ReproductionConfig, name: str, numbers: pd.DataFrame) -> Iterator[PublishedNumber]:
    """Compare numbers of PUBLISHED with what their protocol computes from the release's own scores."""
    protocol = config.protocols[name]
    release = open_release(protocol, config.storage)
    judgements = judge(protocol, release, release.scores, POINT).judgements
    ours = {(judged.metric, judged.statistic, judged.group): judged.value for judged in judgements}
    for row in numbers.itertuples():
        decimals = len(row.published.partition(".")[2])
        value = int(row.scale) * ours[row.metric, row.statistic, row.subset]
        check = PublishedNumber(row.paper, row.group, row.row, row.column, float(row.published), value, decimals)
        yield check.explained(row.reason)


def write_reproduction(checks: Sequence[PublishedNumber], config: ReproductionConfig) -> None:
    """Write the comparison as Markdown."""
    place = config.storage.locate(config.output, writable=True)
    place.write(reproduction_text(checks).encode())


class _Total(NamedTuple):
    """Number of a paper's numbers that match."""

    paper: str
    met: int
    numbers: int


class _Table(NamedTuple):
    """The numbers of one table or figure, as text."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


def reproduction_text(checks: Sequence[PublishedNumber]) -> str:
    """Return the comparison as Markdown: totals by paper, numbers that do not match, and all numbers."""
    environment = Environment(trim_blocks=True, undefined=StrictUndefined)
    template = environment.from_string((FOLDER / "reproduction.md.j2").read_text("utf-8"))
    papers, tables = _group(checks, lambda check: check.paper), _group(checks, lambda check: check.table)
    return template.render(
        checks=checks,
        unmatched=[check for check in checks if not check.matches],
        totals=[_Total(paper, sum(check.matches for check in own), len(own)) for paper, own in papers.items()],
        tables=[_table(title, own) for title, own in tables.items()],
    )


def _group(
    checks: Sequence[PublishedNumber], key: Callable[[PublishedNumber], str]
) -> dict[str, list[PublishedNumber]]:
    groups: dict[str, list[PublishedNumber]] = {}
    for check in checks:
        groups.setdefault(key(check), []).append(check)
    return groups


def _table(title: str, checks: Sequence[PublishedNumber]) -> _Table:
    """Return the published table, with different numbers of ours in brackets, or in a column if it has a single one."""
    if not checks[0].column:
        lines = [(check.row, _text(check, check.published), _text(check, check.ours)) for check in checks]
        return _Table(title, ("", "published", "ours"), lines)
    cells = {(check.row, check.column): _cell(check) for check in checks}
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    if len(columns) <= MAX_NAMED_COLUMNS:
        return _Table(title, ("", *columns), _lines(rows, columns, cells))
    names = list(dict.fromkeys([*columns, *rows]))
    numbered = [(f"{number} {line[0]}", *line[1:]) for number, line in enumerate(_lines(names, names, cells), 1)]
    return _Table(title, ("", *map(str, range(1, len(names) + 1))), numbered)


def _lines(rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], str]) -> list[tuple[str, ...]]:
    return [(row, *(cells.get((row, column), "") for column in columns)) for row in rows]


def _cell(check: PublishedNumber) -> str:
    published = _text(check, check.published)
    return published if check.matches else f"{published} ({_text(check, check.ours)})"


def _text(check: PublishedNumber, value: float) -> str:
    return f"{value:.{check.decimals}f}"
