"""T2IScoreScore's published numbers and ours: tables 1 to 3, figures 2, 4, 9, 12 and 13, section 6, released files."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.metaeval.graph_contents import count_contents
from plumbline.operators.metaeval.graph_correlations import correlate_graphs
from plumbline.operators.metaeval.graph_scores import average_nodes, score_nodes
from plumbline.operators.metaeval.graphs import measure_graphs, split_subsets
from plumbline.operators.metaeval.judgement import OVERALL
from plumbline.operators.metrics.metric import direction
from plumbline.pipelines.metaeval.accumulation import AccumulateConfig, Accumulation, accumulate_answers
from plumbline.pipelines.metaeval.metaeval import open_release
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.metaeval.published_numbers import PublishedNumber, ReproductionConfig
from plumbline.pipelines.metaeval.releases.sheets import Sheet, read_sheet

PAPER = "T2IScoreScore"
PROTOCOL = "t2iscorescore"
FOLDER = Path(__file__).parent
TABLE_3 = FOLDER / "published_table_3.csv"
"""Table 3 (page 17) by accumulation of DSG's questions. The headers of its halves are exchanged: the half under "DSG
w/TIFA accumulation" repeats table 2, whose DSG is `recursive`."""
FIGURES = FOLDER / "published_figures_12_13.csv"
"""Figures 12 and 13 below their diagonals. Figures 6 and 7 (pages 10 and 11) repeat their parts a and d."""
MAX_DIFFERENCE = 1e-9
"""Largest difference from a released per-graph number that counts as equal."""
PER_GRAPH = {"spearman": "spearman_corrs", "kendall": "kendall", "separation": "kstest", "delta": "delta"}
"""Released files of per-graph numbers, by measure."""
MEASURES = {"rho": "ordering", "ks": "separation"}
"""Measures of table 2."""
TITLES = {"ordering": "Ordering", "separation": "Separation"}
MEANS = {"spearman": "ordering", "ks": "separation"}
"""Measures of the released means by subset. Means of delta are released too, in an unknown unit."""
ACCUMULATIONS = {"recursive": "DSG by ancestors", "none": "DSG by single questions"}
UNACCUMULATED = "{} of single questions"
"""Name of a DSG metric with the accumulation `none`."""
TABLE_1 = {
    "prompts": (165, 0),
    "images (thousands)": (2.8, 1),
    "fewest images of a prompt": (4, 0),
    "mean images of a prompt": (17, 0),
    "most images of a prompt": (76, 0),
    "greatest number of errors": (5, 0),
    "most nodes of one number of errors": (5, 0),
}
"""Table 1, with decimals; the paper calls the last two depth and width."""
FIGURE_2 = {"SD2.0": 46, "SD2.1": 18, "DALL-E2": 15, "SDXL": 14, "Natural": 5, "SD1.5": 2}
"""Figure 2a. The release has neither the prompts' origins (2b) nor the types of errors (2c)."""
FIGURE_4 = {
    "clipscore": "0.65 0.54 0.5 0.49 0.57 0.52",
    "llava_tifa": "0.4 0.4 0.2 0.4 0.4 0.4",
    "llmscore_ec": "6 4 4 4 4 5",
}
"""Scores of the first images of graph 28 in figure 4b. The scores in figure 4a are not those of any graph."""
FIGURE_9 = {
    "clipscore": "0.82 0.69 0.37",
    "llava_tifa": "0.78 0.44 0.15",
    "mplug_tifa": "0.85 0.78 0.24",
    "llava_dsg": "0.78 0.22 0.20",
    "mplug_dsg": "1.0 0.89 0.30",
    "llmscore_ec": "0.33 1.6 5.2",
}
"""Mean scores of graph 71 in figure 9: of both nodes without errors together, of node 1a and of node 1b. DSG's are
scores of single questions."""
LAST_DIGIT = "the last digit alone differs"
NOT_ROUNDED = "the last printed digit is cut and not rounded"
SECTION_6 = {"synth": 70, "nat": 55, "real": 56}
PRINTED_DIGITS = 1e-6
"""Largest difference from a released score of an image that counts as equal."""
EXCHANGED = "exchanged with {other}: each of the two cells prints what we find for the other"
SEG_65 = (
    "graph 65: the released score counts question 3 though its parent is answered wrongly; the parents released "
    "beside it say that it must not"
)


