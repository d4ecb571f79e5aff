"""Compares generators across several benchmarks on one page: results per benchmark and metric, and overall leaders.

All conclusions are based on duels, which compare two generators on one metric over the prompts of one benchmark. All
duels of the page are corrected together. Means and ranks are not averaged over benchmarks, because benchmarks have
different prompts, metrics have different scales, and a mean of ranks depends on the other participants (Benavoli,
Corani and Mangili 2016).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.sentences import FirstRows, Sentence, format_names, format_quantity, take_first_rows
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.report.leaders import explain_too_few_prompts
from plumbline.operators.report.page_tables import MAX_GENERATORS, MAX_MATRIX_GENERATORS, MeansColumn, make_board_column
from plumbline.operators.results.comparison import (
    SIGNIFICANCE_LEVEL,
    Board,
    Duel,
    LeaderboardRow,
    build_boards,
    decide_duels,
    describe_uncompared_pairs,
    list_generator_names,
    rank_generators,
)
from plumbline.operators.results.metric_recipes import list_unranked_metrics
from plumbline.operators.results.summary import OVERALL, describe_part
from plumbline.operators.statistics.ordering import compute_min_pairs

MAX_SPLIT_PAIRS = 5
"""Maximum number of pairs of generators that are listed because benchmarks disagree about the better generator."""


class SuiteRun(NamedTuple):
    """One benchmark of a suite: the run that scored it, with the comparisons of its generators."""

    run_id: str
    manifest: Mapping[str, Any]
    summary: pa.Table
    duels: Sequence[Duel]
    """Duels of every pair of generators on every metric that ranks images, over all prompts. Their p-values are
    corrected again, over all duels of the page.
    """

    @property
    def benchmark(self) -> str:
        return str(self.manifest.get("benchmark", ""))

    @property
    def n_prompts(self) -> int:
        """Largest number of prompts shared by two generators, or the number of images if no generators are compared."""
        images = pc.add(self.summary.column("n"), self.summary.column("n_null")).to_pylist()
        return max([duel.n for duel in self.duels] or images, default=0)

    @property
    def part(self) -> str:
        """Description of the scored part of the benchmark's prompts; empty if all are scored."""
        return describe_part(self.manifest)


class Matchup(NamedTuple):
    """Comparison of one generator with another: the benchmarks with a clear win, a clear loss, or neither (level)."""

    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    level: tuple[str, ...] = ()

    @property
    def is_ahead(self) -> bool:
        """True if the generator is clearly better on at least one benchmark and clearly worse on none."""
        return bool(self.won) and not self.lost

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `split` if the winner depends on the benchmark, or `tied`."""
        return "split" if self.won and self.lost else "better" if self.won else "worse" if self.lost else "tied"


class Tally(NamedTuple):
    """A generator's number of wins, losses and comparisons on one metric, over all benchmarks and rivals."""

    won: int
    lost: int
    compared: int


class SuiteMetric(NamedTuple):
    """One metric's results, combined from all benchmarks of a suite that use the metric."""

    metric: str
    ranks: bool
    """True if the metric ranks images; otherwise no score is better than another."""
    columns: list[MeansColumn]
    generators: FirstRows[str]
    """Generators, ordered by duels won minus duels lost, highest first."""
    tallies: Mapping[str, Tally]
    between: Mapping[tuple[str, str], Matchup]
    """Matchup of each ordered pair of generators that at least one benchmark compares."""
    complete: tuple[str, ...]
    """Generators that have scores on all benchmarks with this metric. Only they can lead overall."""
    lower_is_better: bool

    @property
    def matrix_generators(self) -> FirstRows[str]:
        """The first generators, which are the rows and columns of the matrix of matchups."""
        return take_first_rows(self.generators.rows, MAX_MATRIX_GENERATORS)

    def get_matchups(self, name: str) -> dict[str, Matchup]:
        """Return a generator's matchups with all other complete generators, by their names."""
        return {other: self.between.get((name, other), Matchup()) for other in self.complete if other != name}

    def find_leader(self) -> str | None:
        """Return the generator that leads all other complete generators; None if no generator does."""
        for name in self.complete:
            matchups = self.get_matchups(name).values()
            if matchups and all(matchup.is_ahead for matchup in matchups):
                return name
        return None

    def list_unbeaten_generators(self) -> list[str]:
        """Return the complete generators that no other generator clearly beats on any benchmark."""
        return [name for name in self.complete if not any(matchup.lost for matchup in self.get_matchups(name).values())]


class SuitePage(NamedTuple):
    """Everything that the page of a suite shows: conclusions, results by metric, and warnings."""

    suite_id: str
    headline: Sentence
    facts: list[str]
    warnings: list[str]
    overall: list[Sentence]
    """Sentences about each metric's leaders over all benchmarks, and about benchmarks that disagree."""
    certainty: str
    left_out: list[str]
    """Metrics that did not score a benchmark, with the reason."""
    metrics: list[SuiteMetric]
    runs: Sequence[SuiteRun]
    leaderboard_rows: Mapping[str, Sequence[LeaderboardRow]]
    """Rows over all prompts, by benchmark, with tie groups based on the page's correction."""

    @property
    def names(self) -> list[str]:
        return [across.metric for across in self.metrics]


