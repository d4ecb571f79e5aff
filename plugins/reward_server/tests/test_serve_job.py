"""A real service gives trainers the same scores as an offline scorer, even if a replica dies."""

import base64
import io
import json
import math
import os
import pickle
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import requests
import torch
from openai import OpenAI
from PIL import Image, ImageEnhance

from plumbline.assets.making.scenes import COLOURS, SHAPES, Entity, Scene, draw_scene, to_png
from plumbline.jobs.scorer import open_scorer
from plumbline.plugins.reward_server.wires.table import WIRES
from tests.bench_of import read_image_rows, write_benchmark
from tests.commands import run_for_output, run_refused
from tests.pipelines.rewards.conftest import run_benchmark
from tests.serving import ROOT, TOKEN, Pair, RunningService, request_scores, run_service, select_first_pairs

METRICS_OPTION = "metric=[vqascore,clipscore,saturation]"
CLIPS_FOLDER = ROOT / "assets" / "shapes_video"
IMAGES_PER_COMPARISON = 24
"""Number of images that the sentinel compares at a time, each with a different prompt."""
REWARD_OPTION = "reward={weights: {vqascore: 0.6, clipscore: 0.4}, clip_parts: [0, 1]}"
"""Combined reward between 0 and 1, as required for a rating."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "videos").mkdir()
    run_benchmark(
        write_benchmark(folder / "bench", ("garnet",), IMAGES_PER_COMPARISON), folder / "store", METRICS_OPTION
    )
    words = [
        REWARD_OPTION,
        "sentinel=[saturation]",
        "baseline=latest",
        f"store={folder}/store",
        "hosts=[rewards.example.org]",
        f"video_folders=[{folder}/videos]",
    ]
    with run_service(
        folder / "log", METRICS_OPTION, "batch=8", f"sentinel_images={IMAGES_PER_COMPARISON}", *words
    ) as running:
        yield running


@pytest.fixture(scope="module")
def offline() -> dict[Pair, dict[str, float]]:
    """Return scores by pair and metric, computed in this process.

    Each image is paired with its own prompt and with another prompt.
    """
    pairs = select_first_pairs(24, ("atlas", "flint"))
    pairs += [Pair(pair.image, other.prompt) for pair, other in zip(pairs, reversed(pairs), strict=True)]
    pairs = list(dict.fromkeys(pairs))
    table = open_scorer(METRICS_OPTION, "models=shapes").score_table(
        [p.image for p in pairs], [p.prompt for p in pairs]
    )
    scores: dict[Pair, dict[str, float]] = {pair: {} for pair in pairs}
    for row in table.select(["image_id", "metric", "score"]).to_pylist():
        scores[pairs[int(row["image_id"])]][row["metric"]] = row["score"]
    return {pair: {**of_pair, "reward": combine_scores(of_pair)} for pair, of_pair in scores.items()}


def combine_scores(scores: Mapping[str, float]) -> float:
    return 0.6 * scores["vqascore"] + 0.4 * max(scores["clipscore"], 0)


def ask_alone(service: RunningService, pair: Pair) -> dict[str, float | None]:
    with requests.Session() as session:
        (scores,) = request_scores(session, service.url, [pair])
    return scores


def test_clients_that_send_single_images_get_the_offline_scores(
    service: RunningService, offline: dict[Pair, dict[str, float]]
) -> None:
    pairs = list(offline)[:24]
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda pair: ask_alone(service, pair), pairs))
    for pair, answer in zip(pairs, answers, strict=True):
        assert answer == pytest.approx(offline[pair], abs=1e-5)
    page = requests.get(f"{service.url}/metrics", timeout=60).text
    count = float(
        next(line.split()[-1] for line in page.splitlines() if line.startswith("plumbline_batch_images_count"))
    )
    assert count < len(pairs), "images of several requests went together"
    for part in ("read", "parse", "queue", "send", "decode", "model", "reply"):
        assert f'plumbline_part_seconds_count{{part="{part}"}}' in page


def test_all_wires_return_the_same_number(service: RunningService, offline: dict[Pair, dict[str, float]]) -> None:
    pairs = list(offline)[:3]
    expected = pytest.approx([offline[pair]["reward"] for pair in pairs], abs=1e-5)
    encoded, texts = [base64.b64encode(pair.image).decode() for pair in pairs], [pair.prompt for pair in pairs]
    assert requests.get(f"{service.url}/health", timeout=5).ok
    compute = requests.post(f"{service.url}/compute", json={"prompt": texts, "image": encoded}, timeout=60)
    assert compute.json()["rewards"] == expected
    for prompts in (texts, np.array_split(np.array([*texts, "x"]), [3])[0]):
        sent = pickle.dumps({"images": [pair.image for pair in pairs], "prompts": prompts, "metadata": {}})
        answered = pickle.loads(requests.post(service.url, data=sent, timeout=120).content)
        assert answered["scores"] == expected and answered["outputs"] == expected
    files = [("request", (None, json.dumps({"prompts": texts}))), *(("images", pair.image) for pair in pairs)]
    parts = requests.post(f"{service.url}/score", files=files, timeout=60).json()
    assert [scores["reward"] for scores in parts["scores"]] == expected
    history = [[{"text": pair.prompt, "image_b64": image}] for pair, image in zip(pairs, encoded, strict=True)]
    asked = [{"history": turns, "required_rewards": ["reward"], "metadata": None} for turns in history]
    body = requests.post(f"{service.url}/score", json={"requests": asked}, timeout=60).json()
    assert [result["reward"]["score"] for result in body["results"]] == expected and body["errors"] == [{}] * 3
    assert {name for result in body["results"] for name in result} == {"reward", "vqascore", "clipscore"}


def test_a_combined_reward_equals_the_exported_reward(service: RunningService, tmp_path: Path) -> None:
    """The last digits of a score may vary with the other images in a batch; equal scores must have equal rewards."""
    store = service.log.parent / "store"
    run_for_output("rewards", f"store={store}", "format=rewards", REWARD_OPTION, f"output={tmp_path}/out")
    exported = pd.concat(pd.read_parquet(file) for file in (tmp_path / "out" / "data").glob("*.parquet"))
    offline = exported.set_index("image_id").to_dict("index")
    rows, same = read_image_rows("garnet", IMAGES_PER_COMPARISON), 0
    with requests.Session() as session:
        for first in range(0, IMAGES_PER_COMPARISON, 4):  # the run's shards
            own = [offline[row["image_id"]] for row in rows[first : first + 4]]
            pairs = [Pair(row["image"], run["prompt"]) for row, run in zip(rows[first:], own, strict=False)]
            for online, run in zip(request_scores(session, service.url, pairs), own, strict=True):
                assert online["reward"] == pytest.approx(run["reward"], abs=1e-5)
                if all(online[part["metric"]] == part["score"] for part in run["raw"]):
                    assert online["reward"] == run["reward"]
                    same += 1
    assert same


def test_flow_grpos_unifiedreward_gets_the_offline_score_as_a_rating(
    service: RunningService, offline: dict[Pair, dict[str, float]]
) -> None:
    """The client (unifiedreward_score_sglang) uses OpenAI's package, and divides ratings, from 1 to 5, by 5."""
    client = OpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key=TOKEN)
    for pair in list(offline)[:3]:
        image = {"url": f"data:image;base64,{base64.b64encode(pair.image).decode()}"}
        asked = f"<image>\nAssign a score from 1 to 5 after 'Final Score:'.\nText Caption: [{pair.prompt}]"
        content = [{"type": "image_url", "image_url": image}, {"type": "text", "text": asked}]
        messages = [{"role": "user", "content": content}]
        reply = client.chat.completions.create(model="UnifiedReward-7b-v1.5", messages=messages, temperature=0)
        found = re.search(r"Final Score:\s*([1-5](?:\.\d+)?)", reply.choices[0].message.content or "")
        assert found and float(found[1]) / 5 == pytest.approx((1 + 4 * offline[pair]["reward"]) / 5, abs=1e-5)


