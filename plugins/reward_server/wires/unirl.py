"""UniRL's wire: requests of histories with base64 images or videos, each with the rewards that it wants.

Source: Tencent-Hunyuan/UniRL 1a7b501, unirl-reward-service/reward_service/schemas.py (the forms) and
unirl/reward/remote.py (the client, which sends a video as a whole MP4, an edit's source as a turn before the result
with the same text, and takes a reward that is named in `errors` as a failed sample; of 0e713d6, with
`require_identity_echo` it wants back what it knows each sample by); unirl-reward-service/reward_service/scorers,
geneval2.py (`metadata.vqa_list`) and editreward.py (the first turn's image is the source); of 38572ad,
benchmarks/core/score.py (the runner, which asks a question that is false of its picture, and refuses a server that
answers above 0.5).
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
    as_json,
    decoded,
    read_form,
    single_image,
    told_number,
)

NO_IMAGE = RowError(
    "missing_image", "the history has no turn with image_b64, video_b64 or video_path; send an image or a video"
)


@checked(frozen=True)
class Turn:
    """A text and what was made of it, in one of three forms."""

    text: Prompt
    image_b64: str | None = None
    video_b64: str | None = None
    """A video's file."""
    video_path: str | None = None
    """Where the service finds a video's file, below a folder of its `video_folders`."""

    def media(self) -> list[str]:
        """The forms that are there."""
        return [name for name in ("image_b64", "video_b64", "video_path") if getattr(self, name) is not None]


SUB_METRICS = {"geneval2": "vqascore"}
"""What a reward's number is called where UniRL's own server calls it otherwise, and its runner looks for that."""
IDENTITY = ("request_id", "sample_id", "group_id", "source_rank", "policy_version", "idempotency_key")


@checked(frozen=True)
class RewardForm:
    """One sample: the last turn's image or video, for its text. Images and videos before it, and an image beside its
    video, are its sources: what an edit or an animation starts from.
    """

    history: list[Turn]
    required_rewards: list[str]
    metadata: dict[str, Any] | None = None
    """The record of a data set. Rewards that score by questions read its `vqa_list`, others nothing."""
    request_id: str | None = None
    sample_id: str | None = None
    group_id: str | None = None
    source_rank: int | None = None
    policy_version: int | None = None
    idempotency_key: str | None = None


@checked(frozen=True)
class RequestsForm:
    """A batch of samples."""

    requests: list[RewardForm]


FORM = TypeAdapter(RequestsForm)


class UniRlWire(JsonWire):
    """POST /score {requests} -> {results, errors}; a body with `requests` is of this wire, any other of our own."""

    name = "unirl"
    path = "/score"
    form = RequestsForm
    purpose = "UniRL's reward service: a body with `requests`."
    roster = "/rewards"

    def takes(self, document: Any) -> bool:
        return isinstance(document, dict) and "requests" in document

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        return [_asked(request, served, place) for place, request in enumerate(read_form(FORM, document).requests)]

    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        scored = [
            {name: served.reward_of(name, answer.score) for name, answer in one.items() if answer.score is not None}
            for one in answers
        ]
        failed = [{name: answer.error for name, answer in one.items() if answer.error is not None} for one in answers]
        return as_json(
            {
                "results": [
                    {name: {SUB_METRICS.get(name, "score"): reward} for name, reward in one.items()} for one in scored
                ],
                "errors": [{name: f"{error.kind}: {error.message}" for name, error in one.items()} for one in failed],
                "identities": [_identity(one, served) for one in asked],
                "protocol_version": "1",
            }
        )

    def ask(self, asked: Sequence[ScoreRequest]) -> bytes:
        shown = [[*one.sources, single_image(one, self.name)] for one in asked]
        forms = [
            {
                "history": [{"text": one.prompt, "image_b64": as_base64(image)} for image in images],
                "required_rewards": list(one.metrics),
                "metadata": one.questions and {"vqa_list": one.questions},
            }
            for images, one in zip(shown, asked, strict=True)
        ]
        return json.dumps({"requests": forms}).encode()

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        rows = zip(asked, document["results"], document["errors"] or [{}] * len(asked), strict=True)
        return [{name: _told(name, results, errors) for name in one.metrics} for one, results, errors in rows]

    def refuse(self, status: int, message: str) -> Reply:
        return as_json({"detail": message}, status)


def _asked(request: RewardForm, served: Served, place: int) -> ScoreRequest:
    metrics = served.wanted(request.required_rewards)
    last = request.history[-1] if request.history else None
    questions = (request.metadata or {}).get("vqa_list") if served.taking_questions(metrics) else None
    identity = {name: value for name in IDENTITY if (value := getattr(request, name)) is not None} or None
    asked = ScoreRequest((), last.text if last else "", metrics, questions=questions, identity=identity)
    if last is None or not last.media():
        return asked._replace(error=NO_IMAGE)
    if last.video_b64 is not None and last.video_path is not None:
        raise BadRequest(f"requests.{place}: expected video_b64 or video_path, found both")
    asked = asked._replace(sources=_sources(request.history, place))
    if last.video_path is not None:
        return asked._replace(path=last.video_path)
    encoded = last.image_b64 if last.video_b64 is None else last.video_b64
    return asked._replace(images=(decoded(encoded or "", f"requests.{place}"),))


def _sources(history: Sequence[Turn], place: int) -> tuple[bytes, ...]:
    """What an edit or an animation starts from; of a video at a path on an earlier turn nothing is read."""
    *earlier, last = history
    media = [getattr(turn, name) for turn in earlier for name in turn.media() if name != "video_path"]
    beside = [last.image_b64] if last.image_b64 is not None and len(last.media()) > 1 else []
    return tuple(decoded(encoded, f"requests.{place}") for encoded in [*media, *beside])


def _identity(asked: ScoreRequest, served: Served) -> dict[str, Any]:
    """What the client knows a sample by, and the recipe of its reward where it is one, whose parts may be beside it:
    `expected_scorer_version`.
    """
    first, others = asked.metrics[:1], set(asked.metrics[1:])
    version = served.metrics[first[0]] if first and others <= set(served.measured(first)) else None
    return {**(asked.identity or {}), "scorer_version": version}


def _told(name: str, results: Mapping[str, Any], errors: Mapping[str, str]) -> MetricAnswer:
    """A reward's `score`, or its only number under another name."""
    if name not in results:
        return MetricAnswer(
            None, RowError("request_refused", errors.get(name, "the reply has neither a result nor an error"))
        )
    parts = results[name]
    (number,) = [parts["score"]] if "score" in parts else parts.values()
    return told_number(number)
