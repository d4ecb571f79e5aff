"""Flow-Factory's wire: lists of prompts and of base64 images or frames, one reward each.

Source: X-GenGroup/Flow-Factory 696af07, src/flow_factory/rewards/my_reward_remote.py. Its client raises for an `error`
in a reply of 200, and asks three times where the status is another. It sends `condition_images` and
`condition_videos`, which an edit starts from, only to a reward whose `required_fields` name them. In `kwargs` it sends
further columns of a data set, each as a list beside the images. Its own Soft-TIFA reward (geneval2_soft_tifa, of pull
request #180) reads `vqa_list`, or the `vqa_list` of `metadata`, as JSON or as the text of it; so does this wire.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked
from pydantic_core import from_json

from plumbline.operators.wires.wire import (
    SOURCE_IMAGE,
    Answers,
    BadRequest,
    JsonWire,
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
    """Prompts, and for each an image or a video. A sample with a condition gets SOURCE_IMAGE in place of a reward."""

    prompt: list[str]
    image: list[str] | None = None
    video: list[list[str]] | None = None
    """Frames."""
    condition_images: list[Any] | None = None
    condition_videos: list[Any] | None = None
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
        questions = (
            _questions(form.kwargs or {}, len(each)) if served.packed.intersection(metrics) else [None] * len(each)
        )
        error = SOURCE_IMAGE if any([*(form.condition_images or ()), *(form.condition_videos or ())]) else None
        return [
            ScoreRequest(
                tuple(decoded(frame, f"image.{place}") for frame in frames), prompt, metrics, error, questions=listed
            )
            for place, (frames, prompt, listed) in enumerate(zip(each, form.prompt, questions, strict=True))
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
        return json.dumps(form).encode()

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        return told_rewards(document["rewards"], asked)


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
