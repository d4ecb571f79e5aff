"""Reports show how far metrics agree with people, and claim no more than the significance tests support."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from plumbline.operators.metaeval.graphs import correlate_graphs, make_correlation_matrices
from plumbline.operators.metaeval.judgement import OVERALL, PEOPLE, Comparison, Judgement, Order
from plumbline.operators.report.agreement import MAX_CORRELATED_METRICS, Agreement, make_agreement_section
from plumbline.operators.statistics.bootstrap import UNDEFINED_INTERVAL, Interval


def make_judgement(metric: str, value: float, statistic: str = "pearson", **other: str) -> Judgement:
    interval = UNDEFINED_INTERVAL if math.isnan(value) else Interval(value - 0.01, value + 0.01)
    return Judgement(metric, statistic, value, interval, 90, "how", **({"template": "likert"} | other))


def make_comparison(metric_a: str, metric_b: str, p_holm: float, statistic: str = "pearson") -> Comparison:
    return Comparison(metric_a, metric_b, statistic, 0.1, p_holm, "permutations", 9, "likert", p_holm)


JUDGEMENTS = [
    make_judgement("m", 0.5),
    make_judgement("k", 0.8),
    make_judgement("l", 0.7),
    make_judgement("m", 0.9, "kendall_b"),
]


def test_the_best_metric_is_only_called_clearly_better_after_a_significant_test() -> None:
    pairs = [make_comparison("m", "k", 0.01), make_comparison("k", "l", 0.2), make_comparison("m", "l", 0.001)]
    (sentence,) = make_agreement_section(Agreement(JUDGEMENTS, pairs, ())).sentences
    assert str(sentence) == (
        "k agrees best with likert by pearson (0.800, 95% interval 0.790 to 0.810, over 90 images). Clearly less: m. "
        "No clear difference: l."
    )


@pytest.mark.parametrize(("n", "low", "high"), [(10, 0.3, 0.5), (90, -0.7, 0.9)])
def test_with_too_few_ratings_no_metric_is_named_as_the_best(n: int, low: float, high: float) -> None:
    found = make_judgement("dsg", 0.382)._replace(n=n, interval=Interval(low, high))
    shown = make_agreement_section(Agreement([found, make_judgement("m", 0.1)._replace(n=n)], (), ()))
    assert str(shown.sentences[0]).startswith(
        "Not enough ratings to say which metric agrees best with likert by pearson: dsg has 0.382, 95% interval "
    )
    assert "not enough ratings" in str(shown.trust[0])


def test_without_a_test_the_page_says_that_metrics_were_not_tested() -> None:
    (sentence,) = make_agreement_section(
        Agreement(JUDGEMENTS, [make_comparison("m", "k", 0.01, "kendall_b")], ())
    ).sentences
    assert str(sentence).endswith("0.790 to 0.810, over 90 images). Not tested against it: m and l.")


@pytest.mark.parametrize(("values", "lead"), [((1.0, 0.5), "k orders"), ((1.0, 1.0), "k and m order")])
def test_metrics_that_are_only_judged_by_order_are_named_without_a_test(values: tuple[float, float], lead: str) -> None:
    found = [
        make_judgement(metric, value, "model_ordering", template="majority")._replace(interval=UNDEFINED_INTERVAL, n=3)
        for metric, value in zip("km", values, strict=True)
    ]
    (sentence,) = make_agreement_section(Agreement(found, (), ())).sentences
    assert str(sentence) == (
        f"{lead} generators most like people with majority by model_ordering (1.000, over 3 pairs of generators). "
        "It has no interval, so other metrics may do as well."
    )


@pytest.mark.parametrize(
    ("found", "size"),
    [
        (make_judgement("m", 0.8)._replace(n=1234, n_prompts=100), "1,234 images of 100 prompts"),
        (
            make_judgement("m", 0.8, "binary_accuracy", template="vote")._replace(n_prompts=1),
            "90 pairs of images of 1 prompt",
        ),
        (make_judgement("m", 0.8, "ordering_paper", template=""), "90 error graphs"),
        (make_judgement("m", 0.8, "text", template=""), "90 samples"),
        (make_judgement("m", 0.8, "accuracy", template="words"), "90 words"),
    ],
)
def test_the_rows_behind_a_conclusion_are_counted(found: Judgement, size: str) -> None:
    (sentence,) = make_agreement_section(Agreement([found], (), ())).sentences
    assert f", over {size})." in str(sentence)


def test_a_statistic_without_a_value_is_named_with_its_reason() -> None:
    reason = "how; undefined: all scores are equal; more"
    flat = make_judgement("flat", math.nan)._replace(convention=reason)
    nobody = [
        make_judgement(name, math.nan, "auroc")._replace(convention="undefined: nobody fails") for name in ("k", "flat")
    ]
    best, absent = make_agreement_section(Agreement([make_judgement("k", 0.8), flat, *nobody], (), ())).sentences
    assert str(best).endswith("over 90 images). Without a value: flat (all scores are equal).")
    assert str(absent) == "No value for auroc with likert (nobody fails)."


def test_the_number_of_pairs_that_people_separate_is_shown_with_their_means() -> None:
    means = [
        make_judgement(PEOPLE, 5 - n / 4, "mean_rating", generator=f"g{n}")._replace(n=9)
        for n in (3, 0, 2, 1, 7, *range(8, 14))
    ]
    better = {("g0", "g1"): "g0", ("g1", "g2"): "", ("g0", "g2"): "g0"}
    orders = [Order(PEOPLE, *pair, name or None, 0.5, 0.01, 9, "how", "likert") for pair, name in better.items()]
    (sentence,) = make_agreement_section(Agreement(means, (), (), orders=orders)).sentences
    assert str(sentence) == (
        "People's ratings distinguish 2 of 3 pairs of generators by likert; mean ratings: g0 5.00 > g1 4.75 > "
        "g2 4.50 > g3 4.25 > g7 3.25 > g8 3.00 > g9 2.75 > g10 2.50 and 3 more."
    )


def test_each_question_to_people_has_its_own_sentence_and_table() -> None:
    known = make_judgement("m", 0.6, "ordering_paper", template="")
    shown = make_agreement_section(
        Agreement([*JUDGEMENTS, known, make_judgement("m", math.nan, template="other")], (), ())
    )
    assert [str(sentence).partition(" (")[0] for sentence in shown.sentences] == [
        "k agrees best with likert by pearson",
        "m agrees best with the ground truth by ordering_paper",
        "No metric has a value for its agreement with other by pearson.",
    ]
    assert [table.title for table in shown.tables] == ["likert", "the ground truth", "other"]


def test_metrics_are_columns_with_intervals_below_and_raters_are_separate() -> None:
    raters = make_judgement(PEOPLE, 0.6, "alpha_ordinal")
    by_skill = make_judgement("m", 0.4, subset="counting")
    shown = make_agreement_section(Agreement([*JUDGEMENTS, raters, by_skill], (), ("a note",)))
    likert, people = shown.tables
    assert likert.names == ("", "m", "k", "l") and people.title == "people, likert"
    assert likert.rows[0] == ("pearson", "0.500\n[0.490, 0.510]", "0.800\n[0.790, 0.810]", "0.700\n[0.690, 0.710]")
    assert likert.rows[1][:3] == ("kendall b", "0.900\n[0.890, 0.910]", "-")
    assert people.names[:2] == ("", "alpha ordinal") and people.rows[0][0] == OVERALL
    assert [table.title for table in shown.by_skill.rows] == ["likert, counting"] and shown.notes == ("a note",)


@pytest.mark.parametrize("count", [3, MAX_CORRELATED_METRICS, 90])
def test_tables_of_correlations_show_the_first_of_many_metrics(count: int) -> None:
    """The tables only say how many other metrics there are, but the scatter plots offer all pairs of metrics."""
    rng, metrics = np.random.default_rng(count), [f"metric {place}" for place in range(count)]
    values = rng.uniform(-1, 1, (20, count))
    values[:, -1] = values[:, 0]
    graphs = pd.DataFrame(
        [
            {"metric": metric, "convention": "paper", "graph_id": str(graph), "subset": "a",
             "ordering": values[graph, place], "separation": rng.uniform()}
            for graph in rng.permutation(20)
            for place, metric in enumerate(metrics)
        ]
    )  # fmt: skip
    correlations = make_correlation_matrices(correlate_graphs(graphs))
    shown = make_agreement_section(Agreement([*JUDGEMENTS], (), (), graphs=graphs, graph_correlations=correlations))
    tables = [*(matrix.make_table() for matrix in shown.graph_correlations), *shown.graph_correlations_by_skill.rows]
    assert len(tables) == 4
    for table in tables:
        assert len(table.rows) == len(table.names) - 1 == min(count, MAX_CORRELATED_METRICS)
        assert table.caption.endswith("66 more metrics in graph_correlations.parquet.") == (count == 90)
    assert shown.graph_charts[0].name.startswith(f"ordering: metric 0 (up) and metric {count - 1} (right), r 1.00")
    assert len(correlations[0].metrics) == count


def make_graph_rows(
    scores: NDArray[np.float64], levels: Sequence[int], metrics: Sequence[str]
) -> list[dict[str, object]]:
    """Return rows (schema GRAPH_IMAGES) of one error graph: one per metric and image.

    `scores` has the shape (images, metrics), and `levels` contains the number of errors in each image.
    """
    return [
        {"metric": metric, "subset": "a", "node": f"{level}a", "level": level, "image_id": f"i{place:03}",
         "score": scores[place, number]}
        for number, metric in enumerate(metrics)
        for place, level in enumerate(levels)
    ]  # fmt: skip


def test_the_best_and_worst_ordered_graphs_and_the_most_disputed_ones_are_drawn() -> None:
    rng, metrics = np.random.default_rng(3), [f"m{place}" for place in range(12)]
    orderings = {"easy": [0.9] * 12, "hard": [-0.5] * 12, "split": [-0.9, *[0.1] * 10, 1.0], "dull": [0.2] * 12}
    levels = [*range(12), *rng.integers(0, 12, 290)]
    images = pd.DataFrame(
        [
            {"graph_id": name, **row}
            for name in rng.permutation([*orderings, "flat"])
            for row in make_graph_rows(rng.random((302, 12)), [0] * 302 if name == "flat" else levels, metrics)
        ]
        + [{"graph_id": "gone", **row} for row in make_graph_rows(np.full((302, 12), np.nan), levels, metrics)]
    )
    graphs = pd.DataFrame(
        [
            {"metric": metric, "convention": convention, "graph_id": name, "subset": "a",
             "ordering": value if convention == "paper" else -value, "separation": rng.uniform()}
            for convention in ("paper", "current")
            for name, values in {**orderings, "flat": [1.0] * 12, "gone": [-1.0] * 12}.items()
            for metric, value in zip(metrics, values, strict=True)
        ]
    )  # fmt: skip
    shown = make_agreement_section(Agreement([*JUDGEMENTS], (), (), graphs=graphs, graph_images=images)).shown_graphs
    assert [graph.title for graph in shown] == [
        "Graph easy, whose images metrics order best: mean ordering 0.90",
        "Graph hard, whose images metrics order worst: mean ordering −0.50",
        "Graph split, on which metrics differ most: ordering −0.90 by m0, 1.00 by m11",
    ]
    for graph in shown:
        lines, *shares = graph.charts
        assert lines.chart.left_out == 8 and len(shares) == 2 and all(chart.chart.left_out == 6 for chart in shares)
        assert graph.means.names[3:] == tuple(metrics[:10]) and len(graph.means.rows) == 12
        assert graph.means.caption.endswith("2 more metrics in graph_means.parquet.")
    hard = images[(images["graph_id"] == "hard") & (images["metric"] == "m3")].groupby("level")["score"]
    assert [(row[1], row[6]) for row in shown[1].means.rows] == [
        (str(level), f"{mean:.3f}") for level, mean in hard.mean().items()
    ]


def test_only_some_of_many_error_graphs_are_drawn_and_many_subsets_are_not_coloured() -> None:
    rng, shuffled = np.random.default_rng(1), np.random.default_rng(2).permutation(2500)
    graphs = pd.DataFrame(
        [
            {"metric": metric, "convention": "paper", "graph_id": str(graph), "subset": f"skill {graph % 7}",
             "ordering": rng.uniform(-1, 1), "separation": rng.uniform()}
            for graph in shuffled
            for metric in ("clip", "<i>dsg")
        ]
    )  # fmt: skip
    found = Agreement(
        [*JUDGEMENTS], (), (), graphs=graphs, graph_correlations=make_correlation_matrices(correlate_graphs(graphs))
    )
    shown = make_agreement_section(found)
    scatter = shown.graph_charts[0]
    assert [chart.name.partition(":")[0] for chart in shown.graph_charts] == [
        "ordering", "separation", "ordering of all graphs", "separation of all graphs",
    ]  # fmt: skip
    assert scatter.chart.left_out == 500 and scatter.chart.label.endswith("over 2500 error graphs")
    assert ">7 subsets</text>" in scatter.chart.svg and "skill" not in scatter.chart.svg
    assert len(shown.graph_correlations) == 2 and len(shown.graph_correlations_by_skill.rows) == 14
