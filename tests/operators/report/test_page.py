"""The page is a single file that escapes all text, loads nothing, and stays small however large the run is."""

import base64
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.failures import count_failures
from plumbline.operators.metrics.table import find_newcomer_description, read_lower_is_better
from plumbline.operators.report.gallery import THUMBNAIL_BYTES, ImageDetail, Thumbnail
from plumbline.operators.report.metric_figures import MetricFigures, MetricInputs, measure_metrics
from plumbline.operators.report.page import GatheredRun, Page, build_page
from plumbline.operators.report.picked_images import ImageKey, compute_gallery_quotas
from plumbline.operators.report.rendering import (
    MAX_CSV_CHARACTERS,
    isolate_direction,
    render_report,
    to_csv,
    to_latex,
    to_markdown,
)
from plumbline.operators.results.summary import Skills
from tests.operators.report.made import HOSTILE_PROMPTS, draw_noisy_score
from tests.operators.tallied import pick_gallery_images, summarise, wrap_scores

HOSTILE_NAMES = ("<img src=x>", "=cmd()", "a|b`c`")


def gather_scores(scores: pa.Table, prompts: dict[str, str], **manifest: Any) -> GatheredRun:
    skills = {prompt: ["<i>counting</i>"] for prompt in prompts}
    names = ("image_id", "prompt_id", "generator", "metric")
    failed = [{name: row[name] for name in names} | row["error"] for row in scores.to_pylist() if row["error"]]
    return GatheredRun(
        run_id="r<1>",
        manifest={"benchmark": "<bench>", "metrics": ["<gecko>"], **manifest},
        scores=wrap_scores(scores),
        summary=summarise(scores, skills),
        failures=count_failures(rows.table(failed, schemas.ERRORS)),
        prompts=prompts,
        skills=Skills(skills.items()),
    )


def make_page(run: GatheredRun, details: dict[ImageKey, ImageDetail] | None = None, images: int = 96) -> Page:
    picks = pick_gallery_images(run.scores, run.manifest["metrics"], images)
    return build_page(run, compute_figures(run), picks=picks, details=details or {})


def compute_figures(run: GatheredRun, *, rated: bool = False) -> dict[str, MetricFigures]:
    quotas = compute_gallery_quotas(run.scores, run.scores.metrics, 0)
    inputs = MetricInputs(
        run.scores, run.skills, quotas, run.find_unranked_metrics(), read_lower_is_better(run.manifest), rated=rated
    )
    return measure_metrics(inputs)


def make_hostile_run() -> GatheredRun:
    prompts = dict(zip("<abc>", HOSTILE_PROMPTS, strict=True))
    error = {"kind": "<b>kind", "message": "<script>hacked()</script>", "retryable": False}
    records = [
        {"image_id": f"<u>{generator}{prompt}", "prompt_id": prompt, "generator": generator, "metric": "<gecko>",
         "score": None if prompt == "a" else draw_noisy_score(generator, "m", at),
         "error": error if prompt == "a" else None}
        for generator in HOSTILE_NAMES for at, prompt in enumerate(prompts)
    ]  # fmt: skip
    config = {"metrics": {"<gecko>": {"template": "</style><script>hacked()</script>"}}}
    return gather_scores(
        rows.table(records, schemas.SCORES), prompts, config=config, models={"<m>": {"label": "<script>"}}
    )


def test_no_text_of_a_run_becomes_markup() -> None:
    html = render_report(make_page(make_hostile_run()))
    outside = re.sub(r"<style>.*?</style>|<script>\n?\"use strict\";.*?</script>", "", html, flags=re.S)
    tags = {tag.lower() for tag in re.findall(r"<\s*/?\s*([a-zA-Z!][\w-]*)", outside)}
    assert not tags & {"script", "style", "u", "link", "iframe", "base", "object"}
    assert "<img src=x" not in html and "hacked()</" not in html and "&lt;script&gt;hacked()" in html
    assert html.count("<script>") == 1


