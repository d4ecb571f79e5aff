"""Our own wire: images or videos and prompts in JSON or parts, every metric's score or the reason for having none."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.questions.question_list import require_asker
from plumbline.operators.stages.graph import require_comparison
from plumbline.plugins.reward_server.wires.wire import (
    Answers,
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
    require_alike,
    told_number,
)


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class ScoreForm:
    """Images and prompts of one length, and the metrics that are wanted; all that are served by default."""

    images: list[str | bytes | list[str | bytes]]
    """Each in base64, as bytes in multipart parts of this name: an image, or a video's file (MP4, MOV, WebM, Matroska,
    AVI); or as a list of a video's frames."""
    prompts: list[Prompt]
    metrics: list[str] | None = None
    questions: list[Any] | None = None
    """For each image the list of questions to score it by, or null (operators/metrics/questions/question_list.py)."""
    sources: list[str | bytes | list[str | bytes] | None] | None = None
    """Beside every image the one that it was edited from, or a list of several; null or nothing where there is none."""


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
    parts = ("images", "sources")
    reply_form = ScoreReply
    purpose = "Scores of images or videos for the prompts beside them."
    roster = "/rewards"
    gives_rewards = False

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        form = read_form(FORM, document)
        require_alike(len(form.images), len(form.prompts))
        metrics = served.wanted(form.metrics)
        questions = form.questions or [None] * len(form.images)
        sources = form.sources or [None] * len(form.images)
        if form.questions is not None:
            require_alike(len(form.images), len(form.questions), "entry of `questions`")
            require_asker(metrics, served.taking_questions(metrics))
        if form.sources is not None:
            require_alike(len(form.images), len(form.sources), "entry of `sources`")
            require_comparison(metrics, served.needing("sources", metrics))
        return [
            ScoreRequest(
                _each(image, f"images.{place}"),
                prompt,
                metrics,
                questions=listed,
                sources=_each(source, f"sources.{place}"),
            )
            for place, (image, prompt, listed, source) in enumerate(
                zip(form.images, form.prompts, questions, sources, strict=True)
            )
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
        if any(request.sources for request in asked):
            form["sources"] = [[as_base64(source) for source in request.sources] for request in asked]
        return json.dumps(form).encode()

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        rows = zip(asked, document["scores"], document["errors"], strict=True)
        return [{name: _told(scores[name], errors.get(name)) for name in one.metrics} for one, scores, errors in rows]


def _each(shown: str | bytes | list[str | bytes] | None, where: str) -> tuple[bytes, ...]:
    """The bytes of an image, of each of several, or none."""
    each = shown if isinstance(shown, list) else [] if shown is None else [shown]
    return tuple(decoded(image, where) for image in each)


def _told(score: Any, error: Any) -> MetricAnswer:
    return MetricAnswer(None, RowError(**error)) if score is None else told_number(score)
