"""Several benchmarks share one page: all comparisons are corrected together, and only they decide who leads overall."""

from collections.abc import Mapping, Sequence

import pytest

from plumbline.operators.report.rendering import format_suite_csv, format_suite_markdown
from plumbline.operators.report.suite import SuiteRun, Tally, build_suite, correct_p_values_together
from tests.operators.results.test_comparison import make_scores
from tests.operators.tallied import compare_pairs, summarise

N_PROMPTS = 10
SCORE_STEPS = tuple(0.01 * (number + 1) for number in range(N_PROMPTS))


def make_levels(*levels: str, prompts: int = N_PROMPTS) -> dict[str, list[float | None]]:
    """Return the scores of generators with one-letter names, by name.

    On every prompt, the generators of a level have equal scores, which are higher than those of the next level.
    """
    return {
        name: [0.9 - 0.2 * place + (place + 1) * SCORE_STEPS[number % N_PROMPTS] for number in range(prompts)]
        for place, level in enumerate(levels)
        for name in level
    }


def make_suite_run(
    benchmark: str, scores: Mapping[str, list[float | None]], metric: str = "clipscore", kind: str = "clipscore"
) -> SuiteRun:
    table = make_scores(dict(scores), metric)
    ranks = kind == "clipscore"
    options = {"kind": kind} | ({} if ranks else {"statistic": "edge_density"})
    manifest = {"benchmark": benchmark, "metrics": [metric], "config": {"metrics": {metric: options}}}
    return SuiteRun(f"run-{benchmark}", manifest, summarise(table, {}), compare_pairs(table, {}) if ranks else [])


def describe_suite(runs: Sequence[SuiteRun]) -> list[str]:
    return [str(sentence) for sentence in build_suite("s", runs).overall]


def test_one_correction_covers_the_comparisons_of_all_benchmarks() -> None:
    """If all eight prompts agree, p = 2^(1-8) = 1/128: significant among six comparisons, but not among seven."""
    runs = [make_suite_run(f"b{number}", make_levels("a", "b", prompts=8)) for number in range(7)]
    assert [duel.p_value for run in runs for duel in run.duels] == pytest.approx([1 / 128] * 7)
    for count in (1, 2, 6, 7):
        duels = [duel for of_run in correct_p_values_together(runs[:count]) for duel in of_run]
        assert [duel.p_holm for duel in duels] == pytest.approx([count / 128] * count)
        assert {duel.better for duel in duels} == ({"a"} if count < 7 else {None})
    assert all(duel.better == "a" for run in runs for duel in run.duels), "it is clear on each benchmark alone"
    page = build_suite("s", runs)
    assert str(page.headline) == "No generator is clearly better than another on any benchmark."
    assert page.warnings == [
        "Too few prompts for any clear difference: even if all of 8 prompts agreed, no difference would be clear among "
        "7 comparisons; at least 9 prompts are needed."
    ]


def test_a_generator_that_beats_every_other_and_loses_to_none_leads_overall() -> None:
    runs = [make_suite_run("one", make_levels("a", "b", "c")), make_suite_run("two", make_levels("ab", "c"))]
    assert describe_suite(runs) == [
        "a leads overall by clipscore: clearly better than each of the 2 others on at least one of 2 benchmarks, and "
        "clearly worse on none."
    ]
    page = build_suite("s", runs)
    assert str(page.headline) == "a leads overall by clipscore."
    [across] = page.metrics
    assert across.tallies == {"a": Tally(3, 0, 4), "b": Tally(2, 1, 4), "c": Tally(0, 4, 4)}
    assert across.generators.rows == ["a", "b", "c"]
    assert across.between["a", "b"].verdict == "better" and across.between["b", "a"].verdict == "worse"
    assert [[row.group for row in rows] for rows in page.leaderboard_rows.values()] == [
        ["a", "b", "c"],
        ["a", "a", "b"],
    ]
    both = [make_suite_run(name, make_levels("a", "b")) for name in ("one", "two")]
    assert describe_suite(both) == ["a is best on every benchmark by clipscore: clearly better than b."]


