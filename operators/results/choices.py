"""Compares generators by a judge's choices between two images of a prompt: win rates, strengths and order bias.

A table of comparisons has a row for each pair of images in each order in which the judge saw them. The two orders are
averaged into one outcome, so that a judge that favours the first image favours no generator. The outcomes of a prompt
are averaged for each pair of generators; all intervals and tests are over prompts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.rows import format_id, require_columns
from plumbline.operators.base.sentences import format_names, format_quantity
from plumbline.operators.images.generation_settings import SettingCounts, compare_settings
from plumbline.operators.results.comparison import Board, Duel, LeaderboardRow, decide_duels, find_tie_groups
from plumbline.operators.results.run_scores import Hashes
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.statistics.bootstrap import ROUNDING_TOLERANCE, Interval
from plumbline.operators.statistics.bradley_terry import estimate_strengths, find_components
from plumbline.operators.statistics.order_bias import CycleCounts, OrderBias, count_cycles, measure_order_bias
from plumbline.operators.statistics.ordering import compute_sign_flip_p_value
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.operators.statistics.shares import compute_share_interval

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Comparisons: TypeAlias = pd.DataFrame | pa.Table | Iterable[Mapping[str, Any]]

SIDE_COLUMNS = ("generator", "image_id")
READ_COLUMNS = (
    "prompt_id",
    "metric",
    *(f"{place}_{name}" for name in SIDE_COLUMNS for place in ("first", "second")),
    "p_first",
)
"""Columns of a table of comparisons that are read."""
PAIR_COLUMNS = ["prompt_id", "generator_a", "generator_b", "image_a", "image_b"]
MIN_PROMPTS = 10
"""Minimum number of prompts for a comparison of generators, and for an interval."""
MAX_OUTCOMES = 100_000_000
"""Maximum number of prompts times pairs of generators: 0.8 GB of outcomes."""
MIN_GENERATORS_WITH_STRENGTHS = 3
"""Minimum number of generators for strengths. For two generators, strengths would only repeat the win rate."""


class Choices(NamedTuple):
    """One metric's choices between two images, with a row for each pair of images."""

    metric: str
    generators: tuple[str, ...]
    pairs: pd.DataFrame
    """Pairs of images with the columns in PAIR_COLUMNS; generator a comes first by name. `forward` is the probability
    that image a is better if it is shown first, `backward` if it is shown second (nan if there is no answer). `won` is
    the pair's outcome: the mean of both, or nan if the pair is not used.
    """
    both_orders: bool
    """True if only pairs with an answer in both orders are used."""

    @property
    def n_in_one_order(self) -> int:
        """Number of pairs that have an answer in only one order."""
        return int((self.pairs["forward"].isna() != self.pairs["backward"].isna()).sum())

    @property
    def n_failed(self) -> int:
        """Number of pairs without any answer."""
        return int((self.pairs["forward"].isna() & self.pairs["backward"].isna()).sum())


def read_choices(comparisons: Comparisons, metric: str = "", *, both_orders: bool = True) -> Choices:
    """Read the choices of one metric from a table of comparisons.

    Several rows for a pair in the same order, such as those of several raters, are averaged.

    Args:
        comparisons: A table with the columns in READ_COLUMNS. `p_first` is the probability that the first image is
            better; it is null if the comparison failed.
        metric: The metric to read. It may be empty if the table has a single metric.
        both_orders: False to also use pairs answered in only one order. Only do so if the order was drawn at random.

    Raises:
        SourceError: a column is missing, a value is invalid, or the metric is not in the table.
    """
    frame, metric = _check_comparisons(comparisons), format_id(metric) or ""
    metrics = sorted(frame["metric"].unique())
    if metric not in metrics and (metric or len(metrics) != 1):
        found = f"found {format_names(metrics)}" if metrics else "found no rows"
        wanted = repr(metric) if metric else "a single metric"
        raise SourceError(f"comparisons: expected {wanted}, {found}; choose one of them with metric=")
    frame = frame[frame["metric"] == (metric or metrics[0])]
    swap = frame["first_generator"].to_numpy(dtype=str) > frame["second_generator"].to_numpy(dtype=str)
    sides = {
        f"{short}_{side}": np.where(swap, frame[f"{other}_{name}"], frame[f"{own}_{name}"])
        for name, short in zip(SIDE_COLUMNS, ("generator", "image"), strict=True)
        for side, own, other in (("a", "first", "second"), ("b", "second", "first"))
    }
    p_first = frame["p_first"].to_numpy(np.float64)
    shown = pd.DataFrame({"prompt_id": frame["prompt_id"].to_numpy(), **sides})
    shown["forward"], shown["backward"] = np.where(swap, math.nan, p_first), np.where(swap, 1 - p_first, math.nan)
    pairs = shown.groupby(PAIR_COLUMNS, as_index=False)[["forward", "backward"]].mean()
    pairs["won"] = pairs[["forward", "backward"]].mean(axis=1, skipna=not both_orders)
    generators = tuple(sorted({*pairs["generator_a"], *pairs["generator_b"]}))
    return Choices(metric or metrics[0], generators, pairs, both_orders)


