"""Several benchmarks on one page: each generator on each benchmark by each metric, and the leaders over all benchmarks.

All conclusions are based on duels: two generators by one metric on the prompts of one benchmark, with one correction
for all duels of the page. Means and ranks are not averaged over benchmarks. Benchmarks have different prompts, metrics
have different scales, and a mean of ranks depends on the other participants (Benavoli, Corani and Mangili 2016).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.sentences import FirstRows, Sentence, first_rows, names, plural
from plumbline.operators.metrics.table import falling_metrics
from plumbline.operators.report.leaders import explain_too_few
from plumbline.operators.report.page_tables import MAX_GENERATORS, MAX_IN_MATRIX, Column, board_column
from plumbline.operators.results.comparison import (
    SIGNIFICANT,
    Board,
    Duel,
    LeaderboardRow,
    build_boards,
    decide_duels,
    generator_names,
    not_compared,
    rank_generators,
)
from plumbline.operators.results.metric_recipes import unranked_metrics
from plumbline.operators.results.summary import OVERALL, part_of
from plumbline.operators.statistics.ordering import fewest_pairs

MAX_SPLITS = 5
"""Pairs of generators that are named because benchmarks disagree on them."""


class SuiteRun(NamedTuple):
    """Run of one benchmark of a suite."""

    run_id: str
    manifest: Mapping[str, Any]
    summary: pa.Table
    duels: Sequence[Duel]
    """Every two generators by every metric that ranks, over all prompts. Their correction is replaced by the page's."""

    @property
    def benchmark(self) -> str:
        return str(self.manifest.get("benchmark", ""))


class Matchup(NamedTuple):
    """One generator against another by one metric: the benchmarks on which it is clearly better, worse, or neither."""

    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    level: tuple[str, ...] = ()

    @property
    def is_ahead(self) -> bool:
        """Return True if the generator is clearly better on some benchmark and clearly worse on none."""
        return bool(self.won) and not self.lost

    @property
    def is_split(self) -> bool:
        """Return True if the generator is clearly better on some benchmark and clearly worse on another."""
        return bool(self.won and self.lost)

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `split`, or `tied`."""
        return "split" if self.is_split else "better" if self.won else "worse" if self.lost else "tied"


class Tally(NamedTuple):
    """Counts of a generator's duels by one metric, over all benchmarks and rivals."""

    won: int
    lost: int
    fought: int


