"""A report can be written for any run, even if its sources are gone, and lists everything that it could not read."""

import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from markupsafe import escape
from rich.console import Console

from plumbline.jobs.report import show_report
from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metaeval.judgement import Comparison, Judgement
from plumbline.operators.statistics.bootstrap import UNDEFINED_INTERVAL, Interval
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.metaeval import Findings, write_findings
from plumbline.pipelines.report.image_details import read_rows
from plumbline.pipelines.report.report import ReportConfig, write_report
from plumbline.pipelines.store.cells import Shard
from tests.commands import open_store_at, run_for_output
from tests.operators.report.made import MadeRun, draw_noisy_score, encode_png, make_run
from tests.pipelines.metaeval.releases.files import write_file


def edit_manifest(run: MadeRun, **changes: object) -> None:
    path = f"runs/{run.run_id}/manifest.json"
    run.store.write_json(path, (run.store.read_json(path) or {}) | changes)


def test_a_report_consists_of_a_page_and_tables(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    written = write_report(run.store)
    assert Path(written.url) == run.folder / "report.html" and written.size == len(run.html.encode())
    assert written.page.decision.headline.lead == "atlas is the best generator — by both metrics."
    assert "atlas is the best generator — by both metrics." in run.html
    cards, prompts = run.html.count('<li class="card'), run.html.count("<article")
    assert cards > 20 and prompts == 12
    assert run.html.count('src="data:image/webp;base64,') == cards + 3 * prompts + 3  # and on the leaderboard
    assert '<mark class="m wrong"' in run.html and "what &lt;colour&gt; is it?" in run.html
    assert (run.folder / "summary.csv").read_text().count("\n") == 1 + 3 * 2 * 3
    assert "| 1 | atlas |" in (run.folder / "summary.md").read_text()
    assert "\natlas & 1.0 & " in (run.folder / "summary.tex").read_text()


def test_scores_get_percentile_ranks_among_all_runs_of_the_benchmark(tmp_path: Path) -> None:
    """Scores of earlier runs count for a metric if its settings are the same.

    The newest run scores 36 images. An earlier run scores 12 images of the same benchmark, with other settings of
    clipscore, so gecko's ranks are among 48 images and clipscore's among 36.
    """
    made: Any = {"score": lambda generator, metric, prompt: 0.0, "generators": ["delta"]}
    earlier = make_run(tmp_path, run_id="20260101-030405-000006", **made)
    config = (earlier.store.read_json(f"runs/{earlier.run_id}/manifest.json") or {})["config"]
    config["metrics"]["clipscore"]["template"] = "another"
    edit_manifest(earlier, config=config)
    make_run(tmp_path, run_id="20260101-040405-000006", **made, benchmark="another")
    old = make_run(tmp_path, run_id="20260101-050405-000006", **made)
    (old.folder / "usual_scores.parquet").unlink()
    run = make_run(tmp_path)
    usual = write_report(run.store).page.usual
    assert usual.locate("gecko", 0.0) == (12 / 2 / 48, 48) and usual.locate("gecko", 2.0) == (1, 48)
    assert usual.locate("clipscore", 2.0) == (1, 36) and usual.left_out == 1
    card = run.html[run.html.index('<li class="card') :]
    assert re.search(
        r"<bdi>gecko</bdi>: 0\.\d+ has percentile rank \d+% among the 48 images scored so far on made</li>", card
    )
    written = io.StringIO()
    show_report(Console(width=200, file=written), write_report(run.store))
    said = written.getvalue()
    assert "percentile ranks of the means among the images scored so far on made; 1 run without readable " in said
    assert "gecko (48)" in said
    assert "clipscore (36)" not in said, "all of them are this run's"


def make_sources(prompt: int) -> list[bytes]:
    """Return the source images of a prompt's edits: one, two, or a damaged one, depending on the prompt's number."""
    return [[encode_png(200 + prompt)], [encode_png(300), encode_png(301)], [encode_png(400)[:-30]]][prompt % 3]


@pytest.mark.parametrize("sources_in", ["images", "prompts"])
def test_an_edit_is_shown_next_to_its_sources_and_a_damaged_source_with_the_reason(
    sources_in: Literal["images", "prompts"], tmp_path: Path
) -> None:
    run = make_run(tmp_path, sources=make_sources, sources_in=sources_in)
    page = write_report(run.store).page
    of_prompt = {prompt.prompt_id: prompt for prompt in page.prompts}
    assert [len(of_prompt[f"p000{prompt}"].sources) for prompt in range(3)] == [1, 2, 1]
    assert [side.source for side in of_prompt["p0001"].sides] == [0, 0, 0]
    (damaged,) = of_prompt["p0002"].sources
    assert damaged.url is None and damaged.missing.startswith("the source of the edit: ")
    assert [side.source for side in of_prompt["p0002"].sides] == [None] * 3
    for card in page.cards:
        assert card.sources == of_prompt[card.pick.prompt_id].sources
    readable = [card for card in page.cards if card.sources[0].url]
    assert run.html.count('aria-label="Source over the image by ') == len(readable) + 3 * 8
    assert "The source of an edit is next to its result" in run.html


def test_an_editors_own_source_is_shown_if_editors_have_different_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path, sources=lambda prompt: [encode_png(200)])
    path = tmp_path / "bench/images/atlas/00000.parquet"
    table = pq.read_table(path)
    other = pa.array([[encode_png(201)]] * len(table), table.schema.field("before").type)
    pq.write_table(table.set_column(table.column_names.index("before"), "before", other), path)
    page = write_report(run.store).page
    for prompt in page.prompts:
        assert len(prompt.sources) == 2
        assert {side.generator: side.source for side in prompt.sides} == {"atlas": 0, "borealis": 1, "cobalt": 1}