def read_table(comparisons: Comparisons) -> pd.DataFrame:
    """Return the columns in READ_COLUMNS from a table or list of comparisons.

    Raises SourceError if a column is missing, except for an empty list.
    """
    if isinstance(comparisons, pa.Table):
        require_columns(comparisons.column_names, READ_COLUMNS, "comparisons")
        comparisons = comparisons.select(list(READ_COLUMNS)).to_pandas()
    frame = comparisons if isinstance(comparisons, pd.DataFrame) else make_frame(list(comparisons))
    if len(frame.columns):
        require_columns(map(str, frame.columns), READ_COLUMNS, "comparisons")
    return frame.reindex(columns=list(READ_COLUMNS)).reset_index(drop=True)


def make_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows as a table of objects, because pandas' strings cannot contain a lone surrogate."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame(rows, columns=pd.Index(names, dtype=object), dtype=object)


def _check_comparisons(comparisons: Comparisons) -> pd.DataFrame:
    """Return the columns in READ_COLUMNS; raise SourceError if one is missing, or if a value is invalid."""
    frame = read_table(comparisons)
    images = ["first_image_id", "second_image_id"]  # a comparison that failed may lack an image
    frame[images] = frame[images].where(frame[images].notna() | frame[["p_first"]].notna().to_numpy(), "")
    ids = frame[[*READ_COLUMNS[:-1]]]
    p_first = pd.to_numeric(frame["p_first"], errors="coerce")
    wrong = {
        "an id": ids.isna().any(axis=1),
        "p_first from 0 to 1": frame["p_first"].notna() & ~p_first.between(0, 1),
        "images of two generators": ids["first_generator"] == ids["second_generator"],
    }
    for expected, rows in wrong.items():
        for number in frame.index[rows][:1]:
            found = ", ".join(f"{name}={format_id(value)}" for name, value in frame.loc[number].items())
            raise SourceError(f"comparisons, row {number}: expected {expected}, found {found}; correct or remove it")
    texts = {name: ids[name] if ids[name].dtype == "str" else ids[name].map(format_id) for name in ids}
    return ids.assign(**texts, p_first=p_first)


class Strength(NamedTuple):
    """A generator's Bradley-Terry strength on Elo's scale, relative to the mean of all generators with a strength."""

    value: float
    interval: Interval
    """95% interval of the strength, computed over prompts; nan if the strength depends on few prompts."""


class ChoiceResults(NamedTuple):
    """Results of a judge's choices between generators' images: win rates, strengths, and checks of the judge."""

    boards: Mapping[str, Board]
    """Win rates by skill, `overall` first, with all duels. A generator's win rate is the mean of its win rates against
    each of the generators that it was compared with; 0.5 is as good as the others. There are letters if every two
    generators were compared.
    """
    strengths: Mapping[str, Strength]
    """Strengths of the generators that have one, strongest first."""
    no_strength: str
    """Reason why some generators have no strength; empty if all have one."""
    order_bias: OrderBias | None
    """Influence of the order; None if pairs with one order are used."""
    cycles: CycleCounts
    choices: Choices

    @property
    def overall(self) -> Board:
        return self.boards[OVERALL]


