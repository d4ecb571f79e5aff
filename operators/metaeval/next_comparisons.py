"""Chooses which pairs of images a judge should compare next, until every pair of generators is decided."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.rows import format_id
from plumbline.operators.metaeval.decided_pairs import VERDICT_NAMES
from plumbline.operators.results.choices import Comparisons, read_choices, read_table
from plumbline.operators.statistics.next_pairs import rank_pairs
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.operators.statistics.sequential import Indices, draw_balanced_order

Floats = NDArray[np.float64]


class PairDecision(NamedTuple):
    """Decision, based on all comparisons up to now, on which of two generators wins more over all prompts."""

    generator_a: str
    generator_b: str
    verdict: str
    """The generator that wins more over all prompts (a or b), `alike` if their win rates differ by at most the
    indifference, or `undecided`.
    """
    n: int
    """Number of prompts with an outcome."""
    prompts_left: float
    """Expected number of further prompts until the pair is decided; 0 if it is decided or was not asked yet."""


class NextComparison(NamedTuple):
    """Two generators whose images for some prompts should be compared next, in both orders."""

    generator_a: str
    generator_b: str
    prompt_ids: tuple[str, ...]


class NextComparisons(NamedTuple):
    """Decisions on all pairs of generators up to now, and the comparisons to ask for next."""

    decisions: tuple[PairDecision, ...]
    next: tuple[NextComparison, ...]
    """Undecided pairs, sorted by how soon they are expected to be decided. Ask for some of them, and call the function
    again with all comparisons up to then.
    """

    @property
    def is_done(self) -> bool:
        """True if every pair is decided, or has been compared on all prompts."""
        return not self.next


def next_pairs(
    comparisons: Comparisons,
    prompt_ids: Sequence[str],
    generators: Sequence[str],
    *,
    labels: Sequence[str] = (),
    alpha: float = 0.05,
    indifference: float = 0.0,
    seed: int = 0,
) -> NextComparisons:
    """Decide which generators win more over all prompts, and choose the comparisons to ask for next.

    The probability that any decision is false, over the random order of the prompts, is at most `alpha`, however often
    this function is called and however many of the proposed comparisons are made.

    Args:
        comparisons: All comparisons up to now, by a single metric, as for `compare_pairs`; it may be empty. A proposed
            comparison that failed must have a row in which p_first is null.
        prompt_ids: Ids of all prompts of the benchmark.
        generators: Names of all generators.
        labels: Label of each prompt, such as its skill, which the order of the prompts balances; none by default.
        alpha: Maximum probability that any decision is false.
        indifference: Largest difference between two generators' win rates against each other that does not matter. For
            example, 0.1 ignores win rates from 0.45 to 0.55.
        seed: Seed of the order of the prompts. It must be the same in all calls, as must prompts and labels.

    Raises:
        ConfigError: there are fewer than two generators or no prompts, or a name occurs twice.
        SourceError: the comparisons are invalid.
    """
    ids, names, groups = ([str(format_id(one)) for one in values] for values in (prompt_ids, generators, labels))
    for name, values, least in (("prompt_ids", ids, 1), ("generators", names, 2)):
        if len({*values}) != len(values) or len(values) < least:
            found = f"{len(values)}, of which {len({*values})} are different"
            raise ConfigError(f"{name}: expected at least {least}, without duplicates, found {found}; correct the list")
    options = AdaptiveConfig(alpha=alpha, indifference=indifference, seed=seed)
    order = draw_balanced_order(groups or [""] * len(ids), seed)
    pairs = [*combinations(sorted(names), 2)]
    leads, is_asked = _read_leads(comparisons, ids, pairs)
    looks = _count_looks(is_asked, order)
    ranking = rank_pairs(leads, order, looks, options)
    decisions = tuple(
        PairDecision(*pair, VERDICT_NAMES.get(verdict, "undecided"), int(n), left)
        for pair, verdict, n, left in zip(
            pairs,
            ranking.verdict.tolist(),
            np.isfinite(leads).sum(axis=0).tolist(),
            ranking.prompts_left.tolist(),
            strict=True,
        )
    )
    upcoming = tuple(
        NextComparison(pairs[pair][0], pairs[pair][1], tuple(prompt_ids[at] for at in order[looks[pair]] if at >= 0))
        for pair in ranking.next.tolist()
    )
    return NextComparisons(decisions, upcoming)


def _read_leads(
    comparisons: Comparisons, prompt_ids: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the outcomes of the comparisons, and which comparisons were asked for; both are (prompts, pairs).

    An outcome is 1 if the pair's first generator won, -1 if the second won, and in between for a tie or split answers.
    It is nan if the pair was not compared on the prompt, or no answer was readable.
    """
    leads = np.full((len(prompt_ids), len(pairs)), np.nan)
    is_asked = np.zeros(leads.shape, np.bool_)
    frame = read_table(comparisons)
    if frame.empty:
        return leads, is_asked
    rows = read_choices(frame).pairs.groupby(["prompt_id", "generator_a", "generator_b"])["won"].mean().reset_index()
    row_of = {prompt: row for row, prompt in enumerate(prompt_ids)}
    column_of = {pair: column for column, pair in enumerate(pairs)}
    for prompt, a, b, won in rows.itertuples(index=False):
        if prompt in row_of and (a, b) in column_of:
            leads[row_of[prompt], column_of[a, b]] = 2 * won - 1
            is_asked[row_of[prompt], column_of[a, b]] = True
    return leads, is_asked


def _count_looks(is_asked: NDArray[np.bool_], order: Indices) -> NDArray[np.int64]:
    """Return, for each pair, how many looks are complete before the first incomplete look.

    A look is complete if the judge has been asked about the pair for all of the look's prompts. Each row of `order`
    contains the indices of one look's prompts; a negative number stands for no prompt.
    """
    complete = (is_asked[order] | (order < 0)[..., None]).all(axis=1)  # (looks, pairs)
    return np.asarray(np.cumprod(complete, axis=0).sum(axis=0), np.int64)
