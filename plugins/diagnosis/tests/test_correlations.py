"""Metrics are correlated with properties of prompts, and compared with variants that lack an input."""

import math

import numpy as np
import pytest
from scipy import stats

from plumbline.operators.base.sentences import NO_INTERVAL_NOTE
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.plugins.diagnosis.ablations import measure_effect
from plumbline.plugins.diagnosis.diagnosis import Diagnosis, make_tables
from plumbline.plugins.diagnosis.prompt_correlations import correlate_properties, make_prompt_numbers
from tests.operators.results.test_metric_correlations import PROMPT_IDS, draw_scores, make_scores, make_table
from tests.operators.tallied import wrap_scores


def test_the_interval_of_an_ablations_difference_covers_zero_in_most_studies_without_an_effect() -> None:
    random, studies = np.random.default_rng(4), 200
    missed = 0
    for _ in range(studies):
        whole, left = random.random((2, len(PROMPT_IDS)))
        both = [make_scores(name, "x", dict(zip(PROMPT_IDS, values.tolist(), strict=True)))
                for name, values in (("a", whole), ("a:blank", left))]  # fmt: skip
        found = measure_effect(wrap_scores(make_table(*both)), "a", "blank", "a:blank")
        assert found.low < found.difference < found.high
        missed += not found.low < 0 < found.high
    assert missed / studies <= 0.07


def test_a_missing_interval_is_explained() -> None:
    ones, others = dict.fromkeys(PROMPT_IDS, 1.0), dict.fromkeys(PROMPT_IDS, 0.0) | {"p7": 0.5}
    found = measure_effect(
        wrap_scores(make_table(make_scores("a", "x", ones), make_scores("a:blank", "x", others))),
        "a",
        "blank",
        "a:blank",
    )
    (shown,) = make_tables(Diagnosis(effects=[found]))
    assert "no interval" in shown.rows[0] and shown.caption.endswith(NO_INTERVAL_NOTE)


def test_images_of_a_prompt_are_averaged_and_do_not_narrow_the_interval() -> None:
    scores, lengths = draw_scores(1), {prompt: float(number % 7) for number, prompt in enumerate(PROMPT_IDS)}
    known = make_prompt_numbers(hash_ids(PROMPT_IDS[1:]), [lengths[prompt] for prompt in PROMPT_IDS[1:]])
    once, thrice = (
        next(
            correlate_properties(
                wrap_scores(make_table(make_scores("a", "x", scores, copies))), {"a": {"length": known}}
            )
        )
        for copies in (1, 3)
    )
    expected = stats.spearmanr([scores[p] for p in PROMPT_IDS[1:]], [lengths[p] for p in PROMPT_IDS[1:]]).statistic
    assert once.rho == pytest.approx(expected) and (once.other, once.kind, once.n) == ("length", "property", 39)
    assert thrice[:4] == once[:4] and thrice[4:] == pytest.approx(once[4:])


def test_a_constant_property_has_no_correlation() -> None:
    known = make_prompt_numbers(hash_ids(PROMPT_IDS), [1.0] * len(PROMPT_IDS))
    (one,) = correlate_properties(
        wrap_scores(make_table(make_scores("a", "x", draw_scores(1)))), {"a": {"questions": known}}
    )
    assert math.isnan(one.rho) and math.isnan(one.low) and one.n == 40


def test_an_effect_is_measured_on_the_images_with_both_scores() -> None:
    whole = draw_scores(1)
    left = {prompt: None if prompt == "p3" else (score or 0) - 0.25 for prompt, score in whole.items()}
    better = {prompt: (score or 0) + 1 for prompt, score in whole.items()}
    runs = wrap_scores(
        make_table(
            make_scores("a", "x", whole), make_scores("a", "y", better), make_scores("a:blank", "x", left),
            make_scores("a:blank", "y", dict.fromkeys(PROMPT_IDS, 0.5)),
        )
    )  # fmt: skip
    found = measure_effect(runs, "a", "blank", "a:blank")
    kept = [prompt for prompt in PROMPT_IDS if prompt != "p3"]
    pairs = [(whole[p], left[p]) for p in kept] + [(better[p], 0.5) for p in PROMPT_IDS]
    ours, theirs = np.array(pairs, float).T
    assert (found.metric, found.denied, found.n, found.n_null) == ("a", "blank", 79, 1)
    assert (found.whole, found.left) == (pytest.approx(ours.mean()), pytest.approx(theirs.mean()))
    assert found.difference == pytest.approx((theirs - ours).mean()) and found.low < found.difference < found.high
    assert found.rho == pytest.approx(stats.spearmanr(ours, theirs).statistic)
    assert found.order == 1, "generator y still ranks above generator x"


def test_an_effect_without_images_is_nan() -> None:
    found = measure_effect(wrap_scores(make_table(make_scores("a", "x", draw_scores(1)))), "a", "blank", "a:blank")
    assert (found.n, found.n_null) == (0, 40) and all(math.isnan(value) for value in found[2:9])
