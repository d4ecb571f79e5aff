"""The comparisons and win_rates stages: a judge compares two images for a prompt; outcomes are listed by image."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import REMEDIES_BY_KIND, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.decoding import RowFailure
from plumbline.operators.images.preparing import Edit
from plumbline.operators.images.rows import ImageRow, list_image_records, name_edit_error, read_image_row
from plumbline.operators.metrics.ablation import Ablation
from plumbline.operators.metrics.judges.pairwise import PairAnswer
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import Call, Question
from plumbline.operators.models.family import Family
from plumbline.operators.stages.answers import require_finite
from plumbline.operators.stages.image_writing import ImageTask, ImageWritingStage, PreprocessedImage
from plumbline.operators.stages.images import PreparedShard
from plumbline.operators.stages.programs import ProgramResults
from plumbline.operators.stages.stage import (
    Inputs,
    RowStage,
    StageOptions,
    UpstreamTables,
    cache_upstream,
    find_text,
    read_prompt_texts,
)

SOURCE_MESSAGE = name_edit_error(RowError("", ""), "source").message
"""Start of an error message about the other image of a pair, which is read from the columns of an edit's source."""
ORIGINAL_MESSAGE = name_edit_error(RowError("", ""), "original").message
"""Start of the message about the image before two edits."""
SAME_IMAGE_ANSWER = PairAnswer("tie", 0.5, "The two files are identical.")
"""Answer about two identical files; the judge is not asked about them."""
BLACK_IMAGE_ERROR = RowError(
    "blank_picture", "it is entirely black, perhaps blanked by a safety filter; generate it again"
)
NO_OTHER_IMAGE_ERROR = RowError(
    "no_pair",
    "no other image of its prompt came with it, so there is nothing to compare; send all images of a prompt together",
)
"""Error of an image that is alone in its group."""
SEVERAL_IMAGES_ERROR = RowError("too_many_images", "a judge compares single images, but the row has several; keep one")

NO_RESULTS: ProgramResults[Any] = ProgramResults([], Usage())


@runtime_checkable
class ComparingMetric(Protocol):
    """Protocol for metrics whose judge compares two images, shown in both orders (the two views)."""

    answers: Any
    """`likelihood` or `reply`."""

    def list_comparison_options(self) -> dict[str, Any]:
        """Return all options that determine an answer, except the judge."""

    def question(self, prompt: str) -> str:
        """Return the text that asks which of two images is better for this prompt, and lists the choices."""

    def compare(self, prompt: str) -> Writing[tuple[PairAnswer, ...]]:
        """Ask the judge about the two images in both orders; return both answers."""


class OtherImage(NamedTuple):
    """Image id and generator of the image that a row's image is compared with."""

    other_image_id: str | None
    other_generator: str


class ComparedPrompts(NamedTuple):
    """Prompts of pairs of images, and the results of the pairs that the judge is not asked about."""

    prompts: Mapping[str, str]
    others: Sequence[OtherImage]
    """Ids of the other image, for every row of the window."""
    known: Mapping[int, tuple[PairAnswer, ...] | RowError] = {}
    """Results of pairs that the judge is not asked about, by row number."""

    def digest(self, prompt_id: str | None) -> str | None:
        text = find_text(self.prompts, prompt_id)
        return rows.digest_inputs(text) if isinstance(text, str) else None

    def prepare(self, task: ImageTask) -> str | tuple[PairAnswer, ...] | RowError:
        """Return the text of a pair's prompt, or the pair's result if the judge is not asked about it."""
        known = self.known.get(task.row_number)
        return find_text(self.prompts, task.row.prompt_id) if known is None else known