def test_a_judges_reply_about_an_image_is_shown_as_text(tmp_path: Path) -> None:
    run = make_run(tmp_path, metrics=("llmscore", "clipscore"), question_metrics=(), judge_metrics=("llmscore",))
    write_report(run.store)
    assert "<bdi>llmscore</bdi>: the judge’s verdict</summary>" in run.html
    assert "<li><bdi>objects matched</bdi> <b>2</b></li><li><bdi>&lt;i&gt;attributes</bdi> <b>4.5</b></li>" in run.html
    assert "One of two is missing. &lt;script&gt;window.hacked = true&lt;/script&gt;" in run.html
    assert "<script>window.hacked" not in run.html and "<i>attributes" not in run.html


def test_the_page_shows_how_well_metrics_agree_with_people(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    values = {"gecko": 0.71, "clipscore": 0.42}
    judgements = [
        Judgement(name, "spearman", value, Interval(value - 0.1, value + 0.1), 36, "of <i>ranks", template="<b>likert")
        for name, value in values.items()
    ]
    apart = Comparison("gecko", "clipscore", "spearman", 0.29, 0.001, "permutations", 36, "<b>likert", 0.001)
    undefined = judgements[0]._replace(statistic="kendall_b", value=math.nan, interval=UNDEFINED_INTERVAL)
    pairs = [("paper", "ordering", subset, "gecko", "<i>clip", 0.52, 9) for subset in ("overall", "counting")]
    graphs = [(metric, "paper", str(n), "counting", *[n / 9] * 6) for n in range(9) for metric in ("gecko", "<i>clip")]
    found = Findings(
        protocol="p",
        judgements=[*judgements, undefined],
        comparisons=[apart],
        frames={
            "graphs": pd.DataFrame(graphs, columns=schemas.GRAPHS.names),
            "graph_correlations": pd.DataFrame(pairs, columns=schemas.GRAPH_CORRELATIONS.names),
        },
        notes=["a <b>note"],
    )
    write_findings(found, StorageConfig().locate(f"{run.folder}/metaeval"))
    write_report(run.store)
    assert "<b>gecko agrees best</b> with &lt;b&gt;likert by spearman (0.710, 95%" in run.html
    assert "Clearly less: clipscore." in run.html and "<bdi>0.420\n[0.320, 0.520]</bdi>" in run.html
    assert "<bdi>spearman: of &lt;i&gt;ranks</bdi>" in run.html and "<bdi>a &lt;b&gt;note</bdi>" in run.html
    assert "<bdi>2 &lt;i&gt;clip</bdi></th>" in run.html and 'style="--v:52%" title="gecko">52</td>' in run.html
    assert "ordering of the same graphs, counting</summary>" in run.html
    assert "- **gecko agrees best** with" in (run.folder / "summary.md").read_text()


@pytest.mark.parametrize(("metrics", "pairs"), [(("gecko", "clipscore", "vqascore"), 3), (("gecko",), 0)])
def test_a_run_judged_by_error_graphs_shows_which_metrics_find_the_same_graphs_hard(
    tmp_path: Path, metrics: Sequence[str], pairs: int
) -> None:
    run = make_run(tmp_path, metrics=metrics)
    images = run.store.read_table(f"runs/{run.run_id}/scores.parquet").to_pylist()
    graphs = {f"p{place:04d}": (0, 111, 136)[place % 3] + place for place in range(12)}  # synthetic, natural, real
    rng, nodes = np.random.default_rng(len(metrics)), {row["image_id"]: row for row in images}
    lines = [f"{graphs[row['prompt_id']]},t,{image},g,{rng.integers(3)}" for image, row in nodes.items()]
    write_file(
        tmp_path / "graphs/metadata.csv", "\n".join(["id,target_prompt,file_name,image_source,rank", *lines, ""])
    )
    asked = ["protocol=t2iscorescore", f"protocol.path={tmp_path / 'graphs'}", "protocol.conventions=[current,paper]"]
    run_for_output("report", f"store={tmp_path / 'store'}", *asked)
    page, folder = run.html, run.folder / "metaeval"
    assert "Which metrics find the same error graphs hard" in page and "ordering of all graphs; medians: " in page
    found = pd.read_parquet(folder / "graph_correlations.parquet").query("convention == 'current'")
    assert len(found) == pairs * 2 * 4 and set(found["subset"]) <= {"overall", "synth", "nat", "real"}
    for one in found.query("subset == 'overall'").itertuples():
        assert f'title="{one.metric}">{round(100 * one.pearson)}</td>'.replace("-", "−") in page
        assert f"{one.measure}: {one.metric} (up) and {one.other} (right), r " in page
    assert page.count("(right), r ") == 2 * 2 * pairs  # as captions, and for readers who cannot see the charts
    assert len(re.findall(r">(?:nat|real|synth)</text>", page)) == 3 * 2 * pairs
    scored = pd.read_parquet(folder / "graph_images.parquet")
    expected = {(row["metric"], row["image_id"]): row["score"] for row in images if row["image_id"] in nodes}
    assert {(row.metric, row.image_id): row.score for row in scored.itertuples()} == pytest.approx(expected)
    means = pd.read_parquet(folder / "graph_means.parquet")
    keys = ["metric", "graph_id", "node"]
    assert means.set_index(keys)["mean"].to_dict() == pytest.approx(scored.groupby(keys)["score"].mean().to_dict())
    orderings = pd.read_parquet(folder / "graphs.parquet").query("convention == 'current'").groupby("graph_id")
    best = orderings["ordering"].mean()
    assert "Error graphs up close" in page and f"order best: mean ordering {best.max():.2f}".replace("-", "−") in page


def test_a_judged_run_shows_peoples_ratings_of_each_generator_by_each_template(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    images = run.store.read_table(f"runs/{run.run_id}/scores.parquet").to_pandas()[["prompt_id", "generator"]]
    rng = np.random.default_rng(5)
    rated = [
        (*image, rater, template, rng.integers(1, 6) if rng.random() < 0.9 else None)
        for image in images.drop_duplicates().itertuples(index=False)
        for template in ("likert", "<b>stars")
        for rater in "abc"
    ]
    ratings = pd.DataFrame(rated, columns=["prompt_id", "generator", "rater", "template", "rating"])
    ratings.sample(frac=1, random_state=1).to_csv(tmp_path / "ratings.csv", index=False)
    asked = ["protocol=long", f"protocol.path={tmp_path / 'ratings.csv'}", "protocol.scales={likert: [1, 5]}"]
    run_for_output("report", f"store={tmp_path / 'store'}", *asked)
    found = pd.read_parquet(run.folder / "metaeval/mean_ratings.parquet").set_index(["template", "generator"])
    means = ratings.groupby(["template", "generator", "prompt_id"])["rating"].mean().dropna()
    assert found["rating"].sum() == pytest.approx(means.sum()) and len(found) == len(means)
    assert found.loc["<b>stars", "rating_0_1"].isna().all()
    for template, shown in (("likert", "(median - 1) / 4"), ("<b>stars", "median")):
        medians = means.loc[template].groupby("generator").median().rename("median").reset_index().eval(f"at = {shown}")
        (label,) = re.findall(f'aria-label="Mean ratings of images by {escape(template)}; medians: ([^"]*)"', run.html)
        assert {*label.split("; ")} == {f"{row.generator} {row.at:.2f}" for row in medians.itertuples()}
    assert "How people rate" in run.html and f"<bdi>ratings by {escape('<b>stars')}</bdi>" in run.html


def test_a_report_without_judging_does_not_mention_people(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_report(run.store)
    assert 'id="people"' not in run.html and "people" not in (run.folder / "summary.md").read_text()


def test_writing_a_report_again_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    pages = [run.html for _ in range(2) if write_report(run.store)]
    assert pages[0] == pages[1]


def test_a_report_names_missing_prompts_as_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "bench/prompts.parquet").unlink()
    written = write_report(run.store)
    assert "can no longer be read" in written.page.warnings[0] and "prompts.parquet" in written.page.warnings[0]
    assert "data:image/webp" not in run.html and "no image" in run.html
    assert "what &lt;colour&gt; is it?" in run.html, "the questions are in the store"
    assert "counting" in run.html, "the means by skill are in the summary"


def test_a_missing_image_does_not_affect_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "bench/images/cobalt/00000.parquet").unlink()
    write_report(run.store)
    assert "the sources have changed since the run" in run.html
    assert "data:image/webp" in run.html


def test_a_replaced_image_is_not_shown_instead_of_the_scored_one(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = tmp_path / "bench/images/cobalt/00000.parquet"
    others = [row | {"image_id": f"new-{row['image_id']}"} for row in pq.read_table(path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(others), path)
    write_report(run.store)
    assert "the row has another image now" in run.html


def test_an_image_that_does_not_decode_is_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path, image=lambda seed: b"not a picture" if seed >= 200 else encode_png(seed))
    write_report(run.store)
    assert "expected an image" in run.html and "data:image/webp" in run.html


def test_a_missing_cell_only_costs_its_questions(tmp_path: Path) -> None:
    run = make_run(tmp_path, question_metrics=("gecko",))
    (tmp_path / "store/scores/00000000/cobalt/00000-00000000.parquet").unlink()
    write_report(run.store)
    assert "atlas is the best generator" in run.html and "what &lt;colour&gt; is it?" in run.html


def test_a_run_without_elements_has_unmarked_prompts(tmp_path: Path) -> None:
    run = make_run(tmp_path, metrics=("clipscore",), question_metrics=())
    written = write_report(run.store)
    assert written.page.decision.headline.lead == "atlas is the best generator."
    assert '<mark class="m wrong" title' not in run.html and "a red star beside 3 blue cups" in run.html


def test_a_report_may_have_one_generator_and_one_metric(tmp_path: Path) -> None:
    run = make_run(tmp_path, generators=("atlas",), metrics=("gecko",), skills=False)
    written = write_report(run.store)
    assert (
        str(written.page.decision.headline) == "One generator was scored: atlas. There is nothing to rank it against."
    )
    assert (
        "There is only one generator, so there are no pairs." in run.html and "The prompts name no skills" in run.html
    )


def test_failed_rows_are_reported_with_their_reason_and_the_coverage(tmp_path: Path) -> None:
    run = make_run(tmp_path, score=lambda *at: None if at[0] == "cobalt" and at[2] < 9 else draw_noisy_score(*at))
    written = write_report(run.store)
    assert written.page.warnings[0].startswith("18 of 72 rows (25.0%) have no score")
    assert "corrupt_image" in run.html and "bytes &lt;b&gt;unreadable&lt;/b&gt;" in run.html
    assert "generate the image again, as 8-bit PNG or JPEG" in run.html


def test_an_old_manifest_gives_a_report_from_its_fields(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    kept = ("run_id", "metrics", "config")
    manifest = json.loads((run.folder / "manifest.json").read_text())
    (run.folder / "manifest.json").write_text(json.dumps({key: manifest[key] for key in kept}))
    write_report(run.store)
    assert "atlas is the best generator" in run.html
    (run.folder / "manifest.json").write_text("{}")
    assert "can no longer be read" in write_report(run.store).page.warnings[0]


def test_a_config_that_is_not_valid_any_more_does_not_prevent_a_report(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    edit_manifest(run, config={"benchmark": {"name": "made", "prompts": "p", "images": "i", "forgotten": 1}})
    assert "forgotten" in write_report(run.store).page.warnings[0]
    edit_manifest(run, config={"limits": {"old": 1}})
    assert "'old'" in write_report(run.store).page.warnings[0]


def test_changes_since_the_previous_run_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path)
    worse = make_run(
        tmp_path,
        run_id="20260103-000000-000000",
        score=lambda *at: draw_noisy_score(*at) * (0.8 if at[0] == "atlas" else 1),
    )
    written = write_report(worse.store, compare="previous")
    assert written.page.changes is not None and written.page.changes.run_id == "20260102-030405-000006"
    assert written.page.changes.sentences[0].lead == "atlas is worse" and "What changed" in worse.html
    with pytest.raises(ConfigError, match="has no earlier run to compare with; it is the first run of this store"):
        write_report(worse.store, "20260102-030405-000006", compare="previous")


def test_the_previous_run_is_the_newest_that_can_be_compared(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, run_id="20260103-000000-000000", generators=("golem",))
    edit_manifest(make_run(tmp_path, run_id="20260104-000000-000000"), benchmark="another")
    newest = make_run(tmp_path, run_id="20260105-000000-000000")
    changes = write_report(newest.store, compare="previous").page.changes
    assert changes is not None and changes.run_id == "20260102-030405-000006"
    with pytest.raises(ConfigError, match=r"20260103-000000-000000 cannot be compared with it \(its benchmark is"):
        write_report(newest.store, "20260104-000000-000000", compare="previous")


def test_a_missing_run_is_refused_with_the_existing_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(ConfigError, match=r"run=nonsense: no such run in .* the newest are 20260102-030405-000006"):
        write_report(run.store, "nonsense")
    (run.folder / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="has no runs"):
        write_report(run.store)


def test_the_gallery_has_a_maximum_size() -> None:
    with pytest.raises(ConfigError, match="images: expected 0 to 96, got 97"):
        ReportConfig(store="store", images=97)


@pytest.mark.parametrize("row", [0, 5, 9, 10])
def test_a_row_is_read_from_the_right_row_group(row: int, tmp_path: Path) -> None:
    path = tmp_path / "images.parquet"
    table = pa.table({"image_id": [str(one) for one in range(14)], "picture": [encode_png(one) for one in range(14)]})
    pq.write_table(table, path, row_group_size=4)
    place = StorageConfig().locate(str(path))
    shard = Shard(group="g", name="n", place=place, size=path.stat().st_size, etag="", row_groups=(1, 2, 3), rows=10,
                  first_row=4, columns=(("image", "picture"),))  # fmt: skip
    (found,) = read_rows(shard, [shard.get_row_in_file(row)])
    assert found == (None if row == 10 else {"image_id": str(row + 4), "image": encode_png(row + 4)})


def test_a_run_on_s3_is_reported_there(tmp_path: Path, bucket: str) -> None:
    run = make_run(tmp_path)
    fs = StorageConfig().locate(bucket).fs
    for name in ("store", "bench"):
        fs.put(f"{tmp_path}/{name}/", f"{bucket}/{name}/", recursive=True)
    remote = open_store_at(f"{bucket}/store")
    manifest = remote.read_json(f"runs/{run.run_id}/manifest.json") or {}
    manifest["config"]["benchmark"] |= {
        "prompts": f"{bucket}/bench/prompts.parquet",
        "images": f"{bucket}/bench/images",
    }
    remote.write_json(f"runs/{run.run_id}/manifest.json", manifest)
    written = write_report(remote)
    assert written.url == f"{bucket}/store/runs/{run.run_id}/report.html" and written.page.warnings == []
    html = remote.read_text(f"runs/{run.run_id}/report.html") or ""
    assert html.count('src="data:image/webp;base64,') > html.count('<li class="card') > 20
    assert "what &lt;colour&gt; is it?" in html
    assert (remote.read_text(f"runs/{run.run_id}/summary.csv") or "").startswith("generator,metric")
