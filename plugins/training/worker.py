"""A training worker: it reads its part of each batch, and takes steps together with the other workers."""

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import distributed

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError, SourceError
from plumbline.operators.metrics.questions.vqascore import DEFAULT_QUESTIONS, reduce_answer
from plumbline.operators.models.calls import Question
from plumbline.operators.models.model import ResolvedModel
from plumbline.pipelines.base.storage import (
    Place,
)
from plumbline.pipelines.running.process import set_torch_threads
from plumbline.plugins.training.checkpoint import load_trainee
from plumbline.plugins.training.examples import Batches, Examples, RowOrder, RowReader, TrainingExample
from plumbline.plugins.training.loop import Report, StageTrainer, TrainingStage, train
from plumbline.plugins.training.trainee import Trainee, freeze_all_but

STATES_FOLDER, CHECKPOINT_FOLDER, HELD_OUT_FILE, OUTCOME_FILE = (
    "states",
    "checkpoint",
    "held_out.parquet",
    "outcome.json",
)
CONFIG_FILE = "config.json"
BEFORE_METRIC, AFTER_METRIC = "before", "after"
NOT_SCORED_ERROR = RowError("not_scored", "the image could not be read; see the training's output for the reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTask:
    """Everything that a worker needs in order to train."""

    model: ResolvedModel
    examples: Examples
    held_out: Examples | None
    """Rated images that are scored before and after finetuning."""
    stage: TrainingStage
    trained: tuple[str, ...]
    blend: float
    """Weight of the trained checkpoint in the result, which is a mean of initial and trained weights."""
    seed: int
    mixed: int
    save_every: int
    max_failed: int
    """Maximum number of rows that may be left out."""
    output: Place
    threads: int | None
    sharded: bool = False
    """True if the weights are split among the workers. Held-out images are not scored in this case."""

    @property
    def order(self) -> RowOrder:
        return RowOrder(
            row_indices=tuple(shard.row_indices for shard in self.examples.shards), seed=self.seed, mixed=self.mixed
        )


class WorkerRank(NamedTuple):
    """Rank and device of a worker, and the number of workers. Workers communicate through torch.distributed."""

    number: int
    workers: int
    device: torch.device

    def sum_over_workers(self, tensor: torch.Tensor) -> None:
        """Replace a tensor with its sum over all workers."""
        if self.workers > 1:
            distributed.all_reduce(tensor)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor with its mean over all workers.

        The tensors are averaged one by one, so that a resumed run has the same result. DistributedDataParallel
        would change its buckets after the first step of a process and, with three or more workers, the order of sums.
        """
        for tensor in tensors:
            self.sum_over_workers(tensor)
            tensor.div_(self.workers)


def run_worker(task: WorkerTask, rank: WorkerRank, report: Report) -> None:
    """Train from the newest saved state, or else from the checkpoint. Only the first worker writes the results."""
    set_torch_threads(task.threads)
    output = task.output
    trainee = load_trainee(task.model, rank.device, sharded=task.sharded)
    before = _score_held_out_images(task, trainee, rank)
    prefixes = trainee.find_name_prefixes(task.trained)
    trained = {name: weight for name, weight in trainee.network.named_parameters() if name.startswith(prefixes)}
    initial = {name: weight.clone() for name, weight in trained.items()} if task.blend < 1 else {}
    failed = _take_steps(task, trainee, rank, output, report)
    with torch.no_grad():
        for name, weight in initial.items():
            trained[name].lerp_(weight, 1 - task.blend)
    trainee.round_weights()
    after = _score_held_out_images(task, trainee, rank)
    if rank.number == 0:
        outcome = {"steps": task.stage.steps, "failed": failed}
        (output / OUTCOME_FILE).write(json.dumps(outcome).encode())
        if task.held_out is not None:
            _write_scores(task, output, {BEFORE_METRIC: before, AFTER_METRIC: after})
        _write_checkpoint(task, trainee, output)
        remove_states(output / STATES_FOLDER)
    elif task.sharded:
        trainee.save(task.model, None)


def _take_steps(task: WorkerTask, trainee: Trainee, rank: WorkerRank, output: Place, report: Report) -> int:
    """Take the remaining steps; return the number of rows that all workers left out since training began.

    Raises SourceError if this number exceeds `max_failed`.
    """
    report_once = report if rank.number == 0 else lambda line: None
    freeze_all_but(trainee.network, trainee.find_name_prefixes(task.trained))
    trainer = StageTrainer(trainee.network, task.stage, seed=f"{task.seed}/{rank.number}")
    failed = torch.zeros(1, device=rank.device)
    own_part = StatePart(rank.number, rank.workers) if task.sharded else StatePart(0, 1)
    state = read_newest_state(output / STATES_FOLDER, own_part)
    if state is not None:
        trainer.restore(state.tensors, state.step)
        failed += state.failed
        report_once(f"resumed after step {state.step}")
    batches = Batches(
        _make_reader(task, trainee, task.examples, keep=task.mixed),
        trainee,
        task.order,
        size=task.stage.size,
        number=rank.number,
        count=rank.workers,
    )

    def finish_step() -> None:
        left_out = torch.tensor([float(len(batches.problems))], device=rank.device)
        for problem in batches.problems:
            report(f"left out: {problem}")
        rank.sum_over_workers(left_out)
        failed.add_(left_out)
        if failed > task.max_failed:
            raise SourceError(
                f"{int(failed)} rows could not be read, but max_failed allows only {task.max_failed}; "
                "correct the rows named above, or raise max_failed"
            )
        last = trainer.step == task.stage.steps
        if not last and trainer.step % task.save_every:
            return
        if own_part.part == rank.number:
            save_state(
                output / STATES_FOLDER, TrainingState(trainer.collect_state(), trainer.step, int(failed)), own_part
            )
        rank.sum_over_workers(torch.zeros(1, device=rank.device))  # wait for all parts before removing older states
        if rank.number == 0:
            remove_states(output / STATES_FOLDER, before=trainer.step)

    train(
        task.examples.kind,
        trainer,
        trainee.compute_loss,
        lambda step: batches.read_batch(step).to(rank.device),
        report_once,
        average=rank.average,
        after=finish_step,
    )
    return int(failed)


def _score_held_out_images(task: WorkerTask, trainee: Trainee, rank: WorkerRank) -> torch.Tensor:
    """Return the VQAScore of each held-out image in order, or NaN if it is unreadable.

    Each worker scores some of the shards.
    """
    shards = task.held_out.shards if task.held_out is not None else ()
    ends = list(accumulate((len(shard.row_indices) for shard in shards), initial=0))
    scores = torch.zeros(ends[-1], dtype=torch.float64)
    trainee.network.eval()
    for number in range(rank.number, len(shards), rank.workers):
        scores[ends[number] : ends[number + 1]] = torch.tensor(_score_shard(task, trainee, number))
    scores = scores.to(rank.device)
    rank.sum_over_workers(scores)
    return scores.cpu()


def _score_shard(task: WorkerTask, trainee: Trainee, number: int) -> list[float]:
    """Return the score of each row in a shard, computed as in a sweep: the mean score of the row's images."""
    assert task.held_out is not None and task.model.profile is not None, "VQAScore is asked of a VQA model"
    asks, rated = DEFAULT_QUESTIONS[task.model.profile.question], task.held_out.shards[number].rated or {}
    reader = _make_reader(task, trainee, task.held_out, keep=1)
    rows = reader.read([TrainingExample(number, row) for row in rated])
    batch = task.model.config.image_batch
    pixels = [image for row in rows for image in row.pixels]
    features = [
        feature
        for first in range(0, len(pixels), batch)
        for feature in trainee.likelihood.encode(pixels[first : first + batch])
    ]
    texts = [rated[row.example.row].question for row in rows for _ in row.pixels]
    questions = [Question(image, text, (asks.answer,)) for image, text in enumerate(texts)]
    with torch.inference_mode():
        answers = trainee.likelihood.likelihood(features, questions)
    values = iter([reduce_answer(choices[0], asks.reduction) for choices in answers])
    scores = [[next(values) for _ in row.pixels] for row in rows]
    return [fmean(row_scores) if row_scores else nan for row_scores in scores]


def _make_reader(task: WorkerTask, trainee: Trainee, examples: Examples, *, keep: int) -> RowReader:
    return RowReader(examples=examples, preprocess=trainee.likelihood.preprocess, keep=keep, decoders=task.threads or 1)


def _write_scores(task: WorkerTask, output: Place, scores: Mapping[str, torch.Tensor]) -> None:
    """Write a table (schema SCORES) of the held-out scores. The metrics are called `before` and `after`."""
    assert task.held_out is not None
    images = [(shard.shard.group, image) for shard in task.held_out.shards for image in (shard.rated or {}).values()]
    table = rows.table(
        [
            {"image_id": image.image_id, "prompt_id": image.prompt_id, "generator": generator, "metric": metric}
            | (
                {"score": None, "error": NOT_SCORED_ERROR._asdict()}
                if isnan(score)
                else {"score": score, "n_questions": 1}
            )
            for metric, values in scores.items()
            for (generator, image), score in zip(images, values.tolist(), strict=True)
        ],
        schemas.SCORES,
    )
    (output / HELD_OUT_FILE).write_table(table)


def _write_checkpoint(task: WorkerTask, trainee: Trainee, output: Place) -> None:
    """Write the checkpoint's files. Its configuration is written last, because it marks the checkpoint as complete."""
    folder = output / CHECKPOINT_FOLDER
    with tempfile.TemporaryDirectory() as drafts:
        trainee.save(task.model, Path(drafts))
        files = [path for path in sorted(Path(drafts).rglob("*")) if path.is_file()]
        for file in sorted(files, key=lambda file: file == Path(drafts) / CONFIG_FILE):
            with (folder / str(file.relative_to(drafts))).open_draft() as draft:
                shutil.copyfile(file, draft)


STATE_SUFFIX = ".safetensors"
STATE_NAME_PATTERN = re.compile(r"step-(?P<step>\d+)-(?P<part>\d+)-of-(?P<parts>\d+)\.safetensors")


class StatePart(NamedTuple):
    """Part of a state that a worker writes and reads: everything or, if weights are sharded, only its own weights."""

    part: int
    parts: int

    def make_file_name(self, step: int) -> str:
        return f"step-{step:09d}-{self.part + 1}-of-{self.parts}{STATE_SUFFIX}"


class TrainingState(NamedTuple):
    """State of a training run after a number of steps."""

    tensors: Mapping[str, torch.Tensor]
    step: int
    failed: int
    """Number of rows left out by all workers."""


def save_state(folder: Place, state: TrainingState, part: StatePart) -> None:
    """Write a worker's part of a state atomically."""
    metadata = {"step": str(state.step), "failed": str(state.failed)}
    with (folder / part.make_file_name(state.step)).open_draft() as draft:
        save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, draft, metadata=metadata)


