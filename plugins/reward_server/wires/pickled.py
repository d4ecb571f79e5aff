"""The pickle wire of verl-omni and flow_grpo, read by an allow-list of opcodes.

Sources: verl-project/verl-omni, docs/start/http_scorer.md and verl_omni/utils/reward_score/http_scorer_client.py, which
raises for an `error` of a reply of 200 and asks again after 408, 429 and 5xx; yifan123/flow_grpo, flow_grpo/rewards.py,
which reads `outputs` and asks again after 500, and after 429 and 503 with Retry-After; PKU-YuanGroup/Edit-R1 4217f25,
flow_grpo/rewards.py (`mllm_score_continue`), whose edits bring what they start from as `ref_images`, one beside every
image, to /mode/logits_non_cot of reward_server/reward_server.py; it reads `scores`, asks again after 500, and after 429
and 503 with Retry-After, and stops at a reply without `scores`.
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
    image_alone,
    numbers,
    require_alike,
    told_rewards,
)

OCTETS = "application/octet-stream"


class PickledWire(Wire):
    """POST / with pickled {images, prompts} -> pickled {scores, outputs}, or {error}."""

    name = "pickled"
    path = "/"
    media = OCTETS
    purpose = (
        "verl-omni's and flow_grpo's scorers: a pickle of plain values, one number per image, or an error for all."
    )

    def parse(self, body: bytes, media: str) -> Any:
        return unpickle(body)

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        if not isinstance(document, dict):
            raise BadRequest("expected a pickled dict with `images` and `prompts`")
        images, prompts = document.get("images"), document.get("prompts")
        if not isinstance(images, (list, tuple)) or not all(isinstance(image, bytes) for image in images):
            raise BadRequest("images: expected a list of encoded images as bytes")
        if not isinstance(prompts, (list, tuple)):
            raise BadRequest("prompts: expected a list of text; what is measured here is how images fit their prompts")
        require_alike(len(images), len(prompts))
        sources = document.get("ref_images") or [None] * len(images)
        if not isinstance(sources, (list, tuple)) or not all(isinstance(source, bytes | None) for source in sources):
            raise BadRequest("ref_images: expected a list of encoded images as bytes, or None where there is no source")
        require_alike(len(images), len(sources), "entry of `ref_images`")
        metrics, rows = served.one(), zip(images, prompts, sources, strict=True)
        return [
            ScoreRequest((image,), prompt, metrics, sources=(source,) if source else ())
            for image, prompt, source in rows
        ]

    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        failed = self.refusal(answers)
        if failed is not None:
            return failed
        scores = numbers(answers, served)
        return _pickled({"scores": scores, "outputs": scores}, 200)

    def ask(self, asked: Sequence[ScoreRequest]) -> bytes:
        images = [image_alone(request._replace(sources=()), self.name) for request in asked]
        form = {"images": images, "prompts": [request.prompt for request in asked], "metadata": {}}
        if any(request.sources for request in asked):
            form["ref_images"] = [_one_source(request, self.name) for request in asked]
        return _pickled(form, 200).body

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        return told_rewards(document["scores"] if "scores" in document else document["outputs"], asked)

    def refuse(self, status: int, message: str) -> Reply:
        return _pickled({"error": message}, status)


class EditR1Wire(PickledWire):
    """The same at the address at which Edit-R1 asks for rewards of edits."""

    name = "edit_r1"
    path = "/mode/logits_non_cot"
    purpose = "Edit-R1's scorer of edits: the same pickle with `ref_images`, one beside every image."


def _one_source(request: ScoreRequest, wire: str) -> bytes | None:
    if len(request.sources) > 1:
        raise BadRequest(f"the wire {wire} has no place for {len(request.sources)} sources")
    return request.sources[0] if request.sources else None


def _pickled(value: Any, status: int) -> Reply:
    """A reply of plain values, in a protocol that every Python 3 reads."""
    return Reply(status, pickle.dumps(value, protocol=2), OCTETS)
