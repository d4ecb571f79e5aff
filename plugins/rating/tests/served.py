"""Studies of synthetic runs, served over HTTP within the test process."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from plumbline.operators.base import rows, schemas
from plumbline.pipelines.store.cells import Cell
from plumbline.pipelines.store.runs import CELLS_SCHEMA
from plumbline.pipelines.web.listening import list_allowed_hosts
from plumbline.plugins.rating.app import make_app
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.study import Study, open_study
from tests.operators.report.made import MadeRun, make_run

QUESTIONS_FILE = "questions/00000000/made/00000-00000000.parquet"
GENERATORS = ("atlas", "borealis", "cobalt")


def make_run_with_questions(folder: Path, **options: Any) -> MadeRun:
    run = make_run(folder, **{"prompts": ["a red star", "a blue cup"], "generators": GENERATORS} | options)
    asked = [
        {"prompt_id": f"p{at:04d}", "question_id": f"q{number}", "text": text, "choices": choices, "answer": choices[0]}
        for at in range(2)
        for number, (text, choices) in enumerate(
            [("Is it one?", ["Yes", "No"]), ("Is it big?", ["yes", "no"]), ("What colour?", ["red", "blue"])]
        )
    ]
    cell = Cell(node="questions", stage="questions", metric="gecko", key="0" * 64, path=QUESTIONS_FILE, inputs={})
    run.store.save(cell, rows.table(asked, schemas.QUESTIONS))
    path = f"runs/{run.run_id}/cells.parquet"
    cells = run.store.read_table(path).to_pylist()
    for scores in (one["path"] for one in cells if one["path"].startswith("scores/00000000/")):
        table = run.store.read(scores)
        reading = {"questions": (QUESTIONS_FILE,)}
        run.store.save(
            Cell(
                node="scores", stage="scores", metric="gecko", key="00000000", path=scores, inputs=reading, renew=True
            ),
            table,
        )
    run.store.write_table(path, rows.table([*cells, {"path": QUESTIONS_FILE, "state": "cached"}], CELLS_SCHEMA))
    return run


class ServedStudy:
    """A study that receives requests from this machine; `warnings` contains the warnings that it reported."""

    def __init__(self, token: str | None = None, **config: Any) -> None:
        self.warnings: list[str] = []
        self.study: Study = open_study(RateConfig(**config), self.warnings.append)
        self.app = make_app(self.study, token, list_allowed_hosts("127.0.0.1", ()))

    def __call__(self, path: str, **request: Any) -> httpx.Response:
        async def send_request() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8009") as client:
                return await client.request(request.pop("method", "GET"), path, **request)

        return asyncio.run(send_request())

    def get_tasks(self, rater: str = "ann", count: int = 20) -> list[dict[str, Any]]:
        found = self("/tasks", params={"rater": rater, "count": count})
        assert found.status_code == 200, found.text
        tasks: list[dict[str, Any]] = found.json()
        return tasks

    def post(self, task: Mapping[str, Any], answer: Any, rater: str = "ann", **changes: Any) -> httpx.Response:
        named = {name: task[name] for name in ("task_id", "repeat", "version")}
        body = {**named, "revision": 0, "rater": rater, "answer": answer, "note": "", "seconds": 2.5, **changes}
        return self("/answers", method="POST", json=body)
