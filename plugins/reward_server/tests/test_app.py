"""Over HTTP, the service enforces tokens and limits, replies in each format, and never sends a number for a failure."""

import asyncio
import base64
import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from pydantic import ValidationError
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.models.families import make_model_config
from plumbline.operators.rewards.combination import Reward, RewardConfig
from plumbline.operators.scoring.scorer import Scorer
from plumbline.pipelines.web.listening import (
    format_server_url,
    is_loopback,
    list_allowed_hosts,
    open_listening_socket,
    take_token,
)
from plumbline.plugins.edits.source_comparison import SourceComparisonConfig
from plumbline.plugins.edits.viescore_edit import VieScoreEditConfig
from plumbline.plugins.reward_server.app import PrometheusCounters, RequestHandler, make_app
from plumbline.plugins.reward_server.known_images import draw_image, select_prompts
from plumbline.plugins.reward_server.known_pair import KnownPair, explain_known_pair, score_known_pair
from plumbline.plugins.reward_server.replica import score_batch
from plumbline.plugins.reward_server.run_service import find_nodes, find_served_metrics, make_video_reader
from plumbline.plugins.reward_server.sentinel import Sentinel
from plumbline.plugins.reward_server.serve_config import LoadConfig, ServeConfig
from plumbline.plugins.reward_server.service import Service
from plumbline.plugins.reward_server.wires.wire import (
    JSON_MEDIA_TYPE,
    ImageAnswers,
    MetricAnswer,
    Need,
    ScoreRequest,
    Served,
)
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Server, make_completion

TOKEN = "correct horse battery staple"
CORRUPT_ERROR = RowError("corrupt_image", "expected an image; generate it again")
BUSY_ERROR = RowError("model_failed", "out of memory", retryable=True)
SERVED = Served({"align": "recipe-1", "brightness": "recipe-2"}, "align")


async def score(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
    errors = {b"corrupt": CORRUPT_ERROR, b"busy": BUSY_ERROR}
    found = [(one, next((errors[image] for image in one.images if image in errors), None)) for one in batch]
    return [
        {name: MetricAnswer(None, error) if error else MetricAnswer(float(len(one.prompt))) for name in metrics}
        for one, error in found
    ]


class Client:
    def __init__(
        self,
        served: Served = SERVED,
        ready: int = 1,
        sentinel: Sentinel | None = None,
        token: str | None = None,
        videos: Path | None = None,
        known_pair: KnownPair | None = None,
        **load: Any,
    ) -> None:
        async def count_replicas() -> int:
            return ready

        counts = PrometheusCounters()
        self.service = Service(score, served, LoadConfig(**{"gather_seconds": 0, **load}), counts, sentinel)
        metrics = {"brightness": ImageStatisticConfig(statistic="saturation")}
        config = ServeConfig(models={}, metrics=metrics, video_folders=(str(videos),) if videos else ())
        handler = RequestHandler(
            self.service, token, counts, count_replicas, make_video_reader(config).read, known_pair or {}
        )
        self.app = make_app(handler, list_allowed_hosts("127.0.0.1", ("*.example.org",)))

    def __call__(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
                return await client.request(method, path, **request)

        return asyncio.run(ask())

    def post(self, path: str, value: Any, **request: Any) -> Any:
        response = self("POST", path, json=value, **request)
        return response.json()

    def post_pickle(self, value: Any) -> tuple[int, Any]:
        response = self("POST", "/", content=pickle.dumps(value))
        return response.status_code, pickle.loads(response.content)


def encode_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def test_the_score_wire_returns_each_score_or_the_reason_for_a_null() -> None:
    reply = Client().post(
        "/score", {"images": [encode_base64(b"a"), encode_base64(b"corrupt")], "prompts": ["one", "three"]}
    )
    assert reply["scores"] == [{"align": 3.0, "brightness": 3.0}, {"align": None, "brightness": None}]
    assert reply["errors"] == [{}, {"align": CORRUPT_ERROR._asdict(), "brightness": CORRUPT_ERROR._asdict()}]
    assert reply["recipes"] == SERVED.metrics


def test_the_score_wire_accepts_frames_and_a_selection_of_metrics() -> None:
    form = {"images": [[encode_base64(b"a"), encode_base64(b"b")]], "prompts": ["two"], "metrics": ["brightness"]}
    assert Client().post("/score", form)["scores"] == [{"brightness": 3.0}]
    form["images"] = [[encode_base64(b"a"), encode_base64(b"corrupt")]]
    assert Client().post("/score", form)["scores"] == [{"brightness": None}]


def make_parts(request: bytes, *images: bytes) -> list[tuple[str, Any]]:
    return [
        ("request", (None, request, JSON_MEDIA_TYPE)),
        *(("images", (f"{place}.png", image)) for place, image in enumerate(images)),
    ]


def test_the_score_wire_accepts_images_as_multipart_parts() -> None:
    """The bytes of images may contain line breaks and dashes."""
    seen: list[ScoreRequest] = []

    async def record_batch(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        seen.extend(batch)
        return await score(batch, metrics)

    client, images = Client(), (b"a\r\n--b--\r\n\r\n", b"corrupt", b"\r\n")
    client.service.score_batch = record_batch
    form = json.dumps({"prompts": ["one", "two", "three"], "metrics": ["align"]}).encode()
    reply = client("POST", "/score", files=make_parts(form, *images)).json()
    assert reply["scores"] == [{"align": 3.0}, {"align": None}, {"align": 5.0}]
    assert [one.images for one in seen] == [(image,) for image in images]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (make_parts(b'{"prompts": ["p"]}'), "images: "),
        (make_parts(b'{"prompts": ["p"]}', b"a", b"b"), "2 images and 1 prompts"),
        ([*make_parts(b'{"prompts": ["p"]}', b"a"), ("sketches", b"b")], "sketches"),
        (make_parts(b'{"prompts": ["p"], "images": []}', b"a"), "none of the fields sent as parts"),
        (make_parts(b'["p"]', b"a"), "a JSON object"),
        (make_parts(b"prompts=p", b"a"), "expected JSON"),
        ([("images", b"a")], "one part called request"),
        ([*make_parts(b"{}"), *make_parts(b"{}")], "one part called request"),
    ],
)
def test_invalid_parts_are_refused_with_a_reason(files: Any, message: str) -> None:
    response = Client()("POST", "/score", files=files)
    assert response.status_code == 400 and message in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected a closing boundary after at most"),
        (
            b'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n{',
            "expected a closing boundary after at most",
        ),
        (b"--b\r\n\r\n{}\r\n--b--", "part 0: expected Content-Disposition"),
        (b"\r\n--b" * 20_000 + b"--", "at most 10000 parts"),
    ],
)
def test_a_broken_multipart_body_is_refused_with_a_reason(body: bytes, message: str) -> None:
    response = Client()("POST", "/score", content=body, headers={"Content-Type": "Multipart/form-data; boundary=b"})
    assert response.status_code == 400 and message in response.json()["error"]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"images": ["/etc/passwd"], "prompts": ["p"]}, "paths and addresses are not supported"),
        ({"images": ["file:///etc/passwd"], "prompts": ["p"]}, "paths and addresses are not supported"),
        ({"images": ["s3://bucket/image.png"], "prompts": ["p"]}, "paths and addresses are not supported"),
        ({"images": ["http://127.0.0.1/image.png"], "prompts": ["p"]}, "paths and addresses are not supported"),
        ({"images": [{"path": "/etc/passwd"}], "prompts": ["p"]}, "images.0"),
        ({"images": [], "prompts": ["p"]}, "one prompt for each image"),
        ({"images": [encode_base64(b"a")], "prompts": ["p"], "metrics": ["aligm"]}, "did you mean align"),
        ({"images": [encode_base64(b"a")], "prompts": ["p"], "metric": ["align"]}, "metric"),
        ({"images": [encode_base64(b"a")], "prompts": "p"}, "prompts"),
        ([], "the body"),
    ],
)
def test_an_invalid_json_form_is_refused_with_a_reason(form: Any, message: str) -> None:
    response = Client()("POST", "/score", json=form)
    assert response.status_code == 400 and message in response.json()["error"]


