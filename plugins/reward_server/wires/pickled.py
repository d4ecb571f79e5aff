"""The pickle wire of verl-omni, flow_grpo and Edit-R1. Only pickles with allowed opcodes are read.

Sources, and how their clients behave:
- verl-project/verl-omni, docs/start/http_scorer.md and verl_omni/utils/reward_score/http_scorer_client.py: raises an
  error if a reply with status 200 contains `error`, and retries after 408, 429 and 5xx.
- yifan123/flow_grpo, flow_grpo/rewards.py: reads `outputs`; retries after 500, and after 429 and 503 if the
  reply has Retry-After.
- PKU-YuanGroup/Edit-R1 4217f25, flow_grpo/rewards.py (`mllm_score_continue`): sends `ref_images`, one source per image,
  to /mode/logits_non_cot of reward_server/reward_server.py; reads `scores`, and fails if they are missing.
"""

import pickle
from collections.abc import Sequence
from typing import Any

from plumbline.plugins.reward_server.wires.unpickle import unpickle
from plumbline.plugins.reward_server.wires.wire import (
    Answers,
    BadRequest,
    Reply,
    ScoreRequest,
    Served,
    Wire,
    collect_rewards,
    parse_rewards,
    require_image_without_extras,
    require_same_length,
)

PICKLE_MEDIA_TYPE = "application/octet-stream"


class PickledWire(Wire):
    """Wire for POST / with pickled {images, prompts[, ref_images]} -> pickled {scores, outputs}, or {error}."""

    name = "pickled"
    path = "/"
    media = PICKLE_MEDIA_TYPE
    purpose = (
        "verl-omni's and flow_grpo's scorers: a pickle of plain values, one number per image, or an error for all."
    )

    def parse(self, body: bytes, media: str) -> Any:
        return unpickle(body)

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        if not isinstance(document, dict):
            raise BadRequest(f"expected a pickled dict with `images` and `prompts`, found a {type(document).__name__}")
        images, prompts = document.get("images"), document.get("prompts")
        if not isinstance(images, (list, tuple)) or not all(isinstance(image, bytes) for image in images):
            raise BadRequest(
                "images: expected a list of encoded images as bytes; encode each image, for example as PNG"
            )
        if not isinstance(prompts, (list, tuple)):
            raise BadRequest(
                f"prompts: expected a list of strings, one prompt for each image, found a {type(prompts).__name__}"
            )
        require_same_length(len(images), len(prompts))
        sources = document.get("ref_images") or [None] * len(images)
        if not isinstance(sources, (list, tuple)) or not all(isinstance(source, bytes | None) for source in sources):
            raise BadRequest("ref_images: expected a list with an encoded image as bytes, or None, for each image")
        require_same_length(len(images), len(sources), "entry of `ref_images`")
        metrics, rows = served.require_reward(), zip(images, prompts, sources, strict=True)
        return [
            ScoreRequest((image,), prompt, metrics, sources=(source,) if source else ())
            for image, prompt, source in rows
        ]

    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        if (refusal := self.make_missing_score_reply(answers)) is not None:
            return refusal
        scores = collect_rewards(answers, served)
        return _make_reply({"scores": scores, "outputs": scores}, 200)

    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        images = [require_image_without_extras(request._replace(sources=()), self.name) for request in requests]
        form = {"images": images, "prompts": [request.prompt for request in requests], "metadata": {}}
        if any(len(request.sources) > 1 for request in requests):
            raise BadRequest(f"the wire {self.name} cannot carry several sources of an image; choose another wire")
        if any(request.sources for request in requests):
            form["ref_images"] = [request.sources[0] if request.sources else None for request in requests]
        return _make_reply(form, 200).body

    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        return parse_rewards(document["scores"] if "scores" in document else document["outputs"], requests)

    def refuse(self, status: int, message: str) -> Reply:
        return _make_reply({"error": message}, status)


class EditR1Wire(PickledWire):
    """Wire of Edit-R1, with the same pickles as PickledWire at another path."""

    name = "edit_r1"
    path = "/mode/logits_non_cot"
    purpose = "Edit-R1's scorer of edits: the same pickle with `ref_images`, one source for each image."


def _make_reply(value: Any, status: int) -> Reply:
    return Reply(status, pickle.dumps(value, protocol=2), PICKLE_MEDIA_TYPE)  # every Python 3 reads protocol 2
