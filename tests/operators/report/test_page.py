"""The page is one file that shows all text as text, loads nothing, and stays small however large the run."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators import rows
from operators.report.exports import to_csv, to_markdown
from operators.report.gallery import THUMBNAIL_BYTES, ImageDetail, ImageKey, pick_images
from operators.report.page import GatheredRun, Page, build_page, take_statistics
from operators.report.rendering import render
from operators.summary import summarise
from tests.operators.report.made import HOSTILE, noisy

NAMES = ("<img src=x>", "=cmd()", "a|b`c`")


def gathered(scores: pa.Table, prompts: dict[str, str], **manifest: Any) -> GatheredRun:
    skills = {prompt: ["<i>counting</i>"] for prompt in prompts}
    names = ("image_id", "prompt_id", "generator", "metric")
    failed = [{name: row[name] for name in names} | row["error"] for row in scores.to_pylist() if row["error"]]
    return GatheredRun(
        run_id="r<1>",
        manifest={"benchmark": "<bench>", "metrics": ["<gecko>"], **manifest},
        scores=scores,
        summary=summarise(scores, skills),
        errors=rows.table(failed, rows.ERRORS),
        prompts=prompts,
        skills=skills,
    )


def page_of(run: GatheredRun, details: dict[ImageKey, ImageDetail] | None = None, images: int = 96) -> Page:
    picks = pick_images(run.scores, run.manifest["metrics"], images)
    return build_page(run, take_statistics(run), picks=picks, details=details or {})


def hostile_run() -> GatheredRun:
    prompts = dict(zip("<abc>", HOSTILE, strict=True))
    error = {"kind": "<b>kind", "message": "<script>hacked()</script>", "retryable": False}
    records = [
        {"image_id": f"<u>{generator}{prompt}", "prompt_id": prompt, "generator": generator, "metric": "<gecko>",
         "score": None if prompt == "a" else noisy(generator, "m", at), "error": error if prompt == "a" else None}
        for generator in NAMES for at, prompt in enumerate(prompts)
    ]  # fmt: skip
    config = {"metrics": {"<gecko>": {"template": "</style><script>hacked()</script>"}}}
    return gathered(rows.table(records, rows.SCORES), prompts, config=config, models={"<m>": {"label": "<script>"}})


def test_no_text_of_a_run_becomes_markup() -> None:
    html = render(page_of(hostile_run()))
    outside = re.sub(r"<style>.*?</style>|<script>\n?\"use strict\";.*?</script>", "", html, flags=re.S)
    tags = {tag.lower() for tag in re.findall(r"<\s*/?\s*([a-zA-Z!][\w-]*)", outside)}
    assert not tags & {"script", "style", "u", "link", "iframe", "base", "object"}
    assert "<img src=x" not in html and "hacked()</" not in html and "&lt;script&gt;hacked()" in html
    assert html.count("<script>") == 1


def test_the_page_loads_nothing() -> None:
    html = render(page_of(hostile_run()))
    assert "default-src &#39;none&#39;" in html and "unsafe-eval" not in html
    assert re.findall(r"(?:src|href|action)=\"(?!#|data:image/webp)[^\"]*\"", html) == []
    addresses = set(re.findall(r"https?://[^\s\"'<&)]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_markdown_and_csv_show_names_as_text() -> None:
    page = page_of(hostile_run())
    markdown = to_markdown(page)
    assert "<img" not in markdown.replace("\\<img", "") and "a\\|b\\`c\\`" in markdown
    assert "\n'=cmd()," in to_csv(page.standings)
    assert to_csv(page.standings).splitlines()[0].startswith("generator,metric,skill,mean,low,high")


def large_scores(generators: int, prompts: int, metrics: list[str]) -> pa.Table:
    rng = np.random.default_rng(0)
    tables = []
    for metric in metrics:
        for number in range(generators):
            ids = [f"{prompt:06d}" for prompt in range(prompts)]
            columns: dict[str, Any] = {
                name: pa.nulls(prompts, rows.SCORES.field(name).type) for name in rows.SCORES.names
            }
            columns |= {
                "image_id": pa.array([f"{number}-{one}" for one in ids]),
                "prompt_id": pa.array(ids),
                "generator": pa.array([f"generator {number}"] * prompts),
                "metric": pa.array([metric] * prompts),
                "score": pa.array(np.clip(rng.normal(0.4 + number / 20, 0.2, prompts), 0, 1)),
            }
            tables.append(pa.table(columns, schema=rows.SCORES))
    return pa.concat_tables(tables)


def fullest_detail() -> ImageDetail:
    """The largest a card can be: a full thumbnail, forty long questions by every metric."""
    question = {"question_id": "1", "text": "q" * 900, "span": "s" * 900, "start": 0, "end": 4, "wanted": "w" * 900,
                "given": "g" * 900, "score": 0.4}  # fmt: skip
    thumbnail = "data:image/webp;base64," + "A" * (THUMBNAIL_BYTES * 4 // 3)
    return ImageDetail(thumbnail, "", {metric: [question] * 40 for metric in ("m", "k")}, {"m": "r" * 9000})


def test_a_hundred_thousand_images_give_a_page_below_15_megabytes_at_worst() -> None:
    scores = large_scores(8, 12_500, ["m", "k"])
    prompts = {f"{prompt:06d}": "ש" * 6000 for prompt in range(12_500)}
    run = GatheredRun(run_id="r", manifest={"metrics": ["m", "k"]}, scores=scores, summary=rows.SUMMARY.empty_table(),
                      errors=rows.ERRORS.empty_table(), prompts=prompts,
                      skills={prompt: ["even" if int(prompt) % 2 else "odd"] for prompt in prompts})  # fmt: skip
    picks = pick_images(scores, ["m", "k"], 100)
    details = {pick.key: fullest_detail() for pick in picks}
    html = render(build_page(run, take_statistics(run), picks=picks, details=details))
    assert 80 <= len(picks) <= 100
    assert len(html.encode()) < 15_000_000


def test_tables_and_charts_are_bounded_for_many_generators() -> None:
    scores = large_scores(70, 20, ["m"])
    run = gathered(scores, {}, metrics=["m"])
    page = page_of(run)
    assert len(page.panels[0].matrix.rows) == 24 and page.panels[0].matrix.left_out == 46
    assert page.panels[0].interval.left_out == 40 and (len(page.board.rows), page.board.left_out) == (60, 10)
    assert len(render(page).encode()) < 3_000_000


@pytest.mark.parametrize("rows_", [[], [{"generator": "a", "metric": "m", "prompt_id": "1", "score": None}]])
def test_a_run_without_a_score_still_has_a_page(rows_: list[dict[str, Any]]) -> None:
    error = {"kind": "corrupt_image", "message": "no", "retryable": False}
    scores = rows.table([one | {"error": error} for one in rows_], rows.SCORES)
    html = render(page_of(gathered(scores, {}, metrics=["m"])))
    assert "Nothing could be scored." in html


def test_a_cell_of_the_matrix_is_of_the_row_against_the_column_and_says_what_the_ranks_say() -> None:
    """On nine prompts of ten b is a little better than a, on the others far worse."""
    levels = [0.5 + (-0.7 if prompt % 10 == 0 else 0.05) + prompt * 1e-4 for prompt in range(60)]
    records = [
        {"generator": name, "metric": "m", "prompt_id": str(prompt), "score": score}
        for name, scores in (("a", [0.5] * 60), ("b", levels))
        for prompt, score in enumerate(scores)
    ]
    page = page_of(gathered(rows.table(records, rows.SCORES), {}, metrics=["m"]))
    matrix = page.panels[0].matrix
    cells = {row.generator: dict(zip(matrix.generators, row.cells, strict=True)) for row in matrix.rows}
    assert (cells["b"]["a"].text, cells["b"]["a"].verdict) == ("+0.62", "better")
    assert (cells["a"]["b"].text, cells["a"]["b"].verdict) == ("−0.62", "worse")
    assert "mean difference −0.022 (against the ranks)" in cells["b"]["a"].title
    html = render(page)
    assert "m</bdi>: row against column" in html and "minus column" not in html
    assert "b is clearly better than a by m, though the mean of a less that of b is +0.022" in html.replace(
        "</bdi>", ""
    ).replace("<bdi>", "").replace("</b>", "")
