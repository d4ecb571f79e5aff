"""A real service ranks the images of a prompt with a judge of two images, in each trainer's payload."""

import asyncio
import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import requests
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base.errors import RowError
from plumbline.operators.rewards.combination import REWARD_NAME, Reward, RewardConfig
from plumbline.plugins.reward_server.app import PrometheusCounters
from plumbline.plugins.reward_server.groups import join_pairs, make_pairs
from plumbline.plugins.reward_server.known_images import SHAPE_BY_PROMPT, draw_image
from plumbline.plugins.reward_server.serve_config import LoadConfig
from plumbline.plugins.reward_server.service import Service
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, ScoreRequest, Served
from tests.bench_of import read_image_rows, read_prompt_rows
from tests.commands import run, run_refused
from tests.serving import RunningService, run_service

METRICS_OPTION = "metric=[pairwise,vqascore]"
GENERATORS = ("atlas", "drift", "flint", "garnet")
N_GROUPS = 6
MAX_GROUP = 8
MAX_WAITING = 64
SERVED = Served({"pairwise": "recipe"}, "pairwise", needs={"group": frozenset({"pairwise"})})


class Group(NamedTuple):
    """A prompt with images of several generators, and each image's share of comparisons won in this process."""

    prompt: str
    images: list[bytes]
    shares: list[float]


class GroupService(NamedTuple):
    service: RunningService
    groups: list[Group]

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        response = requests.post(f"{self.service.url}{path}", json=body, timeout=60)
        assert response.status_code == status, response.text
        return response.json()

    def rank(self, images: Sequence[bytes], prompt: Any) -> tuple[list[float | None], list[str]]:
        """Return the images' shares, and `KIND: MESSAGE` of each error."""
        form = {"images": [*map(encode_base64, images)], "prompts": [prompt] * len(images), "metrics": ["pairwise"]}
        reply = self.post("/score", form)
        errors = [f"{error['pairwise']['kind']}: {error['pairwise']['message']}" for error in reply["errors"] if error]
        return [scores["pairwise"] for scores in reply["scores"]], errors


def encode_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def encode_black_image() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def group_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupService]:
    texts = {row["prompt_id"]: row["text"] for row in read_prompt_rows(N_GROUPS)}
    rows = [row for name in GENERATORS for row in read_image_rows(name, N_GROUPS)]
    scored = open_scorer(metrics=["pairwise"], models="shapes").score(
        [row["image"] for row in rows], [texts[row["prompt_id"]] for row in rows]
    )
    groups = [
        Group(text, [rows[place]["image"] for place in of_prompt.index], list(of_prompt["score"]))
        for text, of_prompt in scored.groupby("prompt")
    ]
    words = [METRICS_OPTION, "reward=pairwise", f"max_group={MAX_GROUP}", f"max_waiting={MAX_WAITING}"]
    words += ["max_request_images=60", "batch=5"]
    with run_service(tmp_path_factory.mktemp("groups") / "log", *words) as service:
        yield GroupService(service, groups)


def test_drawn_images_are_ranked_by_what_they_show(group_service: GroupService) -> None:
    shown = [*SHAPE_BY_PROMPT] * 2
    for prompt in SHAPE_BY_PROMPT:
        images = [draw_image(name, copy=str(number)) for number, name in enumerate(shown)]
        shares, errors = group_service.rank(images, prompt)
        best = sorted(range(len(shown)), key=lambda place: -(shares[place] or 0))[:2]
        assert {shown[place] for place in best} == {prompt} and not errors
        assert sum(share or 0 for share in shares) == pytest.approx(len(shown) / 2)


def test_concurrent_groups_get_the_shares_of_an_offline_scorer(group_service: GroupService) -> None:
    with ThreadPoolExecutor(N_GROUPS) as clients:
        found = list(clients.map(lambda group: group_service.rank(group.images, group.prompt), group_service.groups))
    for group, (shares, errors) in zip(group_service.groups, found, strict=True):
        assert shares == pytest.approx(group.shares, abs=1e-5) and not errors


def test_flow_factorys_groupwise_reward_gets_the_shares_of_its_group(group_service: GroupService) -> None:
    """RemoteGroupwiseRewardModel sends one group in a request, with the prompt repeated for each image."""
    for prompt, images, shares in group_service.groups[:2]:
        payload = {"prompt": [prompt] * len(images), "image": [*map(encode_base64, images)], "video": None}
        reply = group_service.post("/compute", {**payload, "condition_images": None, "condition_videos": None})
        assert reply == {"rewards": pytest.approx(shares, abs=1e-5)}


