"""Comparisons may be checked while prompts come in: orders are balanced, bets are fair, and decisions are valid."""

import math
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.operators.statistics.sequential import (
    A_BETTER,
    ALIKE,
    B_BETTER,
    NO_PROMPT_INDEX,
    UNDECIDED,
    Floats,
    PairEvidence,
    compute_evidence,
    decide_sequentially,
    draw_balanced_order,
    order_differences,
)

BETTING_OPTIONS = AdaptiveConfig(range=(0, 1))
ASYMPTOTIC_OPTIONS = AdaptiveConfig(method="asymptotic")


def draw_differences(mean: float, prompts: int = 256, seed: int = 0) -> Floats:
    """Return random differences between two generators' scores, from -1 to 1, one per prompt, around `mean`."""
    random = np.random.default_rng(seed)
    return np.clip(random.normal(mean, 0.3, prompts), -1, 1)


def decide_pairs(options: AdaptiveConfig, *pairs: Floats, seed: int = 0, indifference: float = 0) -> list[int]:
    order = draw_balanced_order([""] * len(pairs[0]), seed)
    found = [compute_evidence(order_differences(pair, order), options, indifference, len(pairs)) for pair in pairs]
    return decide_sequentially(found, options.alpha).verdict.tolist()


def test_every_prompt_occurs_once_and_every_check_has_its_share_of_each_label() -> None:
    labels = ["counting"] * 30 + ["text"] * 11 + ["colour"] * 20
    order = draw_balanced_order(labels, seed=3, per_look=8)
    assert sorted(place for place in order.ravel() if place != NO_PROMPT_INDEX) == list(range(61))
    assert order.shape == (8, 8)
    for look in order[:-1]:
        counts = [
            sum(labels[place] == label for place in look if place != NO_PROMPT_INDEX) for label in ("counting", "text")
        ]
        assert 2 <= counts[0] <= 6 and counts[1] <= 3


def test_an_order_is_determined_by_its_seed() -> None:
    labels = ["a", "b"] * 20
    assert (draw_balanced_order(labels, 1) == draw_balanced_order(labels, 1)).all()
    assert (draw_balanced_order(labels, 1) != draw_balanced_order(labels, 2)).any()


@pytest.mark.parametrize("bound", [0.0, 0.1])
@pytest.mark.parametrize("cells", [([0.5, -0.2, 0.3], [-0.4, 0.1, -0.3]), ([0.9, 0.8, 0.7], [-0.9, -0.8, -0.7])])
def test_betting_is_fair_over_all_balanced_orders_of_tied_generators(
    cells: tuple[list[float], list[float]], bound: float
) -> None:
    orders = product(*(permutations(cell) for cell in cells))
    drawn = np.array([np.transpose(order) for order in orders])
    sides = compute_evidence(drawn, BETTING_OPTIONS, bound, 1)
    for side in (sides.not_above, sides.not_below):
        assert (np.exp(side[:, :-1]).mean(axis=0) <= 1 + 1e-12).all()
        assert (side[:, -1] == -math.inf).all(), "after the last prompt it is certain that none is better"


def test_betting_is_fair_against_a_difference_at_the_edge_of_the_indifference() -> None:
    cells = ([0.6, 0.0, 0.3], [-0.2, 0.1, -0.2])  # the mean is 0.1
    drawn = np.array([np.transpose(order) for order in product(*(permutations(cell) for cell in cells))])
    side = compute_evidence(drawn, BETTING_OPTIONS, 0.1, 1).far_above
    assert (np.exp(side[:, :-1]).mean(axis=0) <= 1 + 1e-12).all()


