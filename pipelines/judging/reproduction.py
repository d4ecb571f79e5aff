"""Published numbers beside ours: what the releases' own files give by the published conventions, and where it
differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined

from plumbline.operators.errors import ConfigError
from plumbline.operators.judging.graphs import measure_graphs
from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.judging.accumulation import AccumulateConfig, accumulated
from plumbline.pipelines.judging.metaeval import judge, open_release
from plumbline.pipelines.judging.protocols import ProtocolConfig
from plumbline.pipelines.judging.releases.sheets import Sheet, read_sheet

POINT = Sampling(resamples=1, permutations=1)
"""The published numbers have no intervals."""
CLOSE = 1e-9
"""How near the released per-graph numbers are met."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproductionConfig:
    """Where the published files lie, and where the comparison goes."""

    reference: str
    """The folder of published files, which the protocols' paths are below."""
    output: str = "docs/reproduction.md"
    """The Markdown file to write."""
    protocols: Mapping[str, ProtocolConfig]
    """By name. Of GenAI-Bench rating_range is null: the published numbers count two typing errors, ratings of 41 and
    33."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not self.reference:
            raise ConfigError("reference: set REFERENCE_DATA, or reference=PATH, to the folder of published files")


class PublishedNumber(NamedTuple):
    """A published number beside ours."""

    group: str
    name: str
    published: float
    ours: float
    decimals: int
    """As published."""
    reason: str = ""
    """Where it does not match: why."""

    @property
    def matches(self) -> bool:
        """Whether ours rounds to what was published; for per-graph numbers, whether it is as near as CLOSE."""
        tolerance = 0.5 * 10**-self.decimals
        return bool(abs(self.ours - self.published) <= tolerance * (1 + 1e-9))


FOLDER = Path(__file__).parent
PUBLISHED = FOLDER / "published.csv"
"""Numbers that a protocol computes, as printed. Those of T2IScoreScore come of running src/T2IScoreScore/evaluators of
michaelsaxon/T2IScoreScore (commit 93ebf89, April 2025): of a metric that has every score, and of four that lack one,
overall and where graph 164 counts."""
PER_GRAPH = {"spearman": "spearman_corrs", "kendall": "kendall", "separation": "kstest", "delta": "delta"}
"""The released files of per-graph numbers, by measure."""
TABLE_2 = {"rho": "spearman", "ks": "separation"}
TITLES = {"spearman": "Ordering", "separation": "Separation"}
PRINTED_DIGITS = 1e-6
"""How near the released scores of images are met: they have nine digits."""
PRINTED_ELSEWHERE = (
    "the release's own per-graph file gives {released:.1f}, as we do; the printed column was made from other scores"
)
SEG_65 = (
    "graph 65: the released score counts question 3 though its parent is answered wrongly; the parents released "
    "beside it say that it must not"
)


def reproduce(config: ReproductionConfig) -> list[PublishedNumber]:
    """Every published number beside ours; raises SourceError where a file is missing or damaged."""
    by_protocol = dict(list(pd.read_csv(PUBLISHED, dtype=str).groupby("protocol", sort=False)))
    error_graphs = by_protocol.pop("t2iscorescore")
    return [
        *(check for name, numbers in by_protocol.items() for check in _computed(config, name, numbers)),
        *_error_graphs(config),
        *_computed(config, "t2iscorescore", error_graphs),
        *_accumulation(config),
    ]


def _computed(config: ReproductionConfig, name: str, numbers: pd.DataFrame) -> Iterator[PublishedNumber]:
    """Numbers of PUBLISHED beside what their protocol finds in the release's own scores."""
    protocol = config.protocols[name]
    release = open_release(protocol, config.storage)
    judgements = judge(protocol, release, release.scores, POINT).judgements
    ours = {(judged.metric, judged.statistic, judged.subset): judged.value for judged in judgements}
    for row in numbers.itertuples():
        decimals = len(row.published.partition(".")[2])
        value = int(row.scale) * ours[row.metric, row.statistic, row.subset]
        yield PublishedNumber(row.group, row.name, float(row.published), value, decimals)


