"""Flow-Factory's wire: lists of prompts and of base64 images or frames, with one reward per image.

Source: X-GenGroup/Flow-Factory 696af07, src/flow_factory/rewards/my_reward_remote.py. Its client raises an error if a
reply with status 200 contains `error`, and makes up to three attempts if the status is any other. It sends the sources
of edits as `condition_images` and `condition_videos`, one list per image (at a0b2bc5, in the same file and in
_compute_pointwise_batch of reward_processor.py). `kwargs` contains further columns of a data set, each a list with one
entry per image. Flow-Factory's own Soft-TIFA reward (geneval2_soft_tifa, pull request #180) reads `vqa_list`, or the
`vqa_list` in `metadata`, as JSON or as a JSON string; so does this wire.
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
    collect_rewards,
    decode_base64,
    make_json_reply,
    parse_rewards,
    read_form,
    require_same_length,
)


@checked(frozen=True)
class ComputeForm:
    """Prompts, each with an image or a video."""

    prompt: list[Prompt]
    image: list[str] | None = None
    video: list[list[str]] | None = None
    """Frames of each video."""
    condition_images: list[list[str]] | None = None
    """Source images of each image."""
    condition_videos: list[list[list[str]]] | None = None
    """Frames of the source videos of each image or video."""
    kwargs: dict[str, Any] | None = None
    """Further columns. If the metric uses questions that are sent with images, `vqa_list` or `metadata` is read."""


COMPUTE_FORM_ADAPTER = TypeAdapter(ComputeForm)


class FlowFactoryWire(JsonWire):
    """Wire for POST /compute {prompt, image | video} -> {rewards}, or {error}."""

    name = "flow_factory"
    path = "/compute"
    form = ComputeForm
    purpose = "Flow-Factory's remote reward: one number per image, or an error for all."

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        form = read_form(COMPUTE_FORM_ADAPTER, document)
        if bool(form.image) == bool(form.video):
            raise BadRequest("expected either `image` or `video`, found both or neither; send one of them")
        images = [[image] for image in form.image] if form.image else form.video or []
        count = len(images)
        require_same_length(count, len(form.prompt))
        metrics = served.require_reward()
        questions = (
            _list_questions(form.kwargs or {}, count)
            if served.select_metrics_reading_lists(metrics)
            else [None] * count
        )
        rows = zip(images, form.prompt, questions, _list_sources(form, count), strict=True)
        return [
            ScoreRequest(
                tuple(decode_base64(frame, f"image.{place}") for frame in frames),
                prompt,
                metrics,
                questions=vqa_list,
                sources=tuple(decode_base64(source, f"condition_images.{place}") for source in sources),
            )
            for place, (frames, prompt, vqa_list, sources) in enumerate(rows)
        ]

    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        return self.make_missing_score_reply(answers) or make_json_reply({"rewards": collect_rewards(answers, served)})

    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        frames = [[as_base64(image) for image in request.images] for request in requests]
        no_video = all(len(images) == 1 for images in frames)
        form: dict[str, Any] = {"image": [image for (image,) in frames]} if no_video else {"video": frames}
        form["prompt"] = [request.prompt for request in requests]
        if any(request.questions is not None for request in requests):
            form["kwargs"] = {"vqa_list": [request.questions for request in requests]}
        if any(request.sources for request in requests):
            form["condition_images"] = [[as_base64(source) for source in request.sources] for request in requests]
        return json.dumps(form).encode()

    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        return parse_rewards(document["rewards"], requests)


def _list_sources(form: ComputeForm, images: int) -> list[list[str]]:
    """Return the sources of each image: source images, and frames of source videos."""
    stills = form.condition_images or [[]] * images
    videos = form.condition_videos or [[]] * images
    require_same_length(images, len(stills), "entry of `condition_images`")
    require_same_length(images, len(videos), "entry of `condition_videos`")
    return [[*own, *chain(*clips)] for own, clips in zip(stills, videos, strict=True)]


def _list_questions(columns: Mapping[str, Any], images: int) -> list[Any]:
    """Return the list of questions for each image; the entry is None for an image without questions."""
    name = next((name for name in ("vqa_list", "metadata") if columns.get(name) is not None), None)
    if name is None:
        return [None] * images
    column = columns[name] if isinstance(columns[name], list) else []
    require_same_length(images, len(column), f"entry of `kwargs.{name}`")
    return column if name == "vqa_list" else [_read_vqa_list(entry, place) for place, entry in enumerate(column)]


def _read_vqa_list(metadata: Any, place: int) -> Any:
    try:
        record = from_json(metadata) if isinstance(metadata, str) else metadata or {}
        return record.get("vqa_list")
    except (ValueError, AttributeError) as error:
        raise BadRequest(
            f"kwargs.metadata.{place}: expected a JSON object, or a string of JSON; correct the metadata"
        ) from error
