"""Flow-Factory's wire: lists of prompts and of base64 images or frames, one reward each.

Source: X-GenGroup/Flow-Factory 696af07, src/flow_factory/rewards/my_reward_remote.py. Its client raises for an `error`
in a reply of 200, and asks three times where the status is another. It sends what an edit starts from as
`condition_images` and `condition_videos`, a list beside every image, where its samples have them (a0b2bc5, the same
file, and _compute_pointwise_batch in reward_processor.py). In `kwargs` it sends further columns of a data set, each as
a list beside the images. Its own Soft-TIFA reward (geneval2_soft_tifa, of pull request #180) reads `vqa_list`, or the
`vqa_list` of `metadata`, as JSON or as the text of it; so does this wire.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked
from pydantic_core import from_json

from plumbline.plugins.reward_server.wires.wire import (
    Answers,
    BadRequest,
    JsonWire,
    Prompt,
    Reply,
    ScoreRequest,
    Served,
    as_base64,
    as_json,
    decoded,
    numbers,
    read_form,
    require_alike,
    told_rewards,
)


@checked(frozen=True)
class ComputeForm:
    """Prompts, and for each an image or a video."""

    prompt: list[Prompt]
    image: list[str] | None = None
    video: list[list[str]] | None = None
    """Frames."""
    condition_images: list[list[str]] | None = None
    """Beside every image, those that it was edited from."""
    condition_videos: list[list[list[str]]] | None = None
    """Beside every video, the frames of those that it was edited from."""
    kwargs: dict[str, Any] | None = None
    """Further columns; `vqa_list` and `metadata` are read if the metric scores by questions that come with images."""


FORM = TypeAdapter(ComputeForm)


class FlowFactoryWire(JsonWire):
    """POST /compute {prompt, image | video} -> {rewards}, or {error}."""

    name = "flow_factory"
    path = "/compute"
    form = ComputeForm
    purpose = "Flow-Factory's remote reward: one number per image, or an error for all."

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        form = read_form(FORM, document)
        if bool(form.image) == bool(form.video):
            raise BadRequest("expected either `image` or `video`, found both or neither")
        each = [[image] for image in form.image] if form.image else form.video or []
        require_alike(len(each), len(form.prompt))
        metrics = served.one()
        questions = _questions(form.kwargs or {}, len(each)) if served.taking_questions(metrics) else [None] * len(each)
        rows = zip(each, form.prompt, questions, _conditions(form, len(each)), strict=True)
        return [
            ScoreRequest(
                tuple(decoded(frame, f"image.{place}") for frame in frames),
                prompt,
                metrics,
                questions=listed,
                sources=tuple(decoded(source, f"condition_images.{place}") for source in sources),
            )
            for place, (frames, prompt, listed, sources) in enumerate(rows)
        ]

    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        return self.refusal(answers) or as_json({"rewards": numbers(answers, served)})

    def ask(self, asked: Sequence[ScoreRequest]) -> bytes:
        frames = [[as_base64(image) for image in request.images] for request in asked]
        alone = all(len(of_request) == 1 for of_request in frames)
        shown: dict[str, Any] = {"image": [image for (image,) in frames]} if alone else {"video": frames}
        form = {"prompt": [request.prompt for request in asked], **shown}
        if any(request.questions is not None for request in asked):
            form["kwargs"] = {"vqa_list": [request.questions for request in asked]}
        if any(request.sources for request in asked):
            form["condition_images"] = [[as_base64(source) for source in request.sources] for request in asked]
        return json.dumps(form).encode()

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        return told_rewards(document["rewards"], asked)


def _conditions(form: ComputeForm, images: int) -> list[list[str]]:
    """Beside every image all that it was edited from: images, and the frames of videos."""
    pictures = form.condition_images or [[] for _ in range(images)]
    videos = form.condition_videos or [[] for _ in range(images)]
    require_alike(images, len(pictures), "entry of `condition_images`")
    require_alike(images, len(videos), "entry of `condition_videos`")
    return [[*shown, *chain(*films)] for shown, films in zip(pictures, videos, strict=True)]


def _questions(columns: Mapping[str, Any], images: int) -> list[Any]:
    """The list of questions beside every image, or None."""
    name = next((name for name in ("vqa_list", "metadata") if columns.get(name) is not None), None)
    if name is None:
        return [None] * images
    column = columns[name] if isinstance(columns[name], list) else []
    require_alike(images, len(column), f"entry of `kwargs.{name}`")
    return column if name == "vqa_list" else [_vqa_list(entry, place) for place, entry in enumerate(column)]


def _vqa_list(metadata: Any, place: int) -> Any:
    try:
        record = from_json(metadata) if isinstance(metadata, str) else metadata or {}
        return record.get("vqa_list")
    except (ValueError, AttributeError) as error:
        raise BadRequest(f"kwargs.metadata.{place}: expected an object, or the JSON of one") from error