def _error_graphs(config: ReproductionConfig) -> Iterator[PublishedNumber]:
    """T2IScoreScore's per-graph numbers, and its table 2."""
    protocol = config.protocols["t2iscorescore"]
    release = open_release(protocol, config.storage)
    measured = measure_graphs(release.graph_nodes, release.scores, "published")
    released = {measure: _released(_sheet(config, f"ts2_perseg_{file}")) for measure, file in PER_GRAPH.items()}
    for measure, numbers in released.items():
        yield _per_graph(measured, measure, numbers)
    printed = _sheet(config, "ts2_table2_printed")
    averaged = measured[~measured["graph_id"].isin(protocol.unpublished)]
    columns = (printed.texts("measure"), printed.texts("subset"), printed.texts("metric"), printed.numbers("value"))
    for table_measure, subset, metric, value in zip(*columns, strict=True):
        column = TABLE_2[str(table_measure)]
        rows = averaged if subset == "all" else averaged[averaged["subset"] == subset]
        of_metric = rows[rows["metric"] == metric]
        sign = -1 if column == "spearman" and metric not in protocol.falling else 1
        ours = 100 * sign * float(of_metric[column].mean())
        name, group = f"{metric}, {subset}", f"T2IScoreScore, table 2, {TITLES[column]} (%)"
        their_own = 100 * sign * float(released[column].loc[of_metric["graph_id"], str(metric)].mean())
        reason = PRINTED_ELSEWHERE.format(released=their_own) if abs(their_own - ours) < CLOSE else ""
        yield _explained(PublishedNumber(group, name, value.as_py(), ours, 1), reason)


def _explained(check: PublishedNumber, reason: str) -> PublishedNumber:
    return check if check.matches else check._replace(reason=reason)


def _sheet(config: ReproductionConfig, name: str) -> Sheet:
    return read_sheet(config.storage.locate(f"{config.protocols['t2iscorescore'].path}/{name}.csv"))


def _released(sheet: Sheet) -> pd.DataFrame:
    """A released file of per-graph numbers, graphs down and metrics across."""
    columns = {name: sheet.numbers(name).to_pylist() for name in sheet.names[1:]}
    return pd.DataFrame(columns, index=sheet.texts(sheet.names[0]))


def _per_graph(measured: pd.DataFrame, measure: str, released: pd.DataFrame) -> PublishedNumber:
    """How many of a released file's numbers we meet to CLOSE."""
    ours = measured.pivot(index="graph_id", columns="metric", values=measure)
    difference = (ours.loc[released.index, released.columns] - released).abs()
    met = int((difference <= CLOSE).to_numpy().sum())
    name = f"{measure} of every graph and metric: numbers met to {CLOSE:g}"
    return PublishedNumber(f"T2IScoreScore, per graph, {len(released.columns)} metrics", name, released.size, met, 0)


def _accumulation(config: ReproductionConfig) -> Iterator[PublishedNumber]:
    """DSG scores of every image from the correctness of every question, by recursive zeroing."""
    scores = _sheet(config, "ts2_scores_per_image")
    rows = {name: row for row, name in enumerate(_sheet(config, "ts2_metadata").ids("file_name"))}
    folder = config.protocols["t2iscorescore"].path
    answers = AccumulateConfig(
        answers=folder, format="t2iscorescore", output="", accumulation="recursive", storage=config.storage
    )
    frame = accumulated(answers).scores.to_pandas()
    group = "T2IScoreScore, DSG scores from the correctness of questions, recursive zeroing"
    for metric, ours in frame.groupby("metric", sort=False):
        model = str(metric).removesuffix("_dsg")
        released = np.asarray(scores.numbers(str(metric)))[ours["image_id"].map(rows)]
        unmet = ours[(ours["score"] - released).abs() > PRINTED_DIGITS]
        check = PublishedNumber(group, f"{model}: images whose score is met", len(ours), len(ours) - len(unmet), 0)
        yield _explained(check, SEG_65 if set(unmet["prompt_id"]) == {"65"} else "")


def write_reproduction(checks: Sequence[PublishedNumber], config: ReproductionConfig) -> None:
    """Writes the comparison as Markdown."""
    place = config.storage.locate(config.output, writable=True)
    place.write(reproduction_text(checks).encode())


def reproduction_text(checks: Sequence[PublishedNumber]) -> str:
    """The comparison as Markdown: first what does not match, then every number."""
    environment = Environment(trim_blocks=True, undefined=StrictUndefined)
    template = environment.from_string((FOLDER / "reproduction.md.j2").read_text("utf-8"))
    unmatched = [check for check in checks if not check.matches]
    return template.render(checks=checks, unmatched=unmatched, groups=dict.fromkeys(check.group for check in checks))
