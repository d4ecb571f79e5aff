"""Published numbers beside ours: what the releases' own files give by the published conventions, and where it
differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from operators.errors import ConfigError
from operators.judging.graphs import measure_graphs
from operators.judging.judgement import OVERALL
from operators.metrics.dsg import holding
from operators.statistics.options import Sampling
from pipelines.judging.metaeval import judge, open_release
from pipelines.judging.protocols import ProtocolConfig
from pipelines.judging.releases.tables import Sheet, read_sheet
from pipelines.storage import StorageConfig, locate, write_errors
from pipelines.storage import replace as write_file

POINT = Sampling(resamples=1, permutations=1)
"""The published numbers have no intervals."""
CLOSE = 1e-9
"""How near the released per-graph numbers are met."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproductionConfig:
    """Where the published files lie, and where the comparison goes."""

    reference: str
    """The folder of published files, which the protocols' paths are below."""
    output: str
    """The Markdown file to write."""
    protocols: Mapping[str, ProtocolConfig]
    """By name."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not self.reference:
            raise ConfigError("reference: set REFERENCE_DATA, or reference=PATH, to the folder of published files")


class Check(NamedTuple):
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


Statistics = Mapping[tuple[str, str, str], float]
"""Values by metric, statistic and subset."""

GENAI_BENCH = "GenAI-Bench, 527 prompts x 6 generators x 3 raters"
GENAI_BENCH_NUMBERS = [
    ("people", "alpha_ordinal", OVERALL, 0.715),
    ("people", "alpha_interval", OVERALL, 0.622),
    ("people", "mean_rating", "generator DALLE_3", 3.722),
    ("people", "mean_rating", "generator Midjourney_6", 3.491),
    ("people", "mean_rating", "generator DeepFloyd_I_XL_v1", 3.228),
    ("people", "mean_rating", "generator SDXL_Base", 3.109),
    ("people", "mean_rating", "generator SDXL_Turbo", 3.083),
    ("people", "mean_rating", "generator SDXL_2_1", 2.851),
]
TIFA160 = "TIFA160, 800 images, mean of two Likert ratings"
TIFA160_NUMBERS = [
    (metric, statistic, OVERALL, published)
    for metric, numbers in {
        "tifa_mplug-large": (0.597, 0.592, 0.472),
        "tifa_blip2-flant5xl": (0.559, 0.558, 0.436),
        "meteor": (0.340, 0.372, 0.274),
        "clipscore_vitb32": (0.332, 0.320, 0.231),
    }.items()
    for statistic, published in zip(("pearson", "spearman", "kendall_b"), numbers, strict=True)
]
TIFA160_ACCURACY = {"tifa_mplug-large": 60.9, "clipscore_vitb32": 52.1, "meteor": 54.0}
T2VSCORE = "T2VScore, 2,543 videos, pairwise accuracy with tie calibration (%)"
T2VSCORE_ACCURACY = {"CLIP Score": 59.9, "X-CLIP Score": 56.9, "BLIP-BLEU": 53.0, "T2VScore-A (GPT-4V)": 61.4}

PER_GRAPH = {"spearman": "spearman_corrs", "kendall": "kendall", "separation": "kstest", "delta": "delta"}
"""The released files of per-graph numbers, by measure."""
TABLE_2 = {"rho": "spearman", "ks": "separation"}
TITLES = {"spearman": "Ordering", "separation": "Separation"}
PRINTED_DIGITS = 1e-6
"""How near the released scores of images are met: they have nine digits."""
CURRENT = "T2IScoreScore, what the maintained code (`current`) gives for the released scores"
CURRENT_STATISTICS = ("ordering_current", "separation_current", "delta_current")
CURRENT_NUMBERS = [
    (metric, statistic, subset, number)
    for (metric, subset), numbers in {
        ("clipscore", OVERALL): (0.683858, 0.904564, 0.172252),
        ("clipscore", "real"): (0.688827, 0.904493, 0.122388),
        ("fuyu_tifa", OVERALL): (0.367504, 0.665659, 0.115229),
        ("fuyu_tifa", "real"): (0.257842, 0.615289, 0.080865),
        ("llava-alt_tifa", OVERALL): (0.71515, 0.816012, 0.279608),
        ("llava-alt_tifa", "real"): (0.629876, 0.746057, 0.211836),
        ("llava_tifa", OVERALL): (0.721572, 0.818839, 0.273736),
        ("llava_tifa", "real"): (0.63469, 0.752063, 0.21467),
        ("mplug_tifa", OVERALL): (0.678525, 0.794508, 0.245799),
        ("mplug_tifa", "real"): (0.656329, 0.765119, 0.207683),
    }.items()
    for statistic, number in zip(CURRENT_STATISTICS, numbers, strict=True)
]
"""By running src/T2IScoreScore/evaluators of michaelsaxon/T2IScoreScore (commit 93ebf89, April 2025): a metric that has
every score, and the four that lack one, overall and where graph 164 counts."""
PRINTED_ELSEWHERE = (
    "the release's own per-graph file gives {released:.1f}, as we do; the printed column was made from other scores"
)
SEG_65 = (
    "graph 65: the released score counts question 3 though its parent is answered wrongly; the parents released "
    "beside it say that it must not"
)


def reproduce(config: ReproductionConfig) -> list[Check]:
    """Every published number beside ours; raises SourceError where a file is missing or damaged."""
    genai_bench, tifa160, t2vscore, t2iscorescore = (
        _statistics(config, name) for name in ("genai_bench", "tifa160", "t2vscore", "t2iscorescore")
    )
    epsilon = tifa160["tifa_mplug-large", "epsilon", OVERALL]
    return [
        *_looked_up(GENAI_BENCH, GENAI_BENCH_NUMBERS, genai_bench),
        *_looked_up(TIFA160, TIFA160_NUMBERS, tifa160),
        *_accuracies(TIFA160, TIFA160_ACCURACY, tifa160),
        Check(TIFA160, "tifa_mplug-large: epsilon of pairwise accuracy", 0.006061, epsilon, 6),
        *_accuracies(T2VSCORE, T2VSCORE_ACCURACY, t2vscore),
        *_error_graphs(config),
        *(
            Check(CURRENT, f"{metric}, {subset}: {statistic}", number, t2iscorescore[metric, statistic, subset], 6)
            for metric, statistic, subset, number in CURRENT_NUMBERS
        ),
        *_accumulation(config),
    ]


def _statistics(config: ReproductionConfig, name: str) -> Statistics:
    """What a protocol finds in the release's own scores."""
    protocol = config.protocols[name]
    release = open_release(protocol, config.storage)
    judgements = judge(protocol, release, release.scores, POINT).judgements
    return {(judged.metric, judged.statistic, judged.subset): judged.value for judged in judgements}


