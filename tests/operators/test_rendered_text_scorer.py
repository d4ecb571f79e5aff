"""The text metric in this process, by the real PP-OCRv6: signs are read, and what cannot be compared says why."""

from pathlib import Path

import pytest
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.scorer import Scorer
from tests.operators import tiny
from tests.operators.tiny import detectors
from tests.signs import chinese_sign, sign

BLANK = tiny.encoded(Image.new("RGB", (64, 64), "grey"))


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return open_scorer("metric=[text]", "models=shapes")


def test_quoted_words_are_compared_with_what_is_read(scorer: Scorer) -> None:
    images = [sign("GRAND OPENNG", "today"), sign("OPEN"), BLANK, BLANK, BLANK, b"no image", [sign("OPEN"), BLANK]]
    cat, open_sign = "a cat", 'a sign "OPEN"'
    prompts = ['a sign "Grand Opening"', open_sign, open_sign, cat, 'a sign "Привет"', open_sign, open_sign]
    scored = scorer.score(images, prompts).to_pylist()
    kinds = [row["error"]["kind"] if row["error"] else None for row in scored]
    assert kinds == [None, None, None, "no_text_wanted", "unknown_script", "corrupt_image", None]
    assert [row["score"] for row in scored] == [0.5, 1.0, 0.0, None, None, None, 0.5]
    elements = [(one["wanted"], one["given"], one["score"]) for one in scored[0]["elements"]]
    assert elements == [("grand", "grand", 1.0), ("opening", "openng", 0.0), (None, "today", None)]
    assert {rating["name"] for rating in scored[0]["ratings"]} > {"flow_grpo", "oneig", "counter_iou"}


def test_texts_that_come_with_an_image_win_over_the_prompts_quotes(scorer: Scorer) -> None:
    texts = [["OPEN", "Sale"], None, '["中山"]', ["Привет"], [7], []]
    images, prompt = [sign("OPEN"), sign("OPEN"), chinese_sign("中山"), BLANK, BLANK, BLANK], 'a sign "OPEN"'
    scored = scorer.score(images, prompt, questions=texts).to_pylist()
    assert [row["score"] for row in scored] == [0.5, 1.0, 1.0, None, None, None]
    kinds = [row["error"]["kind"] for row in scored[3:]]
    assert kinds == ["unknown_script", "no_questions", "no_questions"]
    assert "question 0: expected a pair [question, answer]" in scored[4]["error"]["message"]


def test_any_model_that_serves_ocr_reads(tmp_path: Path) -> None:
    folder = detectors.save_got_ocr2(tmp_path / "reader")
    reader = ("model@models.ocr=got_ocr2", f"models.ocr.checkpoint={folder}")
    (row,) = open_scorer("metric=[text]", "models=shapes", *reader).score([sign("OPEN")], ['a sign "OPEN"']).to_pylist()
    assert row["error"] is None and 0 <= row["score"] <= 1