def graph_numbers(config: ReproductionConfig) -> Iterator[PublishedNumber]:
    """Compare every published number with ours; raise SourceError if a file is missing or damaged."""
    protocol = config.protocols[PROTOCOL]
    release = open_release(protocol, config.storage)
    single = _accumulated(config, "none")
    names = pa.array([UNACCUMULATED.format(name) for name in single.column("metric").to_pylist()], pa.string())
    single = single.set_column(single.schema.get_field_index("metric"), "metric", names)
    scores = pa.concat_tables([release.scores, single])
    measured = measure_graphs(release.graph_nodes, scores, "published", protocol.falling)
    averaged = measured[~measured["graph_id"].isin(protocol.unpublished)]
    yield from _table_1(release.graph_nodes.to_pandas())
    yield from _figure_2(release.graph_nodes)
    yield from _figures_4_and_9(score_nodes(release.graph_nodes, scores))
    table_2, table_3 = _table_2(config, averaged), _table_3(averaged)
    yield from _explain_exchanged(table_2, table_3)
    yield from _section_6(table_2)
    yield from _explain_exchanged(table_3, table_2)
    yield from _figures(averaged)
    for measure, file in PER_GRAPH.items():
        yield _per_graph(measured, measure, _released(_sheet(config, f"ts2_perseg_{file}")), protocol)
    yield from _released_means(config, averaged)
    yield from _accumulation(config)


def _accumulated(config: ReproductionConfig, accumulation: Accumulation) -> pa.Table:
    folder = config.protocols[PROTOCOL].path
    answers = AccumulateConfig(
        answers=folder, format=PROTOCOL, output="", accumulation=accumulation, storage=config.storage
    )
    return accumulate_answers(answers).scores


def _table_1(nodes: pd.DataFrame) -> Iterator[PublishedNumber]:
    images = nodes.groupby("graph_id").size()
    width = nodes.groupby(["graph_id", "level"])["node"].nunique()
    ours = (
        len(images), len(nodes) / 1000, images.min(), images.mean(), images.max(), nodes["level"].max(), width.max(),
    )  # fmt: skip
    graph, level = width.idxmax()
    reason = f"graph {graph} has {width.max()} nodes with as many errors ({level})"
    for (row, (published, decimals)), value in zip(TABLE_1.items(), ours, strict=True):
        yield PublishedNumber(PAPER, "table 1", row, "", published, float(value), decimals).explained(reason)


def _figure_2(nodes: pa.Table) -> Iterator[PublishedNumber]:
    contents = count_contents(nodes).query("about == 'images' and subset == @OVERALL").set_index("name")
    for source, published in FIGURE_2.items():
        ours = 100 * float(contents["share"][source])
        yield PublishedNumber(PAPER, "figure 2a, images by source in percent", source, "", published, ours, 0)


def _figures_4_and_9(images: pd.DataFrame) -> Iterator[PublishedNumber]:
    by_graph = images.groupby("graph_id").get_group
    for metric, printed in FIGURE_4.items():
        scores = by_graph("28").query("metric == @metric")["score"]
        for number, (published, ours) in enumerate(zip(printed.split(), scores, strict=False), 1):
            yield _figure_cell("figure 4b, scores of images of graph 28", metric, f"image {number}", published, ours)
    joined = by_graph("71").assign(node=lambda rows: rows["node"].where(rows["level"] > 0, "0"))
    means = average_nodes(joined).set_index(["metric", "node"])["mean"]
    for metric, printed in FIGURE_9.items():
        for node, published in zip(("0", "1a", "1b"), printed.split(), strict=True):
            name = _name(metric, "none" if metric.endswith("_dsg") else "")
            cell = _figure_cell(
                "figure 9, mean scores of graph 71", metric, f"node {node}", published, means[name, node]
            )
            is_cut = math.floor(cell.ours * 10**cell.decimals) == round(cell.published * 10**cell.decimals)
            yield cell.explained(NOT_ROUNDED if is_cut else "")


