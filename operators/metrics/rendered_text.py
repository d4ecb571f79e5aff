"""The text metric: the words that a prompt quotes against the words that a model reads in the image."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.errors import RowError
from plumbline.operators.metrics.answered import Element, Rating, Scored
from plumbline.operators.metrics.metric import Evidence, Expected, Metric
from plumbline.operators.metrics.modules import Look
from plumbline.operators.metrics.parsing import shown
from plumbline.operators.metrics.writing import Put, Writing, WrittenQuestion

Measure = Literal[
    "longtext_bench", "oneig", "flow_grpo", "edit_similarity", "substring_match", "exact_match", "counter_iou"
]

QUOTED = re.compile('"([^"]+)"|“([^“”]+)”|「([^「」]+)」|『([^『』]+)』')
NO_TEXT = RowError(
    "no_text_wanted", 'the prompt quotes no words to be written in the image; put them in quotes, as in a sign "OPEN"'
)
HAN = "\u4e00-\u9fa5"
_KEPT = f"{HAN}a-zA-Z0-9àâäéèêëîïôöùûüçÀÂÄÉÈÊËÎÏÔÖÙÛÜÇ"
"""The characters that OneIG and LongText-Bench compare."""
ONEIG_MOST = {False: 100, True: 50}
"""The edit distance at which OneIG's score stops falling, by whether the text is Chinese."""
NEAR = 0.5
"""A word that was read is taken for a misspelling of a missing one up to so many edits a character."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedTextConfig(Metric):
    """Who reads, and how what was read is compared with what the prompt quotes."""

    kind: Literal["rendered_text"] = "rendered_text"
    story: ClassVar[str] = (
        "has a model read the text in the image, and compares it with the words that the prompt puts in quotes"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "modules", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ("reader",)
    quotes: ClassVar[bool] = True
    reader: str = "ocr"
    """The role of the model that reads text in images."""
    measure: Measure = "longtext_bench"
    """`longtext_bench`: the share of wanted words that were read, of Chinese text the share of its characters; `oneig`:
    its text score, of one image; `flow_grpo`: its OCR reward; `edit_similarity`, `substring_match`, `exact_match` and
    `counter_iou`: UniRL's."""

    @property
    def scored_from(self) -> tuple[str, ...]:
        return "modules", "questions"

    def asking(self) -> dict[str, Any]:
        """All that decides which words are wanted."""
        return {"quotes": QUOTED.pattern}

    def looking(self) -> dict[str, Any]:
        """All that decides what is read, besides the reader."""
        return {}

    def answering(self) -> dict[str, Any]:
        """All that decides how the reader is asked."""
        return {"kind": self.kind}

    def scoring(self) -> dict[str, Any]:
        """How the texts are compared."""
        return {"measure": self.measure}

    def expected(self, words: float) -> Expected:
        """Nothing is written by a model; an image is read once."""
        return Expected(0, 1)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion] | RowError]:
        """A question for each text that the prompt quotes, its answer; or why there is none."""
        yield from ()
        quoted = [match.span(match.lastindex or 0) for match in QUOTED.finditer(prompt)]
        wanted = [(start, end) for start, end in quoted if any(map(str.isalnum, prompt[start:end]))]
        unknown = next((text for text in (prompt[start:end] for start, end in wanted) if not _is_known(text)), None)
        if unknown is not None:
            message = f"only Latin and Chinese text is compared, got {shown(unknown)}; leave this prompt out"
            return RowError("unknown_script", message)
        return [_question(number, prompt, start, end) for number, (start, end) in enumerate(wanted, 1)] or NO_TEXT

    def put(self, text: str, choices: Sequence[str]) -> Put:
        """A question as it stands: the reader is asked for all text that there is."""
        return Put(text, tuple(choices), free=True)

    def looks(self, text: str) -> tuple[Look, ...]:
        """All text in the image, whichever words are wanted."""
        return (Look("reader", ""),)

    def score(self, evidence: Evidence) -> Scored:
        """The measure that was chosen; the others are among the ratings, the words among the elements."""
        questions = [answered.question for answered in evidence.answered]
        read = evidence.answered[0].seen[0].text or ""
        compared = compare([question.answer or "" for question in questions], read)
        elements = word_elements(questions, read)
        ratings = tuple(Rating(name, value) for name, value in compared.items())
        return Scored(compared[self.measure], elements, n_questions=len(elements) - 1, ratings=ratings)


def _is_known(text: str) -> bool:
    """Whether all its letters are Latin or Chinese, and some of it is compared."""
    names = (unicodedata.name(letter, "") for letter in text if letter.isalpha())
    return re.search(f"[{_KEPT}]", text) is not None and all(name.startswith(("LATIN", "CJK")) for name in names)


def _question(number: int, prompt: str, start: int, end: int) -> WrittenQuestion:
    text = prompt[start:end]
    return WrittenQuestion(str(number), f"Which words are written? “{text}”", (), text, "text", text, start, end)


# The releases' arithmetic


def compare(wanted: Sequence[str], read: str) -> dict[str, float]:
    """Every measure by name, of the quoted texts and the lines that were read.

    LongText-Bench: X-Omni-Team/X-Omni, textbench/summary_scores.py at 2b8237b. OneIG: OneIG-Bench/OneIG-Benchmark,
    scripts/text/text_score.py and text_utils.py at 41b4983; its table applies the formula to the means of
    `oneig_edit_distance` and the others over all images. flow_grpo: yifan123/flow_grpo, flow_grpo/ocr.py at ac4c86e.
    UniRL: Tencent-Hunyuan/UniRL, unirl/reward/local/ocr.py at 0aa39a8. The two rewards want the first quoted text only.
    """
    return {
        "longtext_bench": _longtext_bench(" ".join(wanted), read),
        **_oneig(" ".join(wanted), read),
        "flow_grpo": _flow_grpo(wanted[0], read),
        **_unirl(wanted[0], read),
    }


