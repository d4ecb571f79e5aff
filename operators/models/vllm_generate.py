"""The `generate` call served by vLLM: every request of every caller runs in one continuously refilled batch."""

from collections.abc import Sequence
from typing import Any

from operators.errors import RowError
from operators.models.calls import Generation, Request, Usage
from operators.models.conversation import conversation_ids
from operators.models.vllm_engine import Prompt, Refusal, Served, VllmEngine

TOO_LONG = (
    "the conversation takes {} tokens and its reply up to {}, together beyond the engine's max_model_len of {}; raise "
    "max_model_len where the model allows it, shorten the prompt, or lower the metric's max_tokens"
)


class VllmGenerate:
    """A causal language model behind an engine; usable from several threads at once."""

    def __init__(self, engine: VllmEngine, tokenizer: Any) -> None:
        self.engine = engine
        self.tokenizer = tokenizer

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """The reply to each request, or why there is none: it does not fit the engine, or the schema is refused.

        Raises EngineError where the engine has failed.
        """
        prompts = [conversation_ids(self.tokenizer, request.messages) for request in requests]
        results = [self._refuse(request, len(ids)) for request, ids in zip(requests, prompts, strict=True)]
        fitting = [index for index, refused in enumerate(results) if refused is None]
        outputs = self.engine.run([Prompt(prompts[i]) for i in fitting], [sampling(requests[i]) for i in fitting])
        for index, output in zip(fitting, outputs, strict=True):
            results[index] = self._reply(requests[index], output)
        return [result for result in results if result is not None]

    def _refuse(self, request: Request, length: int) -> Generation | RowError | None:
        """Why a prompt of `length` tokens is not sent: it and its reply are to fit, as with the transformers engine."""
        if length + request.max_tokens <= self.engine.max_model_len:
            return None
        return RowError("prompt_too_long", TOO_LONG.format(length, request.max_tokens, self.engine.max_model_len))

    def _reply(self, request: Request, output: Served | Refusal) -> Generation | RowError:
        """The reply, decoded at once: vLLM's own text leaves out a character that max_tokens has cut."""
        if isinstance(output, Refusal):
            return RowError("model_failed", f"vLLM refused the request: {output.message}")
        (completion,) = output.outputs
        ids = completion.token_ids
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        ends = [place for place in map(text.find, request.stop) if place >= 0]
        return Generation(text[: min(ends)] if ends else text, completion.finish_reason != "length", usage_of(output))


def sampling(request: Request) -> Any:
    """vLLM's SamplingParams for a request; at temperature 0 the likeliest token is taken every time."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    return SamplingParams(
        temperature=request.temperature,
        seed=request.seed,
        stop=list(request.stop),
        max_tokens=request.max_tokens,
        structured_outputs=StructuredOutputsParams(json=request.schema, disable_any_whitespace=True)
        if request.schema is not None
        else None,
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
