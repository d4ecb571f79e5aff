"""A wire that takes a prompt and an image in hexadecimal."""

from collections.abc import Sequence
from typing import Any

from plumbline.extending import Answers, JsonWire, Reply, ScoreRequest, Served, as_json, numbers


class HexadecimalWire(JsonWire):
    """POST /hexadecimal {prompt, hex} -> {reward}."""

    name = "hexadecimal"
    path = "/hexadecimal"
    purpose = "A prompt and an image in hexadecimal; one number."

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        return [ScoreRequest((bytes.fromhex(document["hex"]),), document["prompt"], served.one())]

    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        return as_json({"reward": numbers(answers, served)[0]})