def _longtext_bench(wanted: str, read: str) -> float:
    """Of Chinese case is kept, as released."""
    chinese = is_chinese(wanted)
    return _share(*(_cleaned(text, chinese) if chinese else _cleaned(text, chinese).lower() for text in (wanted, read)))


def _oneig(wanted: str, read: str) -> dict[str, float]:
    wanted, read = (_cleaned(text, is_chinese(text)) for text in (wanted, read))
    distance, accuracy = edit_distance(wanted, read), _share(wanted, read)
    most = ONEIG_MOST[is_chinese(wanted)]
    lost = min(most, distance) * (distance > 0) * (1 - accuracy) / most
    return {"oneig": 1 - lost, "oneig_edit_distance": float(distance), "oneig_word_accuracy": accuracy}


def _flow_grpo(wanted: str, read: str) -> float:
    wanted, read = (text.replace(" ", "").replace("\n", "").lower() for text in (wanted, read))
    return _similarity(wanted, read)


def _unirl(wanted: str, read: str) -> dict[str, float]:
    wanted, read = ("".join(re.findall(r"\w", text.casefold())) for text in (wanted, read))
    counted, of_read = Counter(wanted), Counter(read)
    return {
        "edit_similarity": _similarity(wanted, read),
        "substring_match": float(wanted in read),
        "exact_match": float(wanted == read),
        "counter_iou": (counted & of_read).total() / (counted | of_read).total(),
    }


def _similarity(wanted: str, read: str) -> float:
    """1 where the text is among what was read; further text costs at most all."""
    distance = 0 if wanted in read else min(edit_distance(wanted, read), len(wanted))
    return 1 - distance / len(wanted)


def is_chinese(text: str) -> bool:
    """Whether it has a Chinese character: it is then compared by its characters, as in OneIG."""
    return re.search("[\u4e00-\u9fff]", text) is not None


def _cleaned(text: str, chinese: bool) -> str:
    """The characters that are compared; of a text that is not Chinese with its spaces."""
    if chinese:
        return "".join(re.findall(f"[{_KEPT}]", text))
    return re.sub(r"\s+", " ", re.sub(rf"[^{_KEPT}\s]", "", text)).strip()


def _words(text: str, chinese: bool) -> list[str]:
    return list(text) if chinese else text.split()


def _share(wanted: str, read: str) -> float:
    """Of the wanted words, those that were read as often."""
    chinese = is_chinese(wanted)
    counted = Counter(_words(wanted, chinese))
    return (counted & Counter(_words(read, chinese))).total() / counted.total() if counted else 0.0


def edit_distance(first: str, second: str) -> int:
    """The least number of characters to insert, delete or replace (Levenshtein 1966)."""
    above = list(range(len(second) + 1))
    for row, letter in enumerate(first, 1):
        line = [row]
        for (diagonal, up), other in zip(pairwise(above), second, strict=True):
            line.append(min(up + 1, line[-1] + 1, diagonal + (letter != other)))
        above = line
    return above[-1]


# The words, one by one


class WantedWord(NamedTuple):
    """A word of a quoted text, or a character of a Chinese one."""

    question: WrittenQuestion
    text: str
    """As it is compared."""
    start: int
    """Of its characters in the prompt."""
    end: int


def word_elements(questions: Sequence[WrittenQuestion], read: str) -> tuple[Element, ...]:
    """An element for each wanted word: 1 where it was read, else 0 with the misspelling that was read in its place, if
    one is near. The last element has the extra words, and no score.
    """
    chinese = any(is_chinese(question.answer or "") for question in questions)
    wanted = [word for question in questions for word in _wanted_words(question, chinese)]
    left = Counter(_words(_cleaned(read, chinese).lower(), chinese))
    given: dict[int, str] = {}
    for place, word in enumerate(wanted):
        if left[word.text] > 0:
            given[place] = word.text
            left[word.text] -= 1
    for place, word in enumerate(wanted):
        near = None if place in given else _nearest(word.text, +left)
        if near is not None:
            given[place] = near
            left[near] -= 1
    elements = [_element(place, word, given.get(place)) for place, word in enumerate(wanted)]
    extra = (" " if not chinese else "").join((+left).elements())
    return (*elements, Element("extra", "Extra words", None, None, None, None, extra or None, None))


def _wanted_words(question: WrittenQuestion, chinese: bool) -> list[WantedWord]:
    text, start = question.answer or "", question.start or 0
    pieces = re.finditer(f"[{_KEPT}]" if chinese else r"\S+", text)
    words = [(_cleaned(piece.group(), chinese).lower(), piece) for piece in pieces]
    return [WantedWord(question, word, start + piece.start(), start + piece.end()) for word, piece in words if word]


def _nearest(word: str, left: Mapping[str, int]) -> str | None:
    distances = {other: edit_distance(word, other) for other in left}
    near = min(distances, key=lambda other: distances[other], default=None)
    return near if near is not None and distances[near] <= NEAR * len(word) else None


def _element(place: int, word: WantedWord, given: str | None) -> Element:
    question = word.question
    span = (question.answer or "")[word.start - (question.start or 0) : word.end - (question.start or 0)]
    name = f"{question.question_id}.{place}"
    return Element(name, question.text, span, word.start, word.end, word.text, given, float(given == word.text))
