"""Every query about an image is made once, by the right model, and a failure costs only its own row."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.modules import Statement, format_statement, read_program
from plumbline.operators.metrics.questions.vpeval import VpevalConfig
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Box, DetectionRequest, Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.networks.similarity import COSINE_PROFILE
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.stages.answers import QuestionIndex
from plumbline.operators.stages.modules import ModulesStage
from plumbline.operators.stages.scores import WrittenIndex
from tests.operators.stages.given import decode, make_options, score
from tests.operators.tiny import detectors, draw_image, encode_image, make_image_table, save_clip

PROGRAMS = {
    "p0": "objectEval(image, 'cow')\ncountEval(objDet(image, 'cow'), '==2')\nspatialEval(image, 'cow,sign,left')",
    "p1": "textEval(ocr(image), 'pro milk')\nvqa(image, 'is it red?', 'yes,no', 'yes')\nobjectEval(image, 'hen')",
}


class ScriptedModels:
    """Models that identify an image by its width, and record their requests."""

    usage = Usage()

    def __init__(self, *, blind_to: int | None = None) -> None:
        self.blind_to = blind_to
        self.shown: list[int] = []
        self.asked: list[tuple[int, str]] = []

    def preprocess(self, image: Image.Image) -> int:
        if image.width == self.blind_to:
            raise ValueError(f"cannot read an image of width {image.width}")
        self.shown.append(image.width)
        return image.width

    def encode(self, pixels: Sequence[int]) -> Sequence[int]:
        return pixels

    def detect(self, features: Sequence[int], wanted: Sequence[DetectionRequest]) -> list[list[Box] | RowError]:
        assert {(one.box_threshold, one.text_threshold) for one in wanted} <= {(0.4, 0.25), (0.9, 0.25)}
        self.asked += [(features[one.image], one.phrase) for one in wanted]
        box = Box("cow", 0.9, 0, 0, 10, 10)
        boxes = {"cow": [box, box], "sign": [box._replace(label="sign", x1=50, x2=60)]}
        return [boxes.get(one.phrase, []) for one in wanted]

    def ocr(self, features: Sequence[int]) -> list[str | RowError]:
        self.asked += [(feature, "") for feature in features]
        return ["Pro Milk" for _ in features]

    def reply(self, features: Sequence[int], questions: Sequence[Question]) -> list[str]:
        self.asked += [(features[one.image], one.text) for one in questions]
        return ["No." for _ in questions]


def make_questions_table() -> pa.Table:
    records = []
    for prompt_id, program in PROGRAMS.items():
        statements = [
            WrittenQuestion(str(number), format_statement(one), ("yes", "no"), "yes", one.module)
            for number, one in enumerate(read_program(program))
        ]
        records += [{"prompt_id": prompt_id, **question._asdict()} for question in assign_ids(statements)]
    return rows.table(records, schemas.QUESTIONS)


def make_models(**named: Any) -> Mapping[str, Any]:
    return {"model": ScriptedModels(), "detector": ScriptedModels(), "reader": ScriptedModels()} | named


def observe(images: pa.Table, loaded: Mapping[str, Any], **metrics: VpevalConfig) -> Mapping[str, pa.Table]:
    metrics = metrics or {"vpeval": VpevalConfig()}
    stage = ModulesStage(metrics, loaded, make_options(image_batch=2))
    table = make_questions_table()
    return stage.measure(decode(stage, images), {name: QuestionIndex(table, one) for name, one in metrics.items()})


def score_observations(seen: pa.Table, metric: VpevalConfig | None = None) -> list[dict[str, Any]]:
    index = WrittenIndex(make_questions_table(), None)
    assert index.matches(seen)
    return list(score(seen, "vpeval", metric or VpevalConfig(), index).to_pylist())


def make_images(*prompt_ids: str) -> pa.Table:
    return make_image_table(
        [encode_image(draw_image(n, width=16 + n)) for n in range(len(prompt_ids))], list(prompt_ids)
    )


def test_every_query_is_sent_once_to_its_model() -> None:
    loaded = make_models()
    table = observe(make_images("p0", "p1", "p0"), loaded)["vpeval"]
    assert table.schema.equals(schemas.MODULE_ANSWERS)
    assert loaded["detector"].asked == [(16, "cow"), (16, "sign"), (17, "hen"), (18, "cow"), (18, "sign")]
    assert loaded["reader"].asked == [(17, "")]
    assert loaded["model"].asked == [(17, "Question: is it red? Choices: yes, no Answer:")]
    assert (loaded["reader"].shown, loaded["detector"].shown) == ([17], [16, 17, 18]), "only images it is asked about"


def test_metrics_that_share_the_models_share_their_queries() -> None:
    loaded = make_models()
    tables = observe(make_images("p0"), loaded, plain=VpevalConfig(), released=VpevalConfig(relations="released"),
                  strict=VpevalConfig(box_threshold=0.9))  # fmt: skip
    assert loaded["detector"].asked == [(16, "cow"), (16, "sign")] * 2, "another threshold is another query"
    assert tables["plain"].equals(tables["released"])


def test_the_score_is_the_fraction_of_statements_that_hold_with_the_evidence_for_each() -> None:
    first, second = score_observations(observe(make_images("p0", "p1"), make_models())["vpeval"])
    assert (first["score"], first["n_questions"], first["error"]) == (1.0, 3, None)
    assert [(one["text"], one["given"], one["score"]) for one in first["elements"]] == [
        ("objectEval(image, 'cow')", "2 x cow", 1.0),
        ("countEval(objDet(image, 'cow'), '==2')", "2 x cow", 1.0),
        ("spatialEval(image, 'cow,sign,left')", "2 x cow, 1 x sign", 1.0),
    ]
    assert [(one["given"], one["score"]) for one in second["elements"]] == [
        ("Pro Milk", 1.0), ("no", 0.0), ("0 x hen", 0.0),
    ]  # fmt: skip
    assert second["score"] == pytest.approx(1 / 3)
    [released] = score_observations(
        observe(make_images("p0"), make_models())["vpeval"], VpevalConfig(relations="released")
    )
    assert released["score"] == pytest.approx(2 / 3), "the same query results, interpreted the other way"


def test_a_failure_affects_only_its_row() -> None:
    shown = [encode_image(draw_image(0, width=width)) for width in (16, 17, 18, 19)]
    table = make_image_table([*shown, b"no image"], ["p1", "p1", "p0", "p9", "p0"])
    rows_scored = score_observations(observe(table, make_models(reader=ScriptedModels(blind_to=17)))["vpeval"])
    kinds = [row["error"] and row["error"]["kind"] for row in rows_scored]
    assert kinds == [None, "model_failed", None, "unknown_prompt", "corrupt_image"]
    assert [row["score"] is None for row in rows_scored] == [kind is not None for kind in kinds]
    assert (
        rows_scored[1]["error"]["retryable"]
        and "cannot read an image of width 17" in rows_scored[1]["error"]["message"]
    )


def test_the_score_of_several_images_is_the_mean_over_them() -> None:
    class FirstImageOnly(ScriptedModels):
        def detect(self, features: Sequence[int], wanted: Sequence[DetectionRequest]) -> list[list[Box] | RowError]:
            found = super().detect(features, wanted)
            return [boxes if features[one.image] == 16 else [] for one, boxes in zip(wanted, found, strict=True)]

    frames = [encode_image(draw_image(n, width=16 + n)) for n in range(2)]
    table = pa.table({"image_id": ["i"], "prompt_id": ["p0"], "image": [frames]})
    [row] = score_observations(observe(table, make_models(detector=FirstImageOnly()))["vpeval"])
    assert (row["score"], row["n_questions"]) == (0.5, 3)


def test_tiny_checkpoints_of_the_released_families_see_images(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    loaded: dict[str, Any] = {"model": ScriptedModels()}
    for key, family, call, save in (
        ("detector", "grounding_dino", "detect", detectors.save_grounding_dino),
        ("reader", "got_ocr2", "ocr", detectors.save_got_ocr2),
    ):
        config = make_model_config(family=family, checkpoint=str(save(tmp_path / key)))
        loaded[key] = loading.load(resolve_model(config, on_gpu=False), call)  # type: ignore[call-overload]
    rows_scored = score_observations(observe(make_images("p0", "p1"), loaded)["vpeval"])
    assert [row["error"] for row in rows_scored] == [None, None]
    assert all(0 <= row["score"] <= 1 for row in rows_scored)


def test_a_dual_encoder_as_the_vqa_model_takes_the_choice_that_fits_best(tmp_path: Path) -> None:
    config = make_model_config(family="clip", checkpoint=str(save_clip(tmp_path)))
    model = loading.load(resolve_model(config, on_gpu=False), "likelihood")
    metric = VpevalConfig().complete_options(lambda role: COSINE_PROFILE)
    (row,) = score_observations(observe(make_images("p1"), make_models(model=model), vpeval=metric)["vpeval"], metric)
    encoded_image = model.encode([model.preprocess(draw_image(0, width=16))])
    (logprobs,) = model.likelihood(encoded_image, [Question(0, "is it red?", ("yes", "no"))])
    likeliest = "yes" if logprobs[0] > logprobs[1] else "no"
    assert [one["given"] for one in row["elements"]] == ["Pro Milk", likeliest, "0 x hen"]


def test_a_statement_survives_being_stored() -> None:
    for program in PROGRAMS.values():
        for statement in read_program(program):
            assert isinstance(statement, Statement)
            assert read_program(format_statement(statement)) == [statement]