class ComparisonsStage(ImageWritingStage):
    """Stage that asks a judge which of two images for the same prompt is better (schema PAIRS), in both orders."""

    name = "comparisons"
    version = 1
    schema = schemas.PAIRS
    row_kind = "pairs"
    metric_type = ComparingMetric
    calls: ClassVar = {"judge": "generate_from_images"}
    call_unit = "judge"

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"kind": metric.kind, "asking": metric.list_comparison_options()}

    @classmethod
    def ablation(cls, metric: Metric) -> Ablation | None:
        """Return None, because replacing one of the two images would not measure how much the judge needs them."""
        return None

    @classmethod
    def choose_needed_call(cls, key: str, metrics: Collection[Any], family: Family[Any]) -> Call:
        """Return `likelihood` if no metric needs replies, so that the judge may be a model that cannot write."""
        replies = any(metric.answers == "reply" or (metric.answers is None and not family.local) for metric in metrics)
        return cls.calls[key] if replies else "likelihood"

    @classmethod
    def choose_trial_call(cls, key: str, metrics: Collection[Any]) -> Call:
        """Return the call that is sent to a service as a test before the sweep begins.

        The call is `likelihood` if any metric needs likelihoods, because not every service reports them.
        """
        return "likelihood" if any(metric.answers == "likelihood" for metric in metrics) else cls.calls[key]

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._texts = cache_upstream(read_prompt_texts)

    def read_questions(self, inputs: Inputs) -> Mapping[str, ComparedPrompts]:
        compared = ComparedPrompts(self._texts(inputs.prompts), list(_iterate_other_images(inputs.rows)))
        return dict.fromkeys(inputs.metrics, compared)

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> PreprocessedImage:
        if image.getbbox() is None:
            raise RowFailure(BLACK_IMAGE_ERROR)
        if edit is not None and edit.source.getbbox() is None:
            raise RowFailure(name_edit_error(BLACK_IMAGE_ERROR, "source"))
        return super().preprocess(image, edit)

    def prepare(self, inputs: Inputs) -> PreparedShard:
        """Return the shard with the decoded images of all pairs that have no result yet.

        The error message for an image names the image.
        """
        prepared = super().prepare(inputs)
        images, others = prepared.images, next(iter(prepared.questions.values())).others
        known: dict[int, tuple[PairAnswer, ...] | RowError] = {}
        for index, number in enumerate(images.row_numbers):
            if (error := images.errors[index]) is not None:
                images.errors[index] = _name_failed_image(error, images.rows[index], others[number])
            elif images.counts[index] > 1:
                known[number] = SEVERAL_IMAGES_ERROR
            elif images.equal_sources[index]:
                known[number] = (SAME_IMAGE_ANSWER,) * len(self.views)
        questions = {name: compared._replace(known=known) for name, compared in prepared.questions.items()}
        return prepared._replace(questions=questions)

    def compute(self, prepared: PreparedShard) -> Mapping[str, pa.Table]:
        """Return each metric's table, with the other images' current ids, which reused rows may lack."""
        tables = {}
        for name, table in super().compute(prepared).items():
            others = prepared.questions[name].others
            for column, values in zip(OtherImage._fields, zip(*others, strict=True), strict=True):
                place = table.column_names.index(column)
                table = table.set_column(place, table.field(place), pa.array(values, pa.string()))
            tables[name] = table
        return tables

    def program(self, task: ImageTask) -> Writing[tuple[PairAnswer, ...] | RowError]:
        compared: ComparedPrompts = task.questions
        prepared = compared.prepare(task)
        if not isinstance(prepared, str):
            return prepared
        metric: ComparingMetric = self.metrics[task.metric]
        return (yield from metric.compare(prepared))

    def run_tasks(self, tasks: Sequence[ImageTask], features: Sequence[Any]) -> ProgramResults[Any]:
        """Return the answers for each task, from the likelihoods of the choice letters or from the judge's reply."""
        weighed = [index for index, task in enumerate(tasks) if self.metrics[task.metric].answers == "likelihood"]
        written = [index for index, task in enumerate(tasks) if self.metrics[task.metric].answers != "likelihood"]
        replied = super().run_tasks([tasks[index] for index in written], features)
        answered = self._compare_by_likelihood([tasks[index] for index in weighed], features) if weighed else NO_RESULTS
        results = dict(zip([*written, *weighed], [*replied.results, *answered.results], strict=True))
        return ProgramResults([results[index] for index in range(len(tasks))], replied.usage.plus(answered.usage))

    def _compare_by_likelihood(self, tasks: Sequence[ImageTask], features: Sequence[Any]) -> ProgramResults[Any]:
        before = self.model.usage
        results: list[Any] = []
        questions: list[Question] = []
        for task in tasks:
            results.append(task.questions.prepare(task))
            if isinstance(results[-1], str):
                metric = self.metrics[task.metric]
                question = Question(task.feature, metric.question(results[-1]), metric.letters)
                questions += [question._replace(image=task.feature + view) for view in range(len(self.views))]
        logprobs = iter(isolate(partial(self.model.likelihood, features), questions))
        for index, task in enumerate(tasks):
            if isinstance(results[index], str):
                found = [require_finite(next(logprobs)) for _ in self.views]
                error = next((each for each in found if isinstance(each, RowError)), None)
                results[index] = error or tuple(map(self.metrics[task.metric].combine_logprobs, found))
        return ProgramResults(results, self.model.usage.minus(before))

    def columns(self, results: Sequence[tuple[PairAnswer, ...]]) -> dict[str, Any]:
        return {"answers": [answer._asdict() for answer in results[0]]}


def _iterate_other_images(pairs: pa.Table) -> Iterator[OtherImage]:
    for record in list_image_records(pairs):
        other = {"image_id": record["other_image_id"], "prompt_id": record["prompt_id"]}
        other |= {"image": record.get("source"), "uri": record.get("source_uri")}
        generator = record["other_generator"]
        yield OtherImage(read_image_row(other, generator).image_id, generator)


def format_image_name(generator: str, image_id: str | None) -> str:
    """Return how an error message names an image: by its generator, or by its id if it has no generator."""
    return f"the image of {generator}" if generator else f"image {image_id}"


