"""The folder of an evaluation: its settings, and for each step the scores, the results and the worst images.

evaluation.json                settings that all steps share
report.html                    all steps, and the worst images of the latest
steps/00000100/scores.parquet  written first and only once, so that only one of several processes can claim the step
steps/00000100/worst/vqascore-1.png
steps/00000100/result.json     means and comparisons; written last, and computed from the scores if it is missing
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_names
from plumbline.operators.report.rendering import make_template_environment
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.plugins.training_loop.step_results import MetricResult, StepResult, format_step_name

SETTINGS_FILE, REPORT_FILE, RESULT_FILE, SCORES_FILE = "evaluation.json", "report.html", "result.json", "scores.parquet"
STEP_NAME_PATTERN = re.compile(r"[0-9]{8,19}")
TEMPLATES_FOLDER = Path(__file__).parent / "templates"


class WorstImage(NamedTuple):
    """One of a step's worst images according to one metric."""

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
    """Reader and writer of the folder that contains the settings and the steps of an evaluation."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._known: set[str] = set()
        """Names of the steps that were there at the beginning, or that this process has written."""

    def claim(self, settings: Mapping[str, Any]) -> None:
        """Write the settings; raise ConfigError if the folder belongs to an evaluation with other settings."""
        file = self.place / SETTINGS_FILE
        if file.create(json.dumps(settings, indent=1).encode()):
            return
        with convert_read_errors(file, "folder"):
            earlier = _read_json(file, "choose another folder")
        if earlier != settings:
            different = sorted(name for name in {*earlier, *settings} if earlier.get(name) != settings.get(name))
            raise ConfigError(
                f"folder {self.place}: expected an evaluation with the same settings, found one with other "
                f"settings ({format_names(different)}); its steps cannot be compared with new ones, so choose another "
                "folder"
            )

    def read_results(self) -> list[StepResult]:
        """Return the results of all complete steps, in order; raise ConfigError if a file is damaged."""
        steps = self.place / "steps"
        self._known = set(self._list_steps())
        with convert_read_errors(steps, "folder"):
            complete = [name for name in sorted(self._known) if (steps / name / RESULT_FILE).is_file()]
        return [self._read_result(int(name)) for name in complete]

    def check_no_other_process(self) -> None:
        """Raise ConfigError if another process has written a step since the results were read."""
        if foreign := sorted(set(self._list_steps()) - self._known):
            raise self._make_shared_folder_error(int(foreign[0]))

    def _list_steps(self) -> list[str]:
        steps = self.place / "steps"
        with convert_read_errors(steps, "folder"):
            return [name for name in steps.list() if STEP_NAME_PATTERN.fullmatch(name)] if steps.is_folder() else []

    def _make_shared_folder_error(self, step: int) -> ConfigError:
        return ConfigError(
            f"folder {self.place}: expected only steps of this training run, found step {step} from another process; "
            "two training runs cannot share a folder, so choose another one"
        )

    def _read_result(self, step: int) -> StepResult:
        file = self.get_step_folder(step) / RESULT_FILE
        values = _read_json(file, DAMAGED_STEP_REMEDY)
        try:
            metrics = tuple(MetricResult.parse(metric) for metric in values["metrics"])
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"{file}: expected the results of a step, found other keys; {DAMAGED_STEP_REMEDY}"
            ) from error
        return StepResult(step, metrics, self.get_step_folder(step).url)

    def get_step_folder(self, step: int) -> Place:
        """Return the folder of a step."""
        return self.place / f"steps/{format_step_name(step)}"

    def has_scores(self, step: int) -> bool:
        """Return True if the step's images were scored, even if its result was not written."""
        file = self.get_step_folder(step) / SCORES_FILE
        with convert_read_errors(file, "scores"):
            return file.is_file()

    def read_scores(self, step: int) -> pa.Table:
        """Return the scores of a complete step; raise ConfigError if the file is damaged or missing."""
        file = self.get_step_folder(step) / SCORES_FILE
        with convert_read_errors(file, "scores"):
            try:
                return pq.read_table(pa.BufferReader(file.read()))
            except pa.ArrowInvalid as error:
                raise ConfigError(f"{file}: expected Parquet, found a damaged file; {DAMAGED_STEP_REMEDY}") from error

    def write_scores(self, step: int, scores: pa.Table) -> None:
        """Write a step's scores; raise ConfigError if another process has written them."""
        sink = pa.BufferOutputStream()
        pq.write_table(scores, sink, compression="zstd")
        self._known.add(format_step_name(step))  # even if writing fails, because that may leave an empty folder
        if not (self.get_step_folder(step) / SCORES_FILE).create(sink.getvalue().to_pybytes()):
            self._known.remove(format_step_name(step))
            raise self._make_shared_folder_error(step)

    def write_result(self, result: StepResult, worst: Sequence[WorstImage]) -> None:
        """Write a step's worst images, and then its result, which marks the step as complete."""
        folder = self.get_step_folder(result.step)
        for image in worst:
            (folder / image.path).write(image.encoded)
        content = {"step": result.step, "metrics": [metric.to_json() for metric in result.metrics]}
        (folder / RESULT_FILE).write(json.dumps(content, indent=1).encode())

    def write_report(
        self, title: str, results: Sequence[StepResult], shown: StepResult, worst: Sequence[WorstImage]
    ) -> None:
        """Write the page with all steps, and the worst images of one of them."""
        template = make_template_environment(TEMPLATES_FOLDER).get_template("training_loop.html.j2")
        page = template.render(
            title=title, results=results, shown=shown, worst=worst, folder=format_step_name(shown.step)
        )
        (self.place / REPORT_FILE).write(page.encode())


DAMAGED_STEP_REMEDY = "delete its folder to evaluate the step again"


def _read_json(file: Place, remedy: str) -> Any:
    try:
        values = json.loads(file.read())
    except ValueError as error:
        raise ConfigError(f"{file}: expected JSON, found a damaged file; {remedy}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: expected a JSON object, found a {type(values).__name__}; {remedy}")
    return values