def test_unirls_samples_are_compared_within_their_group(group_service: GroupService) -> None:
    asked = [
        {"history": [{"text": prompt, "image_b64": encode_base64(image)}], "required_rewards": ["pairwise"],
         "metadata": None, "group_id": f"prompt:{number}"}
        for number, (prompt, images, _) in enumerate(group_service.groups) for image in images
    ]  # fmt: skip
    reply = group_service.post("/score", {"protocol_version": "1", "requests": asked})
    shares = [share for group in group_service.groups for share in group.shares]
    assert [result["pairwise"]["score"] for result in reply["results"]] == pytest.approx(shares, abs=1e-5)
    halves = [{**sample, "group_id": str(number % 2)} for number, sample in enumerate(asked[: len(GENERATORS)])]
    halved = group_service.post("/score", {"requests": halves})["results"]
    shares = [result["pairwise"]["score"] for result in halved]
    assert shares[0] + shares[2] == pytest.approx(1) and shares[1] + shares[3] == pytest.approx(1)


def test_other_metrics_are_scored_in_the_same_request(group_service: GroupService) -> None:
    prompt, images, shares = group_service.groups[0]
    form = {"images": [*map(encode_base64, images)], "prompts": [prompt] * len(images)}
    scores = group_service.post("/score", form)["scores"]
    assert [image["pairwise"] for image in scores] == pytest.approx(shares, abs=1e-5)
    assert all(0 <= image["vqascore"] <= 1 for image in scores)


