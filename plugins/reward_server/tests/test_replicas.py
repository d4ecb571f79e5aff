"""On a real Ray cluster, a replica that hangs loses no request and does not affect other replicas."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ray import serve as ray_serve

from plumbline.jobs.scorer import open_scorer
from plumbline.plugins.reward_server.app import PrometheusCounters
from plumbline.plugins.reward_server.run_service import (
    find_nodes,
    find_served_metrics,
    make_replica_caller,
    run_replicas,
)
from plumbline.plugins.reward_server.service import Service
from plumbline.plugins.reward_server.wires.wire import ImageAnswers, ScoreRequest
from tests.commands import load_job_config
from tests.faults.hook import BAIT_MARK
from tests.serving import Pair, select_first_pairs

SERVE_OPTIONS = ["metric=[clipscore]", "models=shapes", "batch=4", "batch_deadline=10", "num_cpus=0.5", "threads=1"]


@pytest.fixture
def serving() -> Iterator[None]:
    """Shut down Ray Serve after the test, because other tests share the Ray cluster."""
    yield
    ray_serve.shutdown()


def ask(service: Service, pairs: Sequence[Pair]) -> list[ImageAnswers]:
    return asyncio.run(service.score([ScoreRequest((pair.image,), pair.prompt, ("clipscore",)) for pair in pairs]))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster", "serving")
def test_a_hanging_replica_is_killed_and_the_next_one_scores_its_batch(tmp_path: Path) -> None:
    """The first process that reads the third image hangs, but the second does not."""
    note, pairs = tmp_path / "note", select_first_pairs(6)
    baited = [*pairs[:2], pairs[2]._replace(image=pairs[2].image + BAIT_MARK + str(note).encode()), *pairs[3:]]
    config, counts = load_job_config("serve", *SERVE_OPTIONS), PrometheusCounters()
    with run_replicas(config) as handle:
        answers = ask(
            Service(
                make_replica_caller(handle, counts), find_served_metrics(config, find_nodes(config)), config, counts
            ),
            baited,
        )
    table = open_scorer("metric=[clipscore]", "models=shapes").score_table(
        [p.image for p in pairs], [p.prompt for p in pairs]
    )
    assert [answer["clipscore"].score for answer in answers] == pytest.approx(table["score"].to_pylist(), abs=1e-5)
    assert not Path(f"/proc/{note.read_text()}").exists(), "the process that hung has ended"
    assert b"plumbline_replica_deaths_total 0.0" not in counts.render()