def build_suite(
    suite_id: str, runs: Sequence[SuiteRun], *, left_out: Sequence[str] = (), notes: Sequence[str] = ()
) -> SuitePage:
    """Return the page for the runs of several benchmarks.

    `left_out` lists the metrics that did not score a benchmark, each with the reason; `notes` are further warnings.
    """
    compared = correct_p_values_together(runs)
    ranked, boards = {}, {}
    for run, duels in zip(runs, compared, strict=True):
        overall = run.summary.filter(pc.equal(run.summary.column("skill"), OVERALL))
        ranked[run.benchmark] = rank_generators(
            overall, duels, read_lower_is_better(run.manifest), unranked=list_unranked_metrics(run.manifest)
        )
        boards[run.benchmark] = build_boards(ranked[run.benchmark], duels)
    metrics = [
        _combine_results(metric, boards, runs)
        for metric in dict.fromkeys(name for run in runs for name in run.manifest.get("metrics", ()))
        if any((metric, OVERALL) in own for own in boards.values())
    ]
    shared = [across for across in metrics if across.ranks and len(across.columns) > 1]
    every = [duel for duels in compared for duel in duels if not duel.unlike]
    began = min((str(run.manifest.get("began", "")) for run in runs), default="")[:16].replace("T", " ")
    n_generators = len({row.generator for rows in ranked.values() for row in rows})
    counts = {"benchmark": len(runs), "generator": n_generators, "metric": len(metrics)}
    return SuitePage(
        suite_id=suite_id,
        headline=_write_headline(shared, every),
        facts=[*(format_quantity(count, word) for word, count in counts.items()), *([f"{began} UTC"] if began else [])],
        warnings=[*notes, *_list_warnings(runs, compared, every)],
        overall=[sentence for across in shared for sentence in _describe_overall(across)],
        certainty=_describe_certainty(every),
        left_out=list(left_out),
        metrics=metrics,
        runs=runs,
        leaderboard_rows=ranked,
    )


def correct_p_values_together(runs: Sequence[SuiteRun]) -> list[list[Duel]]:
    """Return the duels of each run, decided after Holm's correction over the duels of all runs."""
    decided = iter(decide_duels([duel for run in runs for duel in run.duels], lambda duel: None))
    return [[next(decided) for _ in run.duels] for run in runs]


def _combine_results(
    metric: str, boards: Mapping[str, Mapping[tuple[str, str], Board]], runs: Sequence[SuiteRun]
) -> SuiteMetric:
    own = {name: of_run[metric, OVERALL] for name, of_run in boards.items() if (metric, OVERALL) in of_run}
    scored = {name: list_generator_names(board.list_scored_rows()) for name, board in own.items()}
    outcomes: dict[tuple[str, str], list[tuple[str, str | None]]] = defaultdict(list)
    for benchmark, board in own.items():
        for duel in board.duels:
            for pair in ((duel.generator_a, duel.generator_b), (duel.generator_b, duel.generator_a)):
                outcomes[pair].append((benchmark, duel.better))
    between = {
        (a, b): Matchup(
            won=tuple(benchmark for benchmark, better in of_pair if better == a),
            lost=tuple(benchmark for benchmark, better in of_pair if better == b),
            level=tuple(benchmark for benchmark, better in of_pair if better is None),
        )
        for (a, b), of_pair in outcomes.items()
    }
    tallies = {}
    for name in dict.fromkeys(chain.from_iterable(scored.values())):
        duels = [duel for board in own.values() for duel in board.duels if name in (duel.generator_a, duel.generator_b)]
        won, lost = sum(duel.better == name for duel in duels), sum(duel.worse == name for duel in duels)
        tallies[name] = Tally(won, lost, len(duels))
    order = sorted(tallies, key=lambda name: (tallies[name].lost - tallies[name].won, name))
    return SuiteMetric(
        metric=metric,
        ranks=not any(metric in list_unranked_metrics(run.manifest) for run in runs),
        columns=[make_board_column(board)._replace(name=name) for name, board in own.items()],
        generators=take_first_rows(order, MAX_GENERATORS),
        tallies=tallies,
        between=between,
        complete=tuple(name for name in order if all(name in listed for listed in scored.values())),
        lower_is_better=any(board.lower_is_better for board in own.values()),
    )