def _name_failed_image(error: RowError, row: ImageRow, other: OtherImage) -> RowError:
    """Return the error for a pair, with a message that names the image that failed."""
    if error.message.startswith(ORIGINAL_MESSAGE):
        return error._replace(message=SOURCE_MESSAGE + error.message.removeprefix(ORIGINAL_MESSAGE))
    name = format_image_name(row.generator, row.image_id)
    if error.message.startswith(SOURCE_MESSAGE):
        name = format_image_name(other.other_generator, other.other_image_id)
    return error._replace(message=f"{name}: {error.message.removeprefix(SOURCE_MESSAGE)}")


class PairOutcome(NamedTuple):
    """Outcome of one comparison for one of its two images: the probability that this image is better, or an error."""

    p_better: float | None
    """Probability that the image is better than the other one; None if the comparison failed."""
    error: RowError | None
    image_digest: str | None
    """Digest of the image's file, if the row of the pair contains it."""


PairOutcomes = Mapping[tuple[str, str], Sequence[PairOutcome]]
"""Outcomes of all comparisons of an image with others, by the image's generator and id."""


class PreparedWins(NamedTuple):
    """Some images of a shard, and the outcomes of their comparisons by metric."""

    images: Sequence[tuple[ImageRow, RowError | None]]
    outcomes: Mapping[str, PairOutcomes]


class WinRatesStage(RowStage):
    """Stage that lists the probabilities that an image is better than each image compared with it (schema WIN_RATES).

    A comparison that failed permanently is left out. If a failed comparison may succeed later, the image has its error
    until then.
    """

    name = "win_rates"
    version = 1
    schema = schemas.WIN_RATES
    row_kind = "images"
    metric_type = ComparingMetric

    @classmethod
    def list_input_stages(cls, metric: Any) -> tuple[str, ...]:
        return ("comparisons",)

    @classmethod
    def looks_at_images(cls) -> bool:
        return False

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self._read_outcomes = cache_upstream(_collect_outcomes)

    def prepare(self, inputs: Inputs) -> PreparedWins:
        images = [(read_image_row(record, inputs.group), None) for record in list_image_records(inputs.rows)]
        return PreparedWins(
            images, {name: self._read_outcomes(inputs.upstream[name]["comparisons"]) for name in inputs.metrics}
        )

    def refuse(self, inputs: Inputs, error: RowError) -> PreparedWins:
        images = [(read_image_row(record, inputs.group), error) for record in list_image_records(inputs.rows)]
        return PreparedWins(images, {name: {} for name in inputs.metrics})

    def compute(self, prepared: PreparedWins) -> Mapping[str, pa.Table]:
        return {
            name: rows.table([_make_win_row(row, error, outcomes) for row, error in prepared.images], self.schema)
            for name, outcomes in prepared.outcomes.items()
        }


def _collect_outcomes(comparisons: UpstreamTables) -> PairOutcomes:
    """Return the outcomes of all comparisons in a table of pairs (schema PAIRS), for both images of each pair."""
    outcomes: dict[tuple[str, str], list[PairOutcome]] = {}
    for row in comparisons.read().to_pylist():
        error, p_other = rows.read_row_error(row["error"]), None
        if error is None:
            shown_first, shown_second = (answer["p_first"] for answer in row["answers"])
            p_other = (shown_first + 1 - shown_second) / 2
        own = PairOutcome(None if p_other is None else 1 - p_other, error, row["image_digest"])
        outcomes.setdefault((row["generator"], row["image_id"]), []).append(own)
        other = PairOutcome(p_other, error, None)
        outcomes.setdefault((row["other_generator"], row["other_image_id"]), []).append(other)
    return outcomes


def _make_win_row(row: ImageRow, error: RowError | None, outcomes: PairOutcomes) -> dict[str, Any]:
    """Return an image's row (schema WIN_RATES): its outcomes, or an error if there are none or a retry may help."""
    own = outcomes.get((row.generator, row.image_id or ""), ())
    wins = [outcome.p_better for outcome in own if outcome.p_better is not None]
    error = error or find_lasting_error(own) or (None if own else _make_no_pair_error(row))
    digest = next((outcome.image_digest for outcome in own if outcome.image_digest), None)
    columns = {"wins": wins, "basis": rows.digest_inputs(*map(repr, wins))} if error is None else {}
    return row.make_row(**columns, image_digest=digest, error=rows.error_to_dict(error))


def find_lasting_error(outcomes: Sequence[PairOutcome]) -> RowError | None:
    """Return the error of an image with these outcomes, or None if it has a win rate.

    This is an error that may not recur or, if no comparison of the image succeeded, its first error.
    """
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    passing = next((error for error in errors if error.retryable), None)
    return passing or (errors[0] if errors and len(errors) == len(outcomes) else None)


def _make_no_pair_error(row: ImageRow) -> RowError:
    if not row.generator:
        return NO_OTHER_IMAGE_ERROR
    problem = f"no generator that {row.generator} is compared with has an image of prompt {row.prompt_id!r}"
    return RowError("no_pair", f"{problem}; {REMEDIES_BY_KIND['no_pair']}")