def test_a_videos_reward_is_the_offline_score_or_an_error(service: RunningService) -> None:
    """Videos are sent as MP4 or WebM bytes, by path, or as a list of frames. Truncated files get an error."""
    (reel, text), (orbit, other), (strip, another) = (read_clip(name) for name in ("reel", "orbit", "strip"))
    scorer = open_scorer(METRICS_OPTION, "models=shapes")

    def compute_offline_score(clip: bytes | list[bytes], prompt: str, metric: str = "vqascore") -> float:
        (score,) = scorer.score_table([clip], [prompt], metric).column("score").to_pylist()
        return float(score)

    with requests.Session() as session:
        for clip, prompt in ((reel, text), (orbit, other)):
            (scores,) = request_scores(session, service.url, [Pair(clip, prompt)])
            assert scores["vqascore"] == compute_offline_score(clip, prompt)
    frames = [base64.b64encode(frame).decode() for frame in strip]
    sent = {"prompt": [another], "image": None, "video": [frames]}
    rewards = requests.post(f"{service.url}/compute", json=sent, timeout=60).json()
    parts = {metric: compute_offline_score(strip, another, metric) for metric in ("vqascore", "clipscore")}
    assert rewards == {"rewards": [pytest.approx(combine_scores(parts))]}

    folder = service.log.parent / "videos"
    (folder / "reel.mp4").write_bytes(reel)
    (folder / "cut.mp4").write_bytes(reel[:-200])
    turns = [
        {"video_path": f"{folder}/reel.mp4"},
        {"video_b64": base64.b64encode(reel).decode()},
        {"video_path": f"{folder}/cut.mp4"},
        {"video_b64": base64.b64encode(reel[:2000]).decode()},
        {"video_path": str(service.log)},
    ]
    asked = [{"history": [{"text": text, **turn}], "required_rewards": ["vqascore"]} for turn in turns]
    body = requests.post(f"{service.url}/score", json={"requests": asked}, timeout=60).json()
    scored = {"vqascore": {"score": compute_offline_score(reel, text)}}
    assert body["results"] == [scored, scored, {}, {}, {}]
    reasons = [errors["vqascore"].partition(":")[0] for errors in body["errors"][2:]]
    assert reasons == ["corrupt_video", "corrupt_video", "uri_refused"]


