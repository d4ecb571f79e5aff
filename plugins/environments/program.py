"""The program of a worker: loads one function in an environment's Python, and calls it as worker.py requests.

It imports only user_code.py from Plumbline and, apart from the standard library, only Pillow.
"""

from __future__ import annotations  # the environment's Python may be older than ours

import importlib
import importlib.util
import json
import math
import os
import reprlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plumbline.operators.metrics import user_code
else:
    sys.path.insert(0, sys.argv[1])  # the folder of user_code.py
    import user_code

    del sys.path[0]

MAX_LISTED_FUNCTIONS = 100
"""Maximum number of functions of a module that are listed."""
MAX_TEXT_CHARACTERS = 300
"""Maximum number of characters sent of a docstring, or of a text that a function returned."""


class LoadedFunction:
    """A loaded function, which answers two kinds of requests: to describe the function, and to call it."""

    def __init__(self, name: str, location: str, text: str | None, file: str) -> None:
        self.file = file
        module = importlib.import_module(location) if text is None else user_code.import_text(text, file, "")
        self.function = vars(module).get(name)
        self.functions = user_code.list_functions(module)[:MAX_LISTED_FUNCTIONS]

    def describe(self) -> dict[str, Any]:
        if not callable(self.function):
            return {"functions": self.functions}
        return {
            "declared": getattr(self.function, user_code.DECLARATION_ATTRIBUTE, None),
            "about": user_code.read_first_line(self.function)[:MAX_TEXT_CHARACTERS],
            "other_parameters": user_code.describe_unsupported_parameters(self.function),
        }

    def call(self, images: Sequence[Any], texts: Sequence[str], batches: bool) -> dict[str, Any]:
        assert self.function is not None
        try:
            if batches:
                values = list(self.function(list(images), list(texts)))
            else:
                values = list(map(self.function, images, texts))
            return {"values": [_convert_to_plain(value) for value in values]}
        except (Exception, SystemExit) as error:
            return {"raised": user_code.describe_error(error, self.file)}


def _convert_to_plain(value: Any) -> float | str | None:
    number = user_code.to_float(value)
    if math.isfinite(number) or isinstance(value, float):
        return number
    if isinstance(value, str):
        return value[:MAX_TEXT_CHARACTERS]
    return None if value is None else reprlib.repr(value)


def _declare(
    *, score_range: Any = None, better: str = "higher", batches: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function's scores like plumbline.metric, but leave checking the values to Plumbline's process."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, user_code.DECLARATION_ATTRIBUTE, (score_range, better, bool(batches)))
        return function

    return declare


def _answer_requests() -> None:
    from multiprocessing.connection import Connection

    from PIL import Image

    # Packages print: their output goes to standard error, and the pipes are kept under numbers that nobody else uses.
    requests, replies = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if importlib.util.find_spec("plumbline") is None:  # for the decorator
        stand_in: Any = ModuleType("plumbline")
        stand_in.metric = _declare
        sys.modules["plumbline"] = stand_in
    function: LoadedFunction | None = None
    while True:
        try:
            request = json.loads(requests.recv_bytes())
        except EOFError:
            return
        if function is None:
            try:
                function = LoadedFunction(**request)
                reply = function.describe()
            except (Exception, SystemExit) as error:
                reply = {"raised": user_code.describe_error(error, request["file"])}
        else:
            images = [Image.frombytes("RGB", tuple(size), requests.recv_bytes()) for size in request["sizes"]]
            reply = function.call(images, request["texts"], request["batches"])
        replies.send_bytes(json.dumps(reply, default=repr).encode())


if __name__ == "__main__":
    _answer_requests()
