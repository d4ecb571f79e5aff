"""Examples are selected by margin, within limits, evenly across groups, and only from images with a reward."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.rewards.selection import (
    Candidates,
    Example,
    SelectionConfig,
    choose_split,
    compute_even_quotas,
    select_examples,
    spread_examples,
)
from plumbline.operators.rewards.values import measure_noise

GENERATORS = ("atlas", "cobalt", "garnet")
NAN = float("nan")
REWARD_LISTS = st.lists(st.one_of(st.integers(-8, 8).map(float), st.just(NAN)), min_size=1, max_size=24)


def make_candidates(values: list[float], *agreeing: list[float], size: int = 4) -> Candidates:
    """Return images whose rewards are `values`: `size` images per prompt, from three generators in turn.

    Each list in `agreeing` contains the images' scores on a metric that must prefer the same image of a pair.
    """
    prompts = np.arange(len(values), dtype=np.int32) // size
    array = np.array(values, float)
    return Candidates(
        rewards=array,
        prompts=prompts,
        noise=measure_noise(array, prompts),
        agreeing=[lambda first, second, scores=scores: scores[first] > scores[second] for scores in agreeing],
        ids=str,
        generator=lambda image: GENERATORS[image % 3],
        skills=lambda prompt: f"skill {prompt % 2}",
    )


def select_by_options(given: Candidates, unit: str = "pair", **options: object) -> list[Example]:
    """Return the selected examples of the kind `unit` (such as "pair" or "ranking"), by default all except ties.

    The options override fields of SelectionConfig, such as the margin.
    """
    asked = {"margin": 0.0, "margin_unit": "absolute", **options}
    return list(select_examples(unit, given, SelectionConfig(**asked)))  # type: ignore[arg-type]


@given(REWARD_LISTS)
def test_pairs_closer_than_half_the_noise_are_left_out_by_default(values: list[float]) -> None:
    given = make_candidates(values)
    by_default = [example.images for example in select_examples("pair", given, SelectionConfig())]
    wide = [
        pair.images
        for pair in select_by_options(given)
        if values[pair.images[0]] - values[pair.images[1]] >= given.noise / 2
    ]
    assert by_default == wide


@given(REWARD_LISTS, st.integers(0, 5), st.sampled_from(["pair", "ranking"]))
def test_each_image_of_an_example_is_better_than_the_next_by_the_margin(
    values: list[float], margin: int, unit: str
) -> None:
    for example in select_by_options(make_candidates(values), unit, margin=float(margin)):
        of_example = [values[image] for image in example.images]
        assert not any(np.isnan(of_example))
        assert all(a - b >= margin and a > b for a, b in pairwise(of_example))
        assert {image // 4 for image in example.images} == {example.prompt}


@given(REWARD_LISTS)
def test_all_pairs_except_ties_are_selected_without_a_margin(values: list[float]) -> None:
    wanted = {
        (a, b)
        for a, first in enumerate(values)
        for b, second in enumerate(values)
        if a // 4 == b // 4 and first > second
    }
    assert {example.images for example in select_by_options(make_candidates(values))} == wanted


@given(REWARD_LISTS, st.integers(1, 4), st.sampled_from(["widest", "hash"]))
def test_limits_per_prompt_are_kept(values: list[float], cap: int, pick: str) -> None:
    given = make_candidates(values)
    everything = Counter(example.prompt for example in select_by_options(given))
    capped = Counter(example.prompt for example in select_by_options(given, per_prompt=cap, pick=pick))
    assert capped == {prompt: min(count, cap) for prompt, count in everything.items()}
    assert all(len(example.images) <= max(cap, 1) for example in select_by_options(given, "ranking", per_prompt=cap))


@given(REWARD_LISTS, st.integers(-6, 6), st.floats(0, 3))
def test_a_margin_in_units_of_noise_does_not_depend_on_the_metrics_scale(
    values: list[float], power: int, margin: float
) -> None:
    scaled = [value * 2.0**power for value in values]
    options = {"margin": margin, "margin_unit": "noise"}
    assert select_by_options(make_candidates(values), **options) == select_by_options(
        make_candidates(scaled), **options
    )


@given(REWARD_LISTS, REWARD_LISTS)
def test_only_pairs_that_another_metric_orders_alike_are_selected(values: list[float], other: list[float]) -> None:
    other = (other * len(values))[: len(values)]
    agreed = select_by_options(make_candidates(values, other), agree=("other",))
    assert agreed == [
        one for one in select_by_options(make_candidates(values)) if other[one.images[0]] > other[one.images[1]]
    ]


def test_the_widest_pair_is_selected_first_and_a_thinned_ranking_keeps_its_ends() -> None:
    given = make_candidates([5.0, 9.0, 1.0, 4.0])
    assert [example.images for example in select_by_options(given, per_prompt=1)] == [(1, 2)]
    assert [example.images for example in select_by_options(given, "ranking", per_prompt=2)] == [(1, 2)]
    assert [example.images for example in select_by_options(given, "ranking", margin=2.0)] == [(1, 0, 2)]


def test_best_of_n_requires_images_with_different_rewards() -> None:
    alike, differing = [2.0, 2.0, 2.0, NAN], [2.0, 3.0, 3.0, NAN]
    assert select_by_options(make_candidates(alike), "best") == []
    assert [example.images for example in select_by_options(make_candidates(differing), "best")] == [(1, 2, 0)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 100))
def test_quotas_are_even_except_for_groups_that_are_too_small(sizes: list[int], total: int) -> None:
    quotas = compute_even_quotas(sizes, total)
    assert sum(quotas) == min(total, sum(sizes))
    assert all(quota <= size for quota, size in zip(quotas, sizes, strict=True))
    open_ended = [quota for quota, size in zip(quotas, sizes, strict=True) if quota < size]
    assert not open_ended or max(quotas) - min(open_ended) <= 1


@pytest.mark.parametrize("balance", [("winner",), ("loser",), ("skills",), ("winner", "loser", "skills")])
def test_examples_are_spread_over_generators_and_skills(balance: tuple[str, ...]) -> None:
    given = make_candidates([float((7 * number) % 13) for number in range(64)])
    config = SelectionConfig(max_examples=24, balance=balance)  # type: ignore[arg-type]
    everything = list(select_examples("pair", given, config))
    taken = spread_examples(everything, given, config)
    assert len(taken) == 24 and set(taken) <= set(everything) and taken == sorted(taken, key=everything.index)

    def count_strata(examples: list[Example]) -> Counter[tuple[str, ...]]:
        parts = {
            "winner": lambda one: GENERATORS[one.images[0] % 3],
            "loser": lambda one: GENERATORS[one.images[-1] % 3],
            "skills": lambda one: f"{one.prompt % 2}",
        }
        return Counter(tuple(parts[name](one) for name in balance) for one in examples)

    counts, supply = count_strata(taken), count_strata(everything)
    left = [counts[stratum] for stratum in supply if counts[stratum] < supply[stratum]]
    assert max(counts.values()) - min(left) <= 1


def test_balance_requires_max_examples() -> None:
    with pytest.raises(ConfigError, match=r"selection\.balance: requires max_examples"):
        SelectionConfig(balance=("winner",))


@given(st.text(), st.floats(0, 1))
def test_spaces_around_a_prompt_do_not_change_its_split(text: str, share: float) -> None:
    assert choose_split(text, share) == choose_split(f"  {text}\n", share)
    assert choose_split(text, 0.0) == "train" and choose_split(text, 1.0) == "test"


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_held_out_share_contains_the_smaller_one(text: str, first: float, second: float) -> None:
    less, more = sorted((first, second))
    assert choose_split(text, less) == "train" or choose_split(text, more) == "test"


def test_about_the_requested_share_of_prompts_is_held_out() -> None:
    sides = Counter(choose_split(f"prompt {number}", 0.2) for number in range(2000))
    assert 330 < sides["test"] < 470