def test_bad_images_cost_only_themselves(group_service: GroupService) -> None:
    prompt, images, _ = group_service.groups[1]
    bad = [encode_black_image(), b"no image", images[0][: len(images[0]) // 2], b""]
    shares, errors = group_service.rank([images[0], *bad, images[-1]], prompt)
    assert shares[1:5] == [None] * 4
    assert [shares[0], shares[5]] == pytest.approx(group_service.rank([images[0], images[-1]], prompt)[0], abs=1e-5)
    kinds = [error.partition(":")[0] for error in errors]
    assert kinds == ["blank_picture", "corrupt_image", "corrupt_image", "missing_image"]
    assert not any(": image " in error for error in errors), "an image's own error needs no number"


def test_identical_images_tie(group_service: GroupService) -> None:
    prompt, images, _ = group_service.groups[0]
    assert group_service.rank([images[0]] * 3, prompt) == ([0.5] * 3, [])


def test_an_image_that_can_be_compared_with_none_has_no_score(group_service: GroupService) -> None:
    prompt, images, _ = group_service.groups[0]
    assert group_service.rank(images[:1], prompt)[1][0].startswith("no_pair: no other image of its prompt came with it")
    shares, errors = group_service.rank([images[0], encode_black_image()], prompt)
    assert shares == [None, None] and errors[0].startswith("blank_picture: image 1: it is entirely black")
    assert [error.partition(":")[0] for error in group_service.rank(images[:2], " ")[1]] == ["empty_prompt"] * 2
    assert [error.partition(":")[0] for error in group_service.rank(images[:2], 7)[1]] == ["unusable_prompt"] * 2
    refusal = group_service.post("/compute", {"prompt": [prompt], "image": [encode_base64(images[0])]})
    assert refusal["error"].startswith("image 0: no_pair:")


def test_too_many_comparisons_are_refused_in_one_sentence(group_service: GroupService) -> None:
    prompt, images, _ = group_service.groups[0]
    encoded = encode_base64(images[0])
    form = {"images": [encoded] * 9, "prompts": [prompt] * 9}
    reply = group_service.post("/score", form, status=413)
    assert "at most 8 images of a prompt, because each is compared with each other, found 9, which take 72" in str(
        reply
    )
    form = {"images": [encoded] * 16, "prompts": ["a red circle"] * 8 + ["a blue square"] * 8}
    reply = group_service.post("/score", form, status=413)
    assert "at most 64 images and pairs of images in a request, found 16 images and 56 pairs" in str(reply)
    assert group_service.post("/score", {**form, "metrics": ["vqascore"]})["errors"] == [{}] * 16


@pytest.mark.parametrize(("wire", "words"), [("score", []), ("unirl", []), ("flow_factory", ["needs=[group]"])])
def test_check_rewards_sends_every_image_with_another(group_service: GroupService, wire: str, words: list[str]) -> None:
    ended = run("check_rewards", group_service.service.url, f"wire={wire}", "repeats=1", "batch=3", *words)
    assert ended.code == 0, ended.out
    assert "the image that fits is best for 3 of 3 prompts" in ended.words
    assert "the number depends on the other images of the prompt" in ended.words


def test_the_service_says_that_the_judge_needs_a_group(group_service: GroupService) -> None:
    page = requests.get(f"{group_service.service.url}/rewards", timeout=60).json()
    assert page["needs"] == {"pairwise": ["group"], "vqascore": []}
    assert requests.get(f"{group_service.service.url}/health", timeout=60).json()["known_pair"]["pairwise"]["ordered"]


def answer_pairs(
    requests: Sequence[ScoreRequest], answer: Mapping[tuple[int, int], MetricAnswer]
) -> list[MetricAnswer]:
    pairs = make_pairs(requests, SERVED)
    answers = [{"pairwise": answer.get((pair.first, pair.second), MetricAnswer(1.0))} for pair in pairs]
    return [each["pairwise"] for each in join_pairs(requests, pairs, answers, SERVED)]


def test_a_comparison_that_may_succeed_later_is_an_error_of_both_images() -> None:
    group = [ScoreRequest((b"%d" % number,), "a star", ("pairwise",)) for number in range(3)]
    busy = RowError("model_failed", "out of memory", retryable=True)
    found = answer_pairs(group, {(0, 1): MetricAnswer(None, busy)})
    assert found == [MetricAnswer(None, busy), MetricAnswer(None, busy), MetricAnswer(0.0)]
    found = answer_pairs(group, {(0, 1): MetricAnswer(None, busy._replace(retryable=False))})
    assert [answer.score for answer in found] == [1.0, 1.0, 0.0]


def test_only_images_that_can_be_looked_at_are_compared() -> None:
    lost = RowError("uri_refused", "not below video_folders")
    star = ScoreRequest((b"a",), "a star", ("pairwise",))
    group = [star, star._replace(images=(), error=lost), star._replace(images=(b"b",)), star._replace(prompt="a moon")]
    assert [(pair.first, pair.second) for pair in make_pairs(group, SERVED)] == [(0, 2)]
    found = answer_pairs(group, {})
    assert [answer.score for answer in found] == [1.0, None, 0.0, None] and found[1].error == lost


def test_shares_can_be_part_of_a_combined_reward() -> None:
    """The stub of a replica gives an image as many points as its prompt has letters, and lets every first image win."""
    weights = RewardConfig(weights={"pairwise": 2.0, "length": 0.1})
    served = Served(
        {"pairwise": "recipe-1", "length": "recipe-2", REWARD_NAME: "recipe-3"},
        REWARD_NAME,
        needs={"group": frozenset({"pairwise", REWARD_NAME})},
        combination=Reward(weights, frozenset(), {}),
    )

    async def score(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> list[dict[str, MetricAnswer]]:
        assert {bool(request.other) for request in batch} == {metrics == ("pairwise",)}
        return [{name: MetricAnswer(1.0 if each.other else len(each.prompt)) for name in metrics} for each in batch]

    service = Service(score, served, LoadConfig(gather_seconds=0), PrometheusCounters())
    group = [ScoreRequest((b"%d" % number,), "a star", (REWARD_NAME,)) for number in range(3)]
    answers = asyncio.run(service.score([*group, group[0]._replace(prompt="a moon")]))
    assert [answer[REWARD_NAME].score for answer in answers] == pytest.approx([2.6, 1.6, 0.6, None])
    error = answers[3][REWARD_NAME].error
    assert error is not None and (error.kind, error.message.partition(":")[0]) == ("no_pair", "pairwise")


def test_a_sentinel_is_refused_for_a_reward_whose_mean_never_changes() -> None:
    words = ["models=shapes", "metric=[pairwise,saturation]", "reward=pairwise", "sentinel=[saturation]"]
    assert "sentinel: pairwise compares the images of a prompt with each other" in run_refused("serve", *words)