UNUSABLE_PROMPTS = {
    "half \ud83d": "a lone surrogate (U+D83D) at position 5",
    7: "expected the prompt as text, found int",
    None: "the prompt has no text",
    "p" * 20_001: "the prompt has 20001 characters, but at most 20000 are allowed",
}


@pytest.mark.parametrize(
    "encode", [lambda prompt: json.dumps(prompt), lambda prompt: json.dumps(prompt, ensure_ascii=False)]
)
@pytest.mark.parametrize("bad", UNUSABLE_PROMPTS)
def test_an_unusable_prompt_only_fails_its_own_image(bad: Any, encode: Any) -> None:
    prompts, reason = ["one", bad, "three"], UNUSABLE_PROMPTS[bad]
    body = encode({"images": [encode_base64(b"a")] * 3, "prompts": prompts, "metrics": ["align"]})
    reply = Client()("POST", "/score", content=body.encode(errors="surrogatepass")).json()
    assert reply["scores"] == [{"align": 3.0}, {"align": None}, {"align": 5.0}]
    assert [list(errors) for errors in reply["errors"]] == [[], ["align"], []]
    assert reason in reply["errors"][1]["align"]["message"] and not reply["errors"][1]["align"]["retryable"]
    asked = [
        {**make_unirl_request(b"a"), "history": [{"text": prompt, "image_b64": encode_base64(b"a")}]}
        for prompt in prompts
    ]
    samples = Client()("POST", "/score", content=encode({"requests": asked}).encode(errors="surrogatepass")).json()
    assert [result.get("align") for result in samples["results"]] == [{"score": 3.0}, None, {"score": 5.0}]
    assert reason in samples["errors"][1]["align"]
    status, pickled = Client().post_pickle({"images": [b"a"] * 3, "prompts": prompts})
    assert status == 200 and pickled["error"].startswith("image 1: ") and reason in pickled["error"]


def test_a_body_with_a_lone_surrogate_is_parsed_as_strictly_as_any_other() -> None:
    deep = "[" * 600 + "]" * 600
    for value in (deep, "NaN", "[" * 100_000, "{"):
        body = b'{"prompts": ["\\ud83d"], "images": [], "questions": ' + value.encode() + b"}"
        response = Client()("POST", "/score", content=body)
        assert response.status_code == 400 and response.json()["error"].startswith("expected JSON")


