"""BizGenEval's and WeGenBench's questions are read, asked and counted as in the releases."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from plugins.third_party_benchmarks.tests.made_checkouts import BIZGENEVAL_FILES, WEGENBENCH_FILES
from plugins.third_party_benchmarks.tests.packs import write_bizgeneval, write_wegenbench
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.judge import map_ratings
from plumbline.operators.metrics.metric import Evidence, Verdict
from plumbline.operators.metrics.writing import UnreadableReply, WrittenQuestion
from plumbline.operators.stages.graph import check_chain
from plumbline.plugins.third_party_benchmarks.judges.checklists import BizGenEvalConfig, WeGenBenchConfig
from tests.operators.metrics.made_releases import write_release
from tests.operators.metrics.scripted import run
from tests.operators.metrics.test_wording import fill_in_defaults
from tests.pipelines.sources.test_question_packs import list_questions, read_pack_file

DESIGN_QUESTIONS = [
    WrittenQuestion("a", "Is it {wide}?", (), kind="layout - easy 1"),
    WrittenQuestion("b", "Is it high?", (), kind="layout - hard 2"),
]
WEIGHTED_QUESTIONS = [
    WrittenQuestion("a", "Is Spider-Man there?", (), kind="ip 30 1"),
    WrittenQuestion("b", "Is it red?", (), kind="color 6 2"),
]


def make_evidence(verdict: Verdict) -> Evidence:
    return Evidence({"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale})


def make_verdict(**answers: float) -> Evidence:
    return Evidence({"ratings": [{"name": name, "value": value} for name, value in answers.items()], "rationale": ""})


# Packs


def test_bizgeneval_questions_have_the_tag_of_their_rules_and_a_difficulty(tmp_path: Path) -> None:
    pack = read_pack_file("bizgeneval", write_bizgeneval(tmp_path / "q.jsonl", count=2))
    assert pack.prompts["prompt_id"].to_pylist() == ["chart_text_0", "chart_text_1"]
    assert pack.prompts["skills"].to_pylist() == [["chart", "text"]] * 2
    assert [(row["text"], row["kind"]) for row in list_questions(pack, "chart_text_1")] == [
        ("Is it a circle?", "text1 - easy 1"), ("Is it red?", "text1 - hard 2"),
        ("Is it on the left?", "text1 - hard 3"), ("Is it large?", "text1 - easy 4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("easy", "hard", "problem"),
    [([1], [2, 3], "neither"), ([1, 2, 4], [2, 3], "easy and hard"), (None, [2], "neither")],
)
def test_a_question_without_a_single_difficulty_fails_its_prompt(
    easy: list[int] | None, hard: list[int], problem: str, tmp_path: Path
) -> None:
    path = write_bizgeneval(tmp_path / "q.jsonl", count=2)
    first, second = map(json.loads, path.read_text().splitlines())
    path.write_text("\n".join(map(json.dumps, [{**first, "easy_qidxs": easy, "hard_qidxs": hard}, second])))
    pack = read_pack_file("bizgeneval", path)
    ((line,), (row,)) = pack.problems, list_questions(pack, "chart_text_0")
    assert line.startswith(f"{path}, row 0: expected question") and f"in {problem}" in line
    assert row["error"]["kind"] == "no_questions" and len(list_questions(pack, "chart_text_1")) == 4


@pytest.mark.parametrize(("name", "prefix", "language"), [("wegenbench", "en", "en"), ("wegenbench_cn", "cn", "zh")])
def test_wegenbench_prompts_are_joined_with_their_weighted_questions(
    name: str, prefix: str, language: str, tmp_path: Path
) -> None:
    pack = read_pack_file(name, write_wegenbench(tmp_path, count=2, prefix=prefix, language=language))
    assert pack.prompts["prompt_id"].to_pylist() == [f"{prefix}_ip_000", f"{prefix}_ip_001"]
    assert pack.prompts["skills"].to_pylist() == [["IP", "a", "L2"]] * 2
    kinds = [row["kind"] for row in list_questions(pack, f"{prefix}_ip_001")]
    assert kinds == ["object 30 1", "color 12 2", "text 6 3"]


def test_a_prompt_without_questions_and_a_question_without_a_weight_are_reported(tmp_path: Path) -> None:
    folder = write_wegenbench(tmp_path, count=3)
    file = folder / "evaluation/Consistency/QA/questions/wegenbench_general_en_questions.jsonl"
    first, second, _ = map(json.loads, file.read_text().splitlines())
    second["questions"][1]["weight"] = 0
    file.write_text("\n".join(map(json.dumps, [first, second])))
    pack = read_pack_file("wegenbench", folder)
    assert len(list_questions(pack, "en_ip_000")) == 3
    lost = [list_questions(pack, name)[0]["error"]["message"] for name in ("en_ip_001", "en_ip_002")]
    assert "expected 'weight' as a whole number from 1" in lost[0] and "expected 'questions' as a list" in lost[1]


# Scores


@pytest.mark.parametrize(
    ("answers", "overall", "easy", "hard"),
    [([1] * 20, 1, 1, 1), ([0] * 20, 0, 0, 0), ([1, 0] * 10, 0, 0, 0), ([1] * 13 + [0] * 7, 0.3, 0.2, 0.4)],
)
def test_each_wrong_answer_costs_a_tenth_of_bizgenevals_score(
    answers: list[int], overall: float, easy: float, hard: float
) -> None:
    """The release's summarize.py computes max(0, 1 - 0.1 errors) of 20 questions, and with 0.2 of the easy or hard."""
    names = [f"text1 - {('easy', 'hard')[number % 4 in (1, 2)]} {number}" for number in range(1, 21)]
    evidence = make_verdict(**dict(zip(names, map(float, answers), strict=True)))
    scores = {part: BizGenEvalConfig(part=part).score(evidence).score for part in ("overall", "easy", "hard")}
    expected = {}
    for part, alpha in (("overall", 0.1), ("easy", 0.2), ("hard", 0.2)):
        errors = sum(
            not answer for name, answer in zip(names, answers, strict=True) if part == "overall" or part in name
        )
        expected[part] = max(0.0, 1 - alpha * errors)
    assert scores == pytest.approx(expected) and scores == pytest.approx(
        {"overall": overall, "easy": easy, "hard": hard}
    )