class Across(NamedTuple):
    """Results by a metric on all benchmarks that use it."""

    metric: str
    ranks: bool
    """True if a score can be better than another."""
    columns: list[Column]
    """Columns of the table, one for each benchmark."""
    generators: FirstRows[str]
    """Generators with the most duels won, minus those lost, first."""
    tallies: Mapping[str, Tally]
    between: Mapping[tuple[str, str], Matchup]
    """Matchup of each ordered pair of generators that some benchmark compares."""
    complete: tuple[str, ...]
    """Generators that have scores on all of these benchmarks. Only they can lead overall."""
    lower_is_better: bool

    @property
    def benchmarks(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def matrix(self) -> FirstRows[str]:
        """Generators in the matrix."""
        return first_rows(self.generators.rows, MAX_IN_MATRIX)

    def matchups(self, name: str) -> dict[str, Matchup]:
        """Return a generator's matchup with each of the other complete generators."""
        return {other: self.between.get((name, other), Matchup()) for other in self.complete if other != name}

    def leader(self) -> str | None:
        """Return the complete generator that is ahead of every other one, if there is one."""
        for name in self.complete:
            matchups = self.matchups(name).values()
            if matchups and all(matchup.is_ahead for matchup in matchups):
                return name
        return None

    def unbeaten(self) -> list[str]:
        """Return the complete generators that no other beats clearly on any benchmark."""
        return [name for name in self.complete if not any(matchup.lost for matchup in self.matchups(name).values())]


class ShownRun(NamedTuple):
    """A row of the page's table of runs."""

    benchmark: str
    run_id: str
    prompts: int
    metrics: list[str]
    coverage: float
    exit_code: int
    part: str
    """Part of the benchmark's prompts in the run; empty if all of them are."""


class SuitePage(NamedTuple):
    """The whole page."""

    suite_id: str
    headline: Sentence
    facts: list[str]
    warnings: list[str]
    overall: list[Sentence]
    """Sentences about the leaders over all benchmarks by each metric, and about pairs on which benchmarks disagree."""
    sureness: str
    left_out: list[str]
    """Metrics that do not score a benchmark, with the reason."""
    metrics: list[Across]
    runs: list[ShownRun]
    leaderboard_rows: Mapping[str, Sequence[LeaderboardRow]]
    """Rows over all prompts by benchmark, with the tie groups of the page's correction."""

    @property
    def names(self) -> list[str]:
        return [across.metric for across in self.metrics]


def build_suite(
    suite_id: str, runs: Sequence[SuiteRun], *, left_out: Sequence[str] = (), notes: Sequence[str] = ()
) -> SuitePage:
    """Return the page of runs of several benchmarks.

    Metrics that do not score a benchmark are `left_out`, each with the reason; `notes` are further warnings.
    """
    compared = correct_together(runs)
    ranked, boards = {}, {}
    for run, duels in zip(runs, compared, strict=True):
        overall = run.summary.filter(pc.equal(run.summary.column("skill"), OVERALL))
        ranked[run.benchmark] = rank_generators(
            overall, duels, falling_metrics(run.manifest), unranked=unranked_metrics(run.manifest)
        )
        boards[run.benchmark] = build_boards(ranked[run.benchmark], duels)
    named = dict.fromkeys(name for run in runs for name in run.manifest.get("metrics", ()))
    metrics = [
        _results_across(metric, boards, runs)
        for metric in named
        if any((metric, OVERALL) in own for own in boards.values())
    ]
    shared = [across for across in metrics if across.ranks and len(across.columns) > 1]
    every = [duel for duels in compared for duel in duels if not duel.unlike]
    generators = {row.generator for rows in ranked.values() for row in rows}
    began = min((str(run.manifest.get("began", "")) for run in runs), default="")[:16].replace("T", " ")
    counts = {"benchmark": len(runs), "generator": len(generators), "metric": len(metrics)}
    return SuitePage(
        suite_id=suite_id,
        headline=headline(shared, every),
        facts=[*(plural(count, word) for word, count in counts.items()), *([f"{began} UTC"] if began else [])],
        warnings=[*notes, *_warnings(runs, compared), *_prompt_warnings(every)],
        overall=[sentence for across in shared for sentence in overall_sentences(across)],
        sureness=sureness(every),
        left_out=list(left_out),
        metrics=metrics,
        runs=[
            ShownRun(
                benchmark=run.benchmark,
                run_id=run.run_id,
                prompts=max((duel.n for duel in run.duels), default=_count_rows(ranked[run.benchmark])),
                metrics=list(run.manifest.get("metrics", ())),
                coverage=float(run.manifest.get("counts", {}).get("coverage", 0.0)),
                exit_code=int(run.manifest.get("exit_code", 0)),
                part=part_of(run.manifest),
            )
            for run in runs
        ],
        leaderboard_rows=ranked,
    )


def correct_together(runs: Sequence[SuiteRun]) -> list[list[Duel]]:
    """Return the duels of each run, decided with Holm's correction over all duels of all runs."""
    decided = iter(decide_duels([duel for run in runs for duel in run.duels], lambda duel: None))
    return [[next(decided) for _ in run.duels] for run in runs]


def _count_rows(ranked: Sequence[LeaderboardRow]) -> int:
    return max((row.n + row.n_null for row in ranked), default=0)


def _results_across(
    metric: str, boards: Mapping[str, Mapping[tuple[str, str], Board]], runs: Sequence[SuiteRun]
) -> Across:
    """Return one metric's results from the boards of each benchmark."""
    own = {name: of_run[metric, OVERALL] for name, of_run in boards.items() if (metric, OVERALL) in of_run}
    duels = [(name, duel) for name, board in own.items() for duel in board.duels]
    scored = {name: generator_names(board.scored()) for name, board in own.items()}
    tallies = {}
    for name in dict.fromkeys(chain.from_iterable(scored.values())):
        fought = [duel for _, duel in duels if name in (duel.generator_a, duel.generator_b)]
        won, lost = sum(duel.better == name for duel in fought), sum(duel.worse == name for duel in fought)
        tallies[name] = Tally(won, lost, len(fought))
    order = sorted(tallies, key=lambda name: (tallies[name].lost - tallies[name].won, name))
    return Across(
        metric=metric,
        ranks=not any(metric in unranked_metrics(run.manifest) for run in runs),
        columns=[board_column(board)._replace(name=name) for name, board in own.items()],
        generators=first_rows(order, MAX_GENERATORS),
        tallies=tallies,
        between=_matchups(duels),
        complete=tuple(name for name in order if all(name in listed for listed in scored.values())),
        lower_is_better=any(board.lower_is_better for board in own.values()),
    )


def _matchups(duels: Sequence[tuple[str, Duel]]) -> dict[tuple[str, str], Matchup]:
    """Return the matchup of each ordered pair from the duels, each with its benchmark."""
    outcomes: dict[tuple[str, str], list[tuple[str, str | None]]] = defaultdict(list)
    for benchmark, duel in duels:
        for pair in ((duel.generator_a, duel.generator_b), (duel.generator_b, duel.generator_a)):
            outcomes[pair].append((benchmark, duel.better))
    return {
        (a, b): Matchup(
            won=tuple(benchmark for benchmark, better in of_pair if better == a),
            lost=tuple(benchmark for benchmark, better in of_pair if better == b),
            level=tuple(benchmark for benchmark, better in of_pair if better is None),
        )
        for (a, b), of_pair in outcomes.items()
    }


def headline(shared: Sequence[Across], duels: Sequence[Duel]) -> Sentence:
    """Return whether a generator leads over all benchmarks; `shared` are the metrics that several of them use."""
    if not duels:
        return Sentence("No two generators can be compared", "on any benchmark.")
    if not any(duel.better for duel in duels):
        return Sentence("No generator is clearly better than another", "on any benchmark.")
    if not shared:
        return Sentence("No metric scores two of the benchmarks:", "each stands for itself.")
    leaders = {across.metric: leader for across in shared if (leader := across.leader())}
    if not leaders:
        return Sentence("No generator leads overall.", "Who is better depends on the benchmark, or cannot be told.")
    if len(set(leaders.values())) > 1:
        by = names([f"{leader} by {metric}" for metric, leader in leaders.items()], len(leaders))
        return Sentence("The metrics disagree on who leads overall:", f"{by}.")
    leader, metrics = next(iter(leaders.values())), list(leaders)
    by = names(metrics, len(metrics))
    if len(metrics) < len(shared):
        return Sentence(
            f"{leader} leads overall by {by}.", f"By {plural(len(shared) - len(metrics), 'other metric')} nobody does."
        )
    return Sentence(f"{leader} leads overall by {by}.", "")


def overall_sentences(across: Across) -> Iterator[Sentence]:
    """Yield sentences about the overall leader by one metric, and about pairs on which benchmarks disagree."""
    metric, number = across.metric, len(across.columns)
    if len(across.complete) < 2:
        yield Sentence(
            f"By {metric} nothing is said overall:", f"no two generators have scores on all {number} benchmarks."
        )
        return
    yield _leader_sentence(across)
    if others := [name for name in across.tallies if name not in across.complete]:
        lack = "which lack scores on some benchmark" if len(others) > 1 else "which lacks scores on some benchmark"
        yield Sentence(f"Of {names(others)} nothing is said overall by {metric},", f"{lack}.")
    split = [
        Sentence(
            f"{a} or {b} depends on the benchmark by {metric}:",
            f"{a} is clearly better on {names(pair.won)}, {b} on {names(pair.lost)}.",
        )
        for a, b in combinations(across.complete, 2)
        if (pair := across.between.get((a, b), Matchup())).is_split
    ]
    yield from split[:MAX_SPLITS]
    if len(split) > MAX_SPLITS:
        yield Sentence(
            f"{plural(len(split) - MAX_SPLITS, 'more pair')} of generators depend on the benchmark", f"by {metric}."
        )


def _leader_sentence(across: Across) -> Sentence:
    metric, number = across.metric, len(across.columns)
    leader, unbeaten = across.leader(), across.unbeaten()
    if leader is not None:
        others = list(across.matchups(leader))
        rivals = others[0] if len(others) == 1 else f"each of the {len(others)} others"
        if all(len(matchup.won) == number for matchup in across.matchups(leader).values()):
            return Sentence(f"{leader} is best on every benchmark", f"by {metric}: clearly better than {rivals}.")
        rest = f"clearly better than {rivals} on at least one of {number} benchmarks, and clearly worse on none."
        return Sentence(f"{leader} leads overall", f"by {metric}: {rest}")
    lead = f"No generator leads overall by {metric}:"
    if not any(matchup.won for name in across.complete for matchup in across.matchups(name).values()):
        return Sentence(lead, f"no two are told apart on any of {number} benchmarks.")
    if not unbeaten:
        return Sentence(lead, "each is clearly worse than another on some benchmark.")
    if len(unbeaten) == 1:
        return Sentence(lead, f"{unbeaten[0]} is on no benchmark clearly worse than another, but not ahead of each.")
    rest = f"{names(unbeaten)} are on no benchmark clearly worse than another, and not told apart"
    ahead = {name: sum(matchup.is_ahead for matchup in across.matchups(name).values()) for name in unbeaten}
    first, second = sorted(ahead, key=lambda name: -ahead[name])[:2]
    if ahead[first] > ahead[second]:
        rest += f"; {first} is ahead of the most others, {ahead[first]} of {len(across.complete) - 1}"
    return Sentence(lead, f"{rest}.")


def sureness(duels: Sequence[Duel]) -> str:
    """Return how many comparisons are clear, and by which test."""
    if not duels:
        return ""
    clear = sum(duel.better is not None for duel in duels)
    return (
        f"{clear} of {plural(len(duels), 'comparison')} of two generators by one metric on one benchmark "
        f"{'is' if clear == 1 else 'are'} clear, by Wilcoxon's signed-rank test with Holm's correction over all of "
        "them: all benchmarks, generators and metrics of this page. Were all generators equal, about one suite in 20 "
        "at most would show any such difference. A benchmark's own report corrects for its own comparisons alone, and "
        "may call clear what is not clear here."
    )


def _prompt_warnings(duels: Sequence[Duel]) -> Iterator[str]:
    """Yield a warning if there are too few prompts for any clear difference among this number of comparisons."""
    n_prompts = max((duel.n for duel in duels), default=0)
    if duels and n_prompts < fewest_pairs(len(duels), SIGNIFICANT):
        yield f"Too few prompts to tell anything: {explain_too_few(n_prompts, len(duels))}."


def _warnings(runs: Sequence[SuiteRun], compared: Sequence[Sequence[Duel]]) -> Iterator[str]:
    """Yield the benchmarks that are scored in part, and then the generators that are not compared on a benchmark."""
    for run in runs:
        if part := part_of(run.manifest):
            yield f"{run.benchmark} is scored in part alone: {part}."
    for run, duels in zip(runs, compared, strict=True):
        if unlike := not_compared(duels):
            yield f"Not compared on {run.benchmark}, as their settings differ: {names(sorted(unlike))}."
