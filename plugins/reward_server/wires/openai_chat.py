"""The chat address at which UnifiedReward's clients ask for a rating from 1 to 5, in words.

Sources: yifan123/flow_grpo ac4c86e, flow_grpo/rewards.py (unifiedreward_score_sglang; PKU-YuanGroup/Edit-R1 4217f25 has
the same), which finds `Final Score:` in the reply and takes 0 where there is none; verl-project/verl-omni a1139ba,
verl_omni/utils/reward_score/unified_reward.py, which takes the mean of those of three axes that the reply has. Both end
their question with `Text Caption: [...]`. A refusal is an HTTP error or has no `choices`, which stops either client.
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
    as_json,
    decoded,
    image_alone,
    numbers,
    read_form,
)

QUESTION = "Rate from 1 to 5, after 'Final Score:', how well the image fits its caption.\nText Caption: [{}]"
CAPTION = "Text Caption: ["
"""After which a question has its caption, up to the bracket at its end."""
REPLY = "Alignment Score (1-5): {0!r}\nFinal Score: {0!r}"
"""What both clients find their number in; of coherence and style, which verl-omni's asks too, nothing is said."""
ROUNDING = 1e-6
"""By which a reward may leave 0 to 1."""
RATING = re.compile(r"Final Score:\s*([1-5](?:\.\d+)?)")
UNREADABLE = RowError("unreadable_reply", "the reply has no rating after `Final Score:`")


@checked(frozen=True)
class Message:
    """A turn: a text and an image, each a part with its `type`."""

    role: str
    content: str | list[dict[str, Any]]


@checked(frozen=True)
class ChatForm:
    """A question about one image; the model's name and its sampling are not looked at."""

    messages: list[Message]


FORM = TypeAdapter(ChatForm)


class OpenAiChatWire(JsonWire):
    """POST /v1/chat/completions with one image and `Text Caption: [...]` -> a rating in words, 1 + 4 x the reward."""

    name = "openai_chat"
    path = "/v1/chat/completions"
    form = ChatForm
    purpose = "UnifiedReward's clients: one image and its caption, a rating from 1 to 5 in words."
    images_per_request = 1

    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        contents = [message.content for message in read_form(FORM, document).messages]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        images = [part.get("image_url") for part in parts if part.get("type") == "image_url"]
        texts = [str(part.get("text")) for part in parts if part.get("type") == "text"]
        captions = [caption for text in texts if (caption := _caption(text)) is not None]
        if len(images) != 1 or len(captions) != 1:
            raise BadRequest(
                "expected a question of UnifiedReward's: one image_url and a text that ends with Text Caption: [...]; "
                f"found {len(images)} images and {len(captions)} captions. No other question is answered here"
            )
        return [ScoreRequest((_image(images[0]),), captions[0], served.one())]

    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        failed = self.refusal(answers)
        if failed is not None:
            return failed
        (reward,) = numbers(answers, served)
        if not -ROUNDING <= reward <= 1 + ROUNDING:
            return self.refuse(
                422, f"a rating from 1 to 5 needs a reward from 0 to 1, and {served.reward} is {reward:g} here"
            )
        message = {"role": "assistant", "content": REPLY.format(1 + 4 * min(max(reward, 0.0), 1.0))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return as_json(
            {
                "id": "chatcmpl-plumbline",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": served.reward,
                "choices": [choice],
            }
        )

    def refuse(self, status: int, message: str) -> Reply:
        return as_json({"error": {"message": message, "type": "no_score"}}, 422 if status == 200 else status)

    def ask(self, asked: Sequence[ScoreRequest]) -> bytes:
        (request,) = asked
        image = {"url": f"data:image/png;base64,{as_base64(image_alone(request, self.name))}"}
        text = {"type": "text", "text": QUESTION.format(request.prompt)}
        content = [{"type": "image_url", "image_url": image}, text]
        return json.dumps({"model": "", "messages": [{"role": "user", "content": content}]}).encode()

    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        rating = RATING.search(document["choices"][0]["message"]["content"])
        answer = MetricAnswer((float(rating[1]) - 1) / 4) if rating else MetricAnswer(None, UNREADABLE)
        return [dict.fromkeys(request.metrics, answer) for request in asked]


def _caption(text: str) -> str | None:
    """Return the caption at the end of a question, or None."""
    _, mark, rest = text.rstrip().partition(CAPTION)
    return rest[:-1] if mark and rest.endswith("]") else None


def _image(image: Any) -> bytes:
    """Return the bytes of a data address; other addresses are refused."""
    address = str(image.get("url") if isinstance(image, dict) else None)
    if not address.startswith("data:") or ";base64," not in address:
        raise BadRequest("image_url: expected the image's bytes, as data:image/png;base64,...; addresses are not read")
    return decoded(address, "image_url")
