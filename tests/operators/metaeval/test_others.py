"""Metrics are evaluated on choices, pairings, error graphs and orders as in the papers that introduced them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.graphs import judge_graphs, measure_graphs
from plumbline.operators.metaeval.orders import (
    measure_order_agreement,
    order_by_preferences,
    order_by_ratings,
    order_by_scores,
)
from plumbline.operators.metaeval.pairings import judge_pairings
from plumbline.operators.metaeval.paper_tables import to_latex, to_markdown
from plumbline.operators.metaeval.people import judge_raters
from plumbline.operators.metaeval.preferences import convert_choices_to_ratings, judge_preferences
from plumbline.operators.statistics.options import Sampling
from tests.operators.metaeval.test_ratings import make_ratings, make_scores

FEW_RESAMPLES = Sampling(resamples=50, permutations=99)


def make_votes(*votes: tuple[str, str], template: str = "side_by_side") -> pa.Table:
    """Return votes between the generators g and h, given as (prompt, preferred)."""
    return rows.table(
        [
            {
                "prompt_id": prompt,
                "image_a": f"{prompt}/g",
                "image_b": f"{prompt}/h",
                "generator_a": "g",
                "generator_b": "h",
                "rater": str(number),
                "template": template,
                "preferred": vote,
            }
            for number, (prompt, vote) in enumerate(votes)
        ],
        schemas.PREFERENCES,
    )


def make_pair_scores(**by_prompt: tuple[float | None, float | None]) -> pa.Table:
    given = [(prompt, "gh"[side], "m", its[side]) for prompt, its in by_prompt.items() for side in (0, 1)]
    return make_scores(*given)


VOTE_TABLE = make_votes(("p", "a"), ("p", "a"), ("p", "b"), ("q", "b"), ("r", "a"), ("r", "b"), ("s", "a"))


@pytest.mark.parametrize(("unsure", "right", "n"), [("left_out", 1.5, 2), ("tied", 2.5, 3)])
def test_accuracy_follows_the_majority_and_equal_scores_count_half(unsure: str, right: float, n: int) -> None:
    table = make_pair_scores(p=(0.9, 0.1), q=(0.5, 0.5), r=(0.3, 0.3), s=(0.2, None))
    [found], _ = judge_preferences(VOTE_TABLE, table, match="image", unsure=unsure, sampling=FEW_RESAMPLES)  # type: ignore[arg-type]
    assert (found.value, found.n, found.n_unscored) == (pytest.approx(right / n), n, 1)


def test_equal_scores_can_count_as_wrong_on_pairs_that_people_decide() -> None:
    table = make_pair_scores(p=(0.9, 0.1), q=(0.1 + 0.2, 0.3), r=(0.3, 0.3))
    for unsure, right, n in (("left_out", 1, 2), ("tied", 2, 3)):
        [found], _ = judge_preferences(
            VOTE_TABLE,
            table,
            match="image",
            unsure=unsure,
            sampling=FEW_RESAMPLES,
            equal_scores="wrong",  # type: ignore[arg-type]
        )
        assert (found.value, found.n) == (pytest.approx(right / n), n)
        assert "equal scores are wrong where people decide" in found.convention


def test_each_template_of_choices_is_judged_separately() -> None:
    """In the template `side_by_side`, the metric is right about p and wrong about q; in `vote`, it is wrong about p."""
    both = pa.concat_tables([VOTE_TABLE, make_votes(*[("p", "b")] * 9, template="vote")])
    table = make_pair_scores(p=(0.9, 0.1), q=(0.7, 0.5))
    found, _ = judge_preferences(both, table, match="image", unsure="left_out", sampling=FEW_RESAMPLES)
    assert [(one.template, one.value, one.n) for one in found] == [("side_by_side", 0.5, 2), ("vote", 0, 1)]
    orders = order_by_preferences(both, alpha=0.5, zeros="wilcox")
    assert [(order.template, order.n, order.difference) for order in orders] == [
        ("side_by_side", 4, 0.25),
        ("vote", 1, -1),
    ]


def test_agreement_on_choices_is_krippendorffs_alpha() -> None:
    """Two raters agree on two of three pairs and choose each side three times, so alpha = 1 - (2/6) / (18/30)."""
    said = [("p", "a"), ("p", "a"), ("q", "b"), ("q", "b"), ("r", "a"), ("r", "b")]
    rated = convert_choices_to_ratings(make_votes(*said))
    raters = rated.set_column(3, "rater", pa.array(["ann", "bob"] * 3))
    [nominal, interval] = judge_raters(raters, ("nominal", "interval"))
    assert (nominal.template, nominal.n) == ("side_by_side", 3)
    assert nominal.value == interval.value == pytest.approx(4 / 9)


@pytest.mark.parametrize(("match", "n"), [("prompt_and_generator", 2), ("image_and_prompt", 0)])
def test_choices_match_scores_by_prompt_and_generator_even_if_image_ids_differ(match: Any, n: int) -> None:
    table = make_pair_scores(p=(0.9, 0.1), q=(0.5, 0.7))
    ours = table.set_column(0, "image_id", pa.array([f"hash{row}" for row in range(len(table))]))
    [found], _ = judge_preferences(VOTE_TABLE, ours, match=match, unsure="left_out", sampling=FEW_RESAMPLES)
    assert (found.n, found.n_unscored) == (n, 3 - n)


def test_two_scores_of_an_image_in_a_pair_are_an_error() -> None:
    twice = pa.concat_tables([make_pair_scores(p=(0.9, 0.1)), make_pair_scores(p=(0.8, 0.1))])
    with pytest.raises(SourceError, match="expected one row of metric m for image_id 'p/g', prompt_id 'p', found 2"):
        judge_preferences(VOTE_TABLE, twice, match="image_and_prompt", unsure="left_out", sampling=FEW_RESAMPLES)


def test_accuracy_is_undefined_without_a_decided_pair() -> None:
    [found], _ = judge_preferences(
        make_votes(("p", "unsure")),
        make_pair_scores(p=(1, 0)),
        match="image",
        unsure="left_out",
        sampling=FEW_RESAMPLES,
    )
    assert math.isnan(found.value) and "no decided pair" in found.convention


def make_pairings(*samples: str, tags: Mapping[str, Sequence[str]] | None = None) -> pa.Table:
    return rows.table(
        [
            {
                "sample_id": sample,
                "tags": ["object"] if tags is None else tags[sample],
                "caption": caption,
                "image": image,
                "prompt_id": f"{sample}_c{caption}",
                "image_id": f"{sample}_i{image}",
            }
            for sample in samples
            for caption in (0, 1)
            for image in (0, 1)
        ],
        schemas.PAIRINGS,
    )


def make_pairing_scores(sample: str, *values: float | None) -> list[dict[str, object]]:
    slots = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return [
        {"prompt_id": f"{sample}_c{caption}", "image_id": f"{sample}_i{image}", "metric": "m", "score": value}
        for (caption, image), value in zip(slots, values, strict=True)
    ]


def test_pairings_give_text_image_and_group_scores_and_skip_incomplete_samples() -> None:
    table = rows.table(
        [
            *make_pairing_scores("0", 2, 1, 1, 2),
            *make_pairing_scores("1", 2, 3, 1, 4),
            *make_pairing_scores("2", 1, 1, None, 1),
        ],
        schemas.SCORES,
    )
    found = {
        its.statistic: its
        for its in judge_pairings(make_pairings("0", "1", "2"), table, FEW_RESAMPLES)
        if its.subset == "overall"
    }
    assert {name: its.value for name, its in found.items()} == {"text": 1.0, "image": 0.5, "group": 0.5}
    assert {(its.n, its.n_unscored) for its in found.values()} == {(2, 1)}


def test_a_sample_counts_for_each_of_its_tags() -> None:
    """The group score of a skill covers all samples that need the skill, as in table 3 of the VQAScore paper."""
    rng = np.random.default_rng(4)
    samples, skills = [str(number) for number in rng.permutation(40)], ("counting", "negation", "scene")
    tags = {sample: [skill for skill in rng.permutation(skills) if rng.random() < 0.6] for sample in samples}
    is_right = {sample: bool(rng.random() < 0.5) for sample in samples}
    scores_of = {True: (2, 1, 1, 2), False: (1, 2, 2, 1)}
    scored = [row for sample in samples for row in make_pairing_scores(sample, *scores_of[is_right[sample]])]
    table = rows.table([scored[at] for at in rng.permutation(len(scored))], schemas.SCORES)
    judged = judge_pairings(make_pairings(*samples, tags=tags), table, FEW_RESAMPLES)
    found = {its.subset: its for its in judged if its.statistic == "group"}
    assert set(found) == {"overall", *skills}
    for skill in skills:
        needing = [is_right[sample] for sample in samples if skill in tags[sample]]
        assert (found[skill].n, found[skill].value) == (len(needing), pytest.approx(np.mean(needing)))
    assert sum(found[skill].n for skill in skills) > len(samples) == found["overall"].n


def make_error_graphs(*given: tuple[str, str]) -> pa.Table:
    """Return an error graph for each (graph id, subset): three images with no error, one error and two errors."""
    return rows.table(
        [
            {"graph_id": graph, "subset": subset, "image_id": f"{graph}{level}", "node": str(level), "level": level}
            for graph, subset in given
            for level in (0, 1, 2)
        ],
        schemas.GRAPH_NODES,
    )


def make_graph_scores(*given: tuple[str, str, int, float | None]) -> pa.Table:
    """Return scores given as (metric, graph, level, score)."""
    return rows.table(
        [{"image_id": f"{graph}{level}", "metric": metric, "score": value} for metric, graph, level, value in given],
        schemas.SCORES,
    )


NODE_TABLE = make_error_graphs(("0", "synth"), ("1", "real"), ("2", "real"))
FALLING_SCORES = [("good", graph, level, -level if graph != "2" else level) for graph in "012" for level in (0, 1, 2)]


def test_only_the_published_convention_leaves_out_the_unpublished_graphs() -> None:
    found = judge_graphs(
        NODE_TABLE,
        make_graph_scores(*FALLING_SCORES),
        conventions=["published", "paper", "current"],
        unpublished=["2"],
        sampling=FEW_RESAMPLES,
    )[0]
    ordering = {(its.statistic, its.metric, its.subset): its for its in found if its.statistic.startswith("ordering")}
    assert ordering["ordering_published", "good", "overall"].value == pytest.approx(1.0)
    for convention in ("paper", "current"):
        good = ordering[f"ordering_{convention}", "good", "overall"]
        assert (good.value, good.n) == (pytest.approx(1 / 3), 3)
        assert ordering[f"ordering_{convention}", "good", "real"].value == pytest.approx(0.0)
    assert {its.n for its in found if its.statistic == "delta_published" and its.subset == "real"} == {1}


def test_an_unscored_graph_is_named_and_the_current_convention_leaves_it_out() -> None:
    scored = make_graph_scores(*[given for given in FALLING_SCORES if given[1] != "1"], ("good", "1", 0, None))
    paper, current = (
        next(
            its
            for its in judge_graphs(
                NODE_TABLE, scored, conventions=[convention], unpublished=(), sampling=FEW_RESAMPLES
            )[0]
            if its.statistic.startswith("separation")
        )
        for convention in ("paper", "current")
    )
    assert math.isnan(paper.value)
    assert paper.convention == "undefined: 1 of 3 graphs have a node without any score, first 1"
    assert (current.value, current.n, current.n_unscored) == (1.0, 2, 3)


def test_two_scores_of_an_image_in_an_error_graph_are_an_error() -> None:
    table = make_graph_scores(*FALLING_SCORES)
    with pytest.raises(SourceError, match="expected one row of metric good for image_id '00', found 2"):
        measure_graphs(NODE_TABLE, pa.concat_tables([table, table.slice(0, 1)]), "paper")


def test_a_clear_difference_orders_two_generators_and_a_tie_does_not() -> None:
    given = [
        (f"p{n}", g, "a", "likert", level + n % 3 * 0.1)
        for n in range(30)
        for g, level in (("g", 4), ("h", 2), ("i", 2))
    ]
    people = order_by_ratings(make_ratings(*given), "image", alpha=0.001, zeros="wilcox")
    assert {(its.generator_a, its.generator_b): its.better for its in people} == {
        ("g", "h"): "g",
        ("g", "i"): "g",
        ("h", "i"): None,
    }
    metric = order_by_scores(
        "m",
        make_scores(
            *[(f"p{n}", g, "m", value + n * 0.001) for n in range(30) for g, value in (("g", 0), ("h", 1), ("i", 1))]
        ),
        alpha=0.001,
        zeros="wilcox",
    )
    shares = {its.statistic: its.value for its in measure_order_agreement("m", people, metric)}
    assert shares == {
        "model_ordering": pytest.approx(1 / 3),
        "orders_reversed": pytest.approx(2 / 3),
        "orders_missed": 0.0,
    }


def test_a_pair_is_undecided_if_ranks_and_means_contradict_each_other() -> None:
    """Generator g is slightly better on 54 prompts and much worse on six, so its mean is lower but its ranks higher."""
    given = [(f"p{n}", "g", "m", 0.6 - 0.7 * (n % 10 == 0) + n * 1e-4) for n in range(60)]
    [order] = order_by_scores(
        "m", make_scores(*given, *((f"p{n}", "h", "m", 0.55) for n in range(60))), alpha=0.001, zeros="wilcox"
    )
    assert order.p_value < 0.001 and order.difference < 0
    assert order.better is None
    assert order.convention.endswith("undecided: the signed ranks favour the generator with the lower mean")
    lifted = [(prompt, g, m, value + 0.2) for prompt, g, m, value in given]
    [clear] = order_by_scores(
        "m", make_scores(*lifted, *((f"p{n}", "h", "m", 0.55) for n in range(60))), alpha=0.001, zeros="wilcox"
    )
    assert clear.better == "g" and clear.convention.endswith("better mean wins")


def test_side_by_side_requires_more_wins_than_losses_and_more_wins_than_ties() -> None:
    wins = [(f"p{n}", "a") for n in range(20)]
    [better] = order_by_preferences(make_votes(*wins, ("z", "b")), alpha=0.001, zeros="wilcox")
    assert better.better == "g"
    ties = [(f"t{n}", "unsure") for n in range(40)]
    [unsure] = order_by_preferences(make_votes(*wins, *ties), alpha=0.001, zeros="wilcox")
    assert (unsure.better, unsure.p_value < 0.001) == (None, True)


def test_tables_for_papers_escape_names_and_list_conventions_and_notes() -> None:
    [found], _ = judge_preferences(
        VOTE_TABLE, make_pair_scores(p=(0.9, 0.1)), match="image", unsure="left_out", sampling=FEW_RESAMPLES
    )
    markdown, latex = to_markdown([found], ["a note"]), to_latex([found._replace(metric="a_b&c")])
    assert "| m " in markdown and "- binary_accuracy: majority of raters" in markdown and "- a note" in markdown
    assert r"a\_b\&c" in latex
