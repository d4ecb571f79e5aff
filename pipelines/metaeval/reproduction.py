"""Recomputes published numbers from the releases' files, and writes a page with both sets of numbers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from jinja2 import Environment, StrictUndefined

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metaeval.graphs import (
    average_nodes,
    correlate_graphs,
    count_contents,
    measure_graphs,
    score_nodes,
    split_subsets,
)
from plumbline.operators.metaeval.judgement import OVERALL
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.accumulation import AccumulateConfig, Accumulation, accumulate_answers
from plumbline.pipelines.metaeval.metaeval import judge_release
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.metaeval.release_selection import open_release
from plumbline.pipelines.metaeval.releases.sheets import Sheet, read_sheet

NO_RESAMPLING = Sampling(resamples=1, permutations=1)  # published numbers have no intervals, so nothing is resampled
PUBLISHED_FOLDER = Path(__file__).parent
PUBLISHED_FILE = PUBLISHED_FOLDER / "published.csv"
"""Published numbers that a protocol computes, as printed. The numbers of T2IScoreScore were computed with
src/T2IScoreScore/evaluators (michaelsaxon/T2IScoreScore, commit 93ebf89, April 2025). They cover one metric that has
all scores and four metrics that each lack a score, overall and for the subset of graph 164.
"""
MAX_NAMED_COLUMNS = 8  # tables with more columns have numbered rows and columns

PAPER_NAME = "T2IScoreScore"
PROTOCOL_NAME = "t2iscorescore"
TABLE_3_FILE = PUBLISHED_FOLDER / "published_table_3.csv"
"""Table 3 (page 17), with one half for each accumulation of DSG's questions. The headers of the halves are swapped: the
half under "DSG w/TIFA accumulation" repeats table 2, where the accumulation is `recursive`.
"""
FIGURES_FILE = PUBLISHED_FOLDER / "published_figures_12_13.csv"
"""Values below the diagonals of figures 12 and 13. Figures 6 and 7 (pages 10 and 11) repeat panels a and d."""
MAX_GRAPH_DIFFERENCE = 1e-9  # maximum difference from a released per-graph number that counts as equal
MAX_SCORE_DIFFERENCE = 1e-6  # maximum difference from an image's released score that counts as equal
PER_GRAPH_FILE_NAMES = {"spearman": "spearman_corrs", "kendall": "kendall", "separation": "kstest", "delta": "delta"}
"""End of the name of the released file with a measure's values per graph, by measure."""
MEASURE_TITLES = {"ordering": "Ordering", "separation": "Separation"}
TABLE_2_MEASURES = {"rho": "ordering", "ks": "separation"}
RELEASED_MEAN_MEASURES = {"spearman": "ordering", "ks": "separation"}
"""Measures whose means by subset are released, by the first part of the columns' names.

Means of delta are released too, but in an unknown unit.
"""
ACCUMULATION_TITLES = {"recursive": "DSG by ancestors", "none": "DSG by single questions"}
UNACCUMULATED_TITLE = "{} of single questions"  # name of a DSG metric with the accumulation `none`
TABLE_1_NUMBERS = {  # published number and decimals
    "prompts": (165, 0),
    "images (thousands)": (2.8, 1),
    "fewest images of a prompt": (4, 0),
    "mean images of a prompt": (17, 0),
    "most images of a prompt": (76, 0),
    "greatest number of errors": (5, 0),  # the paper calls this depth, and the next width
    "most nodes of one number of errors": (5, 0),
}
FIGURE_2_PERCENTAGES = {"SD2.0": 46, "SD2.1": 18, "DALL-E2": 15, "SDXL": 14, "Natural": 5, "SD1.5": 2}
"""Percentage of images by source in figure 2a.

The release contains no data for figures 2b (origins of the prompts) and 2c (types of errors).
"""
FIGURE_4_SCORES = {
    "clipscore": "0.65 0.54 0.5 0.49 0.57 0.52",
    "llava_tifa": "0.4 0.4 0.2 0.4 0.4 0.4",
    "llmscore_ec": "6 4 4 4 4 5",
}
"""Scores of the first images of graph 28 in figure 4b. The scores in figure 4a do not match any graph."""
FIGURE_9_MEANS = {
    "clipscore": "0.82 0.69 0.37",
    "llava_tifa": "0.78 0.44 0.15",
    "mplug_tifa": "0.85 0.78 0.24",
    "llava_dsg": "0.78 0.22 0.20",
    "mplug_dsg": "1.0 0.89 0.30",
    "llmscore_ec": "0.33 1.6 5.2",
}
"""Mean scores of graph 71 in figure 9: both nodes without errors together, node 1a, and node 1b. For DSG, the figure
shows scores without accumulation: each question is scored on its own.
"""
SECTION_6_NUMBERS = {"synth": 70, "nat": 55, "real": 56}
LAST_DIGIT_NOTE = "only the last digit differs"
NOT_ROUNDED_NOTE = "the last printed digit is truncated instead of rounded"
SWAPPED_CELLS_NOTE = "swapped with {other}: each of the two cells prints the number that we compute for the other"
GRAPH_65_NOTE = (
    "graph 65: the released score counts question 3 although its parent is answered wrongly, which the released "
    "parents rule out"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproductionConfig:
    """Options for comparing results with published numbers."""

    reference: str
    """Folder of the published files; the protocols' paths are relative to it."""
    output: str = "docs/reproduction.md"
    """Markdown file to write."""
    protocols: Mapping[str, ProtocolConfig]
    """Protocols by name. GenAI-Bench's rating_range is null because its published numbers include two typing errors,
    ratings of 41 and 33.
    """
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not self.reference:
            raise ConfigError(
                "reference: expected the folder of published files, got none; set REFERENCE_DATA, or reference=PATH"
            )


class PublishedNumber(NamedTuple):
    """A published number, and the value that we compute."""

    paper: str  # paper or release
    group: str  # table or figure
    row: str
    column: str  # empty in a table with a single column
    published: float
    ours: float
    decimals: int  # decimals of the published number
    reason: str = ""  # explanation of a difference; empty if ours matches

    @property
    def table(self) -> str:
        """The paper, and the table or figure that contains the number."""
        return f"{self.paper}, {self.group}"

    @property
    def location(self) -> str:
        """Table or figure, row and column of the number in the paper."""
        return ", ".join(filter(None, (self.table, self.row, self.column)))

    @property
    def matches(self) -> bool:
        """True if our value rounds to the published number."""
        tolerance = 0.5 * 10**-self.decimals
        return bool(abs(self.ours - self.published) <= tolerance * (1 + 1e-9))

    def add_mismatch_reason(self, reason: str) -> "PublishedNumber":
        """Return the number, with this explanation added if our value does not match."""
        return self if self.matches else self._replace(reason=reason)


def reproduce_published_numbers(config: ReproductionConfig) -> list[PublishedNumber]:
    """Compare every published number with our value; raise SourceError if a file is missing or damaged."""
    by_protocol = dict(
        list(pd.read_csv(PUBLISHED_FILE, dtype=str, keep_default_na=False).groupby("protocol", sort=False))
    )
    error_graphs = by_protocol.pop(PROTOCOL_NAME)
    return [
        *(check for name, numbers in by_protocol.items() for check in _judge_release(config, str(name), numbers)),
        *_compare_graphs(config),
        *_judge_release(config, PROTOCOL_NAME, error_graphs),
    ]


def _judge_release(config: ReproductionConfig, name: str, numbers: pd.DataFrame) -> Iterator[PublishedNumber]:
    """Yield each published number with the value that the protocol computes from the release's scores."""
    protocol = config.protocols[name]
    release = open_release(protocol, config.storage)
    judgements = judge_release(protocol, release, release.scores, NO_RESAMPLING).judgements
    ours = {(judged.metric, judged.statistic, judged.group): judged.value for judged in judgements}
    for row in numbers.itertuples():
        decimals = len(row.published.partition(".")[2])
        value = int(row.scale) * ours[row.metric, row.statistic, row.subset]
        check = PublishedNumber(row.paper, row.group, row.row, row.column, float(row.published), value, decimals)
        yield check.add_mismatch_reason(row.reason)


def _compare_graphs(config: ReproductionConfig) -> Iterator[PublishedNumber]:
    """Compare our values with T2IScoreScore's tables 1 to 3, figures 2, 4, 9, 12, 13, section 6 and released files."""
    protocol = config.protocols[PROTOCOL_NAME]
    release = open_release(protocol, config.storage)
    single = _accumulate_released_answers(config, "none")
    names = pa.array([UNACCUMULATED_TITLE.format(name) for name in single.column("metric").to_pylist()], pa.string())
    single = single.set_column(single.schema.get_field_index("metric"), "metric", names)
    scores = pa.concat_tables([release.scores, single])
    measured = measure_graphs(release.graph_nodes, scores, "published", protocol.falling)
    averaged = measured[~measured["graph_id"].isin(protocol.unpublished)]
    percents = {measure: _average_in_percent(averaged, measure) for measure in MEASURE_TITLES}
    yield from _compare_table_1(release.graph_nodes.to_pandas())
    contents = count_contents(release.graph_nodes).query("about == 'images' and subset == @OVERALL").set_index("name")
    for source, published in FIGURE_2_PERCENTAGES.items():
        ours = 100 * float(contents["share"][source])
        yield PublishedNumber(PAPER_NAME, "figure 2a, images by source in percent", source, "", published, ours, 0)
    yield from _compare_figures_4_and_9(score_nodes(release.graph_nodes, scores))
    table_2, table_3 = list(_compare_table_2(config, percents)), list(_compare_table_3(percents))
    yield from _explain_swapped_numbers(table_2, table_3)
    for subset, published in SECTION_6_NUMBERS.items():
        cells = [cell for cell in table_2 if cell.column == subset and MEASURE_TITLES["ordering"] in cell.group]
        reason = f"the printed numbers of table 2 have the mean {fmean(cell.published for cell in cells):.1f}"
        group, ours = "section 6, mean Ordering over the metrics of table 2 in percent", fmean(c.ours for c in cells)
        yield PublishedNumber(PAPER_NAME, group, subset, "", published, ours, 0).add_mismatch_reason(reason)
    yield from _explain_swapped_numbers(table_3, table_2)
    yield from _compare_figures_12_and_13(averaged)
    for measure, file in PER_GRAPH_FILE_NAMES.items():
        yield _count_equal_values(measured, measure, _read_reference_file(config, f"ts2_perseg_{file}"), protocol)
    yield from _compare_released_means(config, percents)
    yield from _count_released_scores(config)


def _accumulate_released_answers(config: ReproductionConfig, accumulation: Accumulation) -> pa.Table:
    folder = config.protocols[PROTOCOL_NAME].path
    answers = AccumulateConfig(
        answers=folder, format=PROTOCOL_NAME, output="", accumulation=accumulation, storage=config.storage
    )
    return accumulate_answers(answers).scores


def _average_in_percent(averaged: pd.DataFrame, measure: str) -> Mapping[tuple[str, str], float]:
    """Return the mean of a measure over the error graphs, as a percentage for each subset and metric."""
    return {
        (subset, str(metric)): 100 * float(value)
        for subset, rows in split_subsets(averaged).items()
        for metric, value in rows.groupby("metric")[measure].mean().items()
    }


def _compare_table_1(nodes: pd.DataFrame) -> Iterator[PublishedNumber]:
    images = nodes.groupby("graph_id").size()
    width = nodes.groupby(["graph_id", "level"])["node"].nunique()
    ours = (
        len(images), len(nodes) / 1000, images.min(), images.mean(), images.max(), nodes["level"].max(), width.max(),
    )  # fmt: skip
    graph, level = width.idxmax()
    reason = f"graph {graph} has {width.max()} nodes with as many errors ({level})"
    for (row, (published, decimals)), value in zip(TABLE_1_NUMBERS.items(), ours, strict=True):
        yield PublishedNumber(PAPER_NAME, "table 1", row, "", published, float(value), decimals).add_mismatch_reason(
            reason
        )


def _compare_figures_4_and_9(images: pd.DataFrame) -> Iterator[PublishedNumber]:
    by_graph = images.groupby("graph_id").get_group
    for metric, printed in FIGURE_4_SCORES.items():
        scores = by_graph("28").query("metric == @metric")["score"]
        for number, (published, ours) in enumerate(zip(printed.split(), scores, strict=False), 1):
            yield _compare_printed_value(
                "figure 4b, scores of images of graph 28", metric, f"image {number}", published, ours
            )
    joined = by_graph("71").assign(node=lambda rows: rows["node"].where(rows["level"] > 0, "0"))
    means = average_nodes(joined).set_index(["metric", "node"])["mean"]
    for metric, printed in FIGURE_9_MEANS.items():
        for node, published in zip(("0", "1a", "1b"), printed.split(), strict=True):
            ours = means[_rename_dsg(metric), node]
            cell = _compare_printed_value("figure 9, mean scores of graph 71", metric, f"node {node}", published, ours)
            is_cut = math.floor(cell.ours * 10**cell.decimals) == round(cell.published * 10**cell.decimals)
            yield cell.add_mismatch_reason(NOT_ROUNDED_NOTE if is_cut else "")


def _compare_printed_value(group: str, row: str, column: str, printed: str, ours: float) -> PublishedNumber:
    return PublishedNumber(PAPER_NAME, group, row, column, float(printed), float(ours), len(printed.partition(".")[2]))


def _rename_dsg(metric: str) -> str:
    """Return the name that a DSG metric has if each question is scored on its own; return other names unchanged."""
    return UNACCUMULATED_TITLE.format(metric) if metric.endswith("_dsg") else metric


def _compare_table_2(
    config: ReproductionConfig, percents: Mapping[str, Mapping[tuple[str, str], float]]
) -> Iterator[PublishedNumber]:
    printed = _read_reference_file(config, "ts2_table2_printed")
    columns = (*map(printed.ids, ("measure", "subset", "metric")), printed.numbers("value").to_pylist())
    for name, part, metric, published in zip(*columns, strict=True):
        measure, subset = TABLE_2_MEASURES[name], OVERALL if part == "all" else part
        group, ours = f"table 2, {MEASURE_TITLES[measure]} in percent", percents[measure][subset, metric]
        yield PublishedNumber(PAPER_NAME, group, metric, subset, published, ours, 1)


def _compare_table_3(percents: Mapping[str, Mapping[tuple[str, str], float]]) -> Iterator[PublishedNumber]:
    printed = pd.read_csv(TABLE_3_FILE).melt(["accumulation", "measure", "subset"], var_name="metric")
    for cell in printed.itertuples():
        name = _rename_dsg(cell.metric) if cell.accumulation == "none" else cell.metric
        group = f"table 3, {ACCUMULATION_TITLES[cell.accumulation]}, {MEASURE_TITLES[cell.measure]} in percent"
        ours = percents[cell.measure][cell.subset, name]
        yield PublishedNumber(PAPER_NAME, group, cell.metric, cell.subset, cell.value, ours, 1)


def _explain_swapped_numbers(
    table: Sequence[PublishedNumber], other: Sequence[PublishedNumber]
) -> Iterator[PublishedNumber]:
    """Yield a table's numbers; explain each number that the paper swapped with a number in the other table."""
    for cell in table:
        candidates = (
            candidate
            for candidate in other
            if candidate.column == cell.column
            and not candidate.matches
            and candidate._replace(ours=cell.ours).matches
            and cell._replace(ours=candidate.ours).matches
        )
        found = None if cell.matches else next(candidates, None)
        yield (
            cell
            if found is None
            else cell._replace(reason=SWAPPED_CELLS_NOTE.format(other=f"{found.group}, {found.row}"))
        )


def _compare_figures_12_and_13(averaged: pd.DataFrame) -> Iterator[PublishedNumber]:
    """Compare the correlations between metrics in figures 12 and 13 with the correlations that we compute.

    Correlations are computed over error graphs. For DSG, each question is scored on its own, without accumulation.
    """
    printed = pd.read_csv(FIGURES_FILE)
    metrics = {_rename_dsg(metric): metric for metric in printed["metric"]}
    named = averaged[averaged["metric"].isin(metrics)].replace({"metric": metrics}).assign(convention="published")
    ours = {
        (row.measure, row.subset, frozenset((row.metric, row.other))): 100 * row.pearson
        for row in correlate_graphs(named).itertuples()
    }
    ids = ["figure", "page", "measure", "subset", "metric"]
    for cell in printed.melt(ids, var_name="other").dropna().itertuples():
        about = f"correlation of {MEASURE_TITLES[cell.measure]} in percent, {cell.subset}"
        value = ours[cell.measure, cell.subset, frozenset((cell.metric, cell.other))]
        group = f"figure {cell.figure} (page {cell.page}), {about}"
        yield PublishedNumber(PAPER_NAME, group, cell.metric, cell.other, cell.value, value, 0)


def _read_reference_file(config: ReproductionConfig, name: str) -> Sheet:
    return read_sheet(config.storage.locate(f"{config.protocols[PROTOCOL_NAME].path}/{name}.csv"))


def _count_equal_values(
    measured: pd.DataFrame, measure: str, sheet: Sheet, protocol: ProtocolConfig
) -> PublishedNumber:
    """Compare the number of values in a released file with the number of values that equal ours.

    The file has a row per error graph and a column per metric.
    """
    columns = {name: sheet.numbers(name).to_pylist() for name in sheet.names[1:]}
    released = pd.DataFrame(columns, index=sheet.texts(sheet.names[0]))
    ours = measured.pivot(index="graph_id", columns="metric", values=measure).loc[released.index, released.columns]
    if measure != "separation":
        ours *= [get_direction(metric, protocol.falling) for metric in released.columns]
    equal = int(((ours - released).abs() <= MAX_GRAPH_DIFFERENCE).to_numpy().sum())
    group = f"released files of every graph by {len(released.columns)} metrics, numbers met to {MAX_GRAPH_DIFFERENCE:g}"
    return PublishedNumber(PAPER_NAME, group, measure, "", released.size, equal, 0)


def _compare_released_means(
    config: ReproductionConfig, percents: Mapping[str, Mapping[tuple[str, str], float]]
) -> Iterator[PublishedNumber]:
    """Compare each metric's released mean over the error graphs of a subset with the mean that we compute.

    Released means have up to ten digits.
    """
    sheet = _read_reference_file(config, "ts2_partition_means")
    for prefix, measure in RELEASED_MEAN_MEASURES.items():
        for part, subset in {"all": OVERALL, "synth": "synth", "nat": "nat", "real": "real"}.items():
            for metric, published in zip(sheet.ids("metric"), sheet.ids(f"{prefix}-{part}"), strict=True):
                group, ours = f"released means of {MEASURE_TITLES[measure]}", percents[measure][subset, metric] / 100
                yield _compare_printed_value(group, metric, part, published, ours).add_mismatch_reason(LAST_DIGIT_NOTE)


def _count_released_scores(config: ReproductionConfig) -> Iterator[PublishedNumber]:
    """Compare, for each metric, the number of released DSG scores with the number of them that equal ours.

    Our scores are derived from the released answers.
    """
    scores = _read_reference_file(config, "ts2_scores_per_image")
    rows = {name: row for row, name in enumerate(_read_reference_file(config, "ts2_metadata").ids("file_name"))}
    frame = _accumulate_released_answers(config, "recursive").to_pandas()
    group = "released DSG scores of images, recomputed from the released answers (all ancestors must be right)"
    for metric, ours in frame.groupby("metric", sort=False):
        released = np.asarray(scores.numbers(str(metric)))[ours["image_id"].map(rows)]
        other = ours[(ours["score"] - released).abs() > MAX_SCORE_DIFFERENCE]
        check = PublishedNumber(PAPER_NAME, group, str(metric), "", len(ours), len(ours) - len(other), 0)
        yield check.add_mismatch_reason(GRAPH_65_NOTE if set(other["prompt_id"]) == {"65"} else "")


def write_reproduction(checks: Sequence[PublishedNumber], config: ReproductionConfig) -> None:
    """Write the comparison as Markdown."""
    config.storage.locate(config.output, writable=True).write(format_reproduction(checks).encode())


def format_reproduction(checks: Sequence[PublishedNumber]) -> str:
    """Return the comparison as Markdown: totals by paper, numbers that do not match, and all numbers."""
    environment = Environment(trim_blocks=True, undefined=StrictUndefined)
    template = environment.from_string((PUBLISHED_FOLDER / "reproduction.md.j2").read_text("utf-8"))
    papers, tables = (
        _group_numbers(checks, lambda check: check.paper),
        _group_numbers(checks, lambda check: check.table),
    )
    return template.render(
        checks=checks,
        unmatched=[check for check in checks if not check.matches],
        totals=[(paper, sum(check.matches for check in own), len(own)) for paper, own in papers.items()],
        tables=[(title, *_make_table(own)) for title, own in tables.items()],
    )


def _group_numbers(
    checks: Sequence[PublishedNumber], key: Callable[[PublishedNumber], str]
) -> dict[str, list[PublishedNumber]]:
    groups: dict[str, list[PublishedNumber]] = {}
    for check in checks:
        groups.setdefault(key(check), []).append(check)
    return groups


def _make_table(checks: Sequence[PublishedNumber]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the names of the columns of a published table, and the cells of each row, as strings.

    Our value follows in brackets if it differs, or has its own column if the table has only one column.
    """

    def format_number(check: PublishedNumber, value: float) -> str:
        return f"{value:.{check.decimals}f}"

    if not checks[0].column:
        lines = [
            (check.row, format_number(check, check.published), format_number(check, check.ours)) for check in checks
        ]
        return ("", "published", "ours"), lines
    cells = {}
    for check in checks:
        ours = "" if check.matches else f" ({format_number(check, check.ours)})"
        cells[check.row, check.column] = format_number(check, check.published) + ours
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    if len(columns) <= MAX_NAMED_COLUMNS:
        return ("", *columns), [(row, *(cells.get((row, column), "") for column in columns)) for row in rows]
    names = list(dict.fromkeys([*columns, *rows]))
    numbered = [
        (f"{number} {row}", *(cells.get((row, column), "") for column in names)) for number, row in enumerate(names, 1)
    ]
    return ("", *map(str, range(1, len(names) + 1))), numbered