def compare_pairs(
    comparisons: Comparisons,
    metric: str = "",
    *,
    skills: Mapping[str, Sequence[str]] = MappingProxyType({}),
    both_orders: bool = True,
) -> ChoiceResults:
    """Compare generators by a judge's choices between two images of a prompt.

    A pair with an answer in only one order is left out, because such an answer favours the image shown first (or
    second), and with it a generator. Leaving pairs out is unbiased if failures do not depend on the images.

    Two generators differ clearly (`better`, and no common letter) if the p-value of the sign-flip test of their
    outcomes is below 0.05 after Holm's correction over all pairs. All intervals are over prompts: Wilson's for win
    rates, and the jackknife's for strengths.

    Args:
        comparisons: A DataFrame, an Arrow table or dicts with prompt_id, metric, first_generator, second_generator,
            first_image_id, second_image_id and p_first: the probability that the first image is better (1, 0, or 0.5
            for a tie), null if the comparison failed.
        metric: The metric to compare by. It may be empty if the table has a single metric.
        skills: Skills of each prompt, by prompt_id.
        both_orders: False to also use pairs answered in only one order, as is usual for people. The order must have
            been drawn at random.

    Raises:
        SourceError: a column is missing, a value is invalid, or there are too few prompts.
    """
    for prompt, labels in skills.items():
        is_list = isinstance(labels, Iterable) and not isinstance(labels, str)
        if not is_list or not all(isinstance(label, str) for label in labels):
            raise SourceError(f"skills[{prompt!r}]: expected a list of texts, found {labels!r}; correct it")
    labelled = [(str(format_id(prompt)), [*map(str, map(format_id, labels))]) for prompt, labels in skills.items()]
    return compare_choices(read_choices(comparisons, metric, both_orders=both_orders), Skills(labelled))


class Refusal(NamedTuple):
    """Choices that cannot be compared, with the reason as a sentence without its full stop."""

    choices: Choices
    reason: str


def compare_each_metric(
    comparisons: pa.Table, skills: Skills, *, both_orders: bool = True
) -> dict[str, ChoiceResults | Refusal]:
    """Return the results of each metric in a table of comparisons, by name; raise SourceError for an invalid table.

    `both_orders` is False for people's choices, as in `compare_pairs`.
    """
    found: dict[str, ChoiceResults | Refusal] = {}
    for metric in sorted(map(str, pc.unique(comparisons.column("metric")).to_pylist())):
        choices = read_choices(comparisons, metric, both_orders=both_orders)
        try:
            found[metric] = compare_choices(choices, skills)
        except SourceError as refused:
            found[metric] = Refusal(choices, str(refused))
    return found


def compare_choices(choices: Choices, skills: Skills) -> ChoiceResults:
    """Return the generators' win rates and strengths, overall and by skill.

    Raise SourceError for fewer than MIN_PROMPTS prompts.
    """
    used = choices.pairs[choices.pairs["won"].notna()]
    n_prompts = used["prompt_id"].nunique()
    if n_prompts < MIN_PROMPTS:
        order = " in both orders" if choices.both_orders else ""
        raise SourceError(
            f"comparisons by {choices.metric}: expected at least {MIN_PROMPTS} prompts with a pair "
            f"judged{order}, found {n_prompts} ({format_quantity(choices.n_in_one_order, 'pair')} judged in one order "
            f"only, {choices.n_failed} not at all); compare images for more prompts, or repeat the failed comparisons"
        )
    n_outcomes = n_prompts * math.comb(len(choices.generators), 2)
    if n_outcomes > MAX_OUTCOMES:
        raise SourceError(
            f"comparisons by {choices.metric}: expected at most {MAX_OUTCOMES:,} outcomes, found {n_prompts:,} prompts "
            f"and {len(choices.generators):,} generators; compare fewer generators at a time"
        )
    prompts, first, second, won = _average_outcomes(used, choices.generators)
    boards = {
        skill: _make_board(_Outcomes(choices.metric, skill, choices.generators, first, second, won[mask]))
        for skill, mask in skills.iterate_masks(hash_ids(prompts))
        if mask.any()
    }
    strengths, no_strength = _find_strengths(choices.generators, first, second, won)
    bias = None
    if choices.both_orders:
        codes = np.unique(used["prompt_id"].to_numpy(dtype=str), return_inverse=True)[1].astype(np.int64)
        bias = measure_order_bias(
            codes, used["forward"].to_numpy(np.float64), 1 - used["backward"].to_numpy(np.float64)
        )
    cycles = count_cycles(first, second, won, len(choices.generators))
    return ChoiceResults(boards, strengths, no_strength, bias, cycles, choices)


