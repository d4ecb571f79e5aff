"""The chat endpoint that UnifiedReward's clients ask for a rating from 1 to 5 as text.

Sources, and how their clients behave:
- yifan123/flow_grpo ac4c86e, flow_grpo/rewards.py (unifiedreward_score_sglang; the same in PKU-YuanGroup/Edit-R1
  4217f25): looks for `Final Score:` in the reply, and assumes 0 if it is missing.
- verl-project/verl-omni a1139ba, verl_omni/utils/reward_score/unified_reward.py: averages over three axes, skipping
  those that are not in the reply.

Both end their question with `Text Caption: [...]`, and both fail if the reply is an HTTP error or has no `choices`.
"""

import json
import re
import time
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import RowError
from plumbline.plugins.reward_server.wires.wire import (
    Answers,
    BadRequest,
    JsonWire,
    MetricAnswer,
    Reply,
    ScoreRequest,
    Served,
    as_base64,
    collect_rewards,
    decode_base64,
    make_json_reply,
    read_form,
    require_image_without_extras,
)

QUESTION_FORMAT = "Rate from 1 to 5, after 'Final Score:', how well the image fits its caption.\nText Caption: [{}]"
CAPTION_START = "Text Caption: ["
"""Text that precedes the caption; the caption ends at the last bracket in the question."""
REPLY_FORMAT = "Alignment Score (1-5): {0!r}\nFinal Score: {0!r}"
"""Reply that contains the number in the forms that both clients look for. Of verl-omni's axes, coherence and style are
left out.
"""
MAX_ROUNDING_ERROR = 1e-6
"""Allowed rounding error of rewards, which must be between 0 and 1."""
RATING_PATTERN = re.compile(r"Final Score:\s*([1-5](?:\.\d+)?)")
MISSING_RATING_ERROR = RowError("unreadable_reply", "the reply has no rating after `Final Score:`")


@checked(frozen=True)
class Message:
    """A turn of the chat: text, or a list of parts with a `type`."""

    role: str
    content: str | list[dict[str, Any]]


@checked(frozen=True)
class ChatForm:
    """A question about one image; the model name and sampling options are ignored."""

    messages: list[Message]


CHAT_FORM_ADAPTER = TypeAdapter(ChatForm)


class OpenAiChatWire(JsonWire):
    """Wire for POST /v1/chat/completions with one image and `Text Caption: [...]` -> a rating of 1 + 4 x reward."""

    name = "openai_chat"
    path = "/v1/chat/completions"
    form = ChatForm
    purpose = "UnifiedReward's clients: one image and its caption; the reply is a text with a rating from 1 to 5."
    images_per_request = 1

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        contents = [message.content for message in read_form(CHAT_FORM_ADAPTER, document).messages]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        images = [part.get("image_url") for part in parts if part.get("type") == "image_url"]
        texts = [str(part.get("text")) for part in parts if part.get("type") == "text"]
        captions = [caption for text in texts if (caption := _find_caption(text)) is not None]
        if len(images) != 1 or len(captions) != 1:
            raise BadRequest(
                "expected UnifiedReward's question: one image_url and a text that ends with Text Caption: [...]; found "
                f"{len(images)} images and {len(captions)} captions. Other questions are not answered"
            )
        return [ScoreRequest((_decode_image(images[0]),), captions[0], served.require_reward())]

    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        if (refusal := self.make_missing_score_reply(answers)) is not None:
            return refusal
        (reward,) = collect_rewards(answers, served)
        if not -MAX_ROUNDING_ERROR <= reward <= 1 + MAX_ROUNDING_ERROR:
            return self.refuse(422, f"a rating from 1 to 5 needs a reward from 0 to 1, got {served.reward} {reward:g}")
        message = {"role": "assistant", "content": REPLY_FORMAT.format(1 + 4 * min(max(reward, 0.0), 1.0))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return make_json_reply(
            {
                "id": "chatcmpl-plumbline",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": served.reward,
                "choices": [choice],
            }
        )

    def refuse(self, status: int, message: str) -> Reply:
        return make_json_reply({"error": {"message": message, "type": "no_score"}}, 422 if status == 200 else status)

    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        (request,) = requests
        image = {"url": f"data:image/png;base64,{as_base64(require_image_without_extras(request, self.name))}"}
        text = {"type": "text", "text": QUESTION_FORMAT.format(request.prompt)}
        content = [{"type": "image_url", "image_url": image}, text]
        return json.dumps({"model": "", "messages": [{"role": "user", "content": content}]}).encode()

    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        rating = RATING_PATTERN.search(document["choices"][0]["message"]["content"])
        answer = MetricAnswer((float(rating[1]) - 1) / 4) if rating else MetricAnswer(None, MISSING_RATING_ERROR)
        return [dict.fromkeys(request.metrics, answer) for request in requests]


def _find_caption(text: str) -> str | None:
    _, mark, rest = text.rstrip().partition(CAPTION_START)
    return rest[:-1] if mark and rest.endswith("]") else None


def _decode_image(image: Any) -> bytes:
    url = str(image.get("url") if isinstance(image, dict) else None)
    if not url.startswith("data:") or ";base64," not in url:
        raise BadRequest("image_url: expected a data URL, data:image/png;base64,...; other addresses are not supported")
    return decode_base64(url, "image_url")
