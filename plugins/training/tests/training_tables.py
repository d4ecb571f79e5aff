"""Small training tables: synthetic scenes with captions, questions and answers."""

from pathlib import Path
from random import Random
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from plumbline.assets.making.questions import write_caption
from plumbline.assets.making.scenes import draw_scene, sample_scene, to_png
from plumbline.assets.making.vqa_training import QUESTION_MIXTURES, make_training_questions
from plumbline.plugins.training.worker import WorkerRank, WorkerTask, run_worker
from tests.commands import load_job_config

VQA_FOLDER = Path(__file__).parents[3] / "assets/clip-flant5-shapes"


def make_rows(count: int) -> list[dict[str, Any]]:
    rng = Random("taught")
    scenes = [sample_scene(rng) for _ in range(count)]
    questions = [make_training_questions(rng, scene, QUESTION_MIXTURES["question"], 1)[0] for scene in scenes]
    return [
        {
            "image": to_png(draw_scene(scene, rng.getrandbits(32))),
            "caption": write_caption(rng, scene),
            "question": question.text,
            "answer": question.answer,
        }
        for scene, question in zip(scenes, questions, strict=True)
    ]


def write_rows(folder: Path, rows: list[dict[str, Any]], files: int = 3) -> str:
    folder.mkdir()
    for number in range(files):
        table = pa.Table.from_pylist(rows[number::files])
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=max(1, len(table) // 2))
    return str(folder)


def load_training_config(*overrides: str) -> Any:
    small = ("shard_rows=1", "mixed=2", "cluster.pools.training.threads=1")
    return load_job_config("train", *small, *overrides)


def load_stage_config(kind: str, data: str, output: Path, *overrides: str) -> Any:
    model = [f"model.checkpoint={VQA_FOLDER}", *(["begin=null"] if kind == "captions" else [])]
    return load_training_config(
        f"training={kind}", f"data={data}", f"output={output}", *model, "pace.batch=4", "pace.steps=2", *overrides
    )


def run_two_workers(task: WorkerTask) -> None:
    """Run two workers as threads of this process. The workers wait for each other whenever they sum their tensors."""
    sums: list[torch.Tensor] = []
    barrier = Barrier(2, timeout=600)

    class LockstepRank(WorkerRank):
        def sum_over_workers(self, tensor: torch.Tensor) -> None:
            if barrier.wait() == 0:
                sums.clear()
            barrier.wait()
            sums.append(tensor.clone())
            barrier.wait()
            tensor.copy_(sums[0] + sums[1])
            barrier.wait()

    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            run_worker(task, LockstepRank(number, 2, torch.device("cpu")), lambda line: None)
        except BaseException as error:
            problems.append(error)
            barrier.abort()

    threads = [Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems
