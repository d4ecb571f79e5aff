"""An example wire that accepts a prompt and a hexadecimal image."""

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
    collect_rewards,
    make_json_reply,
)


class HexadecimalWire(JsonWire):
    """Request and reply format of POST /hexadecimal: a request {prompt, hex} gets the reply {reward}."""

    name = "hexadecimal"
    path = "/hexadecimal"
    purpose = "A prompt and an image in hexadecimal; one number."
    images_per_request = 1

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        return [ScoreRequest((bytes.fromhex(document["hex"]),), document["prompt"], served.require_reward())]

    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        return make_json_reply({"reward": collect_rewards(answers, served)[0]})

    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        """Return a request's body as a client would send it; used by `plumbline check_rewards URL wire=hexadecimal`."""
        ((request,), (image,)) = requests, requests[0].images
        return json.dumps({"prompt": request.prompt, "hex": image.hex()}).encode()

    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        return [dict.fromkeys(request.metrics, MetricAnswer(document["reward"])) for request in requests]
