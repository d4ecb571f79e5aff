"""What people said in a study as judgements of images: ratings, choices between two images, and words."""

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import LIKERT, Part, Release, Word, released, words_in
from plumbline.plugins.rating import study_files
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.numbers import Parts, parts_of
from plumbline.plugins.rating.question_templates import INVALID, TEMPLATES, WHOLE
from plumbline.plugins.rating.tasks import Task

RATED = {
    **{name: name for name, template in TEMPLATES.items() if template.grades},
    "likert": LIKERT,
    "words": "wl",
    "questions": "dsg_h",
}
"""What releases call the templates that ask about one image."""
PREFERRED = {1.0: "a", 0.0: "unsure", -1.0: "b"}


def read_study(place: Place) -> Release:
    """The answers to the newest version's tasks, by template, with the prompts' skills.

    A graded template such as `likert` gives ratings of its own name, of `llmscore_errors` 9 less the errors; `words`
    the share of a prompt's words that the image shows (wl) and each word's rating, `questions` the share answered yes
    (dsg_h), of those that the rater was sure of; `side_by_side` and `vote` are choices, in which a tie is unsure. Of an
    answer that was corrected the last counts. Who was unsure or could not tell said nothing, which is null. Answers to
    gold questions and to repeats are left out; so are answers to tasks that the newest version no longer asks. A note
    counts each of these.

    Raises SourceError naming a file that is damaged, or where nobody has answered.
    """
    asked = study_files.read_study(place)
    tasks = {task.task_id: task for task in asked.tasks}
    answers = study_files.read_answers(place)
    if not answers:
        raise SourceError(f"{place}: nobody has answered yet; rate at plumbline rate study={place}")
    reasons = [_why_left_out(one, tasks, asked.version) for one in answers]
    kept = [one for one, reason in zip(answers, reasons, strict=True) if reason is None]
    earlier = sum(one.version != asked.version for one in kept)
    counts = Counter(reason for reason in reasons if reason is not None)
    counts[f"of earlier versions of the study, kept: version {asked.version} asks the same"] = earlier
    notes = [f"{plural(count, 'answer')} {reason}" for reason, count in counts.items() if count]
    whole = Counter(one.answer for one in kept if isinstance(one.answer, str))
    notes += [f"{plural(whole[said], 'answer')} {said.replace('_', ' ')}: no rating" for said in WHOLE if whole[said]]
    parts = [(one, tasks[one.task_id], parts_of(one, tasks[one.task_id])) for one in kept]
    return released(
        parts=[part for one, task, said in parts if one.template in RATED for part in _parts(one, task, said, place)],
        preferences=[_choice(one, said) for one, _, said in parts if one.template not in RATED],
        words=[word for one, task, said in parts if one.template == "words" for word in _words(one, task, said, place)],
        skills={task.prompt_id: task.skills for task in asked.tasks},
        notes=notes,
    )


def _why_left_out(one: Answer, tasks: Container[str], version: int) -> str | None:
    """Why an answer is no judgement, in words; None where it is one."""
    if one.gold is not None:
        return "to gold questions, left out"
    if one.repeat:
        return "to repeats, left out"
    return None if one.task_id in tasks else f"to tasks that version {version} no longer asks, left out"


def _parts(one: Answer, task: Task, said: Parts, place: Place) -> Iterator[Part]:
    """Yield a Part for each word or question that is asked about, or for the image; without a rating if unsure.

    Questions that the rater calls invalid are left out; if all are, there is one Part without a rating.
    """
    ids = (one.image_ids[0], one.prompt_id, one.generators[0], one.rater, RATED[one.template])
    replies = one.answer if isinstance(one.answer, dict) else {}
    words, questions = map(str, range(len(task.words))), (question.question_id for question in task.questions)
    for part in [part for part in (*words, *questions) if replies.get(part) != INVALID] or [""]:
        yield Part(*ids, part, said.get(part), _where(one, place))


def _words(one: Answer, task: Task, said: Parts, place: Place) -> Iterator[Word]:
    ids = (one.image_ids[0], one.prompt_id, one.generators[0], one.rater)
    for number, (word, start, end) in enumerate(words_in(task.prompt)):
        yield Word(*ids, word, start, end, said.get(str(number)), _where(one, place))


def _choice(one: Answer, said: Parts) -> dict[str, Any]:
    images, generators = (dict(zip("ab", pair, strict=True)) for pair in (one.image_ids, one.generators))
    return {
        **{f"image_{side}": image for side, image in images.items()},
        **{f"generator_{side}": generator for side, generator in generators.items()},
        "prompt_id": one.prompt_id,
        "rater": one.rater,
        "template": one.template,
        "preferred": next((PREFERRED[sign] for sign in said.values()), None),
    }


def _where(one: Answer, place: Place) -> str:
    return f"{place}, the answer of {one.rater!r} to task {one.task_id}"
