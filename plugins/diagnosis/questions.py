"""Statistics of metrics' questions and answers ("What makes a good metric?", sec. 3.4 and appendix C).

They cover the bias towards yes and towards the first choice, repeated questions, and the scores of blind answers.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.questions.dsg import find_needed_questions
from plumbline.operators.metrics.questions.question_pack import PackZeroing
from plumbline.operators.metrics.writing import is_asked
from plumbline.operators.results.question_quality import find_content_words
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.plugins.diagnosis.prompt_correlations import PromptNumbers, make_prompt_numbers


class QuestionStatistics(NamedTuple):
    """Statistics of a metric's questions; a fraction is nan if there are no questions to count."""

    metric: str
    prompts: int
    """Number of prompts with questions."""
    questions: int
    yes_no: float
    """Fraction of questions whose choices are yes and no; the others are multiple choice."""
    yes: float
    """Fraction of yes-or-no questions whose right answer is yes."""
    first: float
    """Fraction of multiple-choice questions whose right answer is the first choice."""
    repeated: float
    """Fraction of questions with the same content words and right answer as an earlier question about the same prompt.
    """
    majority: float
    """Score of always answering yes or the first choice: the fraction of right answers, averaged over prompts."""
    chance: float
    """Mean score of random answers. A question counts only if the questions it depends on are answered correctly."""


class QuestionKind(NamedTuple):
    """Statistics for one kind of question that a metric asks."""

    metric: str
    kind: str
    questions: int
    share: float


class AnswerStatistics(NamedTuple):
    """Statistics of the answers to a metric's questions; a fraction is nan if there are no answers to count."""

    metric: str
    denied: str
    """The missing input, or the model that replaced the metric's own model; empty for the unchanged metric."""
    answers: int
    right: float
    """Fraction of right answers."""
    yes_no: int
    """Number of answers to yes-or-no questions."""
    yes: float
    """Fraction of the answers to yes-or-no questions that are yes."""
    wanted: float
    """Fraction of the answers to yes-or-no questions for which the right answer is yes."""
    choices: int
    """Number of answers to multiple-choice questions."""
    first: float
    """Fraction of the answers to multiple-choice questions that are the first choice."""


class _KnownQuestion(NamedTuple):
    yes_no: bool
    first: str


class _DrawnQuestion(NamedTuple):
    chance: float
    """Probability that a randomly drawn choice is right."""
    parents: Sequence[str]


def _sum_chances(drawn: Mapping[str, _DrawnQuestion], zeroing: PackZeroing | None) -> float:
    """Return how many of a prompt's questions are expected to count as correct if all answers are random."""
    parents = {name: question.parents for name, question in drawn.items()}
    if zeroing == "in_order":
        needed: dict[str, set[str]] = {}
        for name, own in parents.items():
            needed[name] = {name}.union(*(needed.get(parent, {parent}) for parent in own))
    else:
        needed = {name: {name, *(find_needed_questions(name, parents, zeroing) if zeroing else ())} for name in parents}
    return math.fsum(
        math.prod(drawn[name].chance for name in sorted(names & drawn.keys())) for names in needed.values()
    )


