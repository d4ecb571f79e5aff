"""The report command prints the report's main findings and its address."""

import re
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pyarrow.parquet as pq

from tests.bench_of import Bench, read_image_rows
from tests.commands import run_for_output, run_refused
from tests.operators.report.made import QUALITY_BY_GENERATOR, draw_noisy_score, make_plain_prompts, make_run


def test_the_terminal_shows_the_decision_and_the_address_of_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    make_run(tmp_path, run_id="20260101-000000-000000")
    said = run_for_output("report", f"store={tmp_path}/store", f"run={run.run_id}", "compare=20260101-000000-000000")
    assert re.search(r"│ atlas +│ +1\.0 │ +0\.\d{3} a │ +0\.\d{3} a │", said)
    assert "\natlas is the best generator — by both metrics.\n" in said
    assert f"report: {run.folder}/report.html (" in said
    assert "since run 20260101-000000-000000:\n  Nothing changed." in said


def test_a_page_counts_the_existing_images(tmp_path: Path) -> None:
    """Flint has images for only 6 of the 8 prompts, so 14 images are counted."""
    bench = Bench(tmp_path, "metric=[edge_density,entropy]", "max_failed=1")
    left = Random(0).sample(read_image_rows("flint", 8), 6)
    bench.write("flint", left)
    printed = bench.run().out
    (page,) = bench.runs.glob("2*/report.html")
    assert f"= {8 + len(left)} images" in printed
    assert (
        "<span>2 generators</span><span>8 prompts</span><span>14 images</span><span>2 metrics</span>"
        in page.read_text()
    )


def test_the_terminal_says_if_lower_scores_of_a_metric_are_better(tmp_path: Path) -> None:
    make_run(tmp_path, lower_is_better=["gecko"])
    said = run_for_output("report", f"store={tmp_path}/store")
    assert re.search(r"┃ mean rank ┃ gecko \(lower is better\) ┃ +clipscore ┃", said)
    assert re.search(r"│ atlas +│ +2\.0 │ +0\.\d{3} c │ +0\.\d{3} a │", said)
    assert "\nThe metrics disagree on the best generator:" in said


def test_the_change_of_a_combined_reward_is_listed_with_those_of_its_parts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    make_run(tmp_path, run_id="20260101-000000-000000")
    words = [f"store={tmp_path}/store", f"run={run.run_id}", "compare=20260101-000000-000000"]
    run_for_output("report", *words)
    assert "<td><bdi>reward</bdi></td>" not in run.html
    run_for_output("report", *words, "reward={weights: {gecko: 1, clipscore: 0.5}, unit: z_score}")
    assert run.html.count("<td><bdi>reward</bdi></td>") == 3, "one for each generator"
    said = run_refused("report", *words, "reward={gecko: 1, tifa: 1}")
    assert "reward: expected a metric of the run, gecko or clipscore, got 'tifa'" in said
    assert "reward: 'reward' needs an earlier run to compare with" in run_refused(
        "report", *words[:2], "reward={gecko: 2}"
    )


def make_noisy_score(generator: str, metric: str, prompt: int) -> float:
    """Return a score from 0 to 1; generator g07 has the same noise as the others but a much higher mean."""
    noise = np.random.default_rng([prompt, *generator.encode()]).normal(0, 0.5)
    return float(np.clip((0.9 if generator == "g07" else 0.55) + noise, 0, 1))


def test_no_report_claims_that_there_is_no_difference_from_too_few_prompts(tmp_path: Path) -> None:
    """With 14 prompts, no scores could separate 30 generators; with 16 prompts, some could, but these scores do not."""
    names = [f"g{number:02d}" for number in range(30)]
    for prompts, headline, wanted in (
        (14, "Too few prompts to compare generators by m.", "at least 15 prompts are needed"),
        (16, "No generator is clearly better than another by m.", "prompts would show it."),
    ):
        folder = tmp_path / str(prompts)
        run = make_run(
            folder, prompts=make_plain_prompts(prompts), generators=names, metrics=["m"], score=make_noisy_score
        )
        said = run_for_output("report", f"store={folder}/store", "images=0")
        assert f"\n{headline}" in said and wanted in said and "all tied" not in run.html
        assert wanted in run.html and "Too few prompts at every skill to compare with g" in said


def test_every_generator_is_compared_with_the_baseline_and_with_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    said = " ".join(run_for_output("report", f"store={tmp_path}/store", "baseline=borealis").split())
    assert "means; clearly better or worse than borealis, or tied: no clear difference (signed-rank test, Holm)" in said
    assert "Clearly better than borealis: atlas by 2, of 2 metrics. Clearly worse: cobalt by 2, of 2 metrics." in said
    assert (
        "4 of 4 comparisons of two generators by one metric are clear" in said and "could not be compared" not in said
    )
    summary = (run.folder / "summary.md").read_text()
    assert "| compared with borealis |" in summary and "Compared with borealis (" in summary
    assert "clearly better or worse than borealis" in run.html and "share a letter if" not in run.html
    assert "atlas</bdi> against <bdi>borealis" in run.html and "atlas</bdi> against <bdi>cobalt" not in run.html


def test_names_are_not_taken_for_markup(tmp_path: Path) -> None:
    make_run(tmp_path, generators=("[red]atlas[/]", "cobalt"))
    assert "[red]atlas[/]" in run_for_output("report", f"store={tmp_path}/store")