@pytest.mark.parametrize("form", ["data:image/png;base64,{0}", "data:;base64,{0}", "{1}", " {0}\r\n"])
def test_base64_may_be_broken_into_lines_or_be_a_data_url(form: str) -> None:
    seen: list[ScoreRequest] = []

    async def record_batch(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        seen.extend(batch)
        return await score(batch, metrics)

    client = Client()
    client.service.score_batch = record_batch
    image = np.random.default_rng(len(form)).bytes(500)
    sent = form.format(encode_base64(image), base64.encodebytes(image).decode())
    client.post("/score", {"images": [sent], "prompts": ["p"]})
    client.post("/compute", {"prompt": ["q"], "image": [sent]})
    assert [one.images for one in seen] == [(image,), (image,)]


@pytest.mark.parametrize("sent", ["data:image/png,a", "data:image/png;base64,/etc/pass wd!", "YQ==\0", "é"])
def test_invalid_base64_is_refused(sent: str) -> None:
    response = Client()("POST", "/score", json={"images": [sent], "prompts": ["p"]})
    assert response.status_code == 400 and "expected the image's bytes in base64" in response.json()["error"]


def test_a_path_that_is_valid_base64_is_decoded_and_never_opened() -> None:
    """`etc/passwd00` is valid base64, and no file is opened for it."""
    seen: list[ScoreRequest] = []

    async def record_batch(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        seen.extend(batch)
        return await score(batch, metrics)

    client = Client()
    client.service.score_batch = record_batch
    client.post("/score", {"images": ["etc/passwd00"], "prompts": ["p"]})
    assert seen[0].images == (base64.b64decode("etc/passwd00"),)


def test_flow_factory_clients_get_rewards_or_an_error_that_they_raise() -> None:
    """RemoteRewardClient.compute() calls raise_for_status, then looks for `error`, then for `rewards`."""
    sent = {"prompt": ["one", "three"], "image": [encode_base64(b"a"), encode_base64(b"b")], "video": None}
    sent |= {"condition_images": None, "condition_videos": None}
    assert Client().post("/compute", sent) == {"rewards": [3.0, 5.0]}
    film = {**sent, "image": None, "video": [[encode_base64(b"a")], [encode_base64(b"b"), encode_base64(b"c")]]}
    assert Client().post("/compute", film) == {"rewards": [3.0, 5.0]}
    corrupt = Client()("POST", "/compute", json={**sent, "image": [encode_base64(b"a"), encode_base64(b"corrupt")]})
    assert corrupt.status_code == 200 and set(corrupt.json()) == {"error"}
    assert corrupt.json()["error"].startswith("image 1: corrupt_image")
    assert corrupt.json()["error"].endswith("(1 of 2 images have no score)")
    busy = Client()("POST", "/compute", json={**sent, "image": [encode_base64(b"a"), encode_base64(b"busy")]})
    assert busy.status_code == 503 and "rewards" not in busy.json() and int(busy.headers["retry-after"]) >= 1
    neither = Client()("POST", "/compute", json={**sent, "image": None})
    assert neither.status_code == 400 and "error" in neither.json()


def make_unirl_request(image: bytes | None, **more: Any) -> dict[str, Any]:
    turn = {"text": "three", "image_b64": None if image is None else encode_base64(image), **more}
    return {"history": [turn], "required_rewards": ["align", "brightness"], "metadata": None}


def test_unirl_clients_get_results_and_errors_per_sample() -> None:
    requests_ = [make_unirl_request(b"a"), make_unirl_request(b"corrupt"), make_unirl_request(None)]
    requests_.append(make_unirl_request(None, video_b64=encode_base64(b"a film")))
    reply = Client().post("/score", {"requests": requests_})
    both = {"align": {"score": 5.0}, "brightness": {"score": 5.0}}
    assert reply["results"] == [both, {}, {}, both]
    assert [sorted(errors) for errors in reply["errors"]] == [[], ["align", "brightness"], ["align", "brightness"], []]
    assert reply["errors"][1]["align"].startswith("corrupt_image: ")
    assert reply["errors"][2]["align"].startswith("missing_image: ")


SOURCE_TURN = {"text": "before", "image_b64": encode_base64(b"source")}
"""A UniRL turn that contains the source of an edit."""


def test_sources_that_no_metric_reads_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log contains one warning per wire, but the score wire refuses the request."""
    client = Client()
    edit = {**make_unirl_request(b"b"), "history": [SOURCE_TURN, make_unirl_request(b"b")["history"][0]]}
    factory = {"prompt": ["one"], "image": [encode_base64(b"a")], "condition_images": [[encode_base64(b"source")]]}
    for _ in range(2):
        reply = client.post(
            "/score", {"requests": [edit, make_unirl_request(b"source", video_b64=encode_base64(b"a film"))]}
        )
        assert reply["results"] == 2 * [{"align": {"score": 5.0}, "brightness": {"score": 5.0}}]
        assert client.post("/compute", factory) == {"rewards": [3.0]}
        for path in ("/", "/mode/logits_non_cot"):
            sent = pickle.dumps({"images": [b"a"], "prompts": ["one"], "ref_images": [b"source"]})
            assert pickle.loads(client("POST", path, content=sent).content)["scores"] == [3.0]
    wires = [record.getMessage().split()[4] for record in caplog.records]
    assert wires == ["unirl", "flow_factory", "pickled", "edit_r1"]
    ours = client(
        "POST",
        "/score",
        json={"images": [encode_base64(b"a")], "prompts": ["one"], "sources": [encode_base64(b"source")]},
    )
    assert ours.status_code == 400 and "leave them out, or use a metric that uses them" in ours.json()["error"]


SERVED_EDITS = SERVED._replace(needs={"sources": frozenset({"align"})})


def collect_sources(path: str, **sent: Any) -> list[tuple[bytes, ...]]:
    """Send a request, and return the sources of each image that the scorer receives for the metric `align`."""
    seen: list[ScoreRequest] = []

    async def record_batch(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        seen.extend(batch)
        return await score(batch, metrics)

    client = Client(SERVED_EDITS)
    client.service.score_batch = record_batch
    response = client("POST", path, **sent)
    assert response.status_code == 200, response.content
    return [one.sources for one in sorted(seen, key=lambda one: one.prompt)]


def test_each_wire_reads_the_sources_that_its_clients_send() -> None:
    """An edit may have no source, one, or several.

    An image in the same turn as a video is a source, and so are the frames of source videos.
    """
    images, prompts = [encode_base64(b"x"), encode_base64(b"y"), encode_base64(b"z")], ["0", "1", "2"]
    sources = [encode_base64(b"a"), [encode_base64(b"b"), encode_base64(b"c")], None]
    expected = [(b"a",), (b"b", b"c"), ()]
    assert collect_sources("/score", json={"images": images, "prompts": prompts, "sources": sources}) == expected
    turns = (
        [SOURCE_TURN],
        [SOURCE_TURN, {"text": "", "video_b64": encode_base64(b"film")}, {"text": "", "video_path": "f"}],
        [],
    )
    result = make_unirl_request(b"x")["history"][0]
    histories = [[*before, {**result, "text": text}] for before, text in zip(turns, prompts, strict=True)]
    histories.append([{"text": "3", "image_b64": encode_base64(b"key"), "video_b64": encode_base64(b"film")}])
    requests_ = [{"history": history, "required_rewards": ["align"]} for history in histories]
    assert collect_sources("/score", json={"requests": requests_}) == [
        (b"source",),
        (b"source", b"film"),
        (),
        (b"key",),
    ]
    factory = {"prompt": prompts, "image": images, "video": None, "condition_videos": None}
    factory["condition_images"] = [[encode_base64(b"a")], [encode_base64(b"b"), encode_base64(b"c")], []]
    assert collect_sources("/compute", json=factory) == expected
    films = {"condition_images": None, "condition_videos": [[], [[encode_base64(b"b")], [encode_base64(b"c")]], []]}
    assert collect_sources("/compute", json=factory | films) == [(), (b"b", b"c"), ()]
    edits = {
        "images": [b"x", b"y"],
        "prompts": ["0", "1"],
        "ref_images": [b"a", None],
        "metadatas": [{"requirement": ""}] * 2,
    }
    for path in ("/", "/mode/logits_non_cot"):
        assert collect_sources(path, content=pickle.dumps(edits)) == [(b"a",), ()]


def test_parts_contain_one_source_per_image_or_are_numbered_by_image() -> None:
    request = json.dumps({"prompts": ["0", "1"]}).encode()
    files = make_parts(request, b"x", b"y")
    assert collect_sources("/score", files=[*files, ("sources", b"a"), ("sources", b"b")]) == [(b"a",), (b"b",)]
    several = [("sources.0", b"a"), ("sources.0", b"b"), ("sources.1", b"c")]
    assert collect_sources("/score", files=[*files, *several]) == [(b"a", b"b"), (b"c",)]
    for wrong in ([("sources.1", b"a")], [("sources", b"a"), ("sources.0", b"b")], [("sources", b"a")]):
        refused = Client(SERVED_EDITS)("POST", "/score", files=[*files, *wrong])
        assert refused.status_code == 400 and "sources" in refused.json()["error"]


def test_a_reward_needs_sources_if_it_or_a_watched_metric_reads_them() -> None:
    metrics = {
        "kept": SourceComparisonConfig(comparison="ssim"),
        "brightness": ImageStatisticConfig(statistic="saturation"),
        "other": ImageStatisticConfig(statistic="entropy"),
    }

    def list_metrics_with_sources(asked: str, **words: Any) -> list[str]:
        config = ServeConfig(models={}, metrics=metrics, **words)
        served = find_served_metrics(config, find_nodes(config))
        assert served.list_needs("kept") == ["sources"] and not served.list_needs("brightness")
        return served.select_metrics_needing("sources", [asked])

    watched = {"reward": RewardConfig(weights={"brightness": 1}), "sentinel": ("kept",)}
    assert (
        list_metrics_with_sources("kept")
        == list_metrics_with_sources("kept", **watched)
        == list_metrics_with_sources("brightness", **watched)
        == ["kept"]
    )
    assert not list_metrics_with_sources("brightness") and not list_metrics_with_sources("other", **watched)


def test_sources_count_as_images_and_are_part_of_the_cache_key() -> None:
    form = {
        "images": 2 * [encode_base64(b"a")],
        "prompts": 2 * ["one"],
        "sources": [encode_base64(b"x"), encode_base64(b"y")],
    }
    assert len(collect_sources("/score", json=form)) == 2
    assert len(collect_sources("/score", json=form | {"sources": 2 * [encode_base64(b"x")]})) == 1
    full = Client(SERVED_EDITS, max_request_images=3)("POST", "/score", json=form)
    assert full.status_code == 413 and "found 4" in full.json()["error"]


def test_unirl_clients_can_list_the_rewards_and_an_unknown_name_is_refused() -> None:
    health = Client()("GET", "/health").json()
    assert health["status"] == "ok" and health["rewards"] == {"align": ["ready"], "brightness": ["ready"]}
    unranked = SERVED._replace(unranked=frozenset({"brightness"}))
    assert Client(unranked)("GET", "/rewards").json() == {
        "rewards": ["align", "brightness"],
        "orders": {"align": 1, "brightness": 0},
        "needs": {"align": [], "brightness": []},
    }
    unknown = Client()(
        "POST", "/score", json={"requests": [{**make_unirl_request(b"a"), "required_rewards": ["hpsv2"]}]}
    )
    assert unknown.status_code == 400 and "hpsv2" in unknown.json()["detail"]


def test_only_videos_inside_the_allowed_folders_are_read_by_path(tmp_path: Path) -> None:
    """Symbolic links are resolved before the check, and no folder is allowed by default."""
    allowed = tmp_path / "allowed"
    (allowed / "deeper").mkdir(parents=True)
    for file in (tmp_path / "secret.mp4", allowed / "a.mp4", allowed / "deeper" / "b.mp4"):
        file.write_bytes(b"a film")
    (allowed / "link.mp4").symlink_to(tmp_path / "secret.mp4")

    def list_outcomes(client: Client, *paths: str) -> list[str]:
        asked = [make_unirl_request(None, video_path=path) for path in paths]
        reply = client.post("/score", {"requests": asked})
        assert [bool(result) for result in reply["results"]] == [not errors for errors in reply["errors"]]
        return [errors["align"].partition(":")[0] if errors else "scored" for errors in reply["errors"]]

    inside = [f"{allowed}/a.mp4", f"{allowed}/deeper/../deeper/b.mp4"]
    outside = [f"{allowed}/link.mp4", f"{allowed}/../secret.mp4", f"{tmp_path}/secret.mp4", f"{tmp_path}/none", "\0"]
    client = Client(videos=allowed)
    assert list_outcomes(client, *inside, f"{allowed}/none.mp4") == ["scored", "scored", "missing_image"]
    assert list_outcomes(client, *outside) == ["uri_refused"] * 4 + ["unreadable_uri"]
    assert list_outcomes(Client(), *inside) == ["uri_refused"] * 2
    both = client(
        "POST", "/score", json={"requests": [make_unirl_request(None, video_path=inside[0], video_b64="AAAA")]}
    )
    assert both.status_code == 400 and "found both" in both.json()["detail"]


def test_a_video_sent_by_path_counts_towards_the_size_limits(tmp_path: Path) -> None:
    (tmp_path / "long.mp4").write_bytes(b"x" * 6000)
    asked = {"requests": [make_unirl_request(None, video_path=f"{tmp_path}/long.mp4")]}
    client = Client(videos=tmp_path, max_body=8000, max_bodies=8000)
    for _ in range(3):
        assert client("POST", "/score", json=asked).status_code == 200
    asked["requests"] *= 2
    assert client("POST", "/score", json=asked).status_code == 413
    three = {"requests": 3 * [make_unirl_request(None, video_path="none")]}
    assert Client(max_request_images=2)("POST", "/score", json=three).status_code == 413


def test_the_pickle_wire_returns_scores_and_outputs_or_an_error() -> None:
    """The reply suits both clients: verl-omni reads `error` or `scores[0]`, and flow_grpo adds up `outputs`."""
    for prompts in (["one", "three"], np.array(["one", "three"])):
        sent = {"images": [b"a", b"b"], "prompts": prompts, "metadata": {}}
        assert Client().post_pickle(sent) == (200, {"scores": [3.0, 5.0], "outputs": [3.0, 5.0]})
    status, reply = Client().post_pickle({"images": [b"corrupt"], "prompts": ["one"], "metadata": {}})
    assert status == 200 and set(reply) == {"error"} and "corrupt_image" in reply["error"]
    status, reply = Client().post_pickle({"images": [b"a", b"busy"], "prompts": ["one", "two"]})
    assert status == 503 and set(reply) == {"error"}
    status, reply = Client().post_pickle({"images": [b"a"]})
    assert status == 400 and "prompts" in reply["error"]


def make_chat_request(image: bytes, caption: str, address: str = "data:image;base64,{}") -> dict[str, Any]:
    url = {"type": "image_url", "image_url": {"url": address.format(encode_base64(image))}}
    text = {"type": "text", "text": f"<image>\nAssign a score after 'Final Score:'.\nText Caption: [{caption}]"}
    return {"model": "UnifiedReward-7b-v1.5", "messages": [{"role": "user", "content": [url, text]}], "temperature": 0}


def test_unifiedreward_clients_find_a_rating_or_raise_an_error() -> None:
    """verl-omni's client parses any reply as a ChatCompletion; OpenAI's raises an error for HTTP error codes."""

    async def score_in_tenths(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        answers = [answer["align"] for answer in await score(batch, metrics)]
        return [{"align": answer._replace(score=answer.score and answer.score / 10)} for answer in answers]

    client = Client()
    client.service.score_batch = score_in_tenths
    reply = ChatCompletion.model_validate(client.post("/v1/chat/completions", make_chat_request(b"a", "th[ree]")))
    words = reply.choices[0].message.content or ""
    assert re.findall(r"Final Score:\s*([1-5](?:\.\d+)?)", words) == ["3.8"]
    axes = re.findall(r"(Alignment|Coherence|Style)\s+Score\s*(?:\(1-5\))?\s*:\s*([\d.]+)", words)
    assert axes == [("Alignment", "3.8")]
    assert reply.model == "align", "the reply names the metric, not the requested model"
    refused = {
        422: [make_chat_request(b"corrupt", "one"), make_chat_request(b"a", "longer than ten letters")],
        503: [make_chat_request(b"busy", "one")],
    }
    refused[400] = [
        make_chat_request(b"a", "one", "https://example.org/{}"),
        {"messages": [{"role": "user", "content": "Hello"}]},
    ]
    for status, forms in refused.items():
        for form in forms:
            response = client("POST", "/v1/chat/completions", json=form)
            assert response.status_code == status and response.json()["error"]["message"]
            with pytest.raises(ValidationError):
                ChatCompletion.model_validate(response.json())


def test_rewards_are_negated_if_lower_is_better_but_scores_are_unchanged() -> None:
    client = Client(SERVED._replace(lower_is_better=frozenset({"align"})))
    assert client.post("/compute", {"prompt": ["one"], "image": [encode_base64(b"a")]}) == {"rewards": [-3.0]}
    assert client.post_pickle({"images": [b"a"], "prompts": ["one"]})[1]["scores"] == [-3.0]
    (results,) = client.post("/score", {"requests": [make_unirl_request(b"a")]})["results"]
    assert results == {"align": {"score": -5.0}, "brightness": {"score": 5.0}}
    assert client.post("/score", {"images": [encode_base64(b"a")], "prompts": ["one"]})["scores"][0]["align"] == 3.0


SERVED_COMBINATION = Served(
    {"align": "recipe-1", "brightness": "recipe-2", "reward": "recipe-3"},
    "reward",
    frozenset({"brightness"}),
    combination=Reward(RewardConfig(weights={"align": 1.0, "brightness": 0.5}), frozenset({"brightness"}), {}),
)


def test_wires_with_several_numbers_also_return_the_parts_of_a_combined_reward() -> None:
    client = Client(SERVED_COMBINATION)
    one = {"images": [encode_base64(b"a")], "prompts": ["one"]}
    everything = {"align": 3.0, "brightness": 3.0, "reward": 1.5}
    for form in (one, {**one, "metrics": ["reward"]}):
        reply = client.post("/score", form)
        assert reply["scores"] == [everything] and reply["recipes"] == SERVED_COMBINATION.metrics
    (results,) = client.post("/score", {"requests": [{**make_unirl_request(b"a"), "required_rewards": ["reward"]}]})[
        "results"
    ]
    assert results == {"align": {"score": 5.0}, "brightness": {"score": -5.0}, "reward": {"score": 2.5}}
    assert client.post("/compute", {"prompt": ["one"], "image": [encode_base64(b"a")]}) == {"rewards": [1.5]}
    assert client.post_pickle({"images": [b"a"], "prompts": ["one"]})[1]["scores"] == [1.5]
    orders = {"align": 1, "brightness": -1, "reward": 1}
    needs = {name: [] for name in orders}
    assert client("GET", "/rewards").json() == {"rewards": list(orders), "orders": orders, "needs": needs}
    assert "reward" in client("GET", "/health").json()["rewards"]


def test_the_part_of_a_combined_reward_that_reads_sources_receives_them() -> None:
    """If the source is missing, the part and the reward are null, and the error names the part."""

    async def score_by_source(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        answers = {True: MetricAnswer(4.0), False: MetricAnswer(None, CORRUPT_ERROR)}
        return [{name: answers[name != "align" or one.sources == (b"before",)] for name in metrics} for one in batch]

    client = Client(SERVED_COMBINATION._replace(needs={"sources": frozenset({"align", "reward"})}))
    client.service.score_batch = score_by_source
    factory = {
        "prompt": ["p", "p"],
        "image": [encode_base64(b"a"), encode_base64(b"b")],
        "condition_images": 2 * [[encode_base64(b"before")]],
    }
    assert client.post("/compute", factory) == {"rewards": [2.0, 2.0]}
    factory["condition_images"] = [[], [encode_base64(b"before")]]
    assert client.post("/compute", factory)["error"].startswith("image 0: corrupt_image: align: ")
    form = {
        "images": [encode_base64(b"c"), encode_base64(b"d")],
        "prompts": ["p", "p"],
        "sources": [encode_base64(b"before"), None],
    }
    scores = client.post("/score", form | {"metrics": ["reward"]})["scores"]
    assert scores == [
        {"reward": 2.0, "align": 4.0, "brightness": 4.0},
        {"reward": None, "align": None, "brightness": 4.0},
    ]


def test_a_combined_reward_of_two_judges_of_edits_equals_that_of_the_scorer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request has Flow-Factory's format, and the judge gives all images the same ratings."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    judge, (before, after) = Server(), (draw_image(prompt) for prompt in select_prompts([])[:2])
    judge.script = lambda number, body: make_completion(
        '{"editing_success": 8, "overediting": 6, "naturalness": 9, "artifacts": 3, "rationale": "So."}'
    )
    config = ServeConfig(
        models={
            "vlm": make_model_config(family="openai", checkpoint="m", endpoint=judge.url, key_variable=KEY_VARIABLE)
        },
        metrics={"edit": VieScoreEditConfig(), "kept": VieScoreEditConfig(part="consistency")},
        reward=RewardConfig(weights={"edit": 1.0, "kept": 0.5}),
    )
    scorer = Scorer(config.make_scorer_config())

    async def score_with_scorer(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        return score_batch(scorer, batch, metrics)

    served = find_served_metrics(config, find_nodes(config))
    assert served.list_needs("reward") == ["sources"]
    client = Client(served)
    client.service.score_batch = score_with_scorer
    factory = {
        "prompt": ["make it blue"],
        "image": [encode_base64(after)],
        "condition_images": [[encode_base64(before)]],
    }
    assert client.post("/compute", factory) == {"rewards": [pytest.approx(18**0.5 + 0.5 * 6)]}
    judge.close()
    missing = client.post("/compute", factory | {"condition_images": [[]]})["error"]
    assert missing.startswith("image 0: missing_image: edit: the source of the edit: ")


@pytest.mark.parametrize(("failing", "status"), [(CORRUPT_ERROR, 200), (BUSY_ERROR, 503)])
def test_if_a_part_is_null_the_combined_reward_is_null_and_its_error_names_the_part(
    failing: RowError, status: int
) -> None:
    async def fail_one_part(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        return [
            {name: MetricAnswer(None, failing) if name == "align" else MetricAnswer(1.0) for name in metrics}
            for _ in batch
        ]

    client = Client(SERVED_COMBINATION)
    client.service.score_batch = fail_one_part
    reply = client.post("/score", {"images": [encode_base64(b"a")], "prompts": ["one"]})
    assert reply["scores"] == [{"align": None, "brightness": 1.0, "reward": None}]
    assert reply["errors"][0]["reward"] == {**failing._asdict(), "message": f"align: {failing.message}"}
    (errors,) = client.post("/score", {"requests": [{**make_unirl_request(b"a"), "required_rewards": ["reward"]}]})[
        "errors"
    ]
    assert errors["reward"] == f"{failing.kind}: align: {failing.message}"
    refused = client("POST", "/compute", json={"prompt": ["one"], "image": [encode_base64(b"a")]})
    assert refused.status_code == status and f"{failing.kind}: align: " in refused.json()["error"]
    assert client.post_pickle({"images": [b"a"], "prompts": ["one"]})[0] == status


@pytest.mark.parametrize("path", ["/compute", "/"])
def test_a_wire_with_one_number_needs_a_configured_reward(path: str) -> None:
    client = Client(SERVED._replace(reward=None))
    if path == "/":
        status, reply = client.post_pickle({"images": [b"a"], "prompts": ["p"]})
    else:
        response = client("POST", path, json={"prompt": ["p"], "image": [encode_base64(b"a")]})
        status, reply = response.status_code, response.json()
    assert status == 400 and "reward=" in reply["error"]


class Exploit:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_an_exploit_is_refused_and_none_of_its_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    status, reply = Client().post_pickle({"images": [b"a"], "prompts": ["p"], "metadata": Exploit()})
    assert status == 400 and "plain values" in reply["error"]
    assert "executed" not in capsys.readouterr().out


BODIES = st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["images", "prompts", "sources", "requests", "history", "prompt", "image"]),
                      inner, max_size=7)
)).map(lambda value: json.dumps(value).encode()))  # fmt: skip


@given(st.sampled_from(["/score", "/compute", "/", "/mode/logits_non_cot", "/v1/chat/completions"]), BODIES)
def test_random_request_bodies_never_cause_a_server_error(path: str, body: bytes) -> None:
    response = Client()("POST", path, content=body)
    assert response.status_code in (200, 400)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-type"] in ("application/json", "application/octet-stream")


def test_watched_metrics_are_computed_but_only_shown_on_the_health_page() -> None:
    metrics = {"align": ClipScoreConfig(), "brightness": ImageStatisticConfig(statistic="saturation")}
    client = Client(sentinel=Sentinel("align", metrics, 1))
    assert client.post_pickle({"images": [b"a"], "prompts": ["one"], "metadata": {}})[1]["scores"] == [3.0]
    assert client.service.sentinel is not None and client.service.sentinel.baseline is not None
    assert client.service.sentinel.baseline.tolist() == [[3.0, 3.0]]
    assert client("GET", "/health").json()["sentinel"] == []
    assert "sentinel" not in Client()("GET", "/health").json()


@pytest.mark.parametrize(("order", "ordered"), [(1, True), (-1, False), (0, None)])
def test_the_health_page_shows_the_scores_of_the_known_pair(order: int, ordered: bool | None) -> None:
    """Each metric declares whether higher is better; the log warns if the matching image has the worse score."""
    first: list[ScoreRequest] = []

    async def prefer_the_first(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        first.extend(batch)
        return [{name: MetricAnswer(float(len(batch) - place)) for name in metrics} for place in range(len(batch))]

    lower_is_better, unranked = (frozenset({"align"} if order == wanted else ()) for wanted in (-1, 0))
    served = Served({"align": "recipe"}, "align", lower_is_better, unranked)
    known_pair = asyncio.run(score_known_pair(prefer_the_first, served))
    page = Client(known_pair=known_pair)("GET", "/health").json()["known_pair"]
    assert page == {"align": {"good": 2.0, "bad": 1.0, "ordered": ordered, "error": None}}
    assert len(list(explain_known_pair(known_pair))) == (ordered is False)
    assert len({one.images for one in first}) == 2 and len({one.prompt for one in first}) == 1
    promptless = Served({"align": "recipe"}, "align", lower_is_better, unranked, promptless=frozenset({"align"}))
    assert asyncio.run(score_known_pair(prefer_the_first, promptless))["align"].ordered is None


def test_the_known_pair_has_the_inputs_that_each_metric_needs() -> None:
    asked: dict[tuple[str, ...], list[ScoreRequest]] = {}

    async def record_batch(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        asked[tuple(metrics)] = list(batch)
        return await score(batch, metrics)

    needs: dict[Need, frozenset[str]] = {"sources": frozenset({"edit"}), "words": frozenset({"text"})}
    served = Served(dict.fromkeys(("plain", "edit", "text"), "recipe"), None, needs=needs)
    assert list(asyncio.run(score_known_pair(record_batch, served))) == ["plain", "edit", "text"]
    assert not asked["plain",][0].sources and '"' not in asked["plain",][0].prompt
    good, bad = asked["edit",]
    assert good.sources == bad.sources and len({good.images, bad.images, good.sources}) == 3
    assert good.prompt == bad.prompt and '"OPEN"' in asked["text",][0].prompt


def test_a_known_pair_that_cannot_be_scored_has_an_error_and_no_order() -> None:
    async def fail(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        return [{name: MetricAnswer(None, BUSY_ERROR) for name in metrics} for _ in batch]

    known_pair = asyncio.run(score_known_pair(fail, SERVED_COMBINATION))
    assert known_pair["reward"] == (None, None, None, "model_failed: align: out of memory")
    assert known_pair["align"] == (None, None, None, "model_failed: out of memory")
    assert not list(explain_known_pair(known_pair))


def test_the_sentinel_watches_a_combined_reward_as_one_number() -> None:
    watched = {"brightness": ImageStatisticConfig(statistic="saturation")}
    combination = Reward(RewardConfig(weights={"align": 2.0}), frozenset(), {})
    client = Client(SERVED_COMBINATION._replace(combination=combination), sentinel=Sentinel("reward", watched, 1))
    assert client.post_pickle({"images": [b"a"], "prompts": ["one"], "metadata": {}})[1]["scores"] == [6.0]
    assert client.service.sentinel is not None and client.service.sentinel.baseline is not None
    assert client.service.sentinel.baseline.tolist() == [[6.0, 3.0]]


def test_every_endpoint_except_health_requires_the_token() -> None:
    client = Client(token=TOKEN)
    basic = base64.b64encode(f"x:{TOKEN}".encode()).decode()
    for header in (f"Bearer {TOKEN}", f"Basic {basic}"):
        assert client("GET", "/metrics", headers={"Authorization": header}).status_code == 200
    wrong = ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", "Basic !", f"Digest {TOKEN}", f"Bearer {TOKEN} "[:-2]]
    for header in wrong:
        for method, path in (("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/rewards"), ("POST", "/score")):
            refused = client(method, path, headers={"Authorization": header} if header else {})
            assert refused.status_code == 401 and TOKEN not in refused.text
    assert client("GET", "/health").status_code == 200
    status, reply = client.post_pickle({"images": [], "prompts": []})
    assert status == 401 and "token" in reply["error"]


def test_no_page_shows_the_token() -> None:
    client = Client(token=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    pages = [client("GET", path, headers=headers).text for path in ("/metrics", "/openapi.json", "/rewards", "/health")]
    assert not any(TOKEN in page for page in pages)
    assert TOKEN not in repr(client.post("/score", {"images": [], "prompts": ["p"]}, headers=headers))


def test_the_size_of_a_body_and_the_number_of_images_are_limited() -> None:
    client = Client(max_body=1000, max_request_images=2)
    assert client("POST", "/score", content=b"x" * 1001).status_code == 413

    async def yield_chunks() -> Any:
        for _ in range(20):
            yield b"x" * 100

    assert client("POST", "/score", content=yield_chunks()).status_code == 413
    three = {"images": [[encode_base64(b"a")], [encode_base64(b"b"), encode_base64(b"c")]], "prompts": ["p", "q"]}
    response = client("POST", "/score", json=three)
    assert response.status_code == 413 and "at most 2 images" in response.json()["error"]
    assert client("POST", "/score", content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415


def test_bytes_that_a_pickle_repeats_are_counted_each_time() -> None:
    """Samples in a group may share a source, but its bytes are hashed and decoded for each sample."""
    client, image, prompt = Client(max_body=20_000), b"i" * 5000, "p" * 5000
    assert client.post_pickle({"images": [image] * 3, "prompts": ["p"] * 3})[0] == 200
    for form in (
        {"images": [image] * 5, "prompts": ["p"] * 5},
        {"images": [b"i"] * 5, "prompts": [prompt] * 5},
        {"images": [b"i"] * 5, "prompts": ["p"] * 5, "ref_images": [image] * 5},
    ):
        status, answer = client.post_pickle(form)
        assert status == 413 and "counted each time" in answer["error"]


def test_the_total_size_of_open_requests_is_limited_and_released_afterwards() -> None:
    client = Client(max_body=1000, max_bodies=500)
    small = {"images": [encode_base64(b"a")], "prompts": ["p"]}
    for _ in range(3):
        held = client("POST", "/score", content=b"x" * 600)
        assert held.status_code == 429 and int(held.headers["retry-after"]) >= 1
        assert client("POST", "/score", json=small).status_code == 200


def test_a_body_counts_towards_the_limit_until_its_images_have_left_the_queue() -> None:
    """The bodies of two requests that timed out still count, because their images are in the queue."""
    free = asyncio.Event()

    async def score_slowly(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        await free.wait()
        return await score(batch, metrics)

    client = Client(max_body=1000, max_bodies=1000, deadline=0.05, batch=1)
    client.service.score_batch = score_slowly
    forms = [{"images": [encode_base64(bytes([number]) * 300)], "prompts": ["p"]} for number in range(3)]

    async def main() -> list[int]:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as asking:
            statuses = [(await asking.post("/score", json=form)).status_code for form in forms]
            free.set()
            await asyncio.sleep(0.05)
            return [*statuses, (await asking.post("/score", json=forms[2])).status_code]

    assert asyncio.run(main()) == [503, 503, 429, 200]


def test_a_busy_service_replies_429_on_every_wire() -> None:
    image = encode_base64(b"a")
    client = Client(max_waiting=0)
    for path, form in (
        ("/score", {"images": [image], "prompts": ["p"]}),
        ("/score", {"requests": [make_unirl_request(b"a")]}),
        ("/compute", {"prompt": ["p"], "image": [image]}),
    ):
        response = client("POST", path, json=form)
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        assert not {"scores", "results", "rewards"} & set(response.json())
    assert client.post_pickle({"images": [b"a"], "prompts": ["p"]})[0] == 429


def test_flow_grpos_session_retries_after_429_and_503() -> None:
    """flow_grpo's session lists only status 500, but urllib3 also retries after 429 and 503 if Retry-After is set."""
    retries = Retry(total=1000, backoff_factor=1, status_forcelist=[500], allowed_methods=False)
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=retries))
    adapter = session.get_adapter("http://service")
    assert isinstance(adapter, HTTPAdapter)
    assert all(adapter.max_retries.is_retry("POST", status, has_retry_after=True) for status in (429, 500, 503))
    assert not adapter.max_retries.is_retry("POST", 503, has_retry_after=False)


