"""BLIP-VQA multiplies the probabilities of yes as T2I-CompBench's release does, with a tiny BLIP of true architecture.

The tests that parse prompts need spaCy and en_core_web_sm, or a copy of it under a longer name.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.extensions import find_missing_packages
from plumbline.operators.metrics.writing import assign_ids
from plumbline.operators.models import loading
from plumbline.operators.models.families import FAMILIES, make_model_config
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.stages.answers import AnswersStage, QuestionIndex
from plumbline.operators.stages.scores import WrittenIndex
from plumbline.plugins.detected_objects.compbench import CompbenchSpatialConfig
from plumbline.plugins.detected_objects.compbench_attributes import CompbenchAttributesConfig, make_phrase_question
from tests.commands import find_newest_run_folder, run_for_output, run_refused
from tests.environment import ROOT
from tests.operators.models.families.library import load_blip, load_image_processor, load_tokenizer
from tests.operators.stages.given import decode, make_options, score
from tests.operators.tiny import detectors, draw_image, encode_image, make_image_table, vqa_models

PROMPT = "a red circle and the blue star"
PHRASES = ("a red circle", "the blue star")


@torch.inference_mode()
def compute_released_score(folder: Path, image: Image.Image, phrases: Sequence[str]) -> float:
    """Return the product of P(yes) / (P(yes) + P(no)) over the phrases, as BLIP_VQA.vqa_prob computes them."""
    model, tokenizer = load_blip("BlipForQuestionAnswering", folder), load_tokenizer(folder)
    yes, no = (vqa_models.WORDPIECES[word] for word in ("yes", "no"))
    pixels = load_image_processor(folder)(images=image, return_tensors="pt").pixel_values
    shown, product = model.vision_model(pixels)[0], 1.0
    for phrase in phrases:
        ids = tokenizer(f"{phrase}?", return_tensors="pt").input_ids
        ids[:, 0] = vqa_models.QUESTION_TOKEN
        states = model.text_encoder(input_ids=ids, encoder_hidden_states=shown)[0]
        start = torch.tensor([[vqa_models.START_TOKEN]])
        logits = model.text_decoder(input_ids=start, encoder_hidden_states=states).logits[0, 0]
        chances = logits.softmax(0)
        product *= float(chances[yes] / (chances[yes] + chances[no]))
    return product


def test_the_score_is_the_product_of_the_phrases_chances_of_yes(tmp_path: Path) -> None:
    folder = vqa_models.save_blip_vqa(tmp_path)
    config = make_model_config(family="blip_vqa", checkpoint=str(folder))
    model = loading.load(resolve_model(config, on_gpu=False), "likelihood")
    profile = FAMILIES["blip_vqa"].profile
    assert profile is not None
    metric = CompbenchAttributesConfig().complete_options(lambda role: profile(config, {}))
    asked = assign_ids([make_phrase_question(place, phrase, PROMPT) for place, phrase in enumerate(PHRASES)])
    assert [(one.text, one.start, one.end) for one in asked] == [("a red circle?", 0, 12), ("the blue star?", 17, 30)]
    questions = rows.table([{"prompt_id": "p0", **one._asdict()} for one in asked], schemas.QUESTIONS)
    images = [draw_image(number, width=60, height=48) for number in range(4)]
    stage = AnswersStage({"attributes": metric}, {"model": model}, make_options())
    prepared = decode(stage, make_image_table(list(map(encode_image, images)), ["p0"] * len(images)))
    answers = stage.measure(prepared, {"attributes": QuestionIndex(questions, metric)})["attributes"]
    scored = score(answers, "attributes", metric, WrittenIndex(questions, None)).to_pylist()
    for row, image in zip(scored, images, strict=True):
        assert row["score"] == pytest.approx(compute_released_score(folder, image, PHRASES), rel=1e-4)
        assert row["score"] == pytest.approx(math.prod(element["score"] for element in row["elements"]))
    assert len({row["score"] for row in scored}) == 4


def find_pipeline() -> str | None:
    """Return the name of an installed pipeline such as en_core_web_sm, or None."""
    if find_missing_packages("parse"):
        return None
    import spacy

    return next((name for name in spacy.util.get_installed_models() if name.startswith("en_core_web_sm")), None)


needs_spacy = pytest.mark.skipif(find_pipeline() is None, reason="needs spaCy and en_core_web_sm")


def list_words(folder: Path, prompt: str, blip: Path) -> list[str]:
    (folder / "images/sdxl").mkdir(parents=True)
    draw_image(1).save(folder / "images/sdxl/0.png")
    (folder / "images/metadata.jsonl").write_text(json.dumps({"file_name": "sdxl/0.png", "prompt": prompt}))
    return [
        f"images={folder}/images", f"store={folder}/store", "cluster=here", "model@models.clip=clip_shapes",
        f"+models.blip_vqa={{family: blip_vqa, checkpoint: '{blip}'}}",
        f"+models.detector={{family: owlv2, checkpoint: '{detectors.save_owlv2(folder / 'detector')}'}}",
    ]  # fmt: skip


@needs_spacy
def test_a_prompts_noun_phrases_are_asked_about_and_its_adjectives_left_out_for_clip(tmp_path: Path) -> None:
    blip = vqa_models.save_blip_vqa(tmp_path / "blip")
    names = ("compbench_attributes", "compbench_action")
    words = [*list_words(tmp_path, PROMPT, blip), f"metric=[{','.join(names)},clipscore]"]
    run_for_output("score", *words, *(f"metrics.{name}.parser={find_pipeline()}" for name in names))
    folder = find_newest_run_folder(tmp_path / "store")
    scores = pd.read_parquet(folder / "scores.parquet").set_index("metric")["score"]
    image = draw_image(1)
    assert scores["compbench_attributes"] == pytest.approx(compute_released_score(blip, image, PHRASES), rel=1e-4)
    config = make_model_config(family="clip", checkpoint=str(ROOT / "assets/clip-shapes"))
    clip: Any = loading.load(resolve_model(config, on_gpu=False), "similarity")
    (shown,), texts = clip.encode([clip.preprocess(image)]), [PROMPT, "a circle and the star"]
    cosines = [float(shown @ feature) for feature in clip.encode_texts(texts).features]
    assert [scores["clipscore"], scores["compbench_action"]] == pytest.approx(cosines, abs=1e-5)


@needs_spacy
def test_the_two_objects_of_a_complex_prompt_are_the_nouns_around_the_relation() -> None:
    metric = CompbenchSpatialConfig(structure="complex", parser=str(find_pipeline()), convention="fixed")
    questions = metric.read_prompt("The red hat was on top of the brown coat rack.")
    assert [one.text for one in questions] == ["hat, on the top of, coat"], "as in the release, one word each"
    refused = metric.read_prompt("The red hat fell.")
    assert isinstance(refused, RowError) and refused.kind == "no_relation"


@pytest.mark.skipif(find_pipeline() == "en_core_web_sm", reason="the default parser is installed")
@pytest.mark.parametrize("metric", ["compbench_attributes", "compbench_action", "compbench_spatial"])
def test_a_missing_parser_is_reported_in_one_line_before_any_work(metric: str, tmp_path: Path) -> None:
    words = list_words(tmp_path, PROMPT, vqa_models.save_blip_vqa(tmp_path / "blip"))
    complex_prompts = ["metrics.compbench_spatial.structure=complex"] if metric == "compbench_spatial" else []
    line = run_refused("score", *words, f"metric=[{metric}]", *complex_prompts)
    assert line.startswith("error: parser=en_core_web_sm: ") and "install" in line
