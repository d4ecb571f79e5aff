"""Several benchmarks on one page: each generator on each benchmark by each metric, and who is ahead over all of them.

All that is said rests on duels: two generators by one metric on the prompts of one benchmark, with one correction for
all duels of the page. Means and ranks are not averaged over benchmarks: they have other prompts, and other scales by
each metric, and a mean of ranks changes with who else takes part (Benavoli, Corani and Mangili 2016).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.sentences import FirstRows, Sentence, names, plural, shown
from plumbline.operators.images.generation_settings import against
from plumbline.operators.metrics.table import falling_metrics, read_metrics
from plumbline.operators.report.page_tables import MOST_GENERATORS, MOST_IN_MATRIX, Column, board_column
from plumbline.operators.results.comparison import SIGNIFICANT, Board, Duel, Standing, boards, decided, standings
from plumbline.operators.results.summary import OVERALL, part_of
from plumbline.operators.statistics.ordering import fewest_pairs

MOST_SPLITS = 5
"""Pairs of generators of which it is said that benchmarks disagree on them."""


class SuiteRun(NamedTuple):
    """A benchmark's run."""

    run_id: str
    manifest: Mapping[str, Any]
    summary: pa.Table
    duels: Sequence[Duel]
    """Every two generators by every metric that ranks, over all prompts, in whatever way they are corrected."""

    @property
    def benchmark(self) -> str:
        return str(self.manifest.get("benchmark", ""))


class Between(NamedTuple):
    """One generator against another by one metric: the benchmarks on which it is clearly better, worse, or neither."""

    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    level: tuple[str, ...] = ()

    @property
    def is_ahead(self) -> bool:
        """Clearly better on some benchmark, and clearly worse on none."""
        return bool(self.won) and not self.lost

    @property
    def is_split(self) -> bool:
        """Clearly better on some benchmark, and clearly worse on another."""
        return bool(self.won and self.lost)

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `split`, or `tied`."""
        return "split" if self.is_split else "better" if self.won else "worse" if self.lost else "tied"


class Tally(NamedTuple):
    """A generator's duels by one metric, over all benchmarks and rivals."""

    won: int
    lost: int
    fought: int


