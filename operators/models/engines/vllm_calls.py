"""The calls that vLLM serves: `generate`, and of models that see `likelihood`, `reply` and `generate_from_images`.

Images stand first in their prompts, so all questions on the same share a prefix, which one of them computes and the
others read from vLLM's prefix cache: also where they are scheduled into one step, since a layer's keys and values are
written before it attends. So everything is submitted at once, and the engine never waits for a caller.

An answer's tokens are scored by requests that return `logprob_token_ids`: the log-probabilities, over the full
vocabulary, that each possible next token of the choices has there. One request scores two tokens in a row: the first is
the only one that it may generate, so "Yes" with the end of its turn is one request. A request with `prompt_logprobs`
scores a whole answer but never reads the prefix cache; the tests compare with it.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import LONGEST_REPLY, Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.conversation import (
    Conversation,
    Reply,
    before_stop,
    choice_ids,
    image_conversation_text,
    reply_text,
    template_ids,
)
from plumbline.operators.models.engines.engine_options import EngineModel
from plumbline.operators.models.engines.thinking import Thinking, reply_to_fitting, writer_thinking
from plumbline.operators.models.engines.vllm_engine import Prompt, ReadyImage, Refusal, Served, VllmEngine, start_engine
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.processing import load_chat_tokenizer, padded_square

MOST_TOKENS_SCORED = 128
"""Of one request; vLLM's own bound on `logprob_token_ids`."""
CERTAIN = 1e4
"""Added to the logit of a token, makes it the likeliest."""
TWO_IMAGES: Mapping[str, Any] = {"limit_mm_per_prompt": {"image": 2, "video": 0}}
"""The source of an edit and its result. vLLM sets its memory aside by tokens of images, however many a prompt has."""

Tokens = tuple[int, ...]


class QuestionTokens(NamedTuple):
    """A question as tokens."""

    image: ReadyImage
    ids: Tokens
    """The prompt, in which each image is one placeholder."""
    choices: list[Tokens]
    """The tokens of each choice, the end of the turn included."""


class Step(NamedTuple):
    """One request: what may come next after `begun`, the first tokens of some choices."""

    question: int
    """Index of the question."""
    begun: Tokens
    wanted: tuple[Tokens, ...]
    """The tokens that some choice has at the first generated place, and at the second where there is one; together at
    most MOST_TOKENS_SCORED."""
    forced: Tokens = ()
    """What is generated at the first place, where there is a second."""

    @property
    def params(self) -> Any:
        """Its SamplingParams; what they force does not change log-probabilities, which are taken before."""
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
        """Beginnings of choices, each with the log-probability of its last token."""
        for place, tokens in enumerate(self.wanted):
            before, logprobs = self.begun + self.forced[:place], output.outputs[0].logprobs[place]
            yield from (((*before, token), logprobs[token].logprob) for token in tokens)


class ImageConversation(NamedTuple):
    """A conversation about an image, and its tokens."""

    image: ReadyImage
    request: Request
    ids: list[int]

    def asking(self, request: Request, ids: Sequence[int] = ()) -> "ImageConversation":
        """The same with another request, `ids` being the first tokens of its reply."""
        return ImageConversation(self.image, request, [*self.ids, *ids])


