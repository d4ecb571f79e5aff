"""The calls that vLLM serves: `generate`, and for models that see `likelihood`, `reply`, `generate_from_images`.

Images come first in prompts, so all questions on an image share a prefix. One question computes it and the others read
it from vLLM's prefix cache, even if they are scheduled into the same step, because a layer writes its keys and values
before it attends. So everything is submitted at once, and the engine never waits for a caller.

An answer's tokens are scored by requests that return `logprob_token_ids`: the log-probabilities, over the full
vocabulary, of each possible next token of the choices. One request scores two consecutive tokens, because it may be
forced to generate the first: "Yes" and the end of its turn take one request. A request with `prompt_logprobs` scores a
whole answer but never reads the prefix cache; the tests compare with it.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import MAX_ANSWER_TOKENS, Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.conversation import (
    Conversation,
    Reply,
    choice_ids,
    cut_at_stop,
    image_conversation_text,
    reply_text,
    template_ids,
)
from plumbline.operators.models.engines.engine_options import EngineModel
from plumbline.operators.models.engines.thinking import Thinking, reply_to_fitting, writer_thinking
from plumbline.operators.models.engines.vllm_engine import Prompt, ReadyImage, Refusal, Served, VllmEngine, start_engine
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.processing import load_chat_tokenizer, padded_square

MAX_SCORED_TOKENS = 128
"""vLLM's limit on the number of `logprob_token_ids` of one request."""
CERTAIN = 1e4
"""Added to the logit of a token to make it the likeliest."""
TWO_IMAGES: Mapping[str, Any] = {"limit_mm_per_prompt": {"image": 2, "video": 0}}
"""For an edit's source and result. vLLM reserves memory by an image's tokens, not by the number of images."""

Tokens = tuple[int, ...]


class QuestionTokens(NamedTuple):
    """A question as tokens."""

    image: ReadyImage
    ids: Tokens
    """The prompt, with one placeholder for each image."""
    choices: list[Tokens]
    """The tokens of each choice, including the end of the turn."""