def test_benchmarks_that_disagree_have_no_leader_and_are_named() -> None:
    runs = [make_suite_run("one", make_levels("a", "b", "c")), make_suite_run("two", make_levels("b", "a", "c"))]
    assert describe_suite(runs) == [
        "No generator leads overall by clipscore: each is clearly worse than another on some benchmark.",
        "By clipscore, the benchmark decides between a and b: a is clearly better on one, b on two.",
    ]
    [across] = build_suite("s", runs).metrics
    assert across.between["a", "b"].verdict == "split" and across.between["a", "c"].is_ahead
    assert across.tallies["a"] == across.tallies["b"] == Tally(3, 1, 4)


def test_unbeaten_generators_that_do_not_differ_share_the_lead() -> None:
    runs = [make_suite_run(name, make_levels("ab", "c")) for name in ("one", "two")]
    assert describe_suite(runs) == [
        "No generator leads overall by clipscore: a and b are never clearly worse than another, and cannot be told "
        "apart."
    ]
    [most] = describe_suite(
        [make_suite_run("one", make_levels("ab", "c", "d")), make_suite_run("two", make_levels("a", "bcd"))]
    )
    assert most.startswith("a leads overall"), "a is clearly better than b on two benchmarks"
    [most, _] = describe_suite(
        [make_suite_run("one", make_levels("abc", "d")), make_suite_run("two", make_levels("abd", "c"))]
    )
    assert most.endswith("a and b are never clearly worse than another, and cannot be told apart.")
    seldom = {"b": [0.5] * 6 + [None] * 4}  # six prompts are too few for significance
    [most] = describe_suite([make_suite_run(name, make_levels("a", "c") | seldom) for name in ("one", "two")])
    assert most.endswith("cannot be told apart; a is ahead of the most: 1 of 2.")
    alone = [make_suite_run("one", make_levels("a", "b", "c")), make_suite_run("two", make_levels("abc"))]
    assert describe_suite(alone)[0].startswith("a leads overall")
    tied = [make_suite_run("one", make_levels("ab", "c")), make_suite_run("two", make_levels("ac", "b"))]
    assert describe_suite(tied)[0].startswith("a leads overall"), "a is ahead of b on two benchmarks, and of c on one"


def test_a_generator_that_lacks_a_benchmark_is_not_ranked_overall() -> None:
    runs = [make_suite_run("one", make_levels("d", "a", "b")), make_suite_run("two", make_levels("a", "b"))]
    assert describe_suite(runs) == [
        "a is best on every benchmark by clipscore: clearly better than b.",
        "Not ranked overall by clipscore: d, because it lacks scores on some benchmark.",
    ]
    apart = [make_suite_run("one", make_levels("a", "b")), make_suite_run("two", make_levels("c", "d"))]
    assert describe_suite(apart) == [
        "By clipscore there is no overall result: no two generators have scores on all 2 benchmarks."
    ]


def test_a_metric_of_one_benchmark_or_without_direction_names_no_leader() -> None:
    runs = [
        make_suite_run("one", make_levels("a", "b"), "other"),
        make_suite_run("two", make_levels("a", "b")),
        make_suite_run("three", make_levels("a", "b"), "edges", "image_statistic"),
        make_suite_run("four", make_levels("a", "b"), "edges", "image_statistic"),
    ]
    page = build_suite("s", runs)
    assert page.overall == []
    assert str(page.headline) == "No metric scores two of the benchmarks: look at each benchmark by itself."
    assert [(across.metric, across.ranks) for across in page.metrics] == [
        ("other", True), ("clipscore", True), ("edges", False)
    ]  # fmt: skip
    assert {row.group for row in page.leaderboard_rows["three"]} == {""}


def test_the_files_contain_every_mean_of_every_benchmark() -> None:
    runs = [make_suite_run("one", make_levels("a", "=")), make_suite_run("two", make_levels("a", "="))]
    page = build_suite(
        "s", runs, left_out=["ssim does not score one: it has no sources"], notes=["they share prompts."]
    )
    rows = format_suite_csv(page).splitlines()
    assert rows[0].startswith("benchmark,generator,metric,skill,mean,low,high,n,")
    assert len(rows) == 5 and rows[1].startswith("one,a,clipscore,overall,0.955")
    text = format_suite_markdown(page)
    assert "| a | 0.955 | a | 0.955 | a | 2 | 0 | 2 |" in text
    assert "- Note: they share prompts." in text and "ssim does not score one: it has no sources" in text
