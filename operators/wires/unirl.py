"""UniRL's wire: requests of histories with base64 images or videos, each with the rewards that it wants.

Source: Tencent-Hunyuan/UniRL 1a7b501, unirl-reward-service/reward_service/schemas.py (the forms) and
unirl/reward/remote.py (the client, which sends a video as a whole MP4, an edit's source as a turn before the result,
and takes a reward that is named in `errors` as a failed sample).
"""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.errors import RowError
from plumbline.operators.wires.wire import (
    SOURCE_IMAGE,
    Answers,
    BadRequest,
    JsonWire,
    Reply,
    ScoreRequest,
    Served,
    as_json,
    decoded,
    read_form,
)

NO_IMAGE = RowError(
    "missing_image", "the history has no turn with image_b64, video_b64 or video_path; send an image or a video"
)


@checked(frozen=True)
class Turn:
    """A text and what was made of it, in one of three forms."""

    text: str
    image_b64: str | None = None
    video_b64: str | None = None
    """A video's file."""
    video_path: str | None = None
    """Where the service finds a video's file, below a folder of its `video_folders`."""

    def media(self) -> list[str]:
        """The forms that are there."""
        return [name for name in ("image_b64", "video_b64", "video_path") if getattr(self, name) is not None]


@checked(frozen=True)
class RewardForm:
    """One sample: the last turn's image or video, for its text. Media beside it are what an edit or an animation starts
    from.
    """

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
    media = [name for turn in request.history for name in turn.media()]
    if not media or not (last := request.history[-1]).media():
        return ScoreRequest((), "", metrics, NO_IMAGE)
    if last.video_b64 is not None and last.video_path is not None:
        raise BadRequest(f"requests.{place}: expected video_b64 or video_path, found both")
    if len(media) > 1:
        return ScoreRequest((), last.text, metrics, SOURCE_IMAGE)
    if last.video_path is not None:
        return ScoreRequest((), last.text, metrics, path=last.video_path)
    encoded = last.image_b64 if last.video_b64 is None else last.video_b64
    return ScoreRequest((decoded(encoded or "", f"requests.{place}"),), last.text, metrics)