def _looked_up(group: str, numbers: Sequence[tuple[str, str, str, float]], ours: Statistics) -> Iterator[Check]:
    for metric, statistic, subset, published in numbers:
        name = f"{metric}: {statistic}" if subset == OVERALL else f"{statistic} of {subset.removeprefix('generator ')}"
        yield Check(group, name, published, ours[metric, statistic, subset], 3)


def _accuracies(group: str, numbers: Mapping[str, float], ours: Statistics) -> Iterator[Check]:
    for metric, published in numbers.items():
        accuracy = 100 * ours[metric, "pairwise_accuracy", OVERALL]
        yield Check(group, f"{metric}: pairwise accuracy (%)", published, accuracy, 1)


def _error_graphs(config: ReproductionConfig) -> Iterator[Check]:
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
        yield _explained(Check(group, name, value.as_py(), ours, 1), reason)


def _explained(check: Check, reason: str) -> Check:
    return check if check.matches else check._replace(reason=reason)


def _sheet(config: ReproductionConfig, name: str) -> Sheet:
    return read_sheet(locate(f"{config.protocols['t2iscorescore'].path}/{name}.csv", config.storage))


def _released(sheet: Sheet) -> pd.DataFrame:
    """A released file of per-graph numbers, graphs down and metrics across."""
    columns = {name: sheet.numbers(name).to_pylist() for name in sheet.names[1:]}
    return pd.DataFrame(columns, index=sheet.texts(sheet.names[0]))