def _write_headline(shared: Sequence[SuiteMetric], duels: Sequence[Duel]) -> Sentence:
    """Return a sentence on whether a generator leads overall; `shared` contains the metrics that benchmarks share."""
    if not duels:
        return Sentence("No two generators can be compared", "on any benchmark.")
    if not any(duel.better for duel in duels):
        return Sentence("No generator is clearly better than another", "on any benchmark.")
    if not shared:
        return Sentence("No metric scores two of the benchmarks:", "look at each benchmark by itself.")
    leaders = {across.metric: leader for across in shared if (leader := across.find_leader())}
    if not leaders:
        return Sentence("No generator leads overall.", "The order depends on the benchmark, or no difference is clear.")
    if len(set(leaders.values())) > 1:
        by = format_names([f"{leader} by {metric}" for metric, leader in leaders.items()], len(leaders))
        return Sentence("The metrics disagree on who leads overall:", f"{by}.")
    others = len(shared) - len(leaders)
    rest = f"By {format_quantity(others, 'other metric')}, no generator does." if others else ""
    return Sentence(
        f"{next(iter(leaders.values()))} leads overall by {format_names(list(leaders), len(leaders))}.", rest
    )


def _describe_overall(across: SuiteMetric) -> Iterator[Sentence]:
    metric, n_benchmarks = across.metric, len(across.columns)
    if len(across.complete) < 2:
        rest = f"no two generators have scores on all {n_benchmarks} benchmarks."
        yield Sentence(f"By {metric} there is no overall result:", rest)
        return
    yield _describe_leader(across)
    if others := [name for name in across.tallies if name not in across.complete]:
        lack = "they lack" if len(others) > 1 else "it lacks"
        yield Sentence(
            f"Not ranked overall by {metric}:", f"{format_names(others)}, because {lack} scores on some benchmark."
        )
    split = [
        Sentence(
            f"By {metric}, the benchmark decides between {a} and {b}:",
            f"{a} is clearly better on {format_names(pair.won)}, {b} on {format_names(pair.lost)}.",
        )
        for a, b in combinations(across.complete, 2)
        if (pair := across.between.get((a, b), Matchup())).verdict == "split"
    ]
    yield from split[:MAX_SPLIT_PAIRS]
    if len(split) > MAX_SPLIT_PAIRS:
        lead = f"{format_quantity(len(split) - MAX_SPLIT_PAIRS, 'more pair')} of generators differ between benchmarks"
        yield Sentence(lead, f"by {metric}.")


def _describe_leader(across: SuiteMetric) -> Sentence:
    metric, n_benchmarks = across.metric, len(across.columns)
    leader, unbeaten = across.find_leader(), across.list_unbeaten_generators()
    if leader is not None:
        others = across.get_matchups(leader)
        rivals = next(iter(others)) if len(others) == 1 else f"each of the {len(others)} others"
        if all(len(matchup.won) == n_benchmarks for matchup in others.values()):
            return Sentence(f"{leader} is best on every benchmark", f"by {metric}: clearly better than {rivals}.")
        rest = f"clearly better than {rivals} on at least one of {n_benchmarks} benchmarks, and clearly worse on none."
        return Sentence(f"{leader} leads overall", f"by {metric}: {rest}")
    lead = f"No generator leads overall by {metric}:"
    if not any(matchup.won for name in across.complete for matchup in across.get_matchups(name).values()):
        return Sentence(lead, f"no two differ clearly on any of {n_benchmarks} benchmarks.")
    if not unbeaten:
        return Sentence(lead, "each is clearly worse than another on some benchmark.")
    if len(unbeaten) == 1:
        return Sentence(lead, f"{unbeaten[0]} is never clearly worse than another, but not ahead of every other.")
    rest = f"{format_names(unbeaten)} are never clearly worse than another, and cannot be told apart"
    ahead = {name: sum(matchup.is_ahead for matchup in across.get_matchups(name).values()) for name in unbeaten}
    first, second = sorted(ahead, key=lambda name: -ahead[name])[:2]
    if ahead[first] > ahead[second]:
        rest += f"; {first} is ahead of the most: {ahead[first]} of {len(across.complete) - 1}"
    return Sentence(lead, f"{rest}.")


def _describe_certainty(duels: Sequence[Duel]) -> str:
    if not duels:
        return ""
    n_clear = sum(duel.better is not None for duel in duels)
    return (
        f"{n_clear} of {format_quantity(len(duels), 'comparison')} of two generators by one metric on one benchmark "
        f"{'is' if n_clear == 1 else 'are'} clear, by Wilcoxon's signed-rank test. Holm's correction covers all "
        "comparisons of this page: all benchmarks, generators and metrics. If all generators were equal, at most about "
        "one suite in 20 would show any such difference. A benchmark's own report only corrects for its own "
        "comparisons, and may call a difference clear that is not clear here."
    )


def _list_warnings(
    runs: Sequence[SuiteRun], compared: Sequence[Sequence[Duel]], comparable: Sequence[Duel]
) -> Iterator[str]:
    for run in runs:
        if run.part:
            yield f"{run.benchmark} is only scored in part: {run.part}."
    for run, duels in zip(runs, compared, strict=True):
        if unlike := describe_uncompared_pairs(duels):
            yield f"Not compared on {run.benchmark}, as their settings differ: {format_names(sorted(unlike))}."
    n_prompts = max((duel.n for duel in comparable), default=0)
    if comparable and n_prompts < compute_min_pairs(len(comparable), SIGNIFICANCE_LEVEL):
        yield f"Too few prompts for any clear difference: {explain_too_few_prompts(n_prompts, len(comparable))}."