class VllmLikelihood:
    """A vision-language model behind an engine; usable from several threads at once."""

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
        """`system` is the message before every question, `padding` the colour of the square that images are put on,
        `end` the token that ends a choice's turn; a conversation has `thinking` first."""
        self.engine = engine
        self.tokenizer = tokenizer
        self.system = system
        self.padding = padding
        self.end = end
        self.thinking = thinking
        self._bare = cache(self._bare_ids)
        self._of_thread = threading.local()

    @property
    def usage(self) -> Usage:
        """What the calls of this thread have taken."""
        usage: Usage = getattr(self._of_thread, "usage", Usage())
        return usage

    def preprocess(self, image: Image.Image) -> ReadyImage:
        """The image, padded, as vLLM's own processor leaves it."""
        return self.preprocess_several([image])

    def preprocess_several(self, images: Sequence[Image.Image]) -> ReadyImage:
        """Images that stand one after another before the text."""
        return self.engine.ready([padded_square(image, self.padding) for image in images], self._bare(len(images)))

    def encode(self, pixels: Sequence[ReadyImage]) -> Sequence[ReadyImage]:
        """The images themselves: the engine encodes each once, when its first question comes."""
        return pixels

    def likelihood(
        self, features: Sequence[ReadyImage], questions: Sequence[Question]
    ) -> list[list[list[float]] | RowError]:
        """Full-vocabulary log-probabilities of every choice's tokens, in the order of `questions`; an error where one
        does not fit the engine's max_model_len.

        An image's questions are asked one after the other, while its prefix is in the cache. Raises EngineError where
        the engine has failed.
        """
        tokenized = [self._ask(features, question) for question in questions]
        by_image = sorted(range(len(questions)), key=lambda index: questions[index].image)
        steps = [step for index in by_image for step in _steps(index, tokenized[index].choices)]
        outputs = list(zip(steps, self._score(tokenized, steps), strict=True))
        refused = {step.question: output for step, output in outputs if isinstance(output, RowError)}
        scored = {
            (step.question, beginning): logprob
            for step, output in outputs
            if not isinstance(output, RowError)
            for beginning, logprob in step.read(output)
        }
        return [
            refused[index] if index in refused else [_read(scored, index, choice) for choice in question.choices]
            for index, question in enumerate(tokenized)
        ]

    def reply(self, features: Sequence[ReadyImage], questions: Sequence[Question]) -> list[str | RowError]:
        """The model's own answer to every question, by greedy decoding, in the order of `questions`."""
        from vllm import SamplingParams

        asked = [(features[question.image], [Message("user", question.text)]) for question in questions]
        prompts = [Prompt(self._ids(messages, image.images), image) for image, messages in asked]
        params = SamplingParams(temperature=0.0, max_tokens=LONGEST_REPLY)
        outputs = self._run(prompts, [params] * len(prompts))
        cut = [out for out in outputs if not isinstance(out, RowError) and out.outputs[0].finish_reason == "length"]
        self._of_thread.usage = self.usage.plus(Usage(cut=len(cut)))
        return [out if isinstance(out, RowError) else out.outputs[0].text.strip() for out in outputs]

    def generate_from_images(self, features: Sequence[ReadyImage], requests: Sequence[ImageRequest]) -> list[Reply]:
        """The reply to each conversation, or why there is none: it does not fit the engine, or the schema is refused.

        Raises EngineError where the engine has failed.
        """
        asked = [
            ImageConversation(features[image], request, self._ids(request.spoken, features[image].images))
            for image, request in requests
        ]
        return self._answer(asked) if self.thinking is None else self.thinking.replies(asked, self._answer)

    def _answer(self, asked: Sequence[ImageConversation]) -> list[Reply]:
        prompts = [Prompt(one.ids, one.image) for one in asked]
        outputs = self.engine.run(prompts, [sampling(one.request) for one in asked])
        return [
            _refused(output) if isinstance(output, Refusal) else _reply(self.tokenizer, one.request, output)
            for one, output in zip(asked, outputs, strict=True)
        ]

    def _ask(self, features: Sequence[ReadyImage], question: Question) -> QuestionTokens:
        image = features[question.image]
        text = self._text([Message("user", question.text)], image.images)
        choices = [tuple(choice_ids(self.tokenizer, text, choice, end=self.end)) for choice in question.choices]
        return QuestionTokens(image, tuple(template_ids(self.tokenizer, text)), choices)

    def _bare_ids(self, images: int) -> list[int]:
        """The tokens of a prompt that says nothing about so many images."""
        return self._ids([Message("user", "")], images)

    def _ids(self, messages: Sequence[Message], images: int) -> list[int]:
        return template_ids(self.tokenizer, self._text(messages, images))

    def _text(self, messages: Sequence[Message], images: int) -> str:
        thinks = self.thinking is not None
        return image_conversation_text(self.tokenizer, messages, system=self.system, images=images, thinks=thinks)

    def _score(self, tokenized: Sequence[QuestionTokens], steps: Sequence[Step]) -> list[Served | RowError]:
        """Each step's request served, or why it was not."""
        prompts = [Prompt(tokenized[step.question].ids + step.begun, tokenized[step.question].image) for step in steps]
        return self._run(prompts, [step.params for step in steps])

    def _run(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Served | RowError]:
        outputs = self.engine.run(prompts, params)
        for output in outputs:
            if not isinstance(output, Refusal):
                self._of_thread.usage = self.usage.plus(usage_of(output))
        return [_refused(output) if isinstance(output, Refusal) else output for output in outputs]


