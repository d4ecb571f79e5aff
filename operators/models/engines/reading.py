"""Chat models that see as readers of the text in images: the call `ocr`, by way of `generate_from_images`."""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import ImageGenerateModel, ImageRequest, Message, Request
from plumbline.operators.models.model import ResolvedModel

READING = (
    "Write down the text that can be read in the image, line by line and nothing else, and repeat no line. "
    "If there is no text in the image, write: No text recognized"
)
"""In our words what LongText-Bench and OneIG ask Qwen2.5-VL (docs/words-in-pictures.md)."""
READING_TOKENS = 1024
"""As in LongText-Bench."""
NO_TEXT = re.compile(r"no text recogni[sz]ed\.?", re.IGNORECASE)


class ChatReader:
    """A chat model that is told to read; what it says is the text, and nothing where it says that there is none."""

    def __init__(self, model: ImageGenerateModel, instruction: str, max_tokens: int) -> None:
        self.model = model
        self.side_by_side = model.side_by_side
        self.preprocess, self.encode = model.preprocess, model.encode
        self.request = Request((Message("user", instruction),), max_tokens)
        self._of_thread = threading.local()

    @property
    def usage(self) -> Usage:
        """What the readings of this thread have taken."""
        usage: Usage = getattr(self._of_thread, "usage", Usage())
        return usage

    def ocr(self, features: Sequence[Any]) -> list[str | RowError]:
        """The text in each image, or why it was not read."""
        requests = [ImageRequest(image, self.request) for image in range(len(features))]
        replies = self.model.generate_from_images(features, requests)
        for reply in replies:
            if not isinstance(reply, RowError):
                self._of_thread.usage = self.usage.plus(reply.took)
        return [reply if isinstance(reply, RowError) else NO_TEXT.sub("", reply.text).strip() for reply in replies]


def reader(load: Callable[[ResolvedModel[Any]], ImageGenerateModel]) -> Callable[[ResolvedModel[Any]], ChatReader]:
    """What loads a family's chat model as a reader."""
    return lambda model: ChatReader(load(model), model.config.reading, model.config.reading_tokens)


def reading_in_key(config: Any) -> dict[str, Any]:
    """What a model is told to read, and how much, where that is its user's."""
    told = {} if config.reading == READING else {"reading": config.reading}
    return told if config.reading_tokens == READING_TOKENS else {**told, "reading_tokens": config.reading_tokens}