class Step(NamedTuple):
    """One request: scores the tokens that may follow `begun`, the common first tokens of some choices."""

    question: int
    """Index of the question."""
    begun: Tokens
    wanted: tuple[Tokens, ...]
    """The choices' tokens at the first generated position, and at the second if any; at most MAX_SCORED_TOKENS."""
    forced: Tokens = ()
    """The token generated at the first position, if there is a second."""

    @property
    def params(self) -> Any:
        """The request's SamplingParams. vLLM computes log-probabilities before a token is forced."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0.0,
            max_tokens=len(self.wanted),
            ignore_eos=True,
            logit_bias=dict.fromkeys(self.forced, CERTAIN) or None,
            logprob_token_ids=list(dict.fromkeys(chain(*self.wanted))),
            detokenize=False,
        )

    def read(self, output: Served) -> Iterator[tuple[Tokens, float]]:
        """Yield beginnings of choices, each with the log-probability of its last token."""
        for place, tokens in enumerate(self.wanted):
            before, logprobs = self.begun + self.forced[:place], output.outputs[0].logprobs[place]
            yield from (((*before, token), logprobs[token].logprob) for token in tokens)


class ImageConversation(NamedTuple):
    """A conversation about an image, and its tokens."""

    image: ReadyImage
    request: Request
    ids: list[int]

    def asking(self, request: Request, ids: Sequence[int] = ()) -> "ImageConversation":
        return ImageConversation(self.image, request, [*self.ids, *ids])


class VllmLikelihood:
    """A vision-language model behind an engine; may be used from several threads at once."""

    side_by_side = True

    def __init__(
        self,
        engine: VllmEngine,
        tokenizer: Any,
        *,
        system: str | None,
        padding: tuple[int, ...] | None,
        end: int,
        thinking: Thinking | None = None,
    ) -> None:
        """Centre images on a square of colour `padding`, and put the `system` message before every question.

        The token `end` ends a choice's turn. `thinking` is how the model thinks before a reply, if it may.
        """
        self.engine = engine
        self.tokenizer = tokenizer
        self.system = system
        self.padding = padding
        self.end = end
        self.thinking = thinking
        self._bare = cache(self._bare_ids)
        self._thread_local = threading.local()

    @property
    def usage(self) -> Usage:
        usage: Usage = getattr(self._thread_local, "usage", Usage())
        return usage

    def preprocess(self, image: Image.Image) -> ReadyImage:
        """Prepare the image, padded, with vLLM's own processor."""
        return self.preprocess_several([image])

    def preprocess_several(self, images: Sequence[Image.Image]) -> ReadyImage:
        return self.engine.ready([padded_square(image, self.padding) for image in images], self._bare(len(images)))

    def encode(self, pixels: Sequence[ReadyImage]) -> Sequence[ReadyImage]:
        """Return the images unchanged: the engine encodes each at its first question."""
        return pixels

    def likelihood(
        self, features: Sequence[ReadyImage], questions: Sequence[Question]
    ) -> list[list[list[float]] | RowError]:
        """Return the full-vocabulary log-probabilities of every choice's tokens, in the order of `questions`.

        A choice that does not fit the engine's max_model_len gets an error. An image's questions are submitted one
        after the other, while its prefix is in the cache. Raises EngineError if the engine has failed.
        """
        tokenized = [self._ask(features, question) for question in questions]
        by_image = sorted(range(len(questions)), key=lambda index: questions[index].image)
        steps = [step for index in by_image for step in _steps(index, tokenized[index].choices)]
        prompts = [Prompt(tokenized[step.question].ids + step.begun, tokenized[step.question].image) for step in steps]
        outputs = list(zip(steps, self._run(prompts, [step.params for step in steps]), strict=True))
        refused = {step.question: output for step, output in outputs if isinstance(output, RowError)}
        scored = {
            (step.question, beginning): logprob
            for step, output in outputs
            if not isinstance(output, RowError)
            for beginning, logprob in step.read(output)
        }
        return [
            refused[index]
            if index in refused
            else [[scored[index, choice[: end + 1]] for end in range(len(choice))] for choice in question.choices]
            for index, question in enumerate(tokenized)
        ]

    def reply(self, features: Sequence[ReadyImage], questions: Sequence[Question]) -> list[str | RowError]:
        """Return the model's own answer to every question, by greedy decoding, in the order of `questions`."""
        from vllm import SamplingParams

        asked = [(features[question.image], [Message("user", question.text)]) for question in questions]
        prompts = [Prompt(self._ids(messages, image.images), image) for image, messages in asked]
        params = SamplingParams(temperature=0.0, max_tokens=MAX_ANSWER_TOKENS)
        outputs = self._run(prompts, [params] * len(prompts))
        cut = [out for out in outputs if not isinstance(out, RowError) and out.outputs[0].finish_reason == "length"]
        self._thread_local.usage = self.usage.plus(Usage(cut=len(cut)))
        return [out if isinstance(out, RowError) else out.outputs[0].text.strip() for out in outputs]

    def generate_from_images(self, features: Sequence[ReadyImage], requests: Sequence[ImageRequest]) -> list[Reply]:
        """Return the reply to each conversation, or an error if it does not fit the engine or the schema is refused.

        Raises EngineError if the engine has failed.
        """
        asked = [
            ImageConversation(features[image], request, self._ids(request.messages_with_system, features[image].images))
            for image, request in requests
        ]
        return self._answer(asked) if self.thinking is None else self.thinking.replies(asked, self._answer)

    def _answer(self, asked: Sequence[ImageConversation]) -> list[Reply]:
        prompts = [Prompt(one.ids, one.image) for one in asked]
        outputs = self.engine.run(prompts, [sampling_params(one.request) for one in asked])
        return [
            _refusal_error(output) if isinstance(output, Refusal) else _reply(self.tokenizer, one.request, output)
            for one, output in zip(asked, outputs, strict=True)
        ]

    def _ask(self, features: Sequence[ReadyImage], question: Question) -> QuestionTokens:
        image = features[question.image]
        text = self._text([Message("user", question.text)], image.images)
        choices = [tuple(choice_ids(self.tokenizer, text, choice, end=self.end)) for choice in question.choices]
        return QuestionTokens(image, tuple(template_ids(self.tokenizer, text)), choices)

    def _bare_ids(self, images: int) -> list[int]:
        """Return the tokens of an empty prompt about this number of images."""
        return self._ids([Message("user", "")], images)

    def _ids(self, messages: Sequence[Message], images: int) -> list[int]:
        return template_ids(self.tokenizer, self._text(messages, images))

    def _text(self, messages: Sequence[Message], images: int) -> str:
        thinks = self.thinking is not None
        return image_conversation_text(self.tokenizer, messages, system=self.system, images=images, thinks=thinks)

    def _run(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Served | RowError]:
        outputs = self.engine.run(prompts, params)
        for output in outputs:
            if not isinstance(output, Refusal):
                self._thread_local.usage = self.usage.plus(output_usage(output))
        return [_refusal_error(output) if isinstance(output, Refusal) else output for output in outputs]


