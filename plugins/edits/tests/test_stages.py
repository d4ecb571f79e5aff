"""Edit judges see the source and the edited image, in a separate pass, with models that accept two images."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.judges.viescore import VieScoreConfig
from plumbline.operators.models.families import make_model_config
from plumbline.operators.stages.graph import check_image_inputs, make_nodes
from plumbline.plugins.edits.viescore_edit import VieScoreEditConfig
from tests.operators import tiny
from tests.operators.stages.test_judging import (
    ScriptedChain,
    ScriptedVlm,
    compute_colour,
    draw_images,
    list_error_kinds,
)

EDIT_REPLY = '{"editing_success": 8, "overediting": 6, "naturalness": 9, "artifacts": 3, "rationale": "So."}'


def make_edits(sources: Sequence[Any]) -> pa.Table:
    images = tiny.make_image_table(draw_images(len(sources)), ["p0"] * len(sources))
    return images.append_column("source", pa.array(sources, pa.list_(pa.binary())))


@pytest.mark.parametrize("image_batch", [1, 100])
def test_the_judge_sees_source_and_image_in_one_question_and_only_the_image_in_the_other(
    image_batch: int,
) -> None:
    judge = ScriptedVlm(lambda image, request: EDIT_REPLY)
    metrics = {"edit": VieScoreEditConfig(), "consistency": VieScoreEditConfig(part="consistency")}
    sources = draw_images(4)[2:]
    chain = ScriptedChain(metrics, make_edits([[source] for source in sources]), judge=judge).run(
        image_batch=image_batch
    )
    both = [f"{compute_colour(source)} then {compute_colour(image)}" for image, source in enumerate((2, 3))]
    assert judge.encoded == [both[0], compute_colour(0), both[1], compute_colour(1)]
    shown = {image: "instruction" in request.messages[0].text.lower() for image, request in judge.asked}
    assert shown == {both[0]: True, compute_colour(0): False, both[1]: True, compute_colour(1): False}
    assert [row["score"] for row in chain.list_rows("edit")] == pytest.approx([(6 * 3) ** 0.5] * 2)
    assert [row["score"] for row in chain.list_rows("consistency")] == [6, 6]


def test_an_unusable_source_only_fails_its_row() -> None:
    one, other = draw_images(2)
    chain = ScriptedChain({"edit": VieScoreEditConfig()}, make_edits([[one], [b"no image"], [], [one, other]]),
                  judge=ScriptedVlm(lambda image, request: EDIT_REPLY)).run()  # fmt: skip
    assert list_error_kinds(chain.list_rows("edit")) == [None, "corrupt_image", "missing_image", "too_many_images"]
    assert all(row["error"]["message"].startswith("the source of the edit: ") for row in chain.list_rows("edit")[1:])


def test_a_verdict_is_reused_until_the_source_changes() -> None:
    one, other = draw_images(2)
    before = ScriptedChain(
        {"edit": VieScoreEditConfig()}, make_edits([[one], [one]]), judge=ScriptedVlm(lambda *_: EDIT_REPLY)
    ).run()
    after = ScriptedChain(
        {"edit": VieScoreEditConfig()}, make_edits([[one], [other]]), judge=ScriptedVlm(lambda *_: EDIT_REPLY)
    ).run(before)
    assert after.models["judge"].encoded == [f"{compute_colour(1)} then {compute_colour(1)}", compute_colour(1)]


def test_metrics_that_read_sources_share_a_separate_pass() -> None:
    metrics = {"plain": VieScoreConfig(), "edit": VieScoreEditConfig(), "success": VieScoreEditConfig(part="quality")}
    nodes = {node.name: list(node.metrics) for node in make_nodes(metrics) if node.roles}
    assert nodes == {"inspections:vlm": ["plain"], "inspections:vlm:edit+result": ["edit", "success"]}


def test_a_model_that_accepts_a_single_image_is_refused_for_edits() -> None:
    metrics, served = {"e": VieScoreEditConfig()}, {"family": "openai", "checkpoint": "gpt"}
    check_image_inputs(make_nodes(metrics), {"vlm": make_model_config(**served)}, Clips())
    with pytest.raises(ConfigError, match=r"metrics\.e compares images with their sources, .* set clips\.shown=each"):
        check_image_inputs(make_nodes(metrics), {"vlm": make_model_config(**served)}, Clips(shown="video"))
    captioner = {"vlm": make_model_config(family="captioner", checkpoint="owner/name")}
    with pytest.raises(ConfigError, match=r"metrics\.e: .* the model for role 'vlm', owner/name, takes one image"):
        check_image_inputs(make_nodes(metrics), captioner, Clips())


@pytest.mark.parametrize(("kind", "several"), [("qwen2_vl", True), ("paligemma", False)])
def test_vllm_accepts_the_same_models_for_edits_as_transformers_does(tmp_path: Path, kind: str, several: bool) -> None:
    fields = {"architectures": ["ForConditionalGeneration"], "model_type": kind, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    served = {"vlm": make_model_config(family="vlm", checkpoint=str(tmp_path), engine="vllm")}
    refusal = pytest.raises(ConfigError, match="takes one image; use a model that takes several")
    with nullcontext() if several else refusal:
        check_image_inputs(make_nodes({"e": VieScoreEditConfig()}), served, Clips())


def test_a_vllm_limit_of_one_image_is_refused_for_edits(tmp_path: Path) -> None:
    fields = {"architectures": ["ForConditionalGeneration"], "model_type": "qwen2_vl", "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    nodes = make_nodes({"e": VieScoreEditConfig()})
    for limit in ({"image": 1}, {"image": 2}, {"video": 0}):
        options = {"engine": "vllm", "engine_options": {"limit_mm_per_prompt": limit}}
        served = {"vlm": make_model_config(family="vlm", checkpoint=str(tmp_path), **options)}
        refusal = pytest.raises(
            ConfigError, match=r"models\.vlm\.engine_options\.limit_mm_per_prompt: it allows 1 .* 2"
        )
        with refusal if limit == {"image": 1} else nullcontext():
            check_image_inputs(nodes, served, Clips())