def test_a_service_without_a_replica_is_not_ready() -> None:
    assert Client(ready=0)("GET", "/health").status_code == 503


def test_the_counters_and_the_openapi_document_cover_every_wire() -> None:
    client = Client()
    client.post(
        "/score",
        {"images": [encode_base64(b"a"), encode_base64(b"corrupt")], "prompts": ["p", "q"], "metrics": ["align"]},
    )
    page = client("GET", "/metrics").text
    assert 'plumbline_answers_total{metric="align",outcome="scored"} 1.0' in page
    assert 'plumbline_answers_total{metric="align",outcome="null"} 1.0' in page
    for part, count in {"read": 1, "parse": 1, "queue": 2, "reply": 1}.items():
        assert f'plumbline_part_seconds_count{{part="{part}"}} {count}.0' in page
    document = client("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {
        "/score",
        "/compute",
        "/",
        "/mode/logits_non_cot",
        "/v1/chat/completions",
        "/health",
        "/rewards",
        "/metrics",
        "/openapi.json",
    }
    assert "$ref" not in json.dumps(document)


FOREIGN_HOST_NAMES = (
    "evil.example",
    "127.0.0.1.evil.example:8000",
    "",
    "[::1]evil.example",
    "[::2]:8000",
    "example.org@evil",
)
OWN_HOST_NAMES = ("localhost:9000", "127.0.0.1", "[::1]:8000", "rewards.example.org")