def _refusal_error(refusal: Refusal) -> RowError:
    return RowError("request_refused", f"vLLM refused a question: {refusal.message}")


def _steps(index: int, choices: Sequence[Tokens]) -> Iterator[Step]:
    """Yield the requests that score a question's choices, shortest beginning first; common beginnings share them."""
    following: dict[Tokens, dict[int, None]] = {}
    for choice in choices:
        for length, token in enumerate(choice):
            following.setdefault(choice[:length], {})[token] = None
    pending = {begun: tuple(following[begun]) for begun in sorted(following, key=len)}
    while pending:
        begun, wanted = next(iter(pending.items()))
        del pending[begun]
        after = [(*begun, token) for token in wanted if (*begun, token) in pending]
        longer = next((more for more in after if len(wanted) + len(pending[more]) <= MAX_SCORED_TOKENS), None)
        if longer is not None:
            yield Step(index, begun, (wanted, pending.pop(longer)), longer[-1:])
        else:
            parts = range(0, len(wanted), MAX_SCORED_TOKENS)
            yield from (Step(index, begun, (wanted[first : first + MAX_SCORED_TOKENS],)) for first in parts)


class VllmGenerate:
    """A causal language model behind an engine; may be used from several threads at once."""

    def __init__(self, engine: VllmEngine, tokenizer: Any, thinking: Thinking | None = None) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.thinking = thinking

    @classmethod
    def load(cls, model: ResolvedModel[EngineModel]) -> "VllmGenerate":
        """Start an engine with the model's checkpoint; raises ModelError if it does not start."""
        tokenizer = load_chat_tokenizer(model)
        return cls(start_engine(model), tokenizer, writer_thinking(model.config, tokenizer))

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the reply to each request, or an error if it does not fit the engine or the schema is refused.

        Raises EngineError if the engine has failed.
        """
        context = self.engine.max_model_len
        return reply_to_fitting(self.tokenizer, requests, context=context, answer=self._answer, thinking=self.thinking)

    def _answer(self, conversations: Sequence[Conversation]) -> list[Reply]:
        params = [sampling_params(conversation.request) for conversation in conversations]
        outputs = self.engine.run([Prompt(conversation.ids) for conversation in conversations], params)
        return [
            RowError("model_failed", f"vLLM refused the request: {output.message}")
            if isinstance(output, Refusal)
            else _reply(self.tokenizer, conversation.request, output)
            for conversation, output in zip(conversations, outputs, strict=True)
        ]


def _reply(tokenizer: Any, request: Request, output: Served) -> Generation:
    """Return the reply, decoded from its tokens: vLLM's own text lacks a character that max_tokens has cut."""
    (completion,) = output.outputs
    text = cut_at_stop(reply_text(tokenizer, completion.token_ids), request)
    return Generation(text, completion.finish_reason != "length", output_usage(output), tuple(completion.token_ids))


def sampling_params(request: Request) -> Any:
    """Return vLLM's SamplingParams for a request; at temperature 0 the likeliest token is always chosen."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    from plumbline.operators.models.engines.reply_schemas import spaced

    return SamplingParams(
        temperature=request.temperature,
        seed=request.seed,
        stop=list(request.stop),
        stop_token_ids=list(request.ends),
        max_tokens=request.max_tokens,
        structured_outputs=None if request.schema is None else StructuredOutputsParams(json=spaced(request.schema)),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def output_usage(output: Served) -> Usage:
    """Return the usage of one finished request."""
    return Usage(
        calls=1,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        new_tokens=sum(len(completion.token_ids) for completion in output.outputs),
    )