def _average_outcomes(used: pd.DataFrame, generators: Sequence[str]) -> tuple[list[str], Indices, Indices, Floats]:
    """Return the mean outcome of each prompt and pair of generators, with the prompts and pairs.

    The four results are the prompts' ids, the index of each pair's first and second generator (pairs,), and the
    outcomes (prompts, pairs), nan if there is none.
    """
    pairs = list(combinations(range(len(generators)), 2))
    columns = pd.MultiIndex.from_tuples([(generators[a], generators[b]) for a, b in pairs])
    means = used.groupby(["prompt_id", "generator_a", "generator_b"])["won"].mean().unstack([1, 2])
    first, second = np.array(pairs, np.intp).T
    return list(means.index), first, second, means.reindex(columns=columns).to_numpy(np.float64)


def find_outcomes(choices: Choices, generator: str, other: str) -> tuple[Hashes, Floats]:
    """Return the hashes of the prompts on which two generators were compared, and the share that `generator` won.

    Both arrays have the shape (prompts,); the hashes are those of RunScores.prompts. A share is the mean over all
    comparisons of the two generators on the prompt.
    """
    pairs = choices.pairs[choices.pairs["won"].notna()]
    shares = [
        pairs.loc[(pairs["generator_a"] == a) & (pairs["generator_b"] == b), "prompt_id"]
        .to_frame()
        .assign(won=pairs["won"] if a == generator else 1 - pairs["won"])
        for a, b in ((generator, other), (other, generator))
    ]
    means = pd.concat(shares).groupby("prompt_id")["won"].mean()
    return hash_ids(list(means.index)), means.to_numpy(np.float64)


def decide_scored_duels(
    results: ChoiceResults, baseline: str = "", settings: Mapping[str, SettingCounts] = MappingProxyType({})
) -> list[Duel]:
    """Return the comparisons of generators for a leaderboard of the judge's scores, overall and by skill.

    With a baseline, only its own comparisons count. Generators with different settings are not compared. Return nothing
    if the judge did not compare all generators that the leaderboard compares.
    """
    generators = results.choices.generators
    wanted = math.comb(len(generators), 2) if not baseline else len({*generators} - {baseline})
    if len(_list_duels(results.overall, baseline)) < wanted:
        return []
    return decide_duels(
        [
            duel._replace(
                unlike=tuple(compare_settings(settings.get(duel.generator_a, {}), settings.get(duel.generator_b, {})))
            )
            for board in results.boards.values()
            for duel in _list_duels(board, baseline)
        ]
    )


def _list_duels(board: Board, baseline: str) -> list[Duel]:
    return [duel for duel in board.duels if baseline in ("", duel.generator_a, duel.generator_b)]


class _Outcomes(NamedTuple):
    metric: str
    skill: str
    generators: Sequence[str]
    first: Indices
    """Index of the first generator of each pair (pairs,)."""
    second: Indices
    won: Floats
    """Mean share won by the first generator (prompts, pairs); nan if the pair has no outcome."""


