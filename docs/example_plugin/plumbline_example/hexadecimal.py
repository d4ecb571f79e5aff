"""A wire that takes a prompt and an image in hexadecimal."""

import json
from collections.abc import Sequence
from typing import Any

from plumbline.plugins.reward_server.wires.wire import (
    Answers,
    JsonWire,
    MetricAnswer,
    Reply,
    ScoreRequest,
    Served,
    as_json,
    numbers,
)


class HexadecimalWire(JsonWire):
    """POST /hexadecimal {prompt, hex} -> {reward}."""

    name = "hexadecimal"
    path = "/hexadecimal"
    purpose = "A prompt and an image in hexadecimal; one number."
    images_per_request = 1

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        return [ScoreRequest((bytes.fromhex(document["hex"]),), document["prompt"], served.one())]

    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        return as_json({"reward": numbers(answers, served)[0]})

    def ask(self, asked: Sequence[ScoreRequest]) -> bytes:
        """A client's request, as `plumbline check_rewards URL wire=hexadecimal` sends it."""
        ((request,), (image,)) = asked, asked[0].images
        return json.dumps({"prompt": request.prompt, "hex": image.hex()}).encode()

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        return [dict.fromkeys(request.metrics, MetricAnswer(document["reward"])) for request in asked]