def read_clip(generator: str) -> tuple[Any, str]:
    (row,) = pq.read_table(CLIPS_FOLDER / "images" / generator / "00000.parquet").slice(0, 1).to_pylist()
    texts = pq.read_table(CLIPS_FOLDER / "prompts.parquet").to_pylist()
    return row["image"], next(prompt["text"] for prompt in texts if prompt["prompt_id"] == row["prompt_id"])


def test_a_known_pair_is_scored_before_the_service_is_ready(service: RunningService) -> None:
    known_pair = requests.get(f"{service.url}/health", timeout=60).json()["known_pair"]
    assert {name: scores["ordered"] for name, scores in known_pair.items()} == {
        "vqascore": True,
        "clipscore": True,
        "saturation": None,
        "reward": True,
    }
    log = service.log.read_text()
    assert log.index("known pair: vqascore 0.9998 if the image fits, 0.00") < log.index("serving vqascore")


@pytest.mark.parametrize(
    "wire", ["openai_chat", *(pytest.param(w.name, marks=pytest.mark.slow) for w in WIRES if w.name != "openai_chat")]
)
def test_our_service_passes_every_check_on_every_wire(service: RunningService, wire: str) -> None:
    """The token is part of the address, as trainers send it."""
    words = run_for_output("check_rewards", service.url, f"wire={wire}", "repeats=1")
    assert "no check failed" in words and TOKEN not in words


@pytest.mark.elsewhere
def test_unirls_own_client_gets_rewards_and_marks_failures(
    service: RunningService, offline: dict[Pair, dict[str, float]]
) -> None:
    """The client comes from the released package, which `make trainers` installs."""
    from unirl.reward import remote
    from unirl.types.primitives import Images, Texts
    from unirl.types.reward import RewardRequest

    pairs = list(offline)[:4]
    pictures = [np.asarray(Image.open(io.BytesIO(pair.image)).convert("RGB"), np.float32) / 255 for pair in pairs]
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    names = ("vqascore", "clipscore", "reward")
    spec = remote.RemoteRewardSpec(base_url=service.url, required_rewards=names, image_format="PNG", max_retries=1)
    client = remote.RemoteRewardBackend(config=spec, base_device="cpu")
    assert client.is_available()
    texts = [*(pair.prompt for pair in pairs[:3]), " "]
    request = RewardRequest(generated={"image": Images.from_dense(pixels)}, generation_prompt=Texts(texts=texts))
    answer = client.compute_rewards(request)
    assert answer.successes == [True, True, True, False]
    for name in names:
        expected = [offline[pair][name] for pair in pairs[:3]]
        assert answer.component_rewards[name][:3] == pytest.approx(expected, abs=1e-5)
    assert answer.errors[:3] == [None] * 3 and "vqascore: " in answer.errors[3]


