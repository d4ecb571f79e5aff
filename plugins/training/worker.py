"""One worker of a training: it reads its share of every batch and takes the steps with the others; the first saves."""

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from plumbline.plugins.training.loop import Course, Report, TrainingStage, train
from plumbline.plugins.training.trainee import Trainee, train_only

STATES, CHECKPOINT, HELD_OUT, OUTCOME = "states", "checkpoint", "held_out.parquet", "outcome.json"
CONFIG = "config.json"
BEFORE, AFTER = "before", "after"
NOT_SCORED = RowError("not_scored", "the image could not be read; the training's output says why")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """All that a worker needs to know."""

    model: ResolvedModel
    examples: Examples
    held_out: Examples | None
    """Rated images that are scored before and after; of finetuning alone."""
    stage: TrainingStage
    trained: tuple[str, ...]
    blend: float
    """The trained weights' share of the result, beside those that it began with."""
    seed: int
    mixed: int
    save_every: int
    most_failed: int
    """Rows that may be left out."""
    output: Place
    threads: int | None
    sharded: bool = False
    """Each worker holds a part of the weights; held-out images are not scored then."""

    @property
    def order(self) -> RowOrder:
        return RowOrder(places=tuple(shard.places for shard in self.examples.shards), seed=self.seed, mixed=self.mixed)


class Seat(NamedTuple):
    """A worker's place among all, which torch.distributed joins where there are several."""

    number: int
    workers: int
    device: torch.device

    def total(self, tensor: torch.Tensor) -> None:
        """Puts the sum over all workers in the tensor's place."""
        if self.workers > 1:
            distributed.all_reduce(tensor)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Puts the mean over all workers in the place of each tensor.

        One by one and in their order: DistributedDataParallel's buckets change after the first step of a process, and
        with them, from three workers on, the order of the sums, so that a training resumed would not be the same.
        """
        for tensor in tensors:
            self.total(tensor)
            tensor.div_(self.workers)


def work(task: Task, seat: Seat, report: Report) -> None:
    """Train from the newest state on, or from the checkpoint; the first worker writes the results."""
    set_torch_threads(task.threads)
    output = task.output
    trainee = load_trainee(task.model, seat.device, sharded=task.sharded)
    before = _held_out_scores(task, trainee, seat)
    first = {name: parameter.clone() for name, parameter in _parameters(task, trainee)} if task.blend < 1 else {}
    failed = _train(task, trainee, seat, output, report)
    with torch.no_grad():
        for name, parameter in _parameters(task, trainee) if first else ():
            parameter.lerp_(first[name], 1 - task.blend)
    trainee.round()
    after = _held_out_scores(task, trainee, seat)
    if seat.number == 0:
        outcome = {"steps": task.stage.steps, "failed": failed}
        (output / OUTCOME).write(json.dumps(outcome).encode())
        if task.held_out is not None:
            _write_scores(task, output, {BEFORE: before, AFTER: after})
        _write_checkpoint(task, trainee, output)
        remove_states(output / STATES)
    elif task.sharded:
        trainee.save(task.model, None)


def _parameters(task: Task, trainee: Trainee) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Those that are trained, by name."""
    prefixes = trainee.name_prefixes(task.trained)
    return ((name, each) for name, each in trainee.network.named_parameters() if name.startswith(prefixes))


def _train(task: Task, trainee: Trainee, seat: Seat, output: Place, report: Report) -> int:
    """Takes the steps that are left; gives the number of rows that all workers left out."""
    train_only(trainee.network, trainee.name_prefixes(task.trained))
    course = Course(trainee.network, task.stage, seed=f"{task.seed}/{seat.number}")
    failed = torch.zeros(1, device=seat.device)
    keeper = Keeper(seat.number, seat.workers) if task.sharded else Keeper(0, 1)
    state = newest_state(output / STATES, keeper)
    if state is not None:
        course.restore(state.tensors, state.step)
        failed += state.failed
        _say(seat, report, f"resumed after step {state.step}")
    batches = Batches(
        _reader(task, trainee, task.examples, keep=task.mixed),
        trainee,
        task.order,
        size=task.stage.size,
        number=seat.number,
        count=seat.workers,
    )

    def after_step() -> None:
        left_out = torch.tensor([float(len(batches.problems))], device=seat.device)
        for problem in batches.problems:
            report(f"left out: {problem}")
        seat.total(left_out)
        failed.add_(left_out)
        if failed > task.most_failed:
            raise SourceError(
                f"{int(failed)} rows could not be read, where max_failed allows {task.most_failed} in this training; "
                "mend the rows named above, or raise max_failed"
            )
        last = course.step == task.stage.steps
        if not last and course.step % task.save_every:
            return
        if keeper.part == seat.number:
            save_state(output / STATES, TrainingState(course.state(), course.step, int(failed)), keeper)
        seat.total(torch.zeros(1, device=seat.device))  # only when all parts are written are the older ones removed
        if seat.number == 0:
            remove_states(output / STATES, before=course.step)

    train(
        task.examples.kind,
        course,
        trainee.loss,
        lambda step: batches.batch(step).to(seat.device),
        lambda line: _say(seat, report, line),
        average=seat.average,
        after=after_step,
    )
    return int(failed)


def _say(seat: Seat, report: Report, line: str) -> None:
    """Reports what all workers would say alike once."""
    if seat.number == 0:
        report(line)


