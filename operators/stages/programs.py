"""Runs many programs of model requests concurrently, in rounds, so that the model's batches are full."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Generic, NamedTuple, TypeVar

from plumbline.operators.base.batches import call_and_count, is_device_lost, isolate
from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.base.stopping import STOP_REQUESTED, STOPPED_ERROR
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.writing import UnreadableReply, Writing
from plumbline.operators.models.calls import GenerateModel, Generation, ImageGenerateModel, ImageRequest, Request

T = TypeVar("T")
Reply = Generation | RowError


class ProgramRequest(NamedTuple):
    """A request to the model, and the program that waits for its reply."""

    program: int
    """Index of the program that made the request."""
    request: Request


class ProgramResults(NamedTuple, Generic[T]):
    """Results of several programs, and the total usage of their model calls."""

    results: list[T | RowError]
    """Result of each program, in order."""
    usage: Usage


def run_programs(
    programs: Sequence[Writing[T | RowError]], answer: Callable[[Sequence[ProgramRequest]], Sequence[Reply]]
) -> ProgramResults[T]:
    """Run the programs together; `answer` returns the replies to the requests of one round.

    A program ends with an error if a request gets no reply or if the program raises UnreadableReply. After a stop
    signal no further requests are made.
    """
    running = [_RunningProgram(steps) for steps in programs]
    usage = Usage()
    while asked := [
        ProgramRequest(index, request) for index, program in enumerate(running) for request in program.requests
    ]:
        replies = [STOPPED_ERROR] * len(asked) if STOP_REQUESTED.is_set() else answer(asked)
        usage = reduce(Usage.plus, (reply.usage_with_cut for reply in replies if isinstance(reply, Generation)), usage)
        rest = iter(replies)
        for program in running:
            if program.requests:
                program.resume([next(rest) for _ in program.requests])
    return ProgramResults([program.result for program in running], usage)


def generate(model: GenerateModel | None, asked: Sequence[ProgramRequest]) -> Sequence[Reply]:
    """Return the model's replies. If the whole call fails, return a retryable error for every request."""
    assert model is not None, "a metric whose programs make requests has a model for them"
    try:
        return call_and_count(model.generate, [one.request for one in asked])
    except Exception as error:
        if _is_hopeless(error):
            raise
        failure = RowError("model_failed", f"{type(error).__name__}: {error}", retryable=True)
        return [failure for _ in asked]


def generate_from_images(
    model: ImageGenerateModel, features: Sequence[object], requests: Sequence[ImageRequest]
) -> Sequence[Reply]:
    """Return the model's replies about images; a failing request does not affect the other requests.

    Raises the model's error if no later request can succeed, for example because the device is lost.
    """
    try:
        return call_and_count(lambda batch: model.generate_from_images(features, batch), requests)
    except Exception as error:
        if _is_hopeless(error):
            raise
    return isolate(lambda batch: model.generate_from_images(features, batch), requests)


def _is_hopeless(error: Exception) -> bool:
    return is_device_lost(error) or isinstance(error, ModelError)


class _RunningProgram(Generic[T]):
    """A started program: its open requests or, if there are none, its result."""

    result: T | RowError

    def __init__(self, steps: Writing[T | RowError]) -> None:
        self.steps = steps
        self.requests: Sequence[Request] = ()
        self.resume(None)

    def resume(self, replies: Sequence[Reply] | None) -> None:
        """Start the program, or resume it with the replies to its requests; a missing reply ends the program."""
        self.requests = ()
        failed = next((reply for reply in replies or () if isinstance(reply, RowError)), None)
        if failed is not None:
            self.result = failed
            return
        try:
            if replies is None:
                self.requests = next(self.steps)
            else:
                self.requests = self.steps.send([reply for reply in replies if isinstance(reply, Generation)])
        except StopIteration as end:
            self.result = end.value
        except UnreadableReply as error:
            self.result = RowError("unreadable_reply", f"the model's reply does not have the requested form: {error}")
