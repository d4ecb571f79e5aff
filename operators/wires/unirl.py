"""UniRL's wire: requests of histories with base64 images, each with the rewards that it wants.

Source: Tencent-Hunyuan/UniRL, unirl-reward-service/reward_service/schemas.py (the forms) and unirl/reward/remote.py
(the client, which takes a reward that is named in `errors` as a failed sample).
"""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.errors import RowError
from plumbline.operators.wires.wire import Answers, JsonWire, Reply, ScoreRequest, Served, as_json, decoded, read_form

NO_IMAGE = RowError(
    "missing_image",
    "the last turn of the history has no image_b64; encoded videos and paths are not read: send an image",
)


@checked(frozen=True)
class Turn:
    """A text and the image that was made of it; `video_b64` and `video_path` are not read."""

    text: str
    image_b64: str | None = None


@checked(frozen=True)
class RewardForm:
    """One sample: the image of the last turn is scored for its text; those before are what an edit starts from."""

    history: list[Turn]
    required_rewards: list[str]
    metadata: dict[str, Any] | None = None


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
                "results": [{name: {"score": reward} for name, reward in one.items()} for one in scored],
                "errors": [{name: f"{error.kind}: {error.message}" for name, error in one.items()} for one in failed],
            }
        )

    def refuse(self, status: int, message: str) -> Reply:
        return as_json({"detail": message}, status)


def _asked(request: RewardForm, served: Served, place: int) -> ScoreRequest:
    metrics = served.wanted(request.required_rewards)
    if not request.history or request.history[-1].image_b64 is None:
        return ScoreRequest((), "", metrics, NO_IMAGE)
    last = request.history[-1]
    return ScoreRequest((decoded(last.image_b64 or "", f"requests.{place}"),), last.text, metrics)