def test_wegenbenchs_score_is_the_weighted_share_of_yes() -> None:
    answers = {"ip 30 1": 1.0, "text 10 2": 0.0, "object 6 3": 1.0, "lighting 1 4": 0.0}
    assert WeGenBenchConfig().score(make_verdict(**answers)).score == pytest.approx((30 + 6) / (30 + 10 + 6 + 1))


def test_questions_of_another_benchmark_have_no_score() -> None:
    for metric in (BizGenEvalConfig(part="hard"), WeGenBenchConfig()):
        scored = metric.score(make_verdict(Style=1.0))
        assert scored.score is None and scored.error is not None and scored.error.kind == "no_questions"


# Requests


@pytest.mark.parametrize(
    ("metric", "questions"), [(BizGenEvalConfig(), DESIGN_QUESTIONS), (WeGenBenchConfig(), WEIGHTED_QUESTIONS)]
)
def test_our_wording_numbers_the_questions_and_hides_difficulty_and_weight(
    metric: BizGenEvalConfig | WeGenBenchConfig, questions: Sequence[WrittenQuestion]
) -> None:
    reply = '{"question 1": 1, "question 2": 0, "rationale": "Red."}'
    verdict, ((request,),) = run(metric.inspect("a {hero}", questions), [reply])
    text = request.messages[0].text
    assert f"- question 1: {questions[0].text}\n" in text and "hard" not in text and "30" not in text
    assert map_ratings(verdict.ratings) == {questions[0].kind: 1, questions[1].kind: 0}
    check_chain("checklist", metric)


@pytest.fixture
def bizgeneval(tmp_path: Path) -> BizGenEvalConfig:
    metric: BizGenEvalConfig = fill_in_defaults(
        BizGenEvalConfig(wording=write_release(tmp_path, BIZGENEVAL_FILES), seed=3)
    )
    return metric


