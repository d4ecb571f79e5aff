"""Requests share batches, and the batches of a dead replica are repeated.

Scores are cached, and the length of the queue is limited.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from plumbline.operators.base.errors import RowError
from plumbline.plugins.reward_server.app import Counts
from plumbline.plugins.reward_server.serve_config import LoadConfig
from plumbline.plugins.reward_server.service import ImageAnswers, ReplicaDied, Service, Unanswered
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, ScoreRequest, Served

Result = TypeVar("Result")
SERVED = Served({"length": "recipe-1", "bytes": "recipe-2"}, None)


def request_for(prompt: str, image: bytes = b"image", metrics: Sequence[str] = ("length",)) -> ScoreRequest:
    return ScoreRequest((image,), prompt, tuple(metrics))


class Replicas:
    """Replicas that score the length of the prompt and record their batches."""

    def __init__(self, befalls: Callable[[Sequence[str]], Awaitable[None]] | None = None) -> None:
        self.batches: list[list[str]] = []
        self.metrics: list[tuple[str, ...]] = []
        self.befalls = befalls

    async def __call__(self, batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        prompts = [one.prompt for one in batch]
        self.batches.append(prompts)
        self.metrics.append(tuple(metrics))
        await asyncio.sleep(0)
        if self.befalls is not None:
            await self.befalls(prompts)
        return [{name: MetricAnswer(float(len(prompt))) for name in metrics} for prompt in prompts]


def service(replicas: Replicas, **load: Any) -> Service:
    return Service(replicas, SERVED, LoadConfig(**{"gather_seconds": 0.001, **load}), Counts())


def run(main: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(main)


def scores(answers: Sequence[ImageAnswers]) -> list[float | None]:
    return [answer["length"].score for answer in answers]


def test_images_of_many_requests_share_batches_and_each_gets_its_own_score() -> None:
    replicas = Replicas()

    async def main() -> list[list[ImageAnswers]]:
        serving = service(replicas, batch=16)
        return await asyncio.gather(*(serving.score([request_for("x" * length)]) for length in range(1, 41)))

    answers = run(main())
    assert [scores(of_request) for of_request in answers] == [[float(length)] for length in range(1, 41)]
    assert [len(batch) for batch in replicas.batches] == [16, 16, 8]


def test_a_busy_replica_is_sent_ahead_a_full_batch_only() -> None:
    gates: list[asyncio.Event] = []

    async def wait(prompts: Sequence[str]) -> None:
        gates.append(asyncio.Event())
        await gates[-1].wait()

    async def main() -> list[int]:
        replicas = Replicas(wait)
        serving = service(replicas, batch=4)
        requests = [asyncio.ensure_future(serving.score([request_for("a")]))]
        await asyncio.sleep(0.05)
        requests += [asyncio.ensure_future(serving.score([request_for("b" * length)])) for length in (1, 2, 3)]
        await asyncio.sleep(0.05)
        sizes = [len(batch) for batch in replicas.batches]
        requests.append(asyncio.ensure_future(serving.score([request_for("bbbb")])))
        await asyncio.sleep(0.05)
        sizes += [len(batch) for batch in replicas.batches]
        for gate in gates:
            gate.set()
        await asyncio.gather(*requests)
        return sizes

    assert run(main()) == [1, 1, 4]


def test_what_waits_for_other_metrics_does_not_fill_a_batch() -> None:
    """Requests for two sets of metrics wait for a busy replica; the last one completes a batch for one of the sets."""
    free = asyncio.Event()
    both, one = ("length", "bytes"), ("length",)

    async def wait(prompts: Sequence[str]) -> None:
        await free.wait()

    async def main() -> tuple[list[int], list[tuple[str, ...]]]:
        replicas = Replicas(wait)
        serving = service(replicas, batch=4)
        requests = [asyncio.ensure_future(serving.score([request_for("busy")]))]
        await asyncio.sleep(0.05)
        for number, metrics in enumerate((both, one, one, both, one, both)):
            requests.append(asyncio.ensure_future(serving.score([request_for("x" * number, metrics=metrics)])))
        await asyncio.sleep(0.05)
        assert len(replicas.batches) == 1, "three of each wait, which is no batch of four"
        requests.append(asyncio.ensure_future(serving.score([request_for("last", metrics=both)])))
        await asyncio.sleep(0.05)
        sizes = [len(batch) for batch in replicas.batches]
        free.set()
        await asyncio.gather(*requests)
        return sizes, replicas.metrics

    assert run(main()) == ([1, 4], [one, both, one])


def test_what_is_known_or_asked_already_is_computed_once() -> None:
    replicas = Replicas()

    async def main() -> list[list[float | None]]:
        serving = service(replicas)
        together = await asyncio.gather(*(serving.score([request_for("same")]) for _ in range(5)))
        again = await serving.score([request_for("same"), request_for("same", b"another image"), request_for("other")])
        return [*map(scores, together), scores(again)]

    assert run(main()) == [[4.0]] * 5 + [[4.0, 4.0, 5.0]]
    assert sorted(prompt for batch in replicas.batches for prompt in batch) == ["other", "same", "same"]


def test_only_the_metrics_that_are_not_known_are_computed() -> None:
    replicas = Replicas()

    async def main() -> ImageAnswers:
        serving = service(replicas)
        await serving.score([request_for("a prompt", metrics=["bytes"])])
        (answers,) = await serving.score([request_for("a prompt", metrics=["length", "bytes"])])
        return answers

    assert list(run(main())) == ["length", "bytes"]
    assert replicas.metrics == [("bytes",), ("length",)]


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    replicas = Replicas()

    async def main() -> int:
        serving = service(replicas, cached_scores=2)
        for prompt in ("a", "bb", "a", "ccc", "a", "bb"):
            await serving.score([request_for(prompt)])
        return len(serving.cache)

    assert run(main()) == 2
    assert replicas.batches == [["a"], ["bb"], ["ccc"], ["bb"]]


def test_other_frames_are_another_image() -> None:
    replicas = Replicas()

    async def main() -> None:
        serving = service(replicas)
        for frames in ((b"ab", b"c"), (b"a", b"bc"), (b"abc",)):
            await serving.score([ScoreRequest(frames, "p", ("length",))])

    run(main())
    assert len(replicas.batches) == 3


def test_a_null_is_never_remembered() -> None:
    failing = [True]

    async def score(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        error = RowError("model_failed", "out of memory", retryable=True)
        return [{"length": MetricAnswer(None, error) if failing.pop() else MetricAnswer(1.0)} for _ in batch]

    async def main() -> list[float | None]:
        serving = Service(score, SERVED, LoadConfig(), Counts())
        first = scores(await serving.score([request_for("a")]))
        failing.append(False)
        return first + scores(await serving.score([request_for("a")]))

    assert run(main()) == [None, 1.0]


def test_more_than_may_wait_is_refused_with_a_time_to_come_again() -> None:
    async def wait(prompts: Sequence[str]) -> None:
        await asyncio.sleep(0.05)

    async def main() -> list[float | None]:
        serving = service(Replicas(wait), batch=2, max_waiting=4)
        accepted = asyncio.ensure_future(serving.score([request_for(str(number) * 3) for number in range(4)]))
        await asyncio.sleep(0)
        with pytest.raises(Unanswered, match="4 images wait") as refusal:
            await serving.score([request_for("more")])
        assert refusal.value.status == 429 and refusal.value.retry_after >= 1
        return scores(await accepted)

    assert run(main()) == [3.0] * 4


def test_what_takes_too_long_is_answered_so_and_known_the_next_time() -> None:
    async def wait(prompts: Sequence[str]) -> None:
        await asyncio.sleep(0.1)

    async def main() -> list[float | None]:
        serving = service(Replicas(wait), deadline=0.03)
        with pytest.raises(Unanswered, match="no score after") as refusal:
            await serving.score([request_for("slow")])
        assert refusal.value.status == 503
        await asyncio.sleep(0.15)
        return scores(await serving.score([request_for("slow")]))

    assert run(main()) == [4.0]


def test_a_batch_whose_replica_died_is_answered_by_another() -> None:
    deaths = [1]

    async def die(prompts: Sequence[str]) -> None:
        if deaths:
            deaths.pop()
            raise ReplicaDied

    replicas = Replicas(die)

    async def main() -> list[ImageAnswers]:
        return await service(replicas).score([request_for("a"), request_for("bb")])

    assert scores(run(main())) == [1.0, 2.0]
    assert replicas.batches == [["a", "bb"], ["a", "bb"]]


def test_an_image_that_kills_replicas_is_found_and_costs_only_itself() -> None:
    async def die(prompts: Sequence[str]) -> None:
        if "deadly" in prompts:
            raise ReplicaDied

    replicas = Replicas(die)

    async def main() -> list[ImageAnswers]:
        return await service(replicas).score([request_for("a"), request_for("deadly"), request_for("bb")])

    answers = run(main())
    assert scores(answers) == [1.0, None, 2.0]
    error = answers[1]["length"].error
    assert error is not None and error.kind == "killed_worker"
    assert replicas.batches == [["a", "deadly", "bb"]] * 2 + [["a"], ["deadly"], ["bb"]]


def test_what_is_sent_ahead_of_an_image_that_kills_replicas_is_scored() -> None:
    """If there is only one replica, all batches that were sent to it die together."""
    under_way: list[asyncio.Event] = []

    async def die_together(prompts: Sequence[str]) -> None:
        death = asyncio.Event()
        under_way.append(death)
        if "deadly" in prompts:
            await asyncio.sleep(0.01)
            for one in under_way:
                one.set()
        elif len(under_way) > 1:
            await death.wait()
        under_way.remove(death)
        if death.is_set():
            raise ReplicaDied

    replicas = Replicas(die_together)

    async def main() -> list[ImageAnswers]:
        return await service(replicas, batch=2).score([request_for(prompt) for prompt in ("deadly", "a", "bb", "ccc")])

    assert scores(run(main())) == [None, 1.0, 2.0, 3.0]
    assert replicas.batches[:4] == [["deadly", "a"], ["bb", "ccc"]] * 2, "the second was sent ahead, twice"


def test_what_fails_is_null_with_a_reason_and_the_next_request_is_served() -> None:
    failing = [True]

    async def fail(prompts: Sequence[str]) -> None:
        if failing:
            failing.pop()
            raise ValueError("unforeseen")

    async def main() -> list[ImageAnswers]:
        serving = service(Replicas(fail))
        return [*await serving.score([request_for("a")]), *await serving.score([request_for("a")])]

    failed, served = run(main())
    assert failed["length"].score is None and failed["length"].error is not None
    assert failed["length"].error.kind == "model_failed" and failed["length"].error.retryable
    assert served["length"].score == 1.0