def _per_graph(measured: pd.DataFrame, measure: str, released: pd.DataFrame) -> Check:
    """How many of a released file's numbers we meet to CLOSE."""
    ours = measured.pivot(index="graph_id", columns="metric", values=measure)
    difference = (ours.loc[released.index, released.columns] - released).abs()
    met = int((difference <= CLOSE).to_numpy().sum())
    name = f"{measure} of every graph and metric: numbers met to {CLOSE:g}"
    return Check(f"T2IScoreScore, per graph, {len(released.columns)} metrics", name, released.size, met, 0)


def _accumulation(config: ReproductionConfig) -> Iterator[Check]:
    """DSG scores of every image from the correctness of every question, by recursive zeroing."""
    correct, scores = _sheet(config, "ts2_dsg_correct"), _sheet(config, "ts2_scores_per_image")
    frame = pd.DataFrame({name: correct.texts(name) for name in correct.names})
    graphs = dict(zip(frame["image_row"].astype(int), frame["id"], strict=True))
    group = "T2IScoreScore, DSG scores from the correctness of questions, recursive zeroing"
    for model in correct.names[4:]:
        released = scores.numbers(f"{model}_dsg").to_pylist()
        ours = {int(row): _dsg(of_image, model) for row, of_image in frame.groupby("image_row", sort=False)}
        unmet = [row for row, value in ours.items() if abs(value - released[row]) > PRINTED_DIGITS]
        check = Check(group, f"{model}: images whose score is met", len(ours), len(ours) - len(unmet), 0)
        yield _explained(check, SEG_65 if {graphs[row] for row in unmet} == {"65"} else "")


def _dsg(rows: pd.DataFrame, model: str) -> float:
    """The share of questions that count, of one image."""
    parents = {
        str(question): [] if above == "-1" else str(above).split("-")
        for question, above in zip(rows["question_id"], rows["parents"], strict=True)
    }
    right = {str(question): answer == "1" for question, answer in zip(rows["question_id"], rows[model], strict=True)}
    return sum(holding(right, parents, "recursive").values()) / len(right)


def write_reproduction(checks: Sequence[Check], config: ReproductionConfig) -> None:
    """Writes the comparison as Markdown."""
    location = locate(config.output, config.storage)
    with write_errors(location.path):
        write_file(location, location.path, reproduction_text(checks).encode())


def reproduction_text(checks: Sequence[Check]) -> str:
    """The comparison as Markdown: first what does not match, then every number."""
    unmatched = [check for check in checks if not check.matches]
    lines = [HEADER.format(matched=len(checks) - len(unmatched), count=len(checks))]
    lines += ["## What does not match", "", *_table(unmatched, with_reason=True)] if unmatched else []
    for group in dict.fromkeys(check.group for check in checks):
        lines += ["", f"## {group}", "", *_table([check for check in checks if check.group == group])]
    return "\n".join(lines) + "\n"


HEADER = """# Published numbers, and ours

{matched} of {count} published numbers are met at the precision at which they were published. All are computed from the
releases' own files (ratings and other people's scores) by `make reproduce`, with `REFERENCE_DATA` naming the folder
that holds them; this file is what it writes. Nothing is fitted: where a number differs, the reason stands beside it.

Three things that one would not expect: the published mean ratings of GenAI-Bench count two typing errors of the
release, ratings of 41 (DALLE_3) and 33 (DeepFloyd_I_XL_v1), which the protocol `genai_bench` leaves out otherwise;
table 2 of T2IScoreScore follows the convention `published`, not the paper's formulas (`paper`), nor today's code
(`current`); and the numbers of `current` are printed nowhere: they are what that code gives for the released scores.
"""


def _table(checks: Sequence[Check], *, with_reason: bool = False) -> Iterator[str]:
    names = ["", "published", "ours", *(["why"] if with_reason else [])]
    yield "| " + " | ".join(names) + " |"
    yield "|---|---:|---:|" + ("---|" if with_reason else "")
    for check in checks:
        cells = [check.name, f"{check.published:.{check.decimals}f}", f"{check.ours:.{check.decimals}f}"]
        if with_reason:
            cells = [f"{check.group}: {cells[0]}", *cells[1:], check.reason or "not known"]
        yield "| " + " | ".join(cells) + " |"
