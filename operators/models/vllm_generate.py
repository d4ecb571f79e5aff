"""The `generate` call served by vLLM: every request of every caller runs in one continuously refilled batch."""

from collections.abc import Sequence
from typing import Any

from plumbline.operators.errors import RowError
from plumbline.operators.models.calls import Generation, Request, Usage
from plumbline.operators.models.conversation import Conversation, Reply, before_stop, reply_text, reply_to_fitting
from plumbline.operators.models.vllm_engine import Prompt, Refusal, Served, VllmEngine


class VllmGenerate:
    """A causal language model behind an engine; usable from several threads at once."""

    def __init__(self, engine: VllmEngine, tokenizer: Any) -> None:
        self.engine = engine
        self.tokenizer = tokenizer

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """The reply to each request, or why there is none: it does not fit the engine, or the schema is refused.

        Raises EngineError where the engine has failed.
        """
        return reply_to_fitting(self.tokenizer, requests, context=self.engine.max_model_len, answer=self._answer)

    def _answer(self, asked: Sequence[Conversation]) -> list[Reply]:
        params = [sampling(conversation.request) for conversation in asked]
        outputs = self.engine.run([Prompt(conversation.ids) for conversation in asked], params)
        return [self._reply(conversation.request, output) for conversation, output in zip(asked, outputs, strict=True)]

    def _reply(self, request: Request, output: Served | Refusal) -> Reply:
        """The reply, decoded at once: vLLM's own text leaves out a character that max_tokens has cut."""
        if isinstance(output, Refusal):
            return RowError("model_failed", f"vLLM refused the request: {output.message}")
        (completion,) = output.outputs
        text = before_stop(reply_text(self.tokenizer, completion.token_ids), request)
        return Generation(text, completion.finish_reason != "length", usage_of(output))


def sampling(request: Request) -> Any:
    """vLLM's SamplingParams for a request; at temperature 0 the likeliest token is taken every time."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    from plumbline.operators.models.schemas import spaced

    return SamplingParams(
        temperature=request.temperature,
        seed=request.seed,
        stop=list(request.stop),
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
