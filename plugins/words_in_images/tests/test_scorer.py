"""The text metric reads signs with the real PP-OCRv6, and gives a reason if it cannot compare the texts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.models.families import FAMILIES
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.scoring.scorer import Scorer
from tests.commands import load_job_config
from tests.operators import tiny
from tests.operators.models.endpoint import KEY_VARIABLE, Server, make_completion
from tests.operators.tiny import detectors
from tests.signs import draw_chinese_sign, draw_sign

BLANK_IMAGE = tiny.encode_image(Image.new("RGB", (64, 64), "grey"))


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return open_scorer("metric=[text]", "models=shapes")


def test_quoted_words_are_compared_with_the_words_that_were_read(scorer: Scorer) -> None:
    images = [
        draw_sign("GRAND OPENNG", "today"),
        draw_sign("OPEN"),
        BLANK_IMAGE,
        BLANK_IMAGE,
        BLANK_IMAGE,
        b"no image",
        [draw_sign("OPEN"), BLANK_IMAGE],
    ]
    cat, open_sign = "a cat", 'a sign "OPEN"'
    prompts = ['a sign "Grand Opening"', open_sign, open_sign, cat, 'a sign "Привет"', open_sign, open_sign]
    scored = scorer.score_table(images, prompts).to_pylist()
    kinds = [row["error"]["kind"] if row["error"] else None for row in scored]
    assert kinds == [None, None, None, "no_text_wanted", "unknown_script", "corrupt_image", None]
    assert [row["score"] for row in scored] == [0.5, 1.0, 0.0, None, None, None, 0.5]
    elements = [(one["wanted"], one["given"], one["score"]) for one in scored[0]["elements"]]
    assert elements == [("grand", "grand", 1.0), ("opening", "openng", 0.0), (None, "today", None)]
    assert {rating["name"] for rating in scored[0]["ratings"]} > {"flow_grpo", "oneig", "counter_iou"}


def test_the_reader_that_comes_with_a_package_needs_no_gpu() -> None:
    """Pools assign a GPU only to local models."""
    assert not FAMILIES["rapidocr"].local


def test_texts_given_with_an_image_take_precedence_over_quotes(scorer: Scorer) -> None:
    texts = [["OPEN", "Sale"], None, '["中山"]', ["Привет"], [7], []]
    images, prompt = (
        [draw_sign("OPEN"), draw_sign("OPEN"), draw_chinese_sign("中山"), BLANK_IMAGE, BLANK_IMAGE, BLANK_IMAGE],
        'a sign "OPEN"',
    )
    scored = scorer.score_table(images, prompt, questions=texts).to_pylist()
    assert [row["score"] for row in scored] == [0.5, 1.0, 1.0, None, None, None]
    kinds = [row["error"]["kind"] for row in scored[3:]]
    assert kinds == ["unknown_script", "no_questions", "no_questions"]
    assert "question 0: expected a pair [question, answer]" in scored[4]["error"]["message"]


@pytest.mark.parametrize(
    ("reader", "save"),
    [
        (["model@models.ocr=got_ocr2"], detectors.save_got_ocr2),
        (
            ["model@models.ocr=qwen2_5_vl_7b", "models.ocr.engine=transformers", "models.ocr.reading_tokens=4"],
            tiny.save_qwen2_vl,
        ),
    ],
    ids=["got_ocr2", "vlm"],
)
def test_any_model_that_serves_ocr_can_be_the_reader(
    reader: list[str], save: Callable[[Path], Path], tmp_path: Path
) -> None:
    words = ["metric=[text]", "models=shapes", *reader, f"models.ocr.checkpoint={save(tmp_path)}"]
    (row,) = open_scorer(*words).score_table([draw_sign("OPEN")], ['a sign "OPEN"']).to_pylist()
    assert row["error"] is None and 0 <= row["score"] <= 1


def test_a_chat_model_behind_a_service_can_be_the_reader(server: Server) -> None:
    """The reply is the text that was read; if the model refuses, the score is null with a reason.

    The model's cache key includes the instruction.
    """
    replies = [
        make_completion("Grand\nOpening"),
        make_completion("No text recognized."),
        make_completion(None, refusal="not that"),
    ]
    server.script = lambda number, body: replies[number]
    service = {"checkpoint": "m", "endpoint": server.url, "key_variable": KEY_VARIABLE, "concurrency": 1}
    words = ["metric=[text]", "models=shapes", "model@models.ocr=api"]
    words += [f"models.ocr.{name}={value}" for name, value in service.items()]
    told = [*words, "models.ocr.reading=Read the sign"]
    scored = open_scorer(*told).score_table([BLANK_IMAGE] * 3, ['a sign "Grand Opening"'] * 3).to_pylist()
    assert [row["score"] for row in scored] == [1.0, 0.0, None] and scored[2]["error"]["kind"] == "reply_refused"
    assert all(body["messages"][0]["content"][1]["text"] == "Read the sign" for body in server.bodies)
    keys = [
        resolve_model(load_job_config("scorer", *given).models["ocr"], on_gpu=False).list_key_properties()
        for given in (words, told)
    ]
    assert keys[0] | {"reading": "Read the sign"} == keys[1] != keys[0]