@pytest.mark.elsewhere
def test_unirls_own_client_gets_rewards_for_the_videos_that_it_encodes(service: RunningService) -> None:
    """The client encodes tensors as MP4 files, and the rewards are the scores of these files."""
    from unirl.reward import remote
    from unirl.types.primitives import Texts, Video, Videos
    from unirl.types.reward import RewardRequest

    strip, text = read_clip("strip")
    shown = np.stack([np.asarray(Image.open(io.BytesIO(frame)).convert("RGB"), np.float32) / 255 for frame in strip])
    frames = torch.from_numpy(shown).permute(0, 3, 1, 2)
    spec = remote.RemoteRewardSpec(
        base_url=service.url, required_rewards=("vqascore",), input_kind="video", max_retries=1
    )
    client = remote.RemoteRewardBackend(config=spec, base_device="cpu")
    videos = Videos.from_list([Video(frames=frames), Video(frames=frames.flip(0))])
    request = RewardRequest(generated={"video": videos}, generation_prompt=Texts(texts=[text, " "]))
    answer = client.compute_rewards(request)
    assert request.videos is not None
    sent = base64.b64decode(remote._encode_video_b64(request.videos[0], fps=spec.video_fps))
    (expected,) = (
        open_scorer(METRICS_OPTION, "models=shapes").score_table([sent], [text], "vqascore")["score"].to_pylist()
    )
    assert answer.successes == [True, False]
    assert answer.component_rewards["vqascore"][0] == pytest.approx(expected, abs=1e-5)


def test_the_token_is_required_and_never_exposed(service: RunningService) -> None:
    assert requests.get(f"http://127.0.0.1:{service.port}/metrics", timeout=60).status_code == 401
    assert TOKEN not in service.log.read_text()
    for pid in service.replicas():
        assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_only_known_host_names_and_the_same_origin_are_accepted(service: RunningService) -> None:
    def get_status(**headers: str) -> int:
        return requests.get(f"{service.url}/rewards", headers=headers, timeout=60).status_code

    assert get_status() == get_status(Host="rewards.example.org") == 200
    assert get_status(Host="evil.example") == get_status(Host="[::1]evil.example") == 400
    assert get_status(Origin="http://evil.example") == 403


def fade_image(pair: Pair) -> Pair:
    picture = ImageEnhance.Color(Image.open(io.BytesIO(pair.image)).convert("RGB")).enhance(0.1)
    encoded = io.BytesIO()
    picture.save(encoded, "PNG")
    return Pair(encoded.getvalue(), pair.prompt)


def test_reward_hacking_is_reported_on_the_health_page_and_in_the_log(service: RunningService) -> None:
    """The served images become paler than those of the baseline run, but their rewards do not fall."""
    pairs = [fade_image(pair) for pair in select_first_pairs(2 * IMAGES_PER_COMPARISON - 1)]
    with requests.Session() as session:
        request_scores(session, service.url, pairs)
    assert requests.get(f"{service.url}/health", timeout=60).json()["sentinel"] == ["saturation"]
    (line, *_) = (line for line in service.log.read_text().splitlines() if "may game" in line)
    assert "The generator may game reward: while reward went from " in line and ", saturation fell from " in line


def draw_index(rng: Random, logits: np.ndarray) -> int:
    weights = np.exp(logits - logits.max())
    return rng.choices(range(len(logits)), list(weights / weights.sum()))[0]