@pytest.mark.parametrize("options", [BETTING_OPTIONS, ASYMPTOTIC_OPTIONS], ids=lambda options: str(options.method))
def test_a_clear_difference_is_found_early_and_in_its_direction(options: AdaptiveConfig) -> None:
    order = draw_balanced_order([""] * 256, 0)
    found = [compute_evidence(order_differences(draw_differences(mean), order), options, 0, 2) for mean in (0.3, -0.3)]
    verdict, look = decide_sequentially(found, 0.05)
    assert verdict.tolist() == [A_BETTER, B_BETTER]
    assert (look < len(order) // 3).all()


@pytest.mark.parametrize("options", [BETTING_OPTIONS, ASYMPTOTIC_OPTIONS], ids=lambda options: str(options.method))
def test_a_difference_below_the_indifference_margin_is_decided_as_alike(options: AdaptiveConfig) -> None:
    close = draw_differences(0.0) - draw_differences(0.0).mean()
    assert decide_pairs(options, close, indifference=0.15) == [ALIKE]
    assert decide_pairs(options, close) == [UNDECIDED], "without an indifference margin a tie stays undecided"
    assert decide_pairs(options, draw_differences(0.4), indifference=0.15) == [A_BETTER]


@pytest.mark.parametrize("options", [BETTING_OPTIONS, ASYMPTOTIC_OPTIONS], ids=lambda options: str(options.method))
def test_every_pair_is_decided_after_all_prompts(options: AdaptiveConfig) -> None:
    little = draw_differences(0.0)
    assert decide_pairs(options, little) == [A_BETTER if little.mean() > 0 else B_BETTER]


@pytest.mark.parametrize("options", [BETTING_OPTIONS, ASYMPTOTIC_OPTIONS], ids=lambda options: str(options.method))
def test_tied_generators_are_decided_falsely_with_probability_alpha_at_most(options: AdaptiveConfig) -> None:
    pairs = [pair - pair.mean() for pair in (draw_differences(0, seed=seed) for seed in range(3))]
    orders = np.stack([draw_balanced_order(["a", "b"] * 128, seed) for seed in range(400)])
    found = [compute_evidence(order_differences(pair, orders), options, 0, 3) for pair in pairs]
    assert (decide_sequentially(found, 0.05).verdict != UNDECIDED).any(axis=-1).mean() <= 0.05


@pytest.mark.parametrize("prompts", [256, 1024])
def test_only_betting_keeps_its_error_rate_for_rare_losses(
    prompts: int,
) -> None:
    """One generator is slightly better on 99% of the prompts and much worse on the rest, so the means are equal."""
    pair = np.random.default_rng(0).normal(0, 0.02, prompts)
    losses = np.arange(prompts) < prompts // 100
    pair[losses] = -0.9
    pair[~losses] -= pair.sum() / (~losses).sum()
    orders = np.stack([draw_balanced_order([""] * prompts, seed) for seed in range(200)])

    def compute_error_rate(options: AdaptiveConfig) -> float:
        found = [compute_evidence(order_differences(pair, orders), options, 0, 1)]
        return float((decide_sequentially(found, options.alpha).verdict[..., 0] != UNDECIDED).mean())

    assert compute_error_rate(BETTING_OPTIONS) <= 0.05
    assert compute_error_rate(ASYMPTOTIC_OPTIONS) > 0.3, "therefore it makes no promise for small samples"


def subtract_mean(values: Floats) -> Floats:
    return np.asarray(values - values.mean())


def make_tied_pairs(name: str, n: int) -> list[Floats]:
    """Return score differences for some pairs of generators; at least one pair has equal means over all n prompts."""
    random = np.random.default_rng(n)
    few = max(n // 20, 1)
    if name == "all equal":
        return [np.zeros(n)]
    if name == "one prompt each way":
        return [np.append([1.0, -1.0], np.zeros(n - 2))]
    if name == "rare losses, little gains":
        return [np.append(np.full(few, -0.9), np.full(n - few, 0.9 * few / (n - few)))]
    if name == "shares of three questions":  # 1 - 2/3 and 1/3 differ in the last digit
        return [random.permutation(np.append(np.tile([1 / 3 - 0, -(1 - 2 / 3)], n // 3), np.zeros(n - 2 * (n // 3))))]
    if name == "seeds that go together":
        return [np.repeat(subtract_mean(random.choice([-0.8, 0.3, 0.5], n // 8)), 8).clip(-1, 1)]
    if name == "one that flatters":  # one is better than three that tie
        scores = random.random((3, n)) / 2
        scores = [*(one - one.mean() + 0.25 for one in scores), np.clip(random.random(n) + 0.4, 0, 1)]
        return [scores[a] - scores[b] for a in range(4) for b in range(a)]
    return [random.choice([0.0, 0.0, 0.0, 1e-3, -1e-3], n)]  # nearly constant


HARD_CASES = ("all equal", "one prompt each way", "rare losses, little gains", "shares of three questions",
        "seeds that go together", "one that flatters", "nearly constant")  # fmt: skip


@pytest.mark.parametrize("indifference", [0.0, "the difference itself"])
@pytest.mark.parametrize("n", [8, 24, 200])
@pytest.mark.parametrize("name", HARD_CASES)
def test_betting_decides_wrongly_in_at_most_5_of_100_orders_of_hard_scores(
    name: str, n: int, indifference: float | str
) -> None:
    """In 2,000 orders, means are equal, or their difference is slightly more than the indifference margin."""
    pairs = make_tied_pairs(name, n)
    margin = 0.0
    if indifference:
        moved = [np.clip(pair + 0.05, -1, 1) for pair in pairs]
        pairs, margin = moved, float(min(abs(pair.mean()) for pair in moved)) - 1e-6
    orders = np.stack(
        [draw_balanced_order([f"{place // 8:03d}" for place in range(len(pairs[0]))], s) for s in range(2_000)]
    )
    found = [compute_evidence(order_differences(pair, orders), BETTING_OPTIONS, margin, len(pairs)) for pair in pairs]
    verdicts = decide_sequentially(found, 0.05).verdict
    false = np.zeros(len(orders), bool)
    for pair, verdict in zip(pairs, verdicts.T, strict=True):
        mean = float(pair.mean()) if abs(pair.mean()) > 1e-9 else 0.0
        allowed = [UNDECIDED, {1: A_BETTER, -1: B_BETTER, 0: UNDECIDED}[int(np.sign(mean))]]
        false |= ~np.isin(verdict, [*allowed, *([ALIKE] if abs(mean) <= margin else [])])
    assert false.mean() <= 0.05


def test_a_prompt_that_only_one_generator_has_is_ignored() -> None:
    order = np.arange(16).reshape(2, 8)
    half = np.tile([0.4, math.nan], 8)
    both, lacking = (
        compute_evidence(order_differences(one, order), BETTING_OPTIONS, 0, 1) for one in (np.nan_to_num(half), half)
    )
    assert both.not_above.tolist() == lacking.not_above.tolist()
    assert decide_pairs(BETTING_OPTIONS, np.where(np.arange(256) % 2, math.nan, draw_differences(0.4))) == [A_BETTER]
    nothing = np.full(64, math.nan)
    assert decide_pairs(BETTING_OPTIONS, nothing) == decide_pairs(ASYMPTOTIC_OPTIONS, nothing) == [UNDECIDED]


def test_holms_steps_lower_the_threshold_once_another_pair_is_decided() -> None:
    def make_evidence(*log_e: float) -> PairEvidence:
        never = np.full(len(log_e), -math.inf)
        return PairEvidence(np.array(log_e), never, never, never)

    alone, among_two = math.log(2 / 0.05), math.log(4 / 0.05)
    close = make_evidence(alone, alone)
    assert decide_sequentially([close, make_evidence(0, 0)], 0.05).verdict.tolist() == [UNDECIDED, UNDECIDED]
    verdict, look = decide_sequentially([close, make_evidence(0, among_two)], 0.05)
    assert verdict.tolist() == [A_BETTER, A_BETTER]
    assert look.tolist() == [1, 1]


def test_decisions_are_final() -> None:
    falling = np.array([9.0, -9.0])
    never = np.full(2, -math.inf)
    verdict, look = decide_sequentially([PairEvidence(falling, falling[::-1], never, never)], 0.05)
    assert (verdict.tolist(), look.tolist()) == ([A_BETTER], [0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 1.0}, "adaptive.alpha: expected a probability between 0 and 1, got 1.0"),
        ({"range": (1, 1)}, "adaptive.range: expected the lowest and the highest score"),
        ({"growth": 0.0}, "adaptive.growth: expected more than 0, got 0.0"),
        ({"indifference": -0.1}, "adaptive.indifference: expected 0 or more, got -0.1"),
        ({"indifference": {"gecko": math.nan}}, "adaptive.indifference: expected 0 or more, got nan"),
    ],
)
def test_invalid_adaptive_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdaptiveConfig(**wrong)