def test_a_metric_has_its_own_description_or_that_of_its_kind() -> None:
    records = [
        {"image_id": "i", "prompt_id": "a", "generator": "g", "metric": metric, "score": 0.5}
        for metric in ("itm", "plain", "old")
    ]
    options = {"itm": {"kind": "similarity", "about": "reads <i>both</i>"}, "plain": {"kind": "similarity"}}
    page = make_page(
        gather_scores(rows.table(records, schemas.SCORES), {"a": "a"}, config={"metrics": options}, metrics=[*options])
    )
    stories = {panel.name: panel.story for panel in page.panels}
    assert stories == {"itm": "reads <i>both</i>", "plain": find_newcomer_description("similarity"), "old": ""}
    assert "reads &lt;i&gt;both&lt;/i&gt;" in render_report(page)


def test_the_page_loads_nothing() -> None:
    html = render_report(make_page(make_hostile_run()))
    assert "default-src &#39;none&#39;" in html and "unsafe-eval" not in html
    assert (
        re.findall(r"(?:src|href|action)=\"(?!#|data:image/webp|data:text/csv|data:application/x-tex)[^\"]*\"", html)
        == []
    )
    addresses = set(re.findall(r"https?://[^\s\"'<&)]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_markdown_and_csv_show_names_as_text() -> None:
    page = make_page(make_hostile_run())
    markdown = to_markdown(page)
    assert "<img" not in markdown.replace("\\<img", "") and "a\\|b\\`c\\`" in markdown
    assert "\n'=cmd()," in to_csv(page.leaderboard_rows)
    assert to_csv(page.leaderboard_rows).splitlines()[0].startswith("generator,metric,skill,mean,low,high")


def make_large_scores(generators: int, prompts: int, metrics: list[str]) -> pa.Table:
    rng = np.random.default_rng(0)
    tables = []
    for metric in metrics:
        for number in range(generators):
            ids = [f"{prompt:06d}" for prompt in range(prompts)]
            columns: dict[str, Any] = {
                name: pa.nulls(prompts, schemas.SCORES.field(name).type) for name in schemas.SCORES.names
            }
            columns |= {
                "image_id": pa.array([f"{number}-{one}" for one in ids]),
                "prompt_id": pa.array(ids),
                "generator": pa.array([f"generator {number}"] * prompts),
                "metric": pa.array([metric] * prompts),
                "score": pa.array(np.clip(rng.normal(0.4 + number / 20, 0.2, prompts), 0, 1)),
            }
            tables.append(pa.table(columns, schema=schemas.SCORES))
    return pa.concat_tables(tables)


def make_fullest_detail(place: int) -> ImageDetail:
    """Return the largest possible card: full-size thumbnails of image and source, and 40 long questions per metric."""
    question = {"question_id": "1", "text": "q" * 900, "span": "s" * 900, "start": 0, "end": 4, "wanted": "w" * 900,
                "given": "g" * 900, "score": 0.4}  # fmt: skip
    thumbnail = "data:image/webp;base64," + "A" * (THUMBNAIL_BYTES * 4 // 3)
    asked, rated = {metric: [question] * 40 for metric in ("m", "k")}, {"m": {"r" * 99: 1.5}}
    source = Thumbnail(f"{thumbnail[:-4]}{place:04}")
    return ImageDetail(Thumbnail(thumbnail), asked, {"m": "r" * 9000}, rated, (source,))


def extract_downloads(html: str) -> dict[str, str]:
    """Return the texts of the files that a page offers for download, keyed by file name."""
    held = re.findall(r'download="([^"]+)" href="data:[^"]+;base64,([^"]+)"', html)
    return {name: base64.b64decode(content).decode() for name, content in held}


def test_the_page_contains_its_leaderboard_as_csv_and_latex() -> None:
    page = make_page(make_hostile_run())
    held = extract_downloads(render_report(page))
    assert held == {"leaderboard.csv": to_csv(page.leaderboard_rows), "leaderboard.tex": to_latex(page)}
    assert "<i>counting</i>" in held["leaderboard.csv"]


def test_a_csv_that_would_be_too_large_is_included_without_skills(monkeypatch: pytest.MonkeyPatch) -> None:
    page = make_page(make_hostile_run())
    assert len(to_csv(page.leaderboard_rows)) < MAX_CSV_CHARACTERS
    monkeypatch.setattr("plumbline.operators.report.rendering.MAX_CSV_CHARACTERS", 200)
    html = render_report(page)
    overall = extract_downloads(html)["leaderboard.csv"]
    assert "counting" not in overall and overall.count("\n") == 1 + len(HOSTILE_NAMES) and ">CSV, overall</a>" in html


LATEX_NAMES = (r"a\b~c^d|e", "50% & $1 #2_{3}", "[10pt]* -- <x>", "line\nbreak")


def make_latex() -> str:
    records = [
        {"generator": name, "metric": "[m_1]", "prompt_id": str(prompt), "score": place / 10 + (prompt - 205.5) / 1000}
        for place, name in enumerate(LATEX_NAMES) for prompt in range(12)
    ]  # fmt: skip
    return to_latex(
        make_page(gather_scores(rows.table(records, schemas.SCORES), {}, metrics=["[m_1]"], benchmark="b%&_"))
    )


def test_latex_shows_every_name_as_text() -> None:
    lines = make_latex().splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert body[::2] == [
        r"line break & 1.0 & \textbf{0.100}\textsuperscript{a} \\",
        r"{[}10pt{]}{*} -- \textless{}x\textgreater{} & 2.0 & 0.000\textsuperscript{b} \\",
        r"50\% \& \$1 \#2\_\{3\} & 3.0 & $-$0.100\textsuperscript{c} \\",
        r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d\textbar{}e & 4.0 & $-$0.200\textsuperscript{d} \\",
    ]
    assert all(re.fullmatch(r" & & \{\\scriptsize \S+ to \S+\} \\\\", line) for line in body[1::2])
    assert r"Generator & Mean rank & {[}m\_1{]} \\" in lines


def test_means_without_an_interval_are_drawn_at_their_values() -> None:
    """Each generator has only three prompts, too few for a confidence interval of its mean."""
    make_scores = [
        {"generator": name, "metric": "m", "prompt_id": str(prompt), "score": mean}
        for name, mean in (("low", 0.1), ("middle", 0.3), ("high", 0.9))
        for prompt in range(3)
    ]
    (column,) = make_page(gather_scores(rows.table(make_scores, schemas.SCORES), {}, metrics=["m"])).columns
    drawn = {name: column.locate(row.mean) for name, row in column.by_generator.items()}
    assert drawn == pytest.approx({"low": 0, "middle": 25, "high": 100})


def test_latex_names_generators_that_lack_scores() -> None:
    """Generator a has scores for two of its four images, and generator b has none."""
    make_scores = [
        {"generator": name, "metric": "m", "prompt_id": str(prompt), "score": 0.5 if place < 2 else None}
        for place, (name, prompt) in enumerate((name, prompt) for name in "ab" for prompt in range(4))
    ]  # fmt: skip
    lines = to_latex(make_page(gather_scores(rows.table(make_scores, schemas.SCORES), {}, metrics=["m"]))).splitlines()
    small = [line for line in lines if "scriptsize" in line]
    assert small == [
        r" & & {\scriptsize no interval; 50.0\%} \\",
        r" & & {\scriptsize no interval; 0.0\%} \\",
    ]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex (apt install texlive-latex-recommended)")
def test_latex_compiles(tmp_path: Path) -> None:
    whole = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n%s\\end{document}\n"
    (tmp_path / "t.tex").write_text(whole % make_latex())
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and (tmp_path / "t.pdf").exists(), done.stdout[-2000:]


def test_a_page_about_100000_images_is_below_15_megabytes_and_about_edits_below_19() -> None:
    scores = make_large_scores(8, 12_500, ["m", "k"])
    prompts = {f"{prompt:06d}": "ש" * 6000 for prompt in range(12_500)}
    skills = Skills((prompt, ["even" if int(prompt) % 2 else "odd"]) for prompt in prompts)
    run = GatheredRun(run_id="r", manifest={"metrics": ["m", "k"]}, scores=wrap_scores(scores), prompts=prompts,
                      summary=schemas.SUMMARY.empty_table(),
                      failures=schemas.FAILURES.empty_table(), skills=skills)  # fmt: skip
    picks = pick_gallery_images(run.scores, ["m", "k"], 100)
    assert 80 <= len(picks.gallery) <= 100 and len(picks.side_by_side) == 12
    edits = {pick.key: make_fullest_detail(place) for place, pick in enumerate(picks.list_all())}
    images = {key: detail._replace(sources=()) for key, detail in edits.items()}
    assert len(render_report(build_page(run, compute_figures(run), picks=picks, details=images)).encode()) < 15_000_000
    assert len(render_report(build_page(run, compute_figures(run), picks=picks, details=edits)).encode()) < 19_000_000


def test_tables_and_charts_are_bounded_for_many_generators() -> None:
    scores = make_large_scores(70, 20, ["m"])
    run = gather_scores(scores, {}, metrics=["m"])
    page = make_page(run)
    compared = page.panels[0].pairs.generators
    assert (len(compared.rows), compared.left_out) == (40, 30)
    assert page.panels[0].interval.left_out == 10 and (len(page.generators.rows), page.generators.left_out) == (60, 10)
    assert len(render_report(page).encode()) < 3_000_000


@pytest.mark.parametrize("rows_", [[], [{"generator": "a", "metric": "m", "prompt_id": "1", "score": None}]])
def test_a_run_without_a_score_still_has_a_page(rows_: list[dict[str, Any]]) -> None:
    error = {"kind": "corrupt_image", "message": "no", "retryable": False}
    scores = rows.table([one | {"error": error} for one in rows_], schemas.SCORES)
    html = render_report(make_page(gather_scores(scores, {}, metrics=["m"])))
    assert "Nothing could be scored." in html


def test_a_cell_of_the_matrix_compares_the_row_with_the_column_by_ranks() -> None:
    """Generator b is slightly better than a on nine of ten prompts, and much worse on the tenth."""
    levels = [0.5 + (-0.7 if prompt % 10 == 0 else 0.05) + prompt * 1e-4 for prompt in range(60)]
    records = [
        {"generator": name, "metric": "m", "prompt_id": str(prompt), "score": score}
        for name, scores in (("a", [0.5] * 60), ("b", levels))
        for prompt, score in enumerate(scores)
    ]
    page = make_page(gather_scores(rows.table(records, schemas.SCORES), {}, metrics=["m"]))
    html = render_report(page)
    cells = dict(re.findall(r'<td class="(better|worse)" title="(.*?)</td>', html))
    assert cells["better"].startswith("b is clearly better than a: effect +0.62, p ")
    assert cells["better"].endswith('mean difference −0.022 (against the ranks)">+0.62')
    assert cells["worse"].startswith("a is clearly worse than b: effect −0.62, p ")
    assert "m</bdi>: row against column" in html and "minus column" not in html
    plain = re.sub(r"</?(b|bdi)\b[^>]*>", "", html)
    assert "b is clearly better than a by m, but not by the mean" in plain
    assert "The mean difference of a from b is +0.022" in plain


@pytest.mark.parametrize("metrics", [["m", "edge_density"], ["edge_density"]])
def test_no_generator_is_better_by_an_image_statistic(metrics: list[str]) -> None:
    options = {"m": {}, "edge_density": {"kind": "image_statistic", "statistic": "edge_density"}}
    run = gather_scores(make_large_scores(3, 60, metrics), {}, metrics=metrics, config={"metrics": options})
    page = make_page(run)
    said = " ".join(map(str, page.decision.write_sentences()))
    assert "edge_density" not in said and (said.startswith("Nothing is ranked:") == (metrics == ["edge_density"]))
    statistic = page.columns[-1]
    assert {(one.rank, one.group) for one in statistic.by_generator.values()} == {(None, "")} and not statistic.leading
    assert page.panels[-1].pairs.duels.rows == [] and len(page.generators.rows) == 3
    html = render_report(page)
    words = html[html.index('id="words"') :]
    assert "edge_density" in html
    assert ("best, leads" in words, "tie group" in words, "coverage" in words) == ("m" in metrics, "m" in metrics, True)


def test_a_page_where_lower_is_better_reads_like_a_page_of_the_negated_scores() -> None:
    quality = {"atlas": 0.9, "borealis": 0.6, "cobalt": 0.3}

    def make_signed_page(sign: int, **manifest: Any) -> Page:
        records = [
            {"image_id": f"{generator}{prompt}", "prompt_id": str(prompt), "generator": generator, "metric": metric,
             "score": draw_noisy_score(generator, metric, prompt) * (sign if metric == "nll" else 1)}
            for metric in ("gecko", "nll") for generator in quality for prompt in range(40)
        ]  # fmt: skip
        scores = rows.table(records, schemas.SCORES)
        skills = {str(prompt): [("counting", "colour")[prompt % 2]] for prompt in range(40)}
        run = gather_scores(scores, {}, metrics=["gecko", "nll"], **manifest)
        run = replace(run, skills=Skills(skills.items()), summary=summarise(scores, skills))
        return build_page(run, compute_figures(run, rated=True))

    up, down = make_signed_page(1), make_signed_page(-1, lower_is_better=["nll"])
    assert down.ranks == up.ranks == {"atlas": 1.0, "borealis": 2.0, "cobalt": 3.0}
    assert down.decision.headline == up.decision.headline and "by both metrics" in up.decision.headline.lead
    assert down.decision.by_skill == up.decision.by_skill and down.decision.agreement == up.decision.agreement
    (sentence,) = down.decision.by_metric
    assert str(sentence).startswith("atlas is best by gecko (0.")
    assert str(sentence).endswith(" and nll (−0.884, lower is better). borealis follows.")
    assert down.best_at == up.best_at
    rising, falling = up.columns[1], down.columns[1]
    assert [row.rank for row in falling.by_generator.values()] == [1, 2, 3] and falling.leading == {"atlas"}
    assert {name: row.rating for name, row in falling.by_generator.items()} == pytest.approx(
        {name: row.rating for name, row in rising.by_generator.items()}
    )
    for generator in quality:
        means = falling.by_generator[generator].mean, rising.by_generator[generator].mean
        assert means[0] == pytest.approx(-means[1])
        assert falling.locate_from_worst(means[0]) == pytest.approx(rising.locate_from_worst(means[1]))
    assert (
        falling.locate(falling.by_generator["atlas"].mean) < 20 < 80 < rising.locate(rising.by_generator["atlas"].mean)
    )
    effects = [[duel.effect for duel in one.panels[1].pairs.duels.rows] for one in (up, down)]
    assert effects[0] == effects[1]
    html, markdown = render_report(down), to_markdown(down)
    assert html.count("(lower is better)</small>") == 5 and "## nll (lower is better)" in markdown
    assert "Stronger colours are lower means." in html and "lower is better)</small>" not in render_report(up)
    assert to_csv(down.leaderboard_rows).splitlines()[0].endswith(",direction")


def test_weaknesses_of_a_generator_follow_the_direction_of_the_metric() -> None:
    def make_sentences(sign: int, **manifest: Any) -> list[str]:
        records = [
            {"image_id": f"{generator}{prompt}", "prompt_id": str(prompt), "generator": generator, "metric": "m",
             "score": sign
             * (draw_noisy_score(generator, "m", prompt) - 0.25 * (generator == "cobalt" and prompt % 3 == 0))}
            for generator in ("atlas", "borealis", "cobalt") for prompt in range(60)
        ]  # fmt: skip
        scores = rows.table(records, schemas.SCORES)
        run = gather_scores(scores, {}, metrics=["m"], **manifest)
        skills = {str(prompt): [("text", "colour", "counting")[prompt % 3]] for prompt in range(60)}
        run = replace(run, skills=Skills(skills.items()), summary=summarise(scores, skills))
        return [str(sentence) for sentence in build_page(run, compute_figures(run)).decision.by_skill]

    assert any("cobalt" in said and "most of all at text" in said for said in make_sentences(1))
    assert make_sentences(-1, lower_is_better=["m"]) == make_sentences(1)


def test_the_direction_is_known_even_if_the_prompts_are_not() -> None:
    records = [
        {"image_id": f"{name}{prompt}", "prompt_id": str(prompt), "generator": name, "metric": "m", "score": score}
        for name, score in (("high", 0.9), ("low", 0.1)) for prompt in range(4)
    ]  # fmt: skip
    run = gather_scores(
        rows.table(records, schemas.SCORES), {str(prompt): "" for prompt in range(4)}, lower_is_better=["m"]
    )
    page = build_page(bare := replace(run, skills=Skills(())), compute_figures(bare))
    heat = page.panels[0].heat
    assert heat is not None and list(heat.skills.rows[0].by_generator) == ["low", "high"]
    assert heat.skills.rows[0].locate_from_worst(0.1) == 100 and heat.skills.rows[0].locate_from_worst(0.9) == 0


def make_scores(names: Sequence[str], score: float | None) -> pa.Table:
    """Return scores of the generators `names` on twelve prompts; each generator scores 1 more than the previous one.

    If `score` is None, all images are corrupt, and their scores are missing.
    """
    return rows.table(
        [
            {"image_id": f"{name}{prompt}", "prompt_id": str(prompt), "generator": name, "metric": "m",
             "score": None if score is None else score + place + prompt * 1e-3,
             "error": {"kind": "corrupt_image", "message": "no image", "retryable": False} if score is None else None}
            for place, name in enumerate(names) for prompt in range(12)
        ],
        schemas.SCORES,
    )  # fmt: skip


def test_the_numbers_and_their_bars_come_before_any_prose() -> None:
    html = render_report(make_page(gather_scores(make_scores(["a", "b"], 0.5), {}, metrics=["m"])))
    assert html.index("<h1>") < html.index('class="board') < html.index('id="decision"')
    assert html.index('<a href="#leaderboard">') < html.index('<a href="#decision">')


def test_a_right_to_left_name_does_not_reverse_a_sentence() -> None:
    html = render_report(make_page(gather_scores(make_scores(["مولد", "أطلس-2.5"], 0.5), {}, metrics=["m"])))
    assert "<h1><bdi>أطلس-2.5</bdi> is the best generator." in html
    assert "<b><bdi>أطلس-2.5</bdi> is best</b> by m (1.505, 95% interval" in html
    assert " <bdi>مولد</bdi> follows with 0.50" in html


def test_only_right_to_left_text_is_isolated() -> None:
    assert isolate_direction("a <b> & c-2.5 follow 'd'.") == "a &lt;b&gt; &amp; c-2.5 follow &#39;d&#39;."
    assert isolate_direction("אטלס, <מחולל> and b (0.9).") == "<bdi>אטלס</bdi>, &lt;<bdi>מחולל</bdi>&gt; and b (0.9)."
    assert isolate_direction("No clear difference: אטלס.") == "No clear difference: <bdi>אטלס</bdi>."
    assert isolate_direction("by אָ.ב֑: c") == "by <bdi>אָ.ב֑</bdi>: c"


def test_a_name_of_a_million_letters_is_isolated_in_linear_time() -> None:
    name = "a-" * 1_000_000
    assert isolate_direction(name) == name and isolate_direction(f"{name}א.") == f"<bdi>{name}א</bdi>."


def test_a_page_without_scores_does_not_claim_that_prompts_name_no_skills() -> None:
    prompts = {str(prompt): "a cat" for prompt in range(12)}
    html = render_report(make_page(gather_scores(make_scores(["a", "b"], None), prompts, metrics=["m"])))
    assert "No image has a score at the skills that the prompts name." in html
    assert "The prompts name no skills" not in html
    assert "The prompts name no skills." in render_report(
        make_page(gather_scores(make_scores(["a", "b"], 0.5), {}, metrics=["m"]))
    )
