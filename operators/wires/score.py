"""Our own wire: images or videos and prompts in JSON or parts, every metric's score or the reason for having none."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.errors import RowError
from plumbline.operators.metrics.question_list import require_asker
from plumbline.operators.wires.wire import (
    Answers,
    JsonWire,
    MetricAnswer,
    Reply,
    ScoreRequest,
    Served,
    as_base64,
    as_json,
    decoded,
    read_form,
    require_alike,
    told_number,
)


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class ScoreForm:
    """Images and prompts of one length, and the metrics that are wanted; all that are served by default."""

    images: list[str | bytes | list[str]]
    """Each in base64, as bytes in multipart parts of this name: an image, or a video's file (MP4, MOV, WebM, Matroska,
    AVI); or as a list of a video's frames in base64."""
    prompts: list[str]
    metrics: list[str] | None = None
    questions: list[Any] | None = None
    """Beside every image the list of questions to score it by (operators/metrics/question_list.py), or null."""


@dataclass(frozen=True)
class ScoreReply:
    """One entry per image; a score is null exactly where `errors` has its reason."""

    scores: list[dict[str, float | None]]
    errors: list[dict[str, dict[str, Any]]]
    """By metric: `kind`, `message`, and `retryable`, which tells that the same request may succeed another time."""
    recipes: dict[str, str]
    """By metric, the digest of all that decides its score but for image and prompt."""


FORM = TypeAdapter(ScoreForm)


class ScoreWire(JsonWire):
    """POST /score {images, prompts, metrics} -> {scores, errors, recipes}."""

    name = "score"
    path = "/score"
    form = ScoreForm
    parts = ("images",)
    reply_form = ScoreReply
    purpose = "Scores of images or videos for the prompts beside them."
    roster = "/rewards"
    gives_rewards = False

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        form = read_form(FORM, document)
        require_alike(len(form.images), len(form.prompts))
        metrics = served.wanted(form.metrics)
        each = [image if isinstance(image, list) else [image] for image in form.images]
        questions = form.questions or [None] * len(form.images)
        if form.questions is not None:
            require_alike(len(form.images), len(form.questions), "entry of `questions`")
            require_asker(metrics, served.packed.intersection(metrics))
        return [
            ScoreRequest(
                tuple(decoded(frame, f"images.{place}") for frame in frames), prompt, metrics, questions=listed
            )
            for place, (frames, prompt, listed) in enumerate(zip(each, form.prompts, questions, strict=True))
        ]

    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        wanted = [name for name in served.metrics if any(name in one.metrics for one in asked)]
        return as_json(
            {
                "scores": [{name: answer.score for name, answer in one.items()} for one in answers],
                "errors": [
                    {name: answer.error._asdict() for name, answer in one.items() if answer.error} for one in answers
                ],
                "recipes": {name: served.metrics[name] for name in wanted},
            }
        )

    def ask(self, asked: Sequence[ScoreRequest]) -> bytes:
        frames = [[as_base64(image) for image in request.images] for request in asked]
        form: dict[str, Any] = {
            "images": [shown if len(shown) > 1 else shown[0] for shown in frames],
            "prompts": [request.prompt for request in asked],
            "metrics": list(dict.fromkeys(name for request in asked for name in request.metrics)),
        }
        if any(request.questions is not None for request in asked):
            form["questions"] = [request.questions for request in asked]
        return json.dumps(form).encode()

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        rows = zip(asked, document["scores"], document["errors"], strict=True)
        return [{name: _told(scores[name], errors.get(name)) for name in one.metrics} for one, scores, errors in rows]


def _told(score: Any, error: Any) -> MetricAnswer:
    return MetricAnswer(None, RowError(**error)) if score is None else told_number(score)