def _figure_cell(group: str, row: str, column: str, printed: str, ours: float) -> PublishedNumber:
    return PublishedNumber(PAPER, group, row, column, float(printed), float(ours), len(printed.partition(".")[2]))


def _percent_means(averaged: pd.DataFrame, measure: str) -> Mapping[tuple[str, str], float]:
    """Return each metric's mean over graphs in percent, by subset and metric."""
    return {
        (subset, str(metric)): 100 * float(value)
        for subset, rows in split_subsets(averaged).items()
        for metric, value in rows.groupby("metric")[measure].mean().items()
    }


def _table_2(config: ReproductionConfig, averaged: pd.DataFrame) -> list[PublishedNumber]:
    printed = _sheet(config, "ts2_table2_printed")
    ours = {measure: _percent_means(averaged, measure) for measure in TITLES}
    columns = (printed.texts("measure"), printed.texts("subset"), printed.texts("metric"), printed.numbers("value"))
    return [
        _table_cell(
            f"table 2, {TITLES[measure]} in percent", metric, subset, value.as_py(), ours[measure][subset, metric]
        )
        for name, group, metric, value in zip(*map(list, columns), strict=True)
        for measure, subset in [(MEASURES[name], OVERALL if group == "all" else group)]
    ]


def _table_3(averaged: pd.DataFrame) -> list[PublishedNumber]:
    printed = pd.read_csv(TABLE_3).melt(["accumulation", "measure", "subset"], var_name="metric")
    ours = {measure: _percent_means(averaged, measure) for measure in TITLES}
    return [
        _table_cell(
            f"table 3, {ACCUMULATIONS[cell.accumulation]}, {TITLES[cell.measure]} in percent",
            cell.metric,
            cell.subset,
            cell.value,
            ours[cell.measure][cell.subset, _name(cell.metric, cell.accumulation)],
        )
        for cell in printed.itertuples()
    ]


def _name(metric: str, accumulation: str) -> str:
    return UNACCUMULATED.format(metric) if accumulation == "none" else metric


def _table_cell(group: str, metric: str, subset: str, published: float, ours: float) -> PublishedNumber:
    return PublishedNumber(PAPER, group, metric, subset, published, ours, 1)


def _explain_exchanged(table: Sequence[PublishedNumber], other: Sequence[PublishedNumber]) -> Iterator[PublishedNumber]:
    """Yield a table's numbers; those that are exchanged with a number of the other table get an explanation."""
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
        yield cell if found is None else cell._replace(reason=EXCHANGED.format(other=f"{found.group}, {found.row}"))


def _section_6(table_2: Sequence[PublishedNumber]) -> Iterator[PublishedNumber]:
    group = "section 6, mean Ordering over the metrics of table 2 in percent"
    for subset, published in SECTION_6.items():
        cells = [cell for cell in table_2 if cell.column == subset and TITLES["ordering"] in cell.group]
        reason = f"the printed numbers of table 2 have the mean {fmean(cell.published for cell in cells):.1f}"
        ours = fmean(cell.ours for cell in cells)
        yield PublishedNumber(PAPER, group, subset, "", published, ours, 0).explained(reason)


