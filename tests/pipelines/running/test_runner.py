"""What the runner hands out."""

from typing import Any

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.cells.cells import Cell, Outcome, Shard, Work
from plumbline.pipelines.running.runner import Runner

SHARD = Shard(group="bench", name="0", place=Place("/0", StorageConfig()), size=1, etag="1", row_groups=(0,), rows=1)
PROMPT_SHARDS = 400


def cell(stage: str, name: str, **inputs: tuple[str, ...]) -> Cell:
    return Cell(node=stage, stage=stage, metric="vqascore", key=name, path=f"{stage}/{name}.parquet", inputs=inputs)


def test_a_claim_check_tells_of_the_cells_upstream_that_did_not_commit_and_of_no_others() -> None:
    questions = [cell("questions", str(number)).path for number in range(PROMPT_SHARDS)]
    unused: Any = None
    runner = Runner([], unused, ClusterConfig(pools={}), unused)
    runner.outcomes = {path: Outcome(state="committed", rows=1) for path in questions}
    unsound = {questions[0]: Outcome(state="draft"), questions[1]: Outcome(state="failed", message="no disk")}
    runner.outcomes |= unsound
    work = Work(shard=SHARD, cells=(cell("answers", "0", questions=tuple(questions)),), outcomes={})
    assert runner._with_outcomes(work).outcomes == unsound
