"""The calls that vLLM serves: `generate`, and for models that see images `likelihood` and `generate_from_images`.

Images come first in prompts, so all questions about an image share a prefix. One question computes the prefix, and the
others read it from vLLM's prefix cache, even if they are scheduled in the same step, because a layer writes its keys
and values before it attends. So everything is submitted at once, and the engine never waits for a caller.

An answer's tokens are scored by requests that return `logprob_token_ids`: the log-probabilities, over the full
vocabulary, of each possible next token of the choices. One request scores two consecutive tokens, because it can be
forced to generate the first: "Yes" and the end of its turn take one request. A request with `prompt_logprobs` would
score a whole answer but never read the prefix cache; the tests compare against such requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import (
    MAX_ANSWER_TOKENS,
    Generation,
    ImageRequest,
    Message,
    Question,
    Request,
    ThreadUsageCounter,
)
from plumbline.operators.models.engines.conversation import (
    Conversation,
    Reply,
    ThinkingMode,
    decode_reply,
    find_thinking,
    render_image_conversation,
    reply_to_requests,
    reply_to_valid_requests,
    tokenize_choice,
    tokenize_rendered,
    trim_at_stop,
)
from plumbline.operators.models.engines.engine_options import EngineModel
from plumbline.operators.models.engines.reply_schemas import restrict_white_space
from plumbline.operators.models.engines.vllm_engine import (
    EngineOutput,
    ProcessedImages,
    Prompt,
    Refusal,
    VllmEngine,
    start_engine,
)
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.processing import centre_on_square, load_chat_tokenizer

MAX_SCORED_TOKENS = 128
"""vLLM's limit on the number of `logprob_token_ids` of one request."""
FORCING_BIAS = 1e4
"""Value added to the logit of a token to make it the likeliest."""
TWO_IMAGES_OPTIONS: Mapping[str, Any] = {"limit_mm_per_prompt": {"image": 2, "video": 0}}
"""Image limits for prompts with the source and the result of an edit. A higher limit takes no more memory, because vLLM
reserves memory by tokens per image.
"""

Tokens = tuple[int, ...]


class QuestionTokens(NamedTuple):
    image: ProcessedImages
    ids: Tokens
    """The prompt, with one placeholder for each image."""
    choices: list[Tokens]
    """Tokens of each choice, including the end of the turn."""


class ScoringRequest(NamedTuple):
    """A request that scores the tokens that can follow `beginning`, the start of one or more choices."""

    question: int
    """Index of the question."""
    beginning: Tokens
    candidates: tuple[Tokens, ...]
    """The choices' tokens at the first generated position and, if there is one, at the second; at most
    MAX_SCORED_TOKENS.
    """
    forced: Tokens = ()
    """The token that vLLM must generate at the first position so that the second position is scored; empty if the
    request scores only one position.
    """

    @property
    def params(self) -> Any:
        from vllm import SamplingParams

        # vLLM computes log-probabilities before a token is forced
        return SamplingParams(
            temperature=0.0,
            max_tokens=len(self.candidates),
            ignore_eos=True,
            logit_bias=dict.fromkeys(self.forced, FORCING_BIAS) or None,
            logprob_token_ids=list(dict.fromkeys(chain(*self.candidates))),
            detokenize=False,
        )

    def read(self, output: EngineOutput) -> Iterator[tuple[Tokens, float]]:
        """Yield (tokens of a choice up to a scored token, log-probability of the scored token)."""
        for position, tokens in enumerate(self.candidates):
            before, logprobs = self.beginning + self.forced[:position], output.outputs[0].logprobs[position]
            yield from (((*before, token), logprobs[token].logprob) for token in tokens)