class Across(NamedTuple):
    """A metric over all benchmarks that have it."""

    metric: str
    ranks: bool
    """Whether one score is better than another."""
    columns: list[Column]
    """A benchmark each."""
    generators: FirstRows[str]
    """Most duels won, less those lost, first."""
    tallies: Mapping[str, Tally]
    between: Mapping[tuple[str, str], Between]
    """By every two generators that some benchmark compares, from the side of the first."""
    complete: tuple[str, ...]
    """The generators that have scores on every one of its benchmarks; of others nothing is said over all."""
    lower_is_better: bool

    @property
    def benchmarks(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def matrix(self) -> FirstRows[str]:
        """The generators that stand in the matrix."""
        return shown(self.generators.rows, MOST_IN_MATRIX)

    def against(self, name: str) -> dict[str, Between]:
        """How a generator stands against each of the complete others."""
        return {other: self.between.get((name, other), Between()) for other in self.complete if other != name}

    def leader(self) -> str | None:
        """The complete generator that is ahead of every other one."""
        return next(
            (
                name
                for name in self.complete
                if self.against(name) and all(between.is_ahead for between in self.against(name).values())
            ),
            None,
        )

    def unbeaten(self) -> list[str]:
        """The complete generators than which no other is clearly better on any benchmark."""
        return [name for name in self.complete if not any(between.lost for between in self.against(name).values())]


class ShownRun(NamedTuple):
    """A benchmark's line of the page."""

    benchmark: str
    run_id: str
    prompts: int
    metrics: list[str]
    coverage: float
    exit_code: int
    part: str
    """Which part of the benchmark it is, where it is not the whole."""


class SuitePage(NamedTuple):
    """The whole page."""

    suite_id: str
    headline: Sentence
    facts: list[str]
    warnings: list[str]
    overall: list[Sentence]
    """Who leads over all benchmarks by each metric, and where benchmarks disagree."""
    sureness: str
    left_out: list[str]
    """Which metrics do not score which benchmarks, and why."""
    metrics: list[Across]
    runs: list[ShownRun]
    standings: Mapping[str, Sequence[Standing]]
    """By benchmark, over all prompts, with the tie groups of the page's correction."""

    @property
    def names(self) -> list[str]:
        return [across.metric for across in self.metrics]


def build_suite(
    suite_id: str, runs: Sequence[SuiteRun], *, left_out: Sequence[str] = (), notes: Sequence[str] = ()
) -> SuitePage:
    """The page of runs of several benchmarks; `notes` are what to know before trusting the rest."""
    compared = corrected(runs)
    ranked = {run.benchmark: _standings(run, duels) for run, duels in zip(runs, compared, strict=True)}
    at = {run.benchmark: boards(ranked[run.benchmark], duels) for run, duels in zip(runs, compared, strict=True)}
    named = dict.fromkeys(name for run in runs for name in run.manifest.get("metrics", ()))
    metrics = [
        _across(metric, at, runs) for metric in named if any((metric, OVERALL) in of_run for of_run in at.values())
    ]
    shared = [across for across in metrics if across.ranks and len(across.columns) > 1]
    every = [duel for duels in compared for duel in duels if not duel.unlike]
    generators = {standing.generator for rows in ranked.values() for standing in rows}
    began = min((str(run.manifest.get("began", "")) for run in runs), default="")[:16].replace("T", " ")
    counts = {"benchmark": len(runs), "generator": len(generators), "metric": len(metrics)}
    return SuitePage(
        suite_id=suite_id,
        headline=headline(shared, every),
        facts=[*(plural(count, word) for word, count in counts.items()), *([f"{began} UTC"] if began else [])],
        warnings=[*notes, *_limited(runs), *_unlike(compared, runs), *_too_few(every)],
        overall=[sentence for across in shared for sentence in overall_sentences(across)],
        sureness=sureness(every),
        left_out=list(left_out),
        metrics=metrics,
        runs=[_shown_run(run, ranked[run.benchmark]) for run in runs],
        standings=ranked,
    )


def corrected(runs: Sequence[SuiteRun]) -> list[list[Duel]]:
    """The duels of each run, with Holm's correction over all duels of all runs; two are told apart by that alone."""
    found = iter(decided([duel for run in runs for duel in run.duels], lambda duel: None))
    return [[next(found) for _ in run.duels] for run in runs]


def _standings(run: SuiteRun, duels: Sequence[Duel]) -> list[Standing]:
    """A run's standings over all prompts; by a metric that ranks nothing, without rank and tie group."""
    overall = run.summary.filter(pc.equal(run.summary.column("skill"), OVERALL))
    unranked = {name for name, metric in read_metrics(run.manifest).items() if not metric.ranks}
    return [
        row._replace(rank=None, group="") if row.metric in unranked else row
        for row in standings(overall, duels, falling_metrics(run.manifest))
    ]


def _across(metric: str, at: Mapping[str, Mapping[tuple[str, str], Board]], runs: Sequence[SuiteRun]) -> Across:
    """One metric's boards side by side."""
    own = {name: of_run[metric, OVERALL] for name, of_run in at.items() if (metric, OVERALL) in of_run}
    between = _between(own)
    scored = {name: [standing.generator for standing in board.scored()] for name, board in own.items()}
    tallies = {name: _tally(name, own) for name in dict.fromkeys(name for rows in scored.values() for name in rows)}
    order = sorted(tallies, key=lambda name: (tallies[name].lost - tallies[name].won, name))
    ranking = [read_metrics(run.manifest)[metric] for run in runs if metric in read_metrics(run.manifest)]
    return Across(
        metric=metric,
        ranks=all(each.ranks for each in ranking),
        columns=[board_column(board)._replace(name=name) for name, board in own.items()],
        generators=shown(order, MOST_GENERATORS),
        tallies=tallies,
        between=between,
        complete=tuple(name for name in order if all(name in rows for rows in scored.values())),
        lower_is_better=any(board.lower_is_better for board in own.values()),
    )


def _between(at: Mapping[str, Board]) -> dict[tuple[str, str], Between]:
    found: dict[tuple[str, str], list[tuple[str, str | None]]] = defaultdict(list)
    for benchmark, board in at.items():
        for duel in board.duels:
            for pair in ((duel.generator_a, duel.generator_b), (duel.generator_b, duel.generator_a)):
                found[pair].append((benchmark, duel.better))
    return {
        (a, b): Between(
            won=tuple(benchmark for benchmark, better in outcomes if better == a),
            lost=tuple(benchmark for benchmark, better in outcomes if better == b),
            level=tuple(benchmark for benchmark, better in outcomes if better is None),
        )
        for (a, b), outcomes in found.items()
    }


def _tally(name: str, at: Mapping[str, Board]) -> Tally:
    own = [duel for board in at.values() for duel in board.duels if name in (duel.generator_a, duel.generator_b)]
    return Tally(sum(duel.better == name for duel in own), sum(duel.worse == name for duel in own), len(own))


def headline(shared: Sequence[Across], duels: Sequence[Duel]) -> Sentence:
    """Who leads over all benchmarks, where the metrics that several of them have agree on it."""
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
    """Who leads over all benchmarks by one metric, or why nobody does; then the pairs on which benchmarks disagree."""
    metric, number = across.metric, len(across.columns)
    if len(across.complete) < 2:
        yield Sentence(
            f"By {metric} nothing is said overall:", f"no two generators have scores on all {number} benchmarks."
        )
        return
    yield _overall(across)
    if others := [name for name in across.tallies if name not in across.complete]:
        lack = "which lack scores on some benchmark" if len(others) > 1 else "which lacks scores on some benchmark"
        yield Sentence(f"Of {names(others)} nothing is said overall by {metric},", f"{lack}.")
    split = [
        Sentence(
            f"{a} or {b} depends on the benchmark by {metric}:",
            f"{a} is clearly better on {names(pair.won)}, {b} on {names(pair.lost)}.",
        )
        for a, b in combinations(across.complete, 2)
        if (pair := across.between.get((a, b), Between())).is_split
    ]
    yield from split[:MOST_SPLITS]
    if len(split) > MOST_SPLITS:
        yield Sentence(
            f"{plural(len(split) - MOST_SPLITS, 'more pair')} of generators depend on the benchmark", f"by {metric}."
        )


def _overall(across: Across) -> Sentence:
    metric, number = across.metric, len(across.columns)
    leader, unbeaten = across.leader(), across.unbeaten()
    others = [name for name in across.complete if name != leader]
    if leader is not None:
        if all(len(between.won) == number for between in across.against(leader).values()):
            return Sentence(f"{leader} is best on every benchmark", f"by {metric}: clearly better than {_all(others)}.")
        rest = f"clearly better than {_all(others)} on at least one of {number} benchmarks, and clearly worse on none."
        return Sentence(f"{leader} leads overall", f"by {metric}: {rest}")
    lead = f"No generator leads overall by {metric}:"
    if not any(pair.won for name in across.complete for pair in across.against(name).values()):
        return Sentence(lead, f"no two are told apart on any of {number} benchmarks.")
    if not unbeaten:
        return Sentence(lead, "each is clearly worse than another on some benchmark.")
    if len(unbeaten) == 1:
        return Sentence(lead, f"{unbeaten[0]} is on no benchmark clearly worse than another, but not ahead of each.")
    rest = f"{names(unbeaten)} are on no benchmark clearly worse than another, and not told apart"
    return Sentence(lead, f"{rest}{_ahead_of_most(across, unbeaten)}.")


def _ahead_of_most(across: Across, unbeaten: Sequence[str]) -> str:
    """Which of them is ahead of more generators than each of the others, where one is."""
    ahead = {name: sum(between.is_ahead for between in across.against(name).values()) for name in unbeaten}
    first, second = sorted(ahead, key=lambda name: -ahead[name])[:2]
    if ahead[first] == ahead[second]:
        return ""
    return f"; {first} is ahead of the most others, {ahead[first]} of {len(across.complete) - 1}"


def _all(others: Sequence[str]) -> str:
    return others[0] if len(others) == 1 else f"each of the {len(others)} others"


def sureness(duels: Sequence[Duel]) -> str:
    """What `clearly` rests on."""
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


def _too_few(duels: Sequence[Duel]) -> Iterator[str]:
    """That no outcome could have been clear, where there are too few prompts for so many comparisons."""
    if not duels:
        return
    most, least = max(duel.n for duel in duels), fewest_pairs(len(duels), SIGNIFICANT)
    if most < least:
        yield (
            f"Too few prompts to tell anything: even a generator that wins on every one of {plural(most, 'prompt')} "
            f"cannot be told from another among {len(duels)} comparisons; {least} prompts are the least that can."
        )


def _unlike(compared: Sequence[Sequence[Duel]], runs: Sequence[SuiteRun]) -> Iterator[str]:
    """Which generators are not compared on a benchmark, as their settings differ."""
    for run, duels in zip(runs, compared, strict=True):
        unlike = {
            f"{duel.generator_a} and {duel.generator_b} ({against(duel.unlike)})" for duel in duels if duel.unlike
        }
        if unlike:
            yield f"Not compared on {run.benchmark}, as their settings differ: {names(sorted(unlike))}."


def _limited(runs: Sequence[SuiteRun]) -> Iterator[str]:
    for run in runs:
        if part := part_of(run.manifest):
            yield f"{run.benchmark} is scored in part alone: {part}."


def _shown_run(run: SuiteRun, ranked: Sequence[Standing]) -> ShownRun:
    return ShownRun(
        benchmark=run.benchmark,
        run_id=run.run_id,
        prompts=max((duel.n for duel in run.duels), default=max((row.n + row.n_null for row in ranked), default=0)),
        metrics=list(run.manifest.get("metrics", ())),
        coverage=float(run.manifest.get("counts", {}).get("coverage", 0.0)),
        exit_code=int(run.manifest.get("exit_code", 0)),
        part=part_of(run.manifest),
    )