def _refused(refusal: Refusal) -> RowError:
    return RowError("request_refused", f"vLLM refused a question: {refusal.message}")


def _steps(index: int, choices: Sequence[Tokens]) -> Iterator[Step]:
    """The requests that score a question's choices, the shortest first; choices that begin alike share them."""
    following: dict[Tokens, dict[int, None]] = {}
    for choice in choices:
        for length, token in enumerate(choice):
            following.setdefault(choice[:length], {})[token] = None
    pending = {begun: tuple(following[begun]) for begun in sorted(following, key=len)}
    while pending:
        begun, wanted = next(iter(pending.items()))
        del pending[begun]
        after = [(*begun, token) for token in wanted if (*begun, token) in pending]
        longer = next((more for more in after if len(wanted) + len(pending[more]) <= MOST_TOKENS_SCORED), None)
        if longer is not None:
            yield Step(index, begun, (wanted, pending.pop(longer)), longer[-1:])
        else:
            parts = range(0, len(wanted), MOST_TOKENS_SCORED)
            yield from (Step(index, begun, (wanted[first : first + MOST_TOKENS_SCORED],)) for first in parts)


def _read(scored: Mapping[tuple[int, Tokens], float], index: int, choice: Tokens) -> list[float]:
    return [scored[index, choice[:length]] for length in range(1, len(choice) + 1)]


class VllmGenerate:
    """A causal language model behind an engine; usable from several threads at once."""

    def __init__(self, engine: VllmEngine, tokenizer: Any, thinking: Thinking | None = None) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.thinking = thinking

    @classmethod
    def load(cls, model: ResolvedModel[EngineModel]) -> "VllmGenerate":
        """An engine with the model's checkpoint; raises ModelError where it does not start."""
        tokenizer = load_chat_tokenizer(model)
        return cls(start_engine(model), tokenizer, writer_thinking(model.config, tokenizer))

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """The reply to each request, or why there is none: it does not fit the engine, or the schema is refused.

        Raises EngineError where the engine has failed.
        """
        context = self.engine.max_model_len
        return reply_to_fitting(self.tokenizer, requests, context=context, answer=self._answer, thinking=self.thinking)

    def _answer(self, conversations: Sequence[Conversation]) -> list[Reply]:
        params = [sampling(conversation.request) for conversation in conversations]
        outputs = self.engine.run([Prompt(conversation.ids) for conversation in conversations], params)
        return [
            RowError("model_failed", f"vLLM refused the request: {output.message}")
            if isinstance(output, Refusal)
            else _reply(self.tokenizer, conversation.request, output)
            for conversation, output in zip(conversations, outputs, strict=True)
        ]


def _reply(tokenizer: Any, request: Request, output: Served) -> Generation:
    """The reply, decoded at once: vLLM's own text leaves out a character that max_tokens has cut."""
    (completion,) = output.outputs
    text = before_stop(reply_text(tokenizer, completion.token_ids), request)
    return Generation(text, completion.finish_reason != "length", usage_of(output), tuple(completion.token_ids))


def sampling(request: Request) -> Any:
    """vLLM's SamplingParams for a request; at temperature 0 the likeliest token is taken every time."""
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


def usage_of(output: Served) -> Usage:
    """What one finished request took."""
    return Usage(
        calls=1,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        new_tokens=sum(len(completion.token_ids) for completion in output.outputs),
    )
