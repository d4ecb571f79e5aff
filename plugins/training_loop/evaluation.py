"""`plumbline.Evaluation` scores a pipeline at steps of a training run, and reports whether its scores have improved."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from plumbline.jobs.command import Command
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.jobs.scorer import Metrics, compose_values
from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.training_loop.evaluation_config import (
    EvaluationConfig,
    OpenedEvaluation,
    list_wanted_images,
    open_evaluation,
)
from plumbline.plugins.training_loop.generated_images import GeneratedImage, Pipeline, WantedImage, generate_images
from plumbline.plugins.training_loop.ranks import Ranks
from plumbline.plugins.training_loop.step_folder import StepFolder, WorstImage
from plumbline.plugins.training_loop.step_results import StepResult, find_best_steps, format_step_name, summarize_step
from plumbline.plugins.training_loop.trackers import TRACKERS
from plumbline.plugins.training_loop.trackers.tracker import (
    GuardedTracker,
    LoopTracker,
    StepUpdate,
    list_values,
)

if TYPE_CHECKING:
    from plumbline.plugins.training_loop.callback import EvaluationCallback

LOG = logging.getLogger(__name__)
COMMAND = Command("evaluation", "Score a pipeline inside a training loop.", EvaluationConfig, SWEEP_KEYS)


class Evaluation:
    """Evaluation of a pipeline at several steps of its training. Each step is compared with earlier steps."""

    def __init__(
        self,
        *,
        benchmark: str = "own",
        metrics: Metrics = "vqascore",
        models: str = "released",
        trackers: str | LoopTracker | Iterable[str | LoopTracker] = (),
        pipeline_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Read the prompts, load the metrics' models, and find the earlier steps in the folder.

        Args:
            benchmark: A benchmark with prompts, such as `shapes`. The default reads the prompts in the file that
                `prompts="prompts.txt"` names.
            metrics: The name of a metric, a function of an image and its prompt (docs/plugins.md), or a list of these.
            models: `released` for the real models, or `shapes` for the small ones that only know coloured shapes.
            trackers: `tensorboard`, `wandb` or `mlflow`, an `Accelerator`, a W&B run, or a list of these.
            pipeline_options: Further arguments of a diffusers pipeline, such as `{"num_inference_steps": 20}`.
            options: Other keys of the evaluation: `limit=64` takes the first 64 prompts; `folder="evaluation"` is the
                folder for the results; `seeds=2` makes two images per prompt; `batch=8` generates eight images at a
                time; `worst=6` is the number of worst images to keep; `on_gpu=True` puts the metrics' models on this
                machine's GPU.

        Raises:
            ConfigError: An option is invalid, or the folder has an evaluation with other settings.
            ModelError: A model cannot be found or loaded.
        """
        no_images: dict[str, Any] = {"images": None, "benchmark.generators": {}}
        keys = {"benchmark": benchmark, **no_images, "models": models, **options}
        self.config = read_config(compose_values(COMMAND, (), metrics, keys), EvaluationConfig)
        self.pipeline_options = dict(pipeline_options or {})
        self.folder = StepFolder(self.config.storage.locate(self.config.folder, writable=True))
        self._trackers = [self._open_tracker(tracker) for tracker in _list_trackers(trackers)]
        self._ranks = Ranks()
        self._results: dict[int, StepResult] = {}
        self._opened = self._open() if self._ranks.rank == 0 else None

    def step(self, pipeline: Pipeline, step: int) -> StepResult:
        """Generate an image for each prompt, score the images, and compare the scores with those of earlier steps.

        A step whose results are in the folder is not evaluated again. If torch.distributed is initialised, every
        process must call this: each generates a part of the images, the first one scores them, and all return the same
        result. If a tracker fails, a warning is logged.

        Args:
            pipeline: A diffusers pipeline, or a function of a list of prompts. If the function has a second parameter,
                it also gets a list of seeds. It returns an image for each prompt: a `PIL.Image`, a uint8 array, or None
                if there is no image.
            step: Number of the training step.

        Raises:
            ConfigError: The pipeline did not return one image per prompt, or `step` is not a whole number.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ConfigError(
                f"step: expected a whole number, 0 or more, got {step!r}; pass the number of the training step"
            )
        ranks = self._ranks
        found: StepResult | list[WantedImage] = ranks.compute_on_first_rank(
            lambda: self._find_result_or_list_images(step)
        )
        if isinstance(found, StepResult):
            return found

        def generate(wanted: Sequence[WantedImage]) -> list[GeneratedImage]:
            return list(generate_images(pipeline, wanted, self.config.batch, self.pipeline_options))

        images = ranks.map_across_processes(found, generate)
        return ranks.compute_on_first_rank(lambda: self._score_and_complete(step, found, images))

    def make_callback(self, make_pipeline: Callable[[Any], Pipeline], every: int | None = None) -> "EvaluationCallback":
        """Return a callback for the trainers of transformers and TRL.

        Args:
            make_pipeline: Function that takes the trainer's model and returns the pipeline to evaluate.
            every: Number of training steps between two evaluations; None evaluates whenever the trainer does.
        """
        from plumbline.plugins.training_loop.callback import EvaluationCallback  # imports transformers

        return EvaluationCallback(self.step, make_pipeline, every)

    def _open(self) -> OpenedEvaluation:
        opened = open_evaluation(self.config, self.pipeline_options)
        self.folder.claim(opened.settings)
        self._results = {result.step: result for result in self.folder.read_results()}
        return opened

    def _get_opened(self) -> OpenedEvaluation:
        if self._opened is None:  # the launcher's variables did not say that this process is the first
            self._opened = self._open()
        return self._opened

    def _open_tracker(self, tracker: str | LoopTracker) -> GuardedTracker:
        if isinstance(tracker, str):
            check_known("trackers", tracker, TRACKERS)
            return GuardedTracker(tracker, TRACKERS[tracker](self.folder.place.url), self.config.tracker_timeout)
        if not isinstance(tracker, LoopTracker):
            raise ConfigError(
                f"trackers: expected names ({', '.join(TRACKERS)}) or objects with a method log(values, step), got a "
                f"value of type {type(tracker).__name__}; correct the list"
            )
        return GuardedTracker(type(tracker).__name__, tracker, self.config.tracker_timeout)

    def _find_result_or_list_images(self, step: int) -> StepResult | list[WantedImage]:
        """Return the step's result if it exists or its scores are in the folder; otherwise, the images to generate."""
        prompts = self._get_opened().prompts
        known = self._results.get(step)
        if known is not None:
            LOG.warning(
                "step %d was already evaluated, so the pipeline was not called; its result is in %s",
                step, known.folder,
            )  # fmt: skip
            return known
        self.folder.check_no_other_process()
        if self.folder.has_scores(step):  # an earlier process, or a full disk, stopped between scores and result
            return self._complete_step(step, self.folder.read_scores(step), [])
        return list_wanted_images(prompts, self.config.seeds)

    def _score_and_complete(
        self, step: int, wanted: Sequence[WantedImage], images: Sequence[GeneratedImage]
    ) -> StepResult:
        scores = self._score_images(step, wanted, images)
        self.folder.write_scores(step, scores)
        return self._complete_step(step, scores, self._find_worst_images(scores, wanted, images))

    def _complete_step(self, step: int, scores: pa.Table, worst: Sequence[WorstImage]) -> StepResult:
        """Compare a step's scores with those of earlier steps; write, send and return the step's result."""
        scorer = self._get_opened().scorer
        before = [self._results[other] for other in sorted(self._results) if other < step]
        best = find_best_steps(before, scorer.metrics)
        compared = {*best.values(), *[result.step for result in before[-1:]]}
        earlier = {other: self.folder.read_scores(other) for other in compared}
        metrics = summarize_step(step, scores, earlier, best, scorer.metrics)
        result = StepResult(step, metrics, self.folder.get_step_folder(step).url)
        self.folder.write_result(result, worst)
        self._results[step] = result
        every = [self._results[other] for other in sorted(self._results)]
        self.folder.write_report(f"{self.config.benchmark.name}, step by step", every, result, worst)
        update = StepUpdate(step, list_values(result), str(result), worst)
        for tracker in self._trackers:
            tracker.send(update)
        return result

    def _score_images(self, step: int, wanted: Sequence[WantedImage], images: Sequence[GeneratedImage]) -> pa.Table:
        """Return the images' scores (schema SCORES). The column `generator` contains the name of the step."""
        made = [image.encoded for image in images]
        rows = (
            self._get_opened()
            .scorer.score_table(made, [image.prompt for image in wanted])
            .select(SCORE_COLUMNS)
            .to_pylist()
        )
        for row in rows:
            number = int(row["image_id"])
            error = images[number].error
            row |= {"image_id": wanted[number].image_id, "prompt_id": wanted[number].prompt_id}
            row |= {"generator": format_step_name(step)}
            row |= {} if error is None else {"score": None, "error": error._asdict()}
        return pa.Table.from_pylist(rows, schema=schemas.SCORES)

    def _find_worst_images(
        self, scores: pa.Table, wanted: Sequence[WantedImage], images: Sequence[GeneratedImage]
    ) -> list[WorstImage]:
        of_id = {image.image_id: (image, made.encoded) for image, made in zip(wanted, images, strict=True)}
        worst = []
        for name, metric in self._get_opened().scorer.metrics.items():
            rows = [row for row in scores.select(["image_id", "metric", "score"]).to_pylist() if row["metric"] == name]
            scored = [row for row in rows if row["score"] is not None] if metric.ranks else []
            scored.sort(key=lambda row: row["score"], reverse=metric.prefers_lower)
            for number, row in enumerate(scored[: self.config.worst], start=1):
                image, encoded = of_id[row["image_id"]]
                worst.append(WorstImage(name, number, image.prompt, row["score"], encoded or b""))
        return worst


SCORE_COLUMNS = schemas.SCORES.names


def _list_trackers(trackers: str | LoopTracker | Iterable[str | LoopTracker]) -> list[str | LoopTracker]:
    single = isinstance(trackers, str) or not isinstance(trackers, Iterable)
    return [trackers] if single else list(trackers)  # type: ignore[list-item,arg-type]
