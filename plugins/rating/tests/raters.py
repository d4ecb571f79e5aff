"""Simulated raters who request a study's tasks and submit answers over HTTP."""

from collections.abc import Callable
from typing import Any

import numpy as np

from plugins.rating.tests.served import ServedStudy

MEAN_GRADES = {"atlas": 4.4, "borealis": 1.9}
GradeChooser = Callable[[str, np.random.Generator], int]
"""Function that takes a generator's name and returns a grade for one of its images."""


def grade_honestly(generator: str, random: np.random.Generator) -> int:
    return int(np.clip(round(MEAN_GRADES[generator] + random.normal(0, 0.7)), 1, 5))


def grade_randomly(generator: str, random: np.random.Generator) -> int:
    return int(random.integers(1, 6))


class RatedStudy(ServedStudy):
    def rate(self, rater: str, choose: GradeChooser = grade_honestly, limit: int = 1000) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []
        random = np.random.default_rng(len(rater))
        while len(asked) < limit and (tasks := self.get_tasks(rater, count=1)):
            generator = self.study.served.tasks[tasks[0]["task_id"]].generators[0]
            kept = self.post(tasks[0], choose(generator, random), rater)
            assert kept.status_code == 201, kept.text
            asked += tasks
        return asked
