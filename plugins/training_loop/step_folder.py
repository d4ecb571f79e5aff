"""The folder of an evaluation: its settings, and for each step the scores, the results and the worst images.

evaluation.json             settings that all steps share
report.html                 all steps, and the worst images of the latest
steps/00000100/result.json  means and comparisons; it is written last, so a step without it is computed again
steps/00000100/scores.parquet
steps/00000100/worst/vqascore-1.png
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import names
from plumbline.operators.report.rendering import make_template_environment
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.plugins.training_loop.step_results import MetricResult, StepResult, name_step

SETTINGS_FILE, REPORT_FILE, RESULT_FILE, SCORES_FILE = "evaluation.json", "report.html", "result.json", "scores.parquet"
STEP_NAME = re.compile(r"[0-9]{8,19}")
TEMPLATES = Path(__file__).parent / "templates"


class WorstImage(NamedTuple):
    """One of the images with the worst scores in a step by one metric."""

    metric: str
    number: int
    """Position among the worst images of the metric, from 1 for the worst."""
    prompt: str
    score: float
    encoded: bytes

    @property
    def path(self) -> str:
        """Path relative to the step's folder."""
        return f"worst/{self.metric}-{self.number}.png"


class StepFolder:
    """Reader and writer of an evaluation's folder."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def claim(self, settings: Mapping[str, Any]) -> None:
        """Write the settings; raise ConfigError if the folder belongs to an evaluation with other settings."""
        file = self.place / SETTINGS_FILE
        with readable_errors(file, "folder"):
            earlier = _read_json(file) if file.exists() else None
        if earlier is None:
            file.write(json.dumps(settings, indent=1).encode())
        elif earlier != settings:
            different = sorted(name for name in {*earlier, *settings} if earlier.get(name) != settings.get(name))
            raise ConfigError(
                f"folder {self.place}: expected an evaluation with the same settings, found another one (other "
                f"{names(different)}); its steps cannot be compared with new ones, so choose another folder"
            )

    def read_results(self) -> list[StepResult]:
        """Return the results of all complete steps, in order; raise ConfigError if a file is damaged."""
        steps = self.place / "steps"
        with readable_errors(steps, "folder"):
            listed = sorted(name for name in steps.list() if STEP_NAME.fullmatch(name)) if steps.is_folder() else []
            complete = [name for name in listed if (steps / name / RESULT_FILE).is_file()]
        return [self._read_result(int(name)) for name in complete]

    def _read_result(self, step: int) -> StepResult:
        file = self.find_step(step) / RESULT_FILE
        values = _read_json(file)
        try:
            metrics = tuple(MetricResult.parse(metric) for metric in values["metrics"])
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{file}: expected the results of a step, found other keys; {REMEDY}") from error
        return StepResult(step, metrics, self.find_step(step).url)

    def find_step(self, step: int) -> Place:
        """Return the folder of a step."""
        return self.place / f"steps/{name_step(step)}"

    def read_scores(self, step: int) -> pa.Table:
        """Return the scores of a complete step; raise ConfigError if the file is damaged or missing."""
        file = self.find_step(step) / SCORES_FILE
        with readable_errors(file, "scores"):
            try:
                return pq.read_table(pa.BufferReader(file.read()))
            except pa.ArrowInvalid as error:
                raise ConfigError(f"{file}: expected Parquet, found a damaged file; {REMEDY}") from error

    def write_step(self, result: StepResult, scores: pa.Table, worst: Sequence[WorstImage]) -> None:
        """Write a step's files. The last file marks the step as complete."""
        folder = self.find_step(result.step)
        (folder / SCORES_FILE).write_table(scores)
        for image in worst:
            (folder / image.path).write(image.encoded)
        content = {"step": result.step, "metrics": [metric.to_json() for metric in result.metrics]}
        (folder / RESULT_FILE).write(json.dumps(content, indent=1).encode())

    def write_report(
        self, title: str, results: Sequence[StepResult], shown: StepResult, worst: Sequence[WorstImage]
    ) -> None:
        """Write the page with all steps, and the worst images of one of them."""
        template = make_template_environment(TEMPLATES).get_template("training_loop.html.j2")
        page = template.render(title=title, results=results, shown=shown, worst=worst, folder=name_step(shown.step))
        (self.place / REPORT_FILE).write(page.encode())


REMEDY = "delete its folder to evaluate the step again"


def _read_json(file: Place) -> Any:
    try:
        values = json.loads(file.read())
    except ValueError as error:
        raise ConfigError(f"{file}: expected JSON, found a damaged file; {REMEDY}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: expected a JSON object, found a {type(values).__name__}; {REMEDY}")
    return values