def test_a_name_cannot_reverse_or_steer_the_terminal(tmp_path: Path) -> None:
    """Names contain a right-to-left override, an escape sequence and a hidden character.

    Letters of every script are left unchanged.
    """
    names = ("atlas\u202e", "\x1b[31mcobalt", "dr\u200bift", "אטלס", "👩\u200d🚀")
    make_run(tmp_path, generators=names, prompts=make_plain_prompts(4), metrics=("clipscore",), question_metrics=())
    said = run_for_output("report", f"store={tmp_path}/store")
    assert not {*said} & {"\u202e", "\x1b", "\u200b"}
    assert all(name in said for name in ("atlas?", "?[31mcobalt", "dr?ift", "אטלס", "👩\u200d🚀"))
    assert "dr?ift" in run_refused("report", f"store={tmp_path}/store", "baseline=none", code=1)


def test_the_terminal_names_generators_that_were_added_or_removed_between_two_runs(tmp_path: Path) -> None:
    make_run(tmp_path, generators=("atlas", "cobalt"), run_id="20260101-000000-000000")
    run = make_run(tmp_path, generators=("atlas", "borealis"))
    said = run_for_output("report", f"store={tmp_path}/store", "compare=previous")
    for lead, rest in (
        ("Nothing changed in the scores that both runs have.", ""),
        ("Only in this run:", " generator borealis."),
        ("Only in the earlier run:", " generator cobalt."),
    ):
        assert f"  {lead}{rest}\n" in said and f"{lead}</b>" in run.html and rest.strip() in run.html
    assert "Nothing changed.\n" not in said


def test_a_report_says_that_the_run_it_was_compared_with_is_gone(tmp_path: Path) -> None:
    earlier = make_run(tmp_path, run_id="20260101-000000-000000")
    run = make_run(tmp_path)
    run_for_output("report", f"store={tmp_path}/store", "compare=previous")
    assert "What changed</h2>" in run.html
    shutil.rmtree(earlier.folder)
    assert f"The changes since run {earlier.run_id} can no longer be shown: " in run_for_output(
        "report", f"store={tmp_path}/store"
    )
    assert "What changed</h2>" not in run.html and "compare=none accepts that." in run.html
    assert "not shown any more" not in run_for_output("report", f"store={tmp_path}/store", "compare=none")


def test_the_reason_why_nothing_was_scored_is_shown_with_that_message(tmp_path: Path) -> None:
    make_run(tmp_path, score=lambda *at: None)
    said = run_for_output("report", f"store={tmp_path}/store")
    assert "\nNothing could be scored. Failed rows: 72 corrupt_image. For instance atlas, gecko, image " in said
    assert "bytes <b>unreadable</b>" in said
    assert "below" not in said


def test_later_ratings_correct_a_sweeps_means_and_the_report_shows_where_a_metric_contradicts_them(
    tmp_path: Path,
) -> None:
    """CLIPScore ranks cobalt first; people rate it worst. First 20 of the 40 prompts are rated, later all of them."""

    def draw_fit(generator: str, prompt: int) -> float:
        return draw_noisy_score(generator, "fit", prompt) + np.random.default_rng(prompt).normal(0, 0.15)

    def score(generator: str, metric: str, prompt: int) -> float:
        flattered = metric == "clipscore" and generator == "cobalt"
        return draw_fit(generator, prompt) + 0.3 * draw_noisy_score(generator, metric, prompt) + 1.5 * flattered

    made = make_run(tmp_path, prompts=make_plain_prompts(40), score=score)
    ratings = tmp_path / "ratings.csv"

    def rate_and_report(prompts: int) -> str:
        lines = [
            f"{name}-p{at:04d},ann,{round(1 + 4 * draw_fit(name, at), 2)}"
            for name in QUALITY_BY_GENERATOR
            for at in range(prompts)
        ]
        ratings.write_text("\n".join(["image_id,rater,rating", *lines]) + "\n")
        words = [f"store={tmp_path}/store", "run=latest", "protocol=long", f"protocol.path={ratings}"]
        return run_for_output("report", *words)

    said = rate_and_report(20)
    assert "clipscore contradicts people on atlas and cobalt: people find atlas better by +" in said
    assert "clipscore alone overrates cobalt (" in said
    assert "<b>clipscore contradicts people on atlas and cobalt:</b>" in made.html
    assert '<span class="tag contradicted">contradicts people</span>' in made.html
    assert re.search(r"percentile rank \d+%; by clipscore its percentile rank among the same images is \d+%", made.html)
    assert "<bdi>likert, with clipscore</bdi>" in made.html and "not enough ratings" not in made.html
    assert "<b>gecko beside people&#39;s likert</b> agrees" in made.html
    corrected = pq.read_table(made.folder / "metaeval/corrected.parquet").to_pylist()
    assert {row["n_rated"] for row in corrected} == {20} and {row["n_scored"] for row in corrected} == {40}
    rate_and_report(40)
    corrected = pq.read_table(made.folder / "metaeval/corrected.parquet").to_pylist()
    assert {row["n_rated"] for row in corrected} == {40}
    rate_and_report(5)
    assert "not enough ratings: 5 prompts, at least 12 are needed" in made.html