def read_newest_state(folder: Place, part: StatePart) -> TrainingState | None:
    """Return a worker's part of the newest complete state, or None if no state is complete.

    Raises SourceError if the file is damaged.
    """
    written = Counter(step for step, parts in _list_states(folder).values() if parts == part.parts)
    complete = [step for step, count in written.items() if count == part.parts]
    if not complete:
        return None
    newest = folder / part.make_file_name(max(complete))
    with tempfile.TemporaryDirectory() as copies:
        local = newest.path if newest.is_local else f"{copies}/state{STATE_SUFFIX}"
        try:
            if not newest.is_local:
                newest.fs.get_file(newest.path, local)
            with safe_open(local, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                return TrainingState(tensors, int(metadata["step"]), int(metadata["failed"]))
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SourceError(
                f"{newest}: expected a training state, found a damaged file ({error}); remove it and run again"
            ) from error


def _list_states(folder: Place) -> dict[str, tuple[int, int]]:
    try:
        found = map(STATE_NAME_PATTERN.fullmatch, folder.list())
    except FileNotFoundError:
        return {}
    return {match[0]: (int(match["step"]), int(match["parts"])) for match in found if match is not None}


def remove_states(folder: Place, *, before: int | None = None) -> None:
    """Remove all states, or only those saved before a step."""
    folder.remove_below([name for name, (step, _) in _list_states(folder).items() if before is None or step < before])
