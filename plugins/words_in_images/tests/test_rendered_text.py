"""The words quoted in a prompt are compared with the recognised words, using upstream's formulas."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.metrics.distance import edit_distance as oracle

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.metric import Answered, Evidence, Scored
from plumbline.operators.metrics.modules import QueryResult
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.plugins.words_in_images.rendered_text import RenderedTextConfig
from plumbline.plugins.words_in_images.text_measures import TextMeasure, compare_texts, compute_edit_distance

SHORT_TEXTS = st.text("abcé 书店", max_size=12)


def ask(prompt: str, *texts: str) -> Sequence[WrittenQuestion]:
    questions = RenderedTextConfig().make_questions(prompt, texts)
    assert not isinstance(questions, RowError)
    return questions


def score_reading(prompt: str, read: str, measure: TextMeasure = "longtext_bench", texts: Sequence[str] = ()) -> Scored:
    answered = [Answered(question, query_results=(QueryResult(text=read),)) for question in ask(prompt, *texts)]
    return RenderedTextConfig(measure=measure).score(Evidence({}, answered))


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ('A sign "OPEN" and "24 h"', ["OPEN", "24 h"]),
        ("A sign “Café”, a banner 「书店」", ["Café", "书店"]),
        ('A sign "OPEN" and one with "..."', ["OPEN"]),
    ],
)
def test_the_expected_texts_are_those_in_quotes(prompt: str, texts: Sequence[str]) -> None:
    questions = ask(prompt)
    assert [question.answer for question in questions] == texts
    assert [prompt[question.start : question.end] for question in questions] == texts


def test_given_texts_take_precedence_over_quotes_and_are_located_in_the_prompt() -> None:
    prompt = 'A "red" sign OPEN above another OPEN'
    questions = ask(prompt, "OPEN", "OPEN", "Sale")
    assert [(question.answer, question.start, question.end) for question in questions] == [
        ("OPEN", 13, 17),
        ("OPEN", 32, 36),
        ("Sale", None, None),
    ]
    elements = score_reading(prompt, "open", texts=["OPEN", "Sale"]).elements or ()
    assert [(one.span, one.start, one.score) for one in elements[:2]] == [("OPEN", 13, 1.0), ("Sale", None, 0.0)]


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("A cat", "no_text_wanted"),
        ('A sign "!?"', "no_text_wanted"),
        ("The cat's sign", "no_text_wanted"),
        ('A sign "Привет OPEN"', "unknown_script"),
        ('A sign "ß"', "unknown_script"),
    ],
)
def test_a_prompt_without_words_or_in_an_unknown_script_gets_an_error(prompt: str, kind: str) -> None:
    result = RenderedTextConfig().make_questions(prompt, ())
    assert isinstance(result, RowError) and result.kind == kind and not result.retryable


@pytest.mark.parametrize(
    ("measure", "read", "score"),
    [
        ("longtext_bench", "grand OPENNG\nsale", 0.5),  # one of the two words was read; case is ignored
        ("cvtg_2k", "OPENING\nof the grand hall, opening", 1.0),  # words may be read anywhere, in any order
        ("cvtg_2k", "Grand, Openng", 0.0),  # punctuation is part of a word
        ("cvtg_2k_ned", "Grand Openng", (1 + 1 - 1 / (7 + 1e-5)) / 2),  # each word and the word nearest to it
        ("oneig", "Grand Openng", 1 - 1 * 0.5 / 100),  # one edit; half of the words are right
        ("oneig", "GRAND OPENING", 1 - 10 * 1 / 100),  # case matters
        ("oneig", "Grand, Opening!", 1.0),
        ("flow_grpo", "the gran\nd open ing day", 1.0),  # spaces, line breaks and other text are ignored
        ("flow_grpo", "Grand Openng", 1 - 1 / 12),
        ("flow_grpo", "Grand-Opening", 1 - 1 / 12),  # punctuation matters
        ("edit_similarity", "Grand-Opening", 1.0),
        ("substring_match", "a Grand-Opening", 1.0),
        ("exact_match", "a Grand-Opening", 0.0),
        ("counter_iou", "Grand-Openings", 12 / 13),
    ],
)
def test_each_measure_uses_its_published_formula(measure: TextMeasure, read: str, score: float) -> None:
    assert score_reading('A sign "Grand Opening"', read, measure).score == pytest.approx(score)


def test_chinese_is_compared_by_its_characters() -> None:
    result = score_reading("招牌写着「欢迎光临」", "欢 迎\n光林")
    assert (result.score, result.n_questions) == (0.75, 4)
    assert score_reading("招牌写着「欢迎光临」", "欢迎光林", "oneig").score == pytest.approx(1 - 1 * 0.25 / 50)


@pytest.mark.parametrize("measure", TextMeasure.__args__)
def test_an_image_without_text_scores_lowest(measure: TextMeasure) -> None:
    result = score_reading('A sign "OPEN"', "", measure)
    assert result.error is None and result.score == pytest.approx(0.96 if measure == "oneig" else 0.0, abs=1e-5)


@given(SHORT_TEXTS, SHORT_TEXTS)
def test_the_edit_distance_is_the_levenshtein_distance(first: str, second: str) -> None:
    assert compute_edit_distance(first, second) == oracle(first, second)


@given(st.lists(SHORT_TEXTS.filter(lambda text: any(map(str.isalnum, text))), min_size=1, max_size=3), SHORT_TEXTS)
def test_all_measures_except_the_distance_are_between_0_and_1_and_1_for_the_text_itself(
    wanted: Sequence[str], read: str
) -> None:
    compared = compare_texts(wanted, read)
    compared.pop("oneig_edit_distance")
    assert all(0 <= value <= 1 and math.isfinite(value) for value in compared.values())
    itself = compare_texts(wanted[:1], wanted[0])
    assert itself.pop("oneig_edit_distance") == 0 and set(itself.values()) == {1.0}


@given(st.lists(SHORT_TEXTS.filter(lambda text: any(map(str.isalnum, text))), min_size=1, max_size=3), SHORT_TEXTS)
def test_the_mean_of_the_elements_is_longtext_benchs_score(wanted: Sequence[str], read: str) -> None:
    result = score_reading("signs", read, texts=wanted)
    scores = [one.score for one in result.elements or () if one.score is not None]
    assert len(scores) == result.n_questions and result.score == pytest.approx(sum(scores) / len(scores))


def test_the_elements_contain_expected_missing_and_extra_words() -> None:
    prompt = 'A sign "Grand Opening" over "coffee"'
    elements = score_reading(prompt, "GRAND OPENNG\ntoday").elements or ()
    assert [(one.span, one.wanted, one.given, one.score) for one in elements] == [
        ("Grand", "grand", "grand", 1.0),
        ("Opening", "opening", "openng", 0.0),
        ("coffee", "coffee", None, 0.0),
        (None, None, "today", None),
    ]
    assert [prompt[one.start : one.end] for one in elements if one.start is not None] == ["Grand", "Opening", "coffee"]