@pytest.mark.parametrize(
    ("reply", "answers"),
    [
        ('{"1": {"result": true, "reason": "wide"}, "2": {"result": "No"}}', [1, 0]),
        ('```json\n{"1": {"result": "TRUE"}, "2": {"result": 1}}\n```', [1, 0]),
        ("So: {'1': {'result': True, 'reason': None}, '2': {'result': False}} indeed", [1, 0]),
        ('{"1": {"result": True, "reason": null}, "2": {"result": False}}', [1, 0]),
        ('{"1": {"result": true, "reason": "a "b" c"}, "2": {"result": "false"}}', [1, 0]),
    ],
)
def test_bizgenevals_replies_are_read_as_in_the_release(
    reply: str, answers: list[int], bizgeneval: BizGenEvalConfig
) -> None:
    verdict, ((request,),) = run(bizgeneval.inspect("a slide", DESIGN_QUESTIONS), [reply])
    assert (request.system, request.temperature, request.seed) == ("You judge {layouts}.", 0.0, 3)
    assert request.messages[0].text == "\nIs it so?\n\n1. Is it {wide}?\n2. Is it high?\n"
    assert request.image_at == len(request.messages[0].text)
    assert [rating.value for rating in verdict.ratings] == answers
    assert bizgeneval.score(make_evidence(verdict)).score == pytest.approx(0.9)


def test_the_rationale_lists_the_reasons_of_wrong_answers(bizgeneval: BizGenEvalConfig) -> None:
    reply = '{"1": {"result": true, "reason": "wide"}, "2": {"result": false, "reason": "It is flat."}}'
    verdict, _ = run(bizgeneval.inspect("a slide", DESIGN_QUESTIONS), [reply])
    assert verdict.rationale == "2: It is flat."


@pytest.mark.parametrize("reply", ['{"1": {"result": true}}', "[1]", "yes", "__import__('os')", "{" * 100_000, ""])
def test_a_reply_that_lacks_an_answer_is_unreadable_after_a_second_request(
    reply: str, bizgeneval: BizGenEvalConfig
) -> None:
    with pytest.raises(UnreadableReply):
        run(bizgeneval.inspect("a slide", DESIGN_QUESTIONS), [reply], [reply])


def test_a_tag_without_rules_is_named(bizgeneval: BizGenEvalConfig) -> None:
    with pytest.raises(UnreadableReply, match="no rules for the tag 'smell', only for layout, text1"):
        run(bizgeneval.inspect("a slide", [DESIGN_QUESTIONS[0]._replace(kind="smell - easy 1")]))


@pytest.mark.parametrize(
    ("texts", "prompt"),
    [(("Is it red?", "Says it 中?"), "Look.\n\nNow, answer:"), (("红吗？", "大吗？"), "看图。\n\n请回答：")],
)
def test_wegenbench_asks_each_question_in_a_request_of_its_own(
    texts: Sequence[str], prompt: str, tmp_path: Path
) -> None:
    metric = fill_in_defaults(WeGenBenchConfig(wording=write_release(tmp_path, WEGENBENCH_FILES)))
    asked = [question._replace(text=text) for question, text in zip(WEIGHTED_QUESTIONS, texts, strict=True)]
    verdict, (requests,) = run(metric.inspect("a hero", asked), [" 1\n", "0"])
    assert [request.messages[0].text for request in requests] == [f"{prompt}\n{text}" for text in texts]
    assert map_ratings(verdict.ratings) == {"ip 30 1": 1, "color 6 2": 0}
    assert metric.score(make_evidence(verdict)).score == pytest.approx(30 / 36)
    assert metric.estimate_calls(10).calls > WeGenBenchConfig().estimate_calls(10).calls
    with pytest.raises(UnreadableReply):
        run(metric.inspect("a hero", asked), ["1", "yes"])


@pytest.mark.parametrize(
    "code", ["EVAL_GENERATION_PROMPTS = {}", "A = 'a'\nEVAL_GENERATION_PROMPTS = {'layout': (A, A)}", "A = 1"]
)
def test_an_incomplete_checkout_of_bizgeneval_is_refused(code: str, tmp_path: Path) -> None:
    folder = write_release(tmp_path, {"evaluation/evaluate_prompt.py": code})
    with pytest.raises(ConfigError, match=r"evaluate_prompt\.py (has no pairs of prompts|assigns nothing)"):
        fill_in_defaults(BizGenEvalConfig(wording=folder))
