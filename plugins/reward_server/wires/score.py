"""Our own wire: images or videos with prompts, as JSON or multipart. A null score is returned with its reason."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.questions.question_list import require_question_metric
from plumbline.operators.stages.graph import require_source_metric
from plumbline.plugins.reward_server.wires.wire import (
    Answers,
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
    require_same_length,
)


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class ScoreForm:
    """Images, a prompt for each, and the requested metrics (all by default)."""

    images: list[str | bytes | list[str | bytes]]
    """For each prompt, an image, a video file (MP4, MOV, WebM, Matroska, AVI) or a list of a video's frames; in base64,
    or as bytes in multipart parts.
    """
    prompts: list[Prompt]
    metrics: list[str] | None = None
    questions: list[Any] | None = None
    """For each image, a list of questions or null (operators/metrics/questions/question_list.py describes the formats).
    """
    sources: list[str | bytes | list[str | bytes] | None] | None = None
    """For each image, the image that it was edited from, a list of such images, or null."""


@dataclass(frozen=True)
class ScoreReply:
    """Scores with one entry per image; for each null score, `errors` contains the reason."""

    scores: list[dict[str, float | None]]
    errors: list[dict[str, dict[str, Any]]]
    """Errors by metric, with `kind`, `message` and `retryable`, which is true if the same request may succeed later."""
    recipes: dict[str, str]
    """Digests, by metric, of everything that affects the metric's score except the image and the prompt."""


SCORE_FORM_ADAPTER = TypeAdapter(ScoreForm)


class ScoreWire(JsonWire):
    """Wire for POST /score {images, prompts, metrics, questions, sources} -> {scores, errors, recipes}."""

    name = "score"
    path = "/score"
    form = ScoreForm
    parts = ("images", "sources")
    reply_form = ScoreReply
    purpose = "Scores of images or videos, each with its prompt."
    rewards_page = "/rewards"
    gives_rewards = False

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        form = read_form(SCORE_FORM_ADAPTER, document)
        count = len(form.images)
        require_same_length(count, len(form.prompts))
        metrics = served.resolve_metrics(form.metrics)
        if form.questions is not None:
            require_same_length(count, len(form.questions), "entry of `questions`")
            require_question_metric(metrics, served.select_metrics_reading_lists(metrics))
        if form.sources is not None:
            require_same_length(count, len(form.sources), "entry of `sources`")
            require_source_metric(metrics, served.select_metrics_needing("sources", metrics))
        questions, sources = form.questions or [None] * count, form.sources or [None] * count
        rows = zip(form.images, form.prompts, questions, sources, strict=True)
        return [
            ScoreRequest(
                _decode_all(image, f"images.{place}"),
                prompt,
                metrics,
                questions=image_questions,
                sources=_decode_all(source, f"sources.{place}"),
            )
            for place, (image, prompt, image_questions, source) in enumerate(rows)
        ]

    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        requested = {name for request in requests for name in request.metrics}
        return make_json_reply(
            {
                "scores": [{name: answer.score for name, answer in image.items()} for image in answers],
                "errors": [
                    {name: answer.error._asdict() for name, answer in image.items() if answer.error}
                    for image in answers
                ],
                "recipes": {name: recipe for name, recipe in served.metrics.items() if name in requested},
            }
        )

    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        encoded = [[as_base64(image) for image in request.images] for request in requests]
        form: dict[str, Any] = {
            "images": [frames if len(frames) > 1 else frames[0] for frames in encoded],
            "prompts": [request.prompt for request in requests],
            "metrics": list(dict.fromkeys(name for request in requests for name in request.metrics)),
        }
        if any(request.questions is not None for request in requests):
            form["questions"] = [request.questions for request in requests]
        if any(request.sources for request in requests):
            form["sources"] = [[as_base64(source) for source in request.sources] for request in requests]
        return json.dumps(form).encode()

    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        rows = zip(requests, document["scores"], document["errors"], strict=True)
        return [
            {name: _parse_answer(scores[name], errors.get(name)) for name in request.metrics}
            for request, scores, errors in rows
        ]


def _parse_answer(score: Any, error: Any) -> MetricAnswer:
    return MetricAnswer(None, RowError(**error)) if score is None else parse_number(score)


def _decode_all(images: str | bytes | list[str | bytes] | None, where: str) -> tuple[bytes, ...]:
    encoded = images if isinstance(images, list) else [] if images is None else [images]
    return tuple(decode_base64(image, where) for image in encoded)