def _make_board(outcomes: _Outcomes) -> Board:
    metric, skill, generators, _, _, won = outcomes
    counts = np.isfinite(won).sum(axis=0)
    rates = np.where(counts > 0, np.nansum(won, axis=0) / np.maximum(counts, 1), math.nan)
    residuals = np.nan_to_num(won - rates) / np.maximum(counts, 1)  # how far each prompt moves each rate
    compared = np.flatnonzero(counts).tolist()
    duels = decide_duels([_make_duel(outcomes, pair, float(rates[pair]), residuals[:, pair]) for pair in compared])
    rows = []
    for code, generator in enumerate(generators):
        own = np.flatnonzero(((outcomes.first == code) | (outcomes.second == code)) & (counts > 0))
        signs = np.where(outcomes.first[own] == code, 1.0, -1.0)
        present = np.isfinite(won[:, own]).any(axis=1)
        n = int(present.sum())
        rate = float((0.5 + signs * (rates[own] - 0.5)).mean()) if n else math.nan
        low, high = _compute_rate_interval(rate, (residuals[np.ix_(present, own)] @ signs) / max(len(own), 1))
        rows.append(LeaderboardRow(generator, metric, skill, rate, low, high, n, 0, 1.0, None, ""))
    rows.sort(key=lambda row: (-row.mean if row.n else math.inf, row.generator))
    scored = [row.generator for row in rows if row.n]
    # A common letter would claim that two generators were compared, so there are letters only if all pairs were.
    letters = find_tie_groups(scored, duels) if len(duels) == math.comb(len(scored), 2) else {}
    ranks = {row.generator: 1 + sum(other.mean > row.mean for other in rows) if row.n else None for row in rows}
    ranked = [row._replace(rank=ranks[row.generator], group=letters.get(row.generator, "")) for row in rows]
    return Board(metric, skill, tuple(ranked), tuple(duels))


def _make_duel(outcomes: _Outcomes, pair: int, rate: float, residuals: Floats) -> Duel:
    present = np.isfinite(outcomes.won[:, pair])
    leads = 2 * outcomes.won[present, pair] - 1
    leads = np.where(np.abs(leads) < ROUNDING_TOLERANCE, 0.0, leads)
    low, high = _compute_rate_interval(rate, residuals[present])
    return Duel(
        metric=outcomes.metric,
        skill=outcomes.skill,
        better=None,
        generator_a=outcomes.generators[outcomes.first[pair]],
        generator_b=outcomes.generators[outcomes.second[pair]],
        difference=2 * rate - 1,
        low=2 * low - 1,
        high=2 * high - 1,
        p_value=compute_sign_flip_p_value(leads),
        p_holm=math.nan,
        effect=float(leads.sum() / np.abs(leads).sum()) if leads.any() else 0.0,
        win_rate=rate,
        n=len(leads),
        differing=int((leads != 0).sum()),
        test="sign-flip test",
    )


def _compute_rate_interval(rate: float, residuals: Floats) -> Interval:
    return compute_share_interval(rate, residuals) if len(residuals) >= MIN_PROMPTS else Interval(math.nan, math.nan)


def _find_strengths(
    generators: Sequence[str], first: Indices, second: Indices, won: Floats
) -> tuple[dict[str, Strength], str]:
    """Return the strengths by generator, and the reason why other generators have none (empty if all have one)."""
    if len(generators) < MIN_GENERATORS_WITH_STRENGTHS:
        return {}, "Two generators have no strengths: strengths would only repeat the win rate."
    components = find_components(first, second, won, len(generators))
    if components.connected > 1:
        return (
            {},
            "There are no strengths, because some generators are not compared with each other, even through others.",
        )
    large = np.flatnonzero(components.sizes > 1)
    members = np.flatnonzero(components.label == large[0]) if len(large) == 1 else np.zeros(0, np.intp)
    outside = [name for code, name in enumerate(generators) if code not in members]
    if len(members) < MIN_GENERATORS_WITH_STRENGTHS:
        return {}, "There are no strengths, because some generators win or lose every comparison with others."
    within = np.flatnonzero(np.isin(first, members) & np.isin(second, members))
    found = estimate_strengths(
        np.searchsorted(members, first[within]), np.searchsorted(members, second[within]), won[:, within], len(members)
    )
    columns = zip(members.tolist(), *(column.tolist() for column in found), strict=True)
    strengths = {generators[code]: Strength(value, Interval(low, high)) for code, value, low, high in columns}
    why = (
        f"No strength: {format_names(outside)}, winning or losing every comparison with the others." if outside else ""
    )
    return dict(sorted(strengths.items(), key=lambda item: -item[1].value)), why