@dataclass(slots=True)
class QuestionCounts:
    """Counts of a metric's questions that have a right answer, accumulated table by table."""

    metric: str
    zeroing: PackZeroing | None = None
    """Rule for dependent questions: a question counts only if the questions it depends on are answered correctly."""
    known: dict[str, _KnownQuestion] = field(default_factory=dict)
    """Questions by question_id."""
    _asked: Counter[str] = field(default_factory=Counter)
    """Number of questions by prompt_id."""
    _kinds: Counter[str] = field(default_factory=Counter)
    _counts: Counter[str] = field(default_factory=Counter)
    _majority: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _drawn: dict[str, dict[str, _DrawnQuestion]] = field(default_factory=lambda: defaultdict(dict))
    """Questions by prompt_id and question_id."""
    _seen: dict[str, set[tuple[frozenset[str], str]]] = field(default_factory=lambda: defaultdict(set))
    """Pairs of content words and right answer that already occurred, by prompt_id."""

    def add(self, questions: pa.Table) -> None:
        """Count the questions in a table (schema QUESTIONS).

        Rows with errors, questions without a right answer, and questions that the metric's filter dropped do not count.
        """
        for row in questions.to_pylist():
            if row["error"] is None and is_asked(row["keep"]) and row["answer"] is not None:
                self._add_row(row)

    def _add_row(self, row: Mapping[str, Any]) -> None:
        prompt_id, choices, answer = row["prompt_id"], row["choices"], row["answer"]
        yes_no = parsing.is_yes_no(choices)
        easy = parsing.normalise(answer) == "yes" if yes_no else answer == choices[0]
        content = frozenset(row["text"][start:end].casefold() for start, end in find_content_words(row["text"])), answer
        self.known[row["question_id"]] = _KnownQuestion(yes_no, parsing.normalise(choices[0]))
        self._asked[prompt_id] += 1
        self._kinds[row["kind"] or ""] += 1
        self._counts.update({"yes_no": yes_no, "yes": yes_no and easy, "first": easy and not yes_no})
        self._counts["repeated"] += content in self._seen[prompt_id]
        self._seen[prompt_id].add(content)
        self._majority[prompt_id] += easy
        self._drawn[prompt_id][row["question_id"]] = _DrawnQuestion(1 / len(choices), tuple(row["parents"] or ()))

    def compute_statistics(self) -> QuestionStatistics:
        n, counts = self._asked.total(), self._counts
        return QuestionStatistics(
            metric=self.metric,
            prompts=len(self._asked),
            questions=n,
            yes_no=_divide_or_nan(counts["yes_no"], n),
            yes=_divide_or_nan(counts["yes"], counts["yes_no"]),
            first=_divide_or_nan(counts["first"], n - counts["yes_no"]),
            repeated=_divide_or_nan(counts["repeated"], n),
            majority=self._average(self._majority),
            chance=self._average({prompt: _sum_chances(drawn, self.zeroing) for prompt, drawn in self._drawn.items()}),
        )

    def _average(self, sums: Mapping[str, float]) -> float:
        """Divide each prompt's sum by its number of questions, and return the mean over prompts."""
        return _divide_or_nan(
            math.fsum(sums[prompt] / asked for prompt, asked in self._asked.items()), len(self._asked)
        )

    def list_kinds(self) -> list[QuestionKind]:
        """Return the kinds of questions, most frequent first; questions without a kind only count towards the total."""
        n = self._asked.total()
        return [QuestionKind(self.metric, kind, count, count / n) for kind, count in self._kinds.most_common() if kind]

    def count_questions_per_prompt(self) -> PromptNumbers:
        """Return the number of questions for each prompt."""
        return make_prompt_numbers(hash_ids(list(self._asked)), list(map(float, self._asked.values())))


class AnswerCounts:
    """Counts of the answers to a metric's questions, accumulated cell by cell."""

    def __init__(self, metric: str, denied: str, known: Mapping[str, _KnownQuestion]) -> None:
        self.metric, self.denied, self.known = metric, denied, known
        self._answers: Counter[tuple[str, str, str]] = Counter()

    def add(self, elements: pa.ChunkedArray) -> None:
        """Count the given answers in a column of elements (schemas.ELEMENT), by question and by the right answer."""
        parts = pc.list_flatten(elements)
        fields = [pc.struct_field(parts, name) for name in ("question_id", "wanted", "given")]
        table = pa.table(fields, ["question_id", "wanted", "given"]).drop_null()
        counted = table.group_by(table.column_names).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            self._answers[row["question_id"], row["wanted"], row["given"]] += row["count_all"]

    def compute_statistics(self) -> AnswerStatistics:
        known = [
            (count, self.known[question], parsing.normalise(wanted), parsing.normalise(given))
            for (question, wanted, given), count in self._answers.items()
            if question in self.known
        ]
        n = sum(count for count, *_ in known)
        yes_no = [(count, wanted, given) for count, asked, wanted, given in known if asked.yes_no]
        choices = [(count, asked.first == given) for count, asked, _, given in known if not asked.yes_no]
        n_yes_no, n_choices = sum(count for count, *_ in yes_no), sum(count for count, _ in choices)
        return AnswerStatistics(
            metric=self.metric,
            denied=self.denied,
            answers=n,
            right=_divide_or_nan(sum(count for count, _, wanted, given in known if wanted == given), n),
            yes_no=n_yes_no,
            yes=_divide_or_nan(sum(count for count, _, given in yes_no if given == "yes"), n_yes_no),
            wanted=_divide_or_nan(sum(count for count, wanted, _ in yes_no if wanted == "yes"), n_yes_no),
            choices=n_choices,
            first=_divide_or_nan(sum(count for count, is_first in choices if is_first), n_choices),
        )


def _divide_or_nan(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