def _figures(averaged: pd.DataFrame) -> Iterator[PublishedNumber]:
    """Yield correlations between metrics over graphs; DSG's scores are those of single questions."""
    printed = pd.read_csv(FIGURES)
    metrics = {_name(metric, "none" if metric.endswith("_dsg") else ""): metric for metric in printed["metric"]}
    named = averaged[averaged["metric"].isin(metrics)].replace({"metric": metrics}).assign(convention="published")
    ours = {
        (row.measure, row.subset, frozenset((row.metric, row.other))): 100 * row.pearson
        for row in correlate_graphs(named).itertuples()
    }
    ids = ["figure", "page", "measure", "subset", "metric"]
    for cell in printed.melt(ids, var_name="other").dropna().itertuples():
        group = (
            f"figure {cell.figure} (page {cell.page}), correlation of {TITLES[cell.measure]} in percent, {cell.subset}"
        )
        value = ours[cell.measure, cell.subset, frozenset((cell.metric, cell.other))]
        yield PublishedNumber(PAPER, group, cell.metric, cell.other, cell.value, value, 0)


def _sheet(config: ReproductionConfig, name: str) -> Sheet:
    return read_sheet(config.storage.locate(f"{config.protocols[PROTOCOL].path}/{name}.csv"))


def _released(sheet: Sheet) -> pd.DataFrame:
    """Read a released file of per-graph numbers: graphs down, metrics across."""
    columns = {name: sheet.numbers(name).to_pylist() for name in sheet.names[1:]}
    return pd.DataFrame(columns, index=sheet.texts(sheet.names[0]))


def _per_graph(
    measured: pd.DataFrame, measure: str, released: pd.DataFrame, protocol: ProtocolConfig
) -> PublishedNumber:
    """Count the numbers of a released file that equal ours; they are in the metrics' own direction."""
    ours = measured.pivot(index="graph_id", columns="metric", values=measure).loc[released.index, released.columns]
    if measure != "separation":
        ours *= [direction(metric, protocol.falling) for metric in released.columns]
    met = int(((ours - released).abs() <= MAX_DIFFERENCE).to_numpy().sum())
    group = f"released files of every graph by {len(released.columns)} metrics, numbers met to {MAX_DIFFERENCE:g}"
    return PublishedNumber(PAPER, group, measure, "", released.size, met, 0)


def _released_means(config: ReproductionConfig, averaged: pd.DataFrame) -> Iterator[PublishedNumber]:
    """Yield each metric's released means over graphs, with up to ten digits, by subset."""
    sheet = _sheet(config, "ts2_partition_means")
    for prefix, measure in MEANS.items():
        percent = _percent_means(averaged, measure)
        for part, subset in {"all": OVERALL, "synth": "synth", "nat": "nat", "real": "real"}.items():
            columns = (map(str, sheet.texts(name)) for name in ("metric", f"{prefix}-{part}"))
            for metric, published in zip(*columns, strict=True):
                group, ours = f"released means of {TITLES[measure]}", percent[subset, metric] / 100
                yield _figure_cell(group, metric, part, published, ours).explained(LAST_DIGIT)


def _accumulation(config: ReproductionConfig) -> Iterator[PublishedNumber]:
    """Count the released DSG scores of images that follow from the correctness of every question."""
    scores = _sheet(config, "ts2_scores_per_image")
    rows = {name: row for row, name in enumerate(_sheet(config, "ts2_metadata").ids("file_name"))}
    frame = _accumulated(config, "recursive").to_pandas()
    group = "released DSG scores of images, met from the correctness of questions by recursive zeroing"
    for metric, ours in frame.groupby("metric", sort=False):
        released = np.asarray(scores.numbers(str(metric)))[ours["image_id"].map(rows)]
        unmet = ours[(ours["score"] - released).abs() > PRINTED_DIGITS]
        check = PublishedNumber(PAPER, group, str(metric), "", len(ours), len(ours) - len(unmet), 0)
        yield check.explained(SEG_65 if set(unmet["prompt_id"]) == {"65"} else "")