def test_ten_steps_of_policy_optimization_increase_the_reward(service: RunningService) -> None:
    """A toy generator learns policies over colours and shapes for each prompt, from groups of 16 images."""
    rng, wanted = Random(0), [("red", "circle"), ("blue", "star"), ("green", "square")]
    policy = {pair: (np.zeros(len(COLOURS)), np.zeros(len(SHAPES))) for pair in wanted}
    means = []
    with requests.Session() as session:
        for step in range(10):
            choices = [
                (pair, draw_index(rng, policy[pair][0]), draw_index(rng, policy[pair][1])) for pair in wanted * 16
            ]
            drawn = [Pair(draw_toy_image(COLOURS[c], SHAPES[s], f"{step}"), f"a {p[0]} {p[1]}") for p, c, s in choices]
            scores = [answer["vqascore"] for answer in request_scores(session, service.url, drawn)]
            rewards = np.array([math.nan if score is None else score for score in scores])
            assert not np.isnan(rewards).any()
            means.append(float(rewards.mean()))
            for pair in wanted:
                update_policy(
                    policy[pair], [(c, s, r) for (p, c, s), r in zip(choices, rewards, strict=True) if p == pair]
                )
    assert np.mean(means[-2:]) > np.mean(means[:2]) + 0.3, means


def draw_toy_image(colour: str, shape: str, seed: str) -> bytes:
    entity = Entity(shape=shape, colour=colour, size="large", part=None, cell=(1, 1))
    return to_png(draw_scene(Scene(entities=(entity,)), seed))


def update_policy(logits: tuple[np.ndarray, np.ndarray], group: list[tuple[int, int, float]]) -> None:
    rewards = np.array([reward for _, _, reward in group])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    for head in (0, 1):
        shares = np.exp(logits[head]) / np.exp(logits[head]).sum()
        for choice, advantage in zip(group, advantages, strict=True):
            logits[head][:] += 0.15 * advantage * (np.eye(len(shares))[int(choice[head])] - shares)


@pytest.mark.slow
def test_no_request_is_lost_if_a_replica_is_killed_under_load(
    service: RunningService, offline: dict[Pair, dict[str, float]]
) -> None:
    """Every client gets exactly one answer, to its own request.

    Whether the replica has a batch when it dies depends on chance; test_replicas.py tests a replica that has one.
    """
    pairs = list(offline)[24:]
    (victim,) = service.replicas()
    with ThreadPoolExecutor(16) as clients:
        futures = [clients.submit(ask_alone, service, pair) for pair in pairs]
        futures[8].result()
        os.kill(victim, signal.SIGKILL)
        answers = [future.result() for future in futures]
    assert len(answers) == len(pairs)
    for pair, answer in zip(pairs, answers, strict=True):
        assert answer == pytest.approx(offline[pair], abs=1e-5)
    assert victim not in service.replicas()


def open_incomplete_requests(port: int) -> list[socket.socket]:
    connections = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(20)]
    for connection in connections[::2]:
        connection.sendall(b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    return connections


@pytest.mark.slow
def test_a_service_that_is_stopped_under_load_answers_all_requests_first(tmp_path: Path) -> None:
    """Requests are answered even after uvicorn's own time limit, and connections without a request are closed."""
    pairs = select_first_pairs(24, ("atlas", "flint"))
    with run_service(tmp_path / "log", "metric=[saturation]", "batch=64", "gather_seconds=14") as service:
        idle = open_incomplete_requests(service.port)
        assert all(connection.recv(1) == b"" for connection in idle)
        open_incomplete_requests(service.port)
        with ThreadPoolExecutor(len(pairs)) as clients:
            futures = [clients.submit(ask_alone, service, pair) for pair in pairs]
            waiting = f"plumbline_waiting_images {len(pairs)}.0"
            while waiting not in requests.get(f"{service.url}/metrics", timeout=60).text:
                assert not any(future.done() for future in futures)
            service.process.send_signal(signal.SIGTERM)
            assert all(isinstance(future.result()["saturation"], float) for future in futures)
        assert service.process.wait(timeout=60) == 143
        log = service.log.read_text()
    assert "Traceback" not in log and log.splitlines()[-1] == "stopped serving", log


def test_a_public_host_without_a_token_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_TOKEN", "")
    assert "PLUMBLINE_TOKEN" in run_refused("serve", "models=shapes", METRICS_OPTION, "host=0.0.0.0")
