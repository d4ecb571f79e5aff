"""A real service scores edits in each trainer's payload format, and returns the same scores as a sweep."""

import base64
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import requests
from PIL import Image

from tests.bench_of import run_config
from tests.commands import load_job_config, run_for_output
from tests.serving import ROOT, RunningService, run_service

EDITS_FOLDER = ROOT / "assets" / "shapes_edits"
METRICS_OPTION = "metric=[source_ssim,saturation]"
N_EDITS = 3


class Edit(NamedTuple):
    image: bytes
    source: bytes
    prompt: str
    ssim: float


class EditService(NamedTuple):
    service: RunningService
    edits: list[Edit]

    def post(self, path: str, body: Any) -> Any:
        response = requests.post(f"{self.service.url}{path}", json=body, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()

    def post_to_score_wire(self, sources: list[Any], metrics: list[str]) -> Any:
        shown = self.edits[: len(sources)]
        form = {"images": [encode_base64(edit.image) for edit in shown], "prompts": [edit.prompt for edit in shown]}
        return self.post("/score", {**form, "metrics": metrics, "sources": sources})

    @property
    def scores(self) -> list[float]:
        return [edit.ssim for edit in self.edits]


def encode_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def sweep_edits(folder: Path) -> list[Edit]:
    words = [
        "sweep=shapes_edits",
        "metric=[source_ssim]",
        f"benchmark.limit={N_EDITS}",
        "cluster=here",
        f"store={folder}/store",
    ]
    scores = run_config(load_job_config("sweep", *words)).results.read_scores().to_pandas()
    ssim = scores[scores.generator == "scissors"].set_index("image_id").score
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(EDITS_FOLDER / "prompts.parquet").to_pylist()}
    rows = pq.read_table(EDITS_FOLDER / "images" / "scissors" / "00000.parquet").slice(0, N_EDITS).to_pylist()
    return [Edit(row["image"], row["source"], texts[row["prompt_id"]], ssim[row["image_id"]]) for row in rows]


@pytest.fixture(scope="module")
def edit_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EditService]:
    folder = tmp_path_factory.mktemp("edited")
    edits = sweep_edits(folder)
    words = [METRICS_OPTION, "reward=source_ssim", "limits.max_pixels=200000", "gather_seconds=0"]
    with run_service(folder / "log", *words) as service:
        yield EditService(service, edits)


def test_the_score_wire_returns_the_sweeps_scores_for_json_and_parts(edit_service: EditService) -> None:
    edits = edit_service.edits
    assert len(set(edit_service.scores)) == N_EDITS
    for sources in ([encode_base64(edit.source) for edit in edits], [[encode_base64(edit.source)] for edit in edits]):
        reply = edit_service.post_to_score_wire(sources, ["source_ssim", "saturation"])
        assert [row["source_ssim"] for row in reply["scores"]] == edit_service.scores and not any(reply["errors"])
    request = json.dumps({"prompts": [edit.prompt for edit in edits], "metrics": ["source_ssim"]})
    for name in ("sources", "sources.{}"):
        form = [("request", (None, request)), *(("images", edit.image) for edit in edits)]
        form += [(name.format(place), edit.source) for place, edit in enumerate(edits)]
        reply = requests.post(f"{edit_service.service.url}/score", files=form, timeout=60).json()
        assert [row["source_ssim"] for row in reply["scores"]] == edit_service.scores


def test_unirls_client_gets_the_sweeps_scores(edit_service: EditService) -> None:
    """The payload has two turns with the same instruction (_build_score_payload in unirl/reward/remote.py, 1a7b501)."""
    sent = [
        {
            "history": [
                {"text": edit.prompt, "image_b64": encode_base64(edit.source)},
                {"text": edit.prompt, "image_b64": encode_base64(edit.image)},
            ],
            "required_rewards": ["source_ssim"],
            "metadata": None,
        }
        for edit in edit_service.edits
    ]
    reply = edit_service.post("/score", {"requests": sent})
    assert reply["results"] == [{"source_ssim": {"score": score}} for score in edit_service.scores]


