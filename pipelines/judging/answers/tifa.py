"""TIFA's answers: what one VQA model answered about the images of one generator or several.

Source: Yushi-Hu/tifa, the result of `tifa_score_benchmark` (sample/sample_evaluation_result.json):
`{"question_details": {prompt_id: {question: {"id", "caption", "question", "choices", "answer", "element_type",
"free_form_vqa", "multiple_choice_vqa", "scores": 1 or 0}}}, "caption_scores": {prompt_id: number}, ...}`. The file
names neither the generator nor the model: the generator is called as the file is, or as those of a folder are, and the
model as `given` says.

A question that stands twice counts twice in `caption_scores`, and is kept once in `question_details`, which is read.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from plumbline.operators.errors import ConfigError, SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import as_object
from plumbline.pipelines.judging.answers.answer_table import Answer, Answered
from plumbline.pipelines.judging.releases.sheets import files_in, is_folder, read_json

METRIC = "tifa"
RELEASED = "is this a result of tifa_score_benchmark?"


def read(place: Place, given: Sequence[str]) -> Answered:
    """The answers as one metric, called tifa where none is given; raises ConfigError where several are."""
    if len(given) > 1:
        raise ConfigError(f"given: TIFA's results are of one model, got {', '.join(given)}; name one")
    metric = given[0] if given else METRIC
    files = files_in(place, ".json") if is_folder(place) else [place]
    if not files:
        raise SourceError(f"{place.url}: expected a result of TIFA, or a folder of them, found none; check the path")
    answers: list[Answer] = []
    notes: list[str] = []
    for file in files:
        result = as_object(read_json(file), file.url)
        of_file = list(_answers(metric, result, PurePosixPath(file.path).stem, file.url))
        notes += _otherwise(result, of_file, file.url)
        answers += of_file
    return Answered(answers, notes)


def _answers(metric: str, result: Mapping[str, Any], generator: str, url: str) -> Iterator[Answer]:
    if "question_details" not in result:
        found = ", ".join(result) or "nothing"
        raise SourceError(f"{url}: expected question_details, found {found}; {RELEASED}")
    for prompt_id, asked in as_object(result["question_details"], f"{url}, question_details").items():
        for question, value in as_object(asked, f"{url}, {prompt_id!r}").items():
            where = f"{url}, {prompt_id!r}, {question!r}"
            score = as_object(value, where).get("scores")
            if score not in (None, 0, 1):
                raise SourceError(f"{where}: expected scores of 1 or 0, found {score!r}; {RELEASED}")
            right = None if score is None else bool(score)
            yield Answer(metric, f"{prompt_id}/{generator}", prompt_id, generator, question, right, (), where)


def _otherwise(result: Mapping[str, Any], answers: Sequence[Answer], url: str) -> Iterator[str]:
    """Says where the release's own score of a prompt is another mean than that of the answers it keeps."""
    right: dict[str, list[bool]] = {}
    for answer in answers:
        right.setdefault(str(answer.prompt_id), []).append(bool(answer.right))
    released = as_object(result.get("caption_scores") or {}, f"{url}, caption_scores")
    other = [
        name
        for name, values in right.items()
        if isinstance(score := released.get(name), int | float)
        and not math.isclose(score, sum(values) / len(values), abs_tol=1e-9)
    ]
    if other:
        yield (
            f"{url}: caption_scores of {len(other)} prompts, first {other[0]!r}, are others than the means of the "
            "answers beside them: a question that stands twice counts twice there"
        )