class VllmLikelihood(ThreadUsageCounter):
    """A vision-language model on vLLM, which serves `likelihood`, `reply` and `generate_from_images` to threads."""

    side_by_side = True

    def __init__(
        self,
        engine: VllmEngine,
        tokenizer: Any,
        *,
        system: str | None,
        padding: tuple[int, ...] | None,
        end: int,
        thinking: ThinkingMode | None = None,
    ) -> None:
        """Wrap a running engine, and set how images and questions are presented to it.

        Images are centred on a square of the colour `padding`, if given. The `system` message comes before every
        question, and the token `end` ends the turn after a choice. `thinking` is None if the model must reply at once.
        """
        super().__init__()
        self.engine = engine
        self.tokenizer = tokenizer
        self.system = system
        self.padding = padding
        self.end = end
        self.thinking = thinking
        # tokens of an empty prompt, by number of images
        self._empty_prompt = cache(lambda images: self._tokenize_messages([Message("user", "")], images))

    def preprocess(self, image: Image.Image) -> ProcessedImages:
        return self.preprocess_several([image])

    def preprocess_several(self, images: Sequence[Image.Image]) -> ProcessedImages:
        """Return the images of one question, padded to squares if configured, as processed by vLLM's own processor."""
        padded = [centre_on_square(image, self.padding) for image in images]
        return self.engine.process_images(padded, self._empty_prompt(len(images)))

    def encode(self, pixels: Sequence[ProcessedImages]) -> Sequence[ProcessedImages]:
        return pixels  # the engine encodes each image at its first question

    def likelihood(
        self, features: Sequence[ProcessedImages], questions: Sequence[Question]
    ) -> list[list[list[float]] | RowError]:
        """Return full-vocabulary log-probabilities of every choice's tokens, or an error if vLLM refuses a question."""
        tokenized = [self._tokenize_question(features, question) for question in questions]
        # questions about an image are adjacent, so that its prefix is still cached
        by_image = sorted(range(len(questions)), key=lambda index: questions[index].image)
        steps = [step for index in by_image for step in _plan_requests(index, tokenized[index].choices)]
        prompts = [
            Prompt(tokenized[step.question].ids + step.beginning, tokenized[step.question].image) for step in steps
        ]
        outputs = list(zip(steps, self._run_engine(prompts, [step.params for step in steps]), strict=True))
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

    def reply(self, features: Sequence[ProcessedImages], questions: Sequence[Question]) -> list[str | RowError]:
        from vllm import SamplingParams

        asked = [(features[question.image], [Message("user", question.text)]) for question in questions]
        prompts = [Prompt(self._tokenize_messages(messages, image.images), image) for image, messages in asked]
        params = SamplingParams(temperature=0.0, max_tokens=MAX_ANSWER_TOKENS)
        outputs = self._run_engine(prompts, [params] * len(prompts))
        cut = [out for out in outputs if not isinstance(out, RowError) and out.outputs[0].finish_reason == "length"]
        self.add_usage(Usage(cut=len(cut)))
        return [out if isinstance(out, RowError) else out.outputs[0].text.strip() for out in outputs]

    def generate_from_images(
        self, features: Sequence[ProcessedImages], requests: Sequence[ImageRequest]
    ) -> list[Reply]:
        """Return the reply to each conversation, or an error if the engine refuses it (see `VllmEngine.run`)."""
        conversations = []
        for index, request in requests:
            image = features[index]
            ids = self._tokenize_messages(request.messages_with_system, image.images)
            conversations.append(Conversation(request, ids, image))
        answer = partial(_reply_to_each, self.engine, self.tokenizer)
        return reply_to_valid_requests(conversations, answer, self.thinking)

    def _tokenize_question(self, features: Sequence[ProcessedImages], question: Question) -> QuestionTokens:
        image = features[question.image]
        text = self._render_messages([Message("user", question.text)], image.images)
        choices = [tuple(tokenize_choice(self.tokenizer, text, choice, end=self.end)) for choice in question.choices]
        return QuestionTokens(image, tuple(tokenize_rendered(self.tokenizer, text)), choices)

    def _tokenize_messages(self, messages: Sequence[Message], images: int) -> list[int]:
        return tokenize_rendered(self.tokenizer, self._render_messages(messages, images))

    def _render_messages(self, messages: Sequence[Message], images: int) -> str:
        thinks = self.thinking is not None
        return render_image_conversation(self.tokenizer, messages, system=self.system, images=images, thinks=thinks)

    def _run_engine(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[EngineOutput | RowError]:
        results: list[EngineOutput | RowError] = []
        for output in self.engine.run(prompts, params):
            if isinstance(output, Refusal):
                output = RowError("request_refused", f"vLLM refused a question: {output.message}")
            else:
                self.add_usage(count_usage(output))
            results.append(output)
        return results


def _plan_requests(index: int, choices: Sequence[Tokens]) -> Iterator[ScoringRequest]:
    """Yield the requests that score a question's choices. A beginning shared by several choices is scored only once."""
    following: dict[Tokens, dict[int, None]] = {}
    for choice in choices:
        for length, token in enumerate(choice):
            following.setdefault(choice[:length], {})[token] = None
    pending = {beginning: tuple(following[beginning]) for beginning in sorted(following, key=len)}
    while pending:
        beginning, candidates = next(iter(pending.items()))
        del pending[beginning]
        after = [(*beginning, token) for token in candidates if (*beginning, token) in pending]
        longer = next((more for more in after if len(candidates) + len(pending[more]) <= MAX_SCORED_TOKENS), None)
        if longer is not None:
            yield ScoringRequest(index, beginning, (candidates, pending.pop(longer)), longer[-1:])
        else:
            for first in range(0, len(candidates), MAX_SCORED_TOKENS):
                yield ScoringRequest(index, beginning, (candidates[first : first + MAX_SCORED_TOKENS],))


class VllmGenerate:
    """A causal language model on vLLM, which serves the call `generate` to many threads at once."""

    def __init__(self, engine: VllmEngine, tokenizer: Any, thinking: ThinkingMode | None = None) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.thinking = thinking

    @classmethod
    def load(cls, model: ResolvedModel[EngineModel]) -> "VllmGenerate":
        tokenizer = load_chat_tokenizer(model)
        return cls(start_engine(model), tokenizer, find_thinking(model.config, tokenizer))

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the reply to each request, or an error if the engine refuses it (see `VllmEngine.run`)."""
        answer = partial(_reply_to_each, self.engine, self.tokenizer)
        context = self.engine.max_model_len
        return reply_to_requests(self.tokenizer, requests, context=context, answer=answer, thinking=self.thinking)


def _reply_to_each(engine: VllmEngine, tokenizer: Any, conversations: Sequence[Conversation]) -> list[Reply]:
    prompts = [Prompt(one.ids, one.image) for one in conversations]
    outputs = engine.run(prompts, [_make_sampling_params(one.request) for one in conversations])
    replies: list[Reply] = []
    for conversation, output in zip(conversations, outputs, strict=True):
        if isinstance(output, Refusal):
            replies.append(RowError("request_refused", f"vLLM refused the request: {output.message}"))
            continue
        (completion,) = output.outputs
        # decoded from the tokens: vLLM's own text leaves out a last character whose tokens were cut
        text = trim_at_stop(decode_reply(tokenizer, completion.token_ids), conversation.request)
        complete = completion.finish_reason != "length"
        replies.append(Generation(text, complete, count_usage(output), tuple(completion.token_ids)))
    return replies


def _make_sampling_params(request: Request) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    schema = request.schema
    return SamplingParams(
        temperature=request.temperature,  # 0 always chooses the likeliest token
        seed=request.seed,
        stop=list(request.stop),
        stop_token_ids=list(request.ends),
        max_tokens=request.max_tokens,
        structured_outputs=None if schema is None else StructuredOutputsParams(json=restrict_white_space(schema)),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def count_usage(output: EngineOutput) -> Usage:
    return Usage(
        calls=1,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        new_tokens=sum(len(completion.token_ids) for completion in output.outputs),
    )
