"""Edits are judged by a service on localhost, both from the command line (for a table) and from Python."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.models.families import make_model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.plugins.edits.imgedit import ImgEditConfig
from tests.bench_of import write_rows
from tests.commands import find_newest_run_folder, run_for_output, run_refused
from tests.operators import tiny
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Server, make_completion

REPLY_RATINGS = {
    "editing_success": 9, "overediting": 4, "naturalness": 9, "artifacts": 8, "rating": 35,
    "prompt_compliance": 5, "visual_naturalness": 4, "physical_detail_coherence": 2, "rationale": "So.",
}  # fmt: skip
EDITED_IMAGES, SOURCE_IMAGES = (
    [tiny.encode_image(tiny.draw_image(seed)) for seed in seeds] for seeds in (range(3), range(10, 13))
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = Server()
    server.script = lambda number, body: make_completion(json.dumps(REPLY_RATINGS))
    server.trial = make_completion("yes")
    yield server
    server.close()


def judge(server: Server) -> dict[str, Any]:
    return {"family": "openai", "checkpoint": "judge", "endpoint": server.url, "key_variable": KEY_VARIABLE}


def summarize_requests(server: Server) -> list[tuple[int, bool]]:
    contents = [body["messages"][0]["content"] for body in server.bodies]
    return sorted((len(content) - 1, "paint it red" in content[-1]["text"]) for content in contents)


def test_a_table_of_edits_is_judged_and_a_bad_source_only_affects_metrics_that_read_it(
    server: Server, tmp_path: Path
) -> None:
    sources = [SOURCE_IMAGES[0], b"no image", SOURCE_IMAGES[2]]
    rows = [{"image": image, "before": source, "prompt": "paint it red"}
            for image, source in zip(EDITED_IMAGES, sources, strict=True)]  # fmt: skip
    write_rows(tmp_path / "mine.parquet", rows)
    vlm = ", ".join(f"{key}: {value!r}" for key, value in judge(server).items())
    given = [f"images={tmp_path}/mine.parquet", "metric=[viescore_edit,gpt4v_eval]", f"+models.vlm={{{vlm}}}"]
    given += ["models=shapes", "cluster=here", f"store={tmp_path}/store", "max_failed=0.5"]
    assert "metrics.viescore_edit: it needs the source images" in run_refused("score", *given)
    run_for_output("score", *given, "benchmark.columns.source=before", code=2)
    scores = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
    found = {
        metric: [row["score"] for row in scores if row["metric"] == metric]
        for metric in ("viescore_edit", "gpt4v_eval")
    }
    assert found == {"viescore_edit": [pytest.approx((4 * 8) ** 0.5), None, pytest.approx((4 * 8) ** 0.5)],
                     "gpt4v_eval": [35, 35, 35]}  # fmt: skip
    (error,) = [row["error"] for row in scores if row["error"]]
    assert error["kind"] == "corrupt_image" and error["message"].startswith("the source of the edit: ")
    assert summarize_requests(server) == [(1, False)] * 2 + [(1, True)] * 3 + [(2, True)] * 2


def test_the_scorer_sends_a_judge_the_source_followed_by_the_image(server: Server) -> None:
    metrics = {"imgedit": ImgEditConfig(edit_kind="add"), "by_skill": ImgEditConfig()}
    scorer = Scorer(ScorerConfig(models={"vlm": make_model_config(**judge(server))}, metrics=metrics))
    scored = scorer.score_table(
        EDITED_IMAGES, "paint it red", sources=[SOURCE_IMAGES[0], [SOURCE_IMAGES[1], SOURCE_IMAGES[2]], None]
    ).to_pylist()
    assert [row["score"] for row in scored[:3]] == [pytest.approx((5 + 4 + 2) / 3), None, None]
    assert [row["error"] and row["error"]["kind"] for row in scored] == [
        None, "too_many_images", "missing_image", "no_edit_kind", "too_many_images", "missing_image",
    ]  # fmt: skip
    (body,) = server.bodies
    pictures = [part["image_url"]["url"] for part in body["messages"][0]["content"][:-1]]
    assert len(set(pictures)) == 2 and summarize_requests(server) == [(2, True)]
    with pytest.raises(ConfigError, match="imgedit and by_skill need the sources of edited images"):
        scorer.score_table(EDITED_IMAGES, "paint it red")
