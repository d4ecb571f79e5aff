"""Reads a study's answers as human judgements: ratings of images and words, and choices between two images."""

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import LIKERT, PartAnswer, Release, WordRating, released, split_words
from plumbline.plugins.rating import study_files
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.numbers import PartNumbers, convert_to_numbers
from plumbline.plugins.rating.question_templates import INVALID, TEMPLATES, UNIVERSAL_ANSWERS
from plumbline.plugins.rating.tasks import Task

RATING_NAMES = {
    **{name: name for name, template in TEMPLATES.items() if template.grades},
    "likert": LIKERT,
    "words": "wl",
    "questions": "dsg_h",
}
"""Name that each template with one image has in a Release, by the template's name in the study."""
PREFERENCE_NAMES = {1.0: "a", 0.0: "unsure", -1.0: "b"}


def read_study_ratings(place: Place) -> Release:
    """Return the answers to the newest version's tasks, with the prompts' skills.

    - Graded templates such as `likert` become ratings of the same name; `llmscore_errors` becomes 9 minus the answer.
    - `words` becomes the fraction of a prompt's words that the image shows (wl), and a rating of each word.
    - `questions` becomes the fraction of questions answered yes (dsg_h).
    - `side_by_side` and `vote` become choices; a tie counts as unsure.

    Words and questions that the rater was unsure about are ignored. If the rater could not answer at all, the rating
    is null. Only the last revision of an answer counts. Answers to gold questions, to repeats, and to tasks that are
    not in the newest version are left out, and the notes state how many were left out.

    Raises SourceError if a file is damaged or the study has no answers.
    """
    study = study_files.read_study(place)
    tasks = {task.task_id: task for task in study.tasks}
    answers = study_files.read_answers(place)
    if not answers:
        raise SourceError(f"{place}: the study has no answers yet; collect some with plumbline rate study={place}")
    reasons = [_explain_omission(answer, tasks, study.version) for answer in answers]
    used = [answer for answer, reason in zip(answers, reasons, strict=True) if reason is None]
    counts = Counter(reason for reason in reasons if reason is not None)
    earlier = sum(answer.version != study.version for answer in used)
    counts[f"of earlier versions of the study, kept: version {study.version} asks the same"] = earlier
    notes = [f"{format_quantity(count, 'answer')} {reason}" for reason, count in counts.items() if count]
    whole = Counter(answer.answer for answer in used if isinstance(answer.answer, str))
    notes += [
        f"{format_quantity(whole[name], 'answer')} {name.replace('_', ' ')}: no rating"
        for name in UNIVERSAL_ANSWERS
        if whole[name]
    ]
    rows = [(answer, tasks[answer.task_id], convert_to_numbers(answer, tasks[answer.task_id])) for answer in used]
    return released(
        parts=[part for row in rows if row[0].template in RATING_NAMES for part in _make_parts(*row, place)],
        preferences=[_make_choice(answer, parts) for answer, _, parts in rows if answer.template not in RATING_NAMES],
        words=[word for row in rows if row[0].template == "words" for word in _make_words(*row, place)],
        skills={task.prompt_id: task.skills for task in study.tasks},
        notes=notes,
    )


def _explain_omission(answer: Answer, tasks: Container[str], version: int) -> str | None:
    if answer.gold is not None:
        return "to gold questions, left out"
    if answer.repeat:
        return "to repeats, left out"
    return None if answer.task_id in tasks else f"to tasks that version {version} no longer asks, left out"


def _make_parts(answer: Answer, task: Task, parts: PartNumbers, place: Place) -> Iterator[PartAnswer]:
    """Yield a Part for each word or question, or for the whole image; its rating is None if the rater is unsure.

    Questions that the rater calls invalid are left out; if all are invalid, one Part without a rating is yielded.
    """
    ids = (answer.image_ids[0], answer.prompt_id, answer.generators[0], answer.rater, RATING_NAMES[answer.template])
    replies = answer.answer if isinstance(answer.answer, dict) else {}
    words, questions = map(str, range(len(task.words))), (question.question_id for question in task.questions)
    for name in [name for name in (*words, *questions) if replies.get(name) != INVALID] or [""]:
        yield PartAnswer(*ids, name, parts.get(name), _describe_answer(answer, place))


def _make_words(answer: Answer, task: Task, parts: PartNumbers, place: Place) -> Iterator[WordRating]:
    ids = (answer.image_ids[0], answer.prompt_id, answer.generators[0], answer.rater)
    for number, (word, start, end) in enumerate(split_words(task.prompt)):
        yield WordRating(*ids, word, start, end, parts.get(str(number)), _describe_answer(answer, place))


def _make_choice(answer: Answer, parts: PartNumbers) -> dict[str, Any]:
    columns = ("image_a", "image_b", "generator_a", "generator_b")
    return {
        **dict(zip(columns, (*answer.image_ids, *answer.generators), strict=True)),
        "prompt_id": answer.prompt_id,
        "rater": answer.rater,
        "template": answer.template,
        "preferred": next((PREFERENCE_NAMES[sign] for sign in parts.values()), None),
    }


def _describe_answer(answer: Answer, place: Place) -> str:
    return f"{place}, the answer of {answer.rater!r} to task {answer.task_id}"
