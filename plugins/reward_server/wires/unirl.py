"""UniRL's wire: each request has a history of turns with base64 images or videos, and lists the rewards to compute.

Sources in Tencent-Hunyuan/UniRL 1a7b501:
- unirl-reward-service/reward_service/schemas.py: the forms.
- unirl/reward/remote.py: the client. It sends a video as a complete MP4, and the source of an edit as an earlier turn
  with the same text; a reward that is listed in `errors` marks the sample as failed. Since 0e713d6, it can require each
  sample's ids to be sent back (`require_identity_echo`).
- unirl-reward-service/reward_service/scorers: geneval2.py reads `metadata.vqa_list`; editreward.py uses the image of
  the first turn as the source.
- benchmarks/core/score.py (38572ad): before a benchmark, it sends a question that the image does not match, and rejects
  a server that scores it above 0.5.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import RowError
from plumbline.plugins.reward_server.wires.wire import (
    Answers,
    BadRequest,
    JsonWire,
    MetricAnswer,
    Prompt,
    Reply,
    ScoreRequest,
    Served,
    as_base64,
    decode_base64,
    make_json_reply,
    parse_number,
    read_form,
    require_single_image,
)

NO_IMAGE_ERROR = RowError(
    "missing_image", "the last turn has no image_b64, video_b64 or video_path; send an image or a video"
)


@checked(frozen=True)
class Turn:
    """A turn of the history: a text with an image or a video."""

    text: Prompt
    image_b64: str | None = None
    video_b64: str | None = None
    """A video file, base64-encoded."""
    video_path: str | None = None
    """Path of a video file below one of the service's `video_folders`."""

    def list_media(self) -> list[str]:
        """Return the names of the media fields that are set."""
        return [name for name in ("image_b64", "video_b64", "video_path") if getattr(self, name) is not None]


SCORE_KEY_BY_REWARD = {"geneval2": "vqascore"}
"""Keys that UniRL's own replies use instead of `score`, by reward; UniRL's runner reads them."""
IDENTITY_FIELDS = ("request_id", "sample_id", "group_id", "source_rank", "policy_version", "idempotency_key")


@checked(frozen=True)
class RewardForm:
    """One sample: the image or video in the last turn is scored against the text of that turn.

    The sources are the media in earlier turns, and an image in the last turn if that turn also has a video.
    """

    history: list[Turn]
    required_rewards: list[str]
    metadata: dict[str, Any] | None = None
    """Record from a data set; rewards that score by questions read its `vqa_list`."""
    request_id: str | None = None
    sample_id: str | None = None
    group_id: str | None = None
    source_rank: int | None = None
    policy_version: int | None = None
    idempotency_key: str | None = None


@checked(frozen=True)
class RequestsForm:
    """A request: a batch of samples, each with the rewards to compute for it."""

    requests: list[RewardForm]


REQUESTS_FORM_ADAPTER = TypeAdapter(RequestsForm)


class UniRlWire(JsonWire):
    """Wire for POST /score {requests} -> {results, errors}; a body without `requests` is left to our own wire."""

    name = "unirl"
    path = "/score"
    form = RequestsForm
    purpose = "UniRL's reward service: a body with `requests`."
    rewards_page = "/rewards"

    def accepts(self, document: Any) -> bool:
        return isinstance(document, dict) and "requests" in document

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        return [
            _read_sample(form, served, place)
            for place, form in enumerate(read_form(REQUESTS_FORM_ADAPTER, document).requests)
        ]

    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        results: list[dict[str, dict[str, float]]] = []
        errors: list[dict[str, str]] = []
        for image_answers in answers:
            results.append({})
            errors.append({})
            for name, (score, error) in image_answers.items():
                if score is not None:
                    results[-1][name] = {SCORE_KEY_BY_REWARD.get(name, "score"): served.compute_reward(name, score)}
                if error is not None:
                    errors[-1][name] = f"{error.kind}: {error.message}"
        identities = [_make_identity(request, served) for request in requests]
        return make_json_reply(
            {"results": results, "errors": errors, "identities": identities, "protocol_version": "1"}
        )

    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        forms = [
            {
                "history": [
                    {"text": request.prompt, "image_b64": as_base64(image)}
                    for image in (*request.sources, require_single_image(request, self.name))
                ],
                "required_rewards": list(request.metrics),
                "metadata": request.questions and {"vqa_list": request.questions},
            }
            for request in requests
        ]
        return json.dumps({"requests": forms}).encode()

    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        rows = zip(requests, document["results"], document["errors"] or [{}] * len(requests), strict=True)
        return [
            {name: _parse_answer(name, results, errors) for name in request.metrics}
            for request, results, errors in rows
        ]

    def refuse(self, status: int, message: str) -> Reply:
        return make_json_reply({"detail": message}, status)


def _read_sample(form: RewardForm, served: Served, place: int) -> ScoreRequest:
    metrics = served.resolve_metrics(form.required_rewards)
    last = form.history[-1] if form.history else None
    questions = (form.metadata or {}).get("vqa_list") if served.select_metrics_reading_lists(metrics) else None
    identity = {name: value for name in IDENTITY_FIELDS if (value := getattr(form, name)) is not None} or None
    request = ScoreRequest((), last.text if last else "", metrics, questions=questions, identity=identity)
    if last is None or not last.list_media():
        return request._replace(error=NO_IMAGE_ERROR)
    if last.video_b64 is not None and last.video_path is not None:
        raise BadRequest(f"requests.{place}: expected video_b64 or video_path, found both; send one of them")
    request = request._replace(sources=_decode_sources(form.history, place))
    if last.video_path is not None:
        return request._replace(path=last.video_path)
    encoded = last.image_b64 if last.video_b64 is None else last.video_b64
    return request._replace(images=(decode_base64(encoded or "", f"requests.{place}"),))


def _decode_sources(history: Sequence[Turn], place: int) -> tuple[bytes, ...]:
    """Return the media in earlier turns, except video paths, and the last turn's image if that turn has a video."""
    *earlier, last = history
    sources = [getattr(turn, name) for turn in earlier for name in turn.list_media() if name != "video_path"]
    sources += [last.image_b64] if last.image_b64 is not None and len(last.list_media()) > 1 else []
    return tuple(decode_base64(encoded, f"requests.{place}") for encoded in sources)


def _make_identity(request: ScoreRequest, served: Served) -> dict[str, Any]:
    """Return fields of the reply: the sample's ids, and `scorer_version`.

    For a single reward, with or without its parts, `scorer_version` is the digest of its recipe; otherwise it is None.
    """
    first, others = request.metrics[:1], set(request.metrics[1:])
    version = served.metrics[first[0]] if first and others <= set(served.find_metrics_to_compute(first)) else None
    return {**(request.identity or {}), "scorer_version": version}


def _parse_answer(name: str, results: Mapping[str, Any], errors: Mapping[str, str]) -> MetricAnswer:
    """Return a reward's `score`, or the result's only number if it has no `score`, or the reward's error."""
    if name not in results:
        reason = errors.get(name, "the reply has neither a result nor an error")
        return MetricAnswer(None, RowError("request_refused", reason))
    parts = results[name]
    (number,) = [parts["score"]] if "score" in parts else parts.values()
    return parse_number(number)