def test_flow_factorys_client_gets_the_sweeps_scores(edit_service: EditService) -> None:
    """The payload is that of _build_payload in src/flow_factory/rewards/my_reward_remote.py (a0b2bc5)."""
    payload = {
        "prompt": [edit.prompt for edit in edit_service.edits],
        "image": [encode_base64(edit.image) for edit in edit_service.edits],
        "video": None,
        "condition_images": [[encode_base64(edit.source)] for edit in edit_service.edits],
        "condition_videos": None,
    }
    assert edit_service.post("/compute", payload) == {"rewards": edit_service.scores}
    missing = edit_service.post("/compute", payload | {"condition_images": None})
    assert missing["error"].startswith("image 0: missing_image: ")


def test_edit_r1s_client_gets_the_sweeps_scores(edit_service: EditService) -> None:
    """The payload is that of mllm_score_continue in flow_grpo/rewards.py (4217f25), which needs `scores` in replies."""
    data = {
        "ref_images": [edit.source for edit in edit_service.edits],
        "images": [edit.image for edit in edit_service.edits],
        "prompts": [edit.prompt for edit in edit_service.edits],
        "metadatas": [{"prompt": edit.prompt, "image": "a.png", "requirement": "None"} for edit in edit_service.edits],
    }
    address = f"{edit_service.service.url}/mode/logits_non_cot"
    reply = pickle.loads(requests.post(address, data=pickle.dumps(data), timeout=60).content)
    assert reply["scores"] == edit_service.scores
    data["ref_images"] = [b"broken", *data["ref_images"][1:]]
    reply = pickle.loads(requests.post(address, data=pickle.dumps(data), timeout=60).content)
    assert set(reply) == {"error"} and "the source of the edit: " in reply["error"]


def make_png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (encode_base64(b"no image"), "corrupt_image"),
        (encode_base64(make_png(60, 60)[:80]), "corrupt_image"),
        (encode_base64(make_png(500, 401)), "image_too_large"),
        ([encode_base64(make_png(60, 60)), encode_base64(make_png(60, 60))], "too_many_images"),
        (None, "missing_image"),
        ([], "missing_image"),
        ("", "missing_image"),
    ],
)
def test_a_bad_source_only_affects_metrics_that_need_it(edit_service: EditService, source: Any, kind: str) -> None:
    reply = edit_service.post_to_score_wire(
        [source, encode_base64(edit_service.edits[1].source)], ["source_ssim", "saturation"]
    )
    bad, good = reply["scores"]
    assert bad["source_ssim"] is None and bad["saturation"] > 0
    assert good["source_ssim"] == edit_service.scores[1] and good["saturation"] > 0
    assert reply["errors"][0].keys() == {"source_ssim"} and reply["errors"][0]["source_ssim"]["kind"] == kind


def test_unused_sources_are_refused_by_the_score_wire_and_logged_by_the_unirl_wire(edit_service: EditService) -> None:
    form = {"images": [encode_base64(edit_service.edits[0].image)], "prompts": ["an edit"], "metrics": ["saturation"]}
    refused = requests.post(
        f"{edit_service.service.url}/score", json=form | {"sources": [encode_base64(make_png(20, 20))]}, timeout=60
    )
    assert refused.status_code == 400 and "saturation would ignore them" in refused.json()["error"]
    turn = {"text": "an edit", "image_b64": form["images"][0]}
    for _ in range(2):
        sent = [{"history": [turn, turn], "required_rewards": ["saturation"]}]
        assert edit_service.post("/score", {"requests": sent})["results"][0]["saturation"]["score"] > 0
    log = edit_service.service.log.read_text()
    assert log.count("requests in the format unirl contain source images, but saturation ignores them") == 1


def test_a_reward_of_edits_passes_all_checks(edit_service: EditService) -> None:
    said = run_for_output(
        "check_rewards", edit_service.service.url, "repeats=1", "must_use=[sources]", "metrics=[source_ssim]"
    )
    assert "no check failed" in said and "used: " in said
    known_pair = requests.get(f"{edit_service.service.url}/health", timeout=60).json()["known_pair"]
    assert known_pair["source_ssim"]["error"] is None


@pytest.mark.parametrize("wire", [pytest.param("flow_factory", marks=pytest.mark.slow), "edit_r1"])
def test_a_reward_of_edits_passes_all_checks_on_wires_that_list_no_rewards(
    edit_service: EditService, wire: str
) -> None:
    words = [f"wire={wire}", "needs=[sources]", "must_use=[sources]", "+orders.reward=0", "repeats=1", "batch=4"]
    assert "no check failed" in run_for_output("check_rewards", edit_service.service.url, *words)
