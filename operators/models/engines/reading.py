"""Lets chat models read the text in images: serves the call `ocr` through `generate_from_images`."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from plumbline.operators.base.errors import RowError
from plumbline.operators.models.calls import ImageGenerateModel, ImageRequest, Message, Request, ThreadUsageCounter
from plumbline.operators.models.model import ResolvedModel

DEFAULT_READING_INSTRUCTION = (
    "Write down the text that can be read in the image, line by line and nothing else, and repeat no line. "
    "If there is no text in the image, write: No text recognized"
)
"""Our wording of the instruction that LongText-Bench and OneIG give to Qwen2.5-VL (plugins/words_in_images/README.md).
"""
DEFAULT_READING_TOKENS = 1024
"""Maximum length, in tokens, of the text in an image, as in LongText-Bench."""
NO_TEXT_PATTERN = re.compile(r"no text recogni[sz]ed\.?", re.IGNORECASE)


class ChatReader(ThreadUsageCounter):
    """A chat model that is asked to read the text in an image. A reply such as "No text recognized" becomes empty."""

    def __init__(self, model: ImageGenerateModel, instruction: str, max_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.side_by_side = model.side_by_side
        self.preprocess, self.encode = model.preprocess, model.encode
        self.request = Request((Message("user", instruction),), max_tokens)

    def ocr(self, features: Sequence[Any]) -> list[str | RowError]:
        requests = [ImageRequest(image, self.request) for image in range(len(features))]
        replies = self.model.generate_from_images(features, requests)
        for reply in replies:
            if not isinstance(reply, RowError):
                self.add_usage(reply.usage_with_cut)
        return [
            reply if isinstance(reply, RowError) else NO_TEXT_PATTERN.sub("", reply.text).strip() for reply in replies
        ]


def make_reader(load: Callable[[ResolvedModel[Any]], ImageGenerateModel]) -> Callable[[ResolvedModel[Any]], ChatReader]:
    """Return a function that loads the same chat model as `load`, as a ChatReader."""
    return lambda model: ChatReader(load(model), model.config.reading, model.config.reading_tokens)


def select_reading_key_options(config: Any) -> dict[str, Any]:
    """Return a mapping of the reading options that differ from the defaults, for use in cell keys."""
    own = {} if config.reading == DEFAULT_READING_INSTRUCTION else {"reading": config.reading}
    return own if config.reading_tokens == DEFAULT_READING_TOKENS else {**own, "reading_tokens": config.reading_tokens}
