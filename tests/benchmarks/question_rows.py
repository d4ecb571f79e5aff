"""Measures the stored size and the processing time of rows with many questions; only the answers are made up.

python -m tests.benchmarks.question_rows [ROWS]
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.preparing import PreparedImages
from plumbline.operators.images.rows import ImageRow
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.models.calls import Question
from plumbline.operators.stages.answers import AnswersStage, QuestionIndex
from plumbline.operators.stages.scores import WrittenIndex
from plumbline.pipelines.store.store import encode_cell
from tests.operators.stages.given import make_options, score

QUESTION_COUNTS = (1, 10, 30)
"""Number of questions per row."""
WORDS = ("tea cup", "teapot", "table", "red", "blue", "small", "round", "wooden", "window", "cat", "dog", "two")


class InventingModel:
    """A model that encodes nothing, and makes up the probabilities of two tokens for each choice."""

    usage = Usage()
    side_by_side = False

    def __init__(self) -> None:
        self.chance = np.random.default_rng(0)

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        return pixels

    def likelihood(self, features: Sequence[Any], questions: Sequence[Question]) -> list[list[list[float]]]:
        made: list[list[list[float]]] = np.log(self.chance.random((len(questions), 2, 2), np.float32)).tolist()
        return made

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> list[str]:
        return [question.choices[0] for question in questions]


def make_questions(prompts: int, each: int) -> pa.Table:
    """Return this number of yes/no questions about every prompt; half of them have a parent."""
    chance = np.random.default_rng(1)
    records = []
    for number in range(prompts):
        text = f"{' '.join(chance.choice(WORDS, 12))}, number {number}"
        ids = [chance.bytes(8).hex() for _ in range(each)]
        for place, question_id in enumerate(ids):
            first, second, third = chance.choice(WORDS, 3)
            records.append({
                "prompt_id": f"prompt-{number:08d}", "prompt": text, "question_id": question_id,
                "text": f"Is the {first} {second} next to the {third}?", "choices": ["yes", "no"], "answer": "yes",
                "kind": "relation - spatial", "span": f"{first} {second}", "start": 0, "end": 9,
                "parents": [ids[place // 2]] if place % 2 else [],
            })  # fmt: skip
    return rows.table(records, schemas.QUESTIONS)


def make_images(count: int) -> PreparedImages:
    """Return an image for every prompt, as if it had been decoded."""
    chance, images = np.random.default_rng(2), PreparedImages()
    for number in range(count):
        row = ImageRow(f"atlas-{number:08d}", f"prompt-{number:08d}", "atlas")
        images.add(number, row, chance.bytes(8).hex(), [number])
    return images


def measure_stages(count: int, each: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each stage, with the bytes and the CPU microseconds that it takes per row."""

    def measure_stage(stage: str, call: Callable[[], pa.Table]) -> tuple[pa.Table, tuple[str, float, float]]:
        began = time.process_time()
        table = call()
        size = len(encode_cell(table, {"key": "0" * 64}))
        return table, (stage, size / count, 1e6 * (time.process_time() - began) / count)

    metric, images = DsgConfig(), make_images(count)
    questions, said = measure_stage("questions", lambda: make_questions(count, each))
    yield (*said[:2], float("nan"))  # no writer wrote the questions
    stage = AnswersStage({"dsg": metric}, {"model": InventingModel()}, make_options(image_batch=256))
    answers, said = measure_stage(
        "answers", lambda: stage.measure(images, {"dsg": QuestionIndex(questions, metric)})["dsg"]
    )
    yield said
    _, said = measure_stage("scores", lambda: score(answers, "dsg", metric, WrittenIndex(questions, None)))
    yield said


if __name__ == "__main__":
    N_ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    print(f"{N_ROWS} rows, each with one image and its own prompt\n")
    print("| questions per row | stage | bytes per row | CPU microseconds per row |\n|---|---|---|---|")
    for number in QUESTION_COUNTS:
        for name, size, spent in measure_stages(N_ROWS, number):
            print(f"| {number} | {name} | {size:,.0f} | {'' if np.isnan(spent) else f'{spent:,.0f}'} |")