def _held_out_scores(task: Task, trainee: Trainee, seat: Seat) -> torch.Tensor:
    """VQAScore of every held-out image, in order, NaN where one cannot be read; each worker scores some shards."""
    shards = task.held_out.shards if task.held_out is not None else ()
    ends = list(accumulate((len(shard.places) for shard in shards), initial=0))
    scores = torch.zeros(ends[-1], dtype=torch.float64)
    trainee.network.eval()
    for number in range(seat.number, len(shards), seat.workers):
        scores[ends[number] : ends[number + 1]] = torch.tensor(_shard_scores(task, trainee, number))
    scores = scores.to(seat.device)
    seat.total(scores)
    return scores.cpu()


def _shard_scores(task: Task, trainee: Trainee, number: int) -> list[float]:
    """The scores of a shard's images as production computes them: of a row of several, the mean of theirs."""
    assert task.held_out is not None and task.model.profile is not None, "VQAScore is asked of a VQA model"
    asks, rated = DEFAULT_QUESTIONS[task.model.profile.question], task.held_out.shards[number].rated or {}
    reader = _reader(task, trainee, task.held_out, keep=1)
    rows = reader.read([TrainingExample(number, place) for place in rated])
    batch = task.model.config.image_batch
    pixels = [image for row in rows for image in row.pixels]
    features = [
        made
        for first in range(0, len(pixels), batch)
        for made in trainee.likelihood.encode(pixels[first : first + batch])
    ]
    texts = [rated[row.example.place].question for row in rows for _ in row.pixels]
    questions = [Question(image, text, (asks.answer,)) for image, text in enumerate(texts)]
    with torch.inference_mode():
        answers = trainee.likelihood.likelihood(features, questions)
    values = iter([reduce_answer(choices[0], asks.reduction) for choices in answers])
    each = [[next(values) for _ in row.pixels] for row in rows]
    return [fmean(of_row) if of_row else nan for of_row in each]


def _reader(task: Task, trainee: Trainee, examples: Examples, *, keep: int) -> RowReader:
    return RowReader(examples=examples, preprocess=trainee.likelihood.preprocess, keep=keep, decoders=task.threads or 1)


def _write_scores(task: Task, output: Place, scores: Mapping[str, torch.Tensor]) -> None:
    """The held-out scores as a table in schema SCORES, of two metrics."""
    assert task.held_out is not None
    images = [(shard.shard.group, image) for shard in task.held_out.shards for image in (shard.rated or {}).values()]
    table = rows.table(
        [
            {"image_id": image.image_id, "prompt_id": image.prompt_id, "generator": generator, "metric": metric}
            | ({"score": None, "error": NOT_SCORED._asdict()} if isnan(score) else {"score": score, "n_questions": 1})
            for metric, values in scores.items()
            for (generator, image), score in zip(images, values.tolist(), strict=True)
        ],
        schemas.SCORES,
    )
    (output / HELD_OUT).write_table(table)


def _write_checkpoint(task: Task, trainee: Trainee, output: Place) -> None:
    """Writes the checkpoint's files, the one that makes it one last."""
    folder = output / CHECKPOINT
    with tempfile.TemporaryDirectory() as drafts:
        trainee.save(task.model, Path(drafts))
        files = [path for path in sorted(Path(drafts).rglob("*")) if path.is_file()]
        for file in sorted(files, key=lambda file: file == Path(drafts) / CONFIG):
            with (folder / str(file.relative_to(drafts))).writing() as draft:
                shutil.copyfile(file, draft)


SUFFIX = ".safetensors"
STATE_NAME = re.compile(r"step-(?P<step>\d+)-(?P<part>\d+)-of-(?P<parts>\d+)\.safetensors")


class Keeper(NamedTuple):
    """The part of a state that a worker writes and reads: the whole, or that of its own weights if they are sharded."""

    part: int
    parts: int

    def name(self, step: int) -> str:
        return f"step-{step:09d}-{self.part + 1}-of-{self.parts}{SUFFIX}"


class TrainingState(NamedTuple):
    """A training after so many steps."""

    tensors: Mapping[str, torch.Tensor]
    step: int
    failed: int
    """Rows that were left out so far, by all workers."""


def save_state(folder: Place, state: TrainingState, keeper: Keeper) -> None:
    """Write a worker's part of a state, complete or not at all."""
    facts = {"step": str(state.step), "failed": str(state.failed)}
    with (folder / keeper.name(state.step)).writing() as draft:
        save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, draft, metadata=facts)


def newest_state(folder: Place, keeper: Keeper) -> TrainingState | None:
    """Return a worker's part of the state after the most steps, or None if no state has all its parts.

    Raises:
        SourceError: The file is not a state of a training.
    """
    parts = Counter(step for step, count in _states(folder).values() if count == keeper.parts)
    complete = [step for step, written in parts.items() if written == keeper.parts]
    if not complete:
        return None
    newest = folder / keeper.name(max(complete))
    with tempfile.TemporaryDirectory() as copies:
        local = newest.path if newest.is_local else f"{copies}/state{SUFFIX}"
        try:
            if not newest.is_local:
                newest.fs.get_file(newest.path, local)
            with safe_open(local, framework="pt") as file:
                facts = file.metadata()
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                return TrainingState(tensors, int(facts["step"]), int(facts["failed"]))
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{newest}: not a state of a training ({error}); remove it and run again") from error


def _states(folder: Place) -> dict[str, tuple[int, int]]:
    """Return each part of a state by its file name: after how many steps, and of how many parts."""
    try:
        found = map(STATE_NAME.fullmatch, folder.list())
    except FileNotFoundError:
        return {}
    return {match[0]: (int(match["step"]), int(match["parts"])) for match in found if match is not None}


def remove_states(folder: Place, *, before: int | None = None) -> None:
    """Remove the states, all or those after fewer steps."""
    folder.remove_below([name for name, (step, _) in _states(folder).items() if before is None or step < before])
