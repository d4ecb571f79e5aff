"""Requests share batches, and if a replica dies, its batches are computed again.

Scores are cached, and the length of the queue is limited.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from plumbline.operators.base.errors import RowError
from plumbline.plugins.reward_server.app import PrometheusCounters
from plumbline.plugins.reward_server.serve_config import LoadConfig
from plumbline.plugins.reward_server.service import ReplicaDied, RetryLater, Service
from plumbline.plugins.reward_server.wires.wire import ImageAnswers, MetricAnswer, ScoreRequest, Served

Result = TypeVar("Result")
SERVED = Served({"length": "recipe-1", "bytes": "recipe-2"}, None)


def make_request(prompt: str, image: bytes = b"image", metrics: Sequence[str] = ("length",)) -> ScoreRequest:
    return ScoreRequest((image,), prompt, tuple(metrics))


class Replicas:
    def __init__(self, before_scoring: Callable[[Sequence[str]], Awaitable[None]] | None = None) -> None:
        self.batches: list[list[str]] = []
        self.metrics: list[tuple[str, ...]] = []
        self.before_scoring = before_scoring

    async def __call__(self, batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        prompts = [one.prompt for one in batch]
        self.batches.append(prompts)
        self.metrics.append(tuple(metrics))
        await asyncio.sleep(0)
        if self.before_scoring is not None:
            await self.before_scoring(prompts)
        return [{name: MetricAnswer(float(len(prompt))) for name in metrics} for prompt in prompts]


def make_service(replicas: Replicas, **load: Any) -> Service:
    return Service(replicas, SERVED, LoadConfig(**{"gather_seconds": 0.001, **load}), PrometheusCounters())


def run(main: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(main)


def get_scores(answers: Sequence[ImageAnswers]) -> list[float | None]:
    return [answer["length"].score for answer in answers]


def test_images_of_many_requests_share_batches_and_each_gets_its_own_score() -> None:
    replicas = Replicas()

    async def main() -> list[list[ImageAnswers]]:
        serving = make_service(replicas, batch=16)
        return await asyncio.gather(*(serving.score([make_request("x" * length)]) for length in range(1, 41)))

    answers = run(main())
    assert [get_scores(of_request) for of_request in answers] == [[float(length)] for length in range(1, 41)]
    assert [len(batch) for batch in replicas.batches] == [16, 16, 8]


def test_only_a_full_batch_is_sent_in_advance_to_a_busy_replica() -> None:
    gates: list[asyncio.Event] = []

    async def wait(prompts: Sequence[str]) -> None:
        gates.append(asyncio.Event())
        await gates[-1].wait()

    async def main() -> list[int]:
        replicas = Replicas(wait)
        serving = make_service(replicas, batch=4)
        requests = [asyncio.ensure_future(serving.score([make_request("a")]))]
        await asyncio.sleep(0.05)
        requests += [asyncio.ensure_future(serving.score([make_request("b" * length)])) for length in (1, 2, 3)]
        await asyncio.sleep(0.05)
        sizes = [len(batch) for batch in replicas.batches]
        requests.append(asyncio.ensure_future(serving.score([make_request("bbbb")])))
        await asyncio.sleep(0.05)
        sizes += [len(batch) for batch in replicas.batches]
        for gate in gates:
            gate.set()
        await asyncio.gather(*requests)
        return sizes

    assert run(main()) == [1, 1, 4]


def test_images_for_different_metrics_do_not_share_a_batch() -> None:
    """Requests for two sets of metrics wait for a busy replica; the last one completes a batch for one of the sets."""
    free = asyncio.Event()
    both, one = ("length", "bytes"), ("length",)

    async def wait(prompts: Sequence[str]) -> None:
        await free.wait()

    async def main() -> tuple[list[int], list[tuple[str, ...]]]:
        replicas = Replicas(wait)
        serving = make_service(replicas, batch=4)
        requests = [asyncio.ensure_future(serving.score([make_request("busy")]))]
        await asyncio.sleep(0.05)
        for number, metrics in enumerate((both, one, one, both, one, both)):
            requests.append(asyncio.ensure_future(serving.score([make_request("x" * number, metrics=metrics)])))
        await asyncio.sleep(0.05)
        assert len(replicas.batches) == 1, "three waiting images do not fill a batch of four"
        requests.append(asyncio.ensure_future(serving.score([make_request("last", metrics=both)])))
        await asyncio.sleep(0.05)
        sizes = [len(batch) for batch in replicas.batches]
        free.set()
        await asyncio.gather(*requests)
        return sizes, replicas.metrics

    assert run(main()) == ([1, 4], [one, both, one])


def test_equal_images_are_computed_once() -> None:
    replicas = Replicas()

    async def main() -> list[list[float | None]]:
        serving = make_service(replicas)
        together = await asyncio.gather(*(serving.score([make_request("same")]) for _ in range(5)))
        again = await serving.score(
            [make_request("same"), make_request("same", b"another image"), make_request("other")]
        )
        return [*map(get_scores, together), get_scores(again)]

    assert run(main()) == [[4.0]] * 5 + [[4.0, 4.0, 5.0]]
    assert sorted(prompt for batch in replicas.batches for prompt in batch) == ["other", "same", "same"]


def test_only_metrics_that_are_not_cached_are_computed() -> None:
    replicas = Replicas()

    async def main() -> ImageAnswers:
        serving = make_service(replicas)
        await serving.score([make_request("a prompt", metrics=["bytes"])])
        (answers,) = await serving.score([make_request("a prompt", metrics=["length", "bytes"])])
        return answers

    assert list(run(main())) == ["length", "bytes"]
    assert replicas.metrics == [("bytes",), ("length",)]


def test_the_cache_is_limited_and_drops_the_least_recently_used_score() -> None:
    replicas = Replicas()

    async def main() -> int:
        serving = make_service(replicas, cached_scores=2)
        for prompt in ("a", "bb", "a", "ccc", "a", "bb"):
            await serving.score([make_request(prompt)])
        return len(serving.cache)

    assert run(main()) == 2
    assert replicas.batches == [["a"], ["bb"], ["ccc"], ["bb"]]


def test_images_with_different_frames_are_scored_separately() -> None:
    replicas = Replicas()

    async def main() -> None:
        serving = make_service(replicas)
        for frames in ((b"ab", b"c"), (b"a", b"bc"), (b"abc",)):
            await serving.score([ScoreRequest(frames, "p", ("length",))])

    run(main())
    assert len(replicas.batches) == 3


def test_nulls_are_not_cached() -> None:
    failing = [True]

    async def score(batch: Sequence[ScoreRequest], metrics: Sequence[str]) -> Sequence[ImageAnswers]:
        error = RowError("model_failed", "out of memory", retryable=True)
        return [{"length": MetricAnswer(None, error) if failing.pop() else MetricAnswer(1.0)} for _ in batch]

    async def main() -> list[float | None]:
        serving = Service(score, SERVED, LoadConfig(), PrometheusCounters())
        first = get_scores(await serving.score([make_request("a")]))
        failing.append(False)
        return first + get_scores(await serving.score([make_request("a")]))

    assert run(main()) == [None, 1.0]


def test_a_full_queue_refuses_requests_with_a_time_to_retry() -> None:
    async def wait(prompts: Sequence[str]) -> None:
        await asyncio.sleep(0.05)

    async def main() -> list[float | None]:
        serving = make_service(Replicas(wait), batch=2, max_waiting=4)
        accepted = asyncio.ensure_future(serving.score([make_request(str(number) * 3) for number in range(4)]))
        await asyncio.sleep(0)
        with pytest.raises(RetryLater, match="4 images are already waiting") as refusal:
            await serving.score([make_request("more")])
        assert refusal.value.status == 429 and refusal.value.retry_after >= 1
        return get_scores(await accepted)

    assert run(main()) == [3.0] * 4


def test_scores_that_arrive_after_the_deadline_are_cached_for_the_next_request() -> None:
    async def wait(prompts: Sequence[str]) -> None:
        await asyncio.sleep(0.1)

    async def main() -> list[float | None]:
        serving = make_service(Replicas(wait), deadline=0.03)
        with pytest.raises(RetryLater, match="no score after") as refusal:
            await serving.score([make_request("slow")])
        assert refusal.value.status == 503
        await asyncio.sleep(0.15)
        return get_scores(await serving.score([make_request("slow")]))

    assert run(main()) == [4.0]


def test_if_a_replica_dies_another_scores_its_batch() -> None:
    deaths = [1]

    async def die(prompts: Sequence[str]) -> None:
        if deaths:
            deaths.pop()
            raise ReplicaDied

    replicas = Replicas(die)

    async def main() -> list[ImageAnswers]:
        return await make_service(replicas).score([make_request("a"), make_request("bb")])

    assert get_scores(run(main())) == [1.0, 2.0]
    assert replicas.batches == [["a", "bb"], ["a", "bb"]]


def test_an_image_that_kills_replicas_is_isolated_and_only_its_score_is_null() -> None:
    async def die(prompts: Sequence[str]) -> None:
        if "deadly" in prompts:
            raise ReplicaDied

    replicas = Replicas(die)

    async def main() -> list[ImageAnswers]:
        return await make_service(replicas).score([make_request("a"), make_request("deadly"), make_request("bb")])

    answers = run(main())
    assert get_scores(answers) == [1.0, None, 2.0]
    error = answers[1]["length"].error
    assert error is not None and error.kind == "killed_worker"
    assert replicas.batches == [["a", "deadly", "bb"]] * 2 + [["a"], ["deadly"], ["bb"]]


def test_a_batch_sent_in_advance_survives_an_image_that_kills_replicas() -> None:
    """There is only one replica, so all batches that were sent to it are lost together."""
    under_way: list[asyncio.Event] = []

    async def wait_for_both_and_die(prompts: Sequence[str]) -> None:
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

    replicas = Replicas(wait_for_both_and_die)

    async def main() -> list[ImageAnswers]:
        return await make_service(replicas, batch=2).score(
            [make_request(prompt) for prompt in ("deadly", "a", "bb", "ccc")]
        )

    assert get_scores(run(main())) == [None, 1.0, 2.0, 3.0]
    assert replicas.batches[:4] == [["deadly", "a"], ["bb", "ccc"]] * 2, "both batches were sent again together"


def test_a_failed_batch_has_null_scores_and_the_next_request_is_served() -> None:
    failing = [True]

    async def fail(prompts: Sequence[str]) -> None:
        if failing:
            failing.pop()
            raise ValueError("unforeseen")

    async def main() -> list[ImageAnswers]:
        serving = make_service(Replicas(fail))
        return [*await serving.score([make_request("a")]), *await serving.score([make_request("a")])]

    failed, served = run(main())
    assert failed["length"].score is None and failed["length"].error is not None
    assert failed["length"].error.kind == "model_failed" and failed["length"].error.retryable
    assert served["length"].score == 1.0