def test_requests_with_a_foreign_host_name_are_refused() -> None:
    client = Client()
    for name in FOREIGN_HOST_NAMES:
        assert client("GET", "/rewards", headers={"Host": name}).status_code == 400, name
    for name in OWN_HOST_NAMES:
        assert client("GET", "/rewards", headers={"Host": name}).status_code == 200, name


def test_requests_from_pages_of_another_origin_are_refused() -> None:
    """Browsers send forms and text to other origins without asking first, but they name the page's origin."""
    client = Client()
    form = json.dumps({"images": [encode_base64(b"a")], "prompts": ["p"]})
    for origin in ("http://evil.example", "null", "http://127.0.0.1:3000", "https://127.0.0.1"):
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        assert client("GET", "/rewards", headers=headers).status_code == 403, origin
        assert client("POST", "/score", content=form, headers=headers).status_code == 403, origin
    assert not client.service.cache
    headers = {"Origin": "http://127.0.0.1:8000"}
    assert client("POST", "/score", content=form, headers=headers).json()["scores"] == [
        {"align": 1.0, "brightness": 1.0}
    ]


@pytest.mark.parametrize(
    ("host", "hosts", "names"),
    [
        ("127.0.0.1", (), {"localhost", "127.0.0.1", "[::1]"}),
        ("10.0.0.7", (), {"localhost", "127.0.0.1", "[::1]", "10.0.0.7"}),
        ("fd00::7", ("gpu-7",), {"localhost", "127.0.0.1", "[::1]", "[fd00::7]", "gpu-7"}),
        ("0.0.0.0", (), {"*"}),
        ("::", ("gpu-7",), {"localhost", "127.0.0.1", "[::1]", "[::]", "gpu-7"}),
    ],
)
def test_allowed_hosts_are_this_machine_the_servers_address_and_configured_names(
    host: str, hosts: Sequence[str], names: set[str]
) -> None:
    assert set(list_allowed_hosts(host, hosts)) == names


def test_the_url_that_a_server_reports_can_be_requested() -> None:
    with open_listening_socket("127.0.0.1", 0) as listener:
        assert format_server_url("::1", listener) == f"http://[::1]:{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org"])
def test_any_other_address_requires_a_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_loopback(host)
    monkeypatch.setenv("TEST_TOKEN", "")
    with pytest.raises(ConfigError, match="TEST_TOKEN"):
        take_token(host, "TEST_TOKEN")
    monkeypatch.setenv("TEST_TOKEN", TOKEN)
    assert take_token(host, "TEST_TOKEN") == TOKEN and is_token_gone()


def is_token_gone() -> bool:
    import os  # Ray's processes would inherit the environment

    return "TEST_TOKEN" not in os.environ
