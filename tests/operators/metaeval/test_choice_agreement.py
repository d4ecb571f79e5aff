"""A judge's choices are compared with people's choices between the same images."""

import numpy as np
import pandas as pd
import pytest

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.choice_agreement import agree_on_pairs
from tests.operators.choosing import Judge


def make_choices(choices: list[float], *, both_orders: bool = True, people: bool = False) -> pd.DataFrame:
    """Return comparisons of the images a and b of each prompt, by people or by the judge.

    Each of the `choices`, one per prompt, is the probability that a is better.
    """
    rows = []
    for prompt, won in enumerate(choices):
        for first, second, p_first in (("a", "b", won), ("b", "a", 1 - won))[: 1 + both_orders]:
            generators = {"first_generator": first, "second_generator": second}
            images = {"first_image_id": f"{first}{prompt}", "second_image_id": f"{second}{prompt}"}
            metric = "people" if people else "judge"
            rows.append({"prompt_id": str(prompt), "metric": metric, **generators, **images, "p_first": p_first})
    return pd.DataFrame(rows)


def test_agreement_counts_pairs_that_people_decide_and_half_of_a_judges_ties() -> None:
    judge = make_choices([0.9] * 10 + [0.5] * 4 + [0.2] * 6 + [0.9] * 5)
    people = make_choices([1.0] * 20 + [0.5] * 5 + [1.0] * 3, both_orders=False, people=True)
    found = agree_on_pairs(judge, people)
    assert (found.share, found.n_pairs, found.n_prompts) == (12 / 20, 20, 20)
    assert (found.n_undecided, found.n_unmatched) == (5, 3)
    assert found.interval.low < 0.6 < found.interval.high and found.p_value > 0.1


def test_several_people_are_averaged_and_may_leave_a_pair_undecided() -> None:
    judge, most = (
        make_choices([1.0] * 12),
        [make_choices([p_first] * 12, both_orders=False) for p_first in (1.0, 1.0, 0.0)],
    )
    assert agree_on_pairs(judge, pd.concat(most)).share == 1
    split = pd.concat([*most, make_choices([0.0] * 12, both_orders=False)])
    with pytest.raises(SourceError, match="expected at least 10 prompts with a pair for which people have"):
        agree_on_pairs(judge, split)


def test_a_judge_that_agrees_by_chance_is_rarely_significant() -> None:
    random = np.random.default_rng(0)
    judge, people = (Judge((0.0, 0.0, 0.0), spread=0.0) for _ in range(2))
    p_values = [agree_on_pairs(judge.compare(random, 30), people.compare(random, 30)).p_value for _ in range(60)]
    assert np.mean(np.array(p_values) < 0.05) <= 0.12


def test_images_that_do_not_match_are_refused_with_the_remedy() -> None:
    people = make_choices([1.0] * 12).assign(prompt_id="other")
    with pytest.raises(SourceError, match="found 0; check that both tables have the same prompt_id and image ids"):
        agree_on_pairs(make_choices([1.0] * 12), people)
