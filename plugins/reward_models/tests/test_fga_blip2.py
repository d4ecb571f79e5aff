"""FGA-BLIP2 scores an image against its prompt, and scores each word of the prompt."""

from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from plugins.reward_models.tests import tiny_rewards
from plugins.reward_models.tests.references import score_fga_blip2_tokens
from plugins.reward_models.tests.test_conversion import convert_release, rename_as_released, save_weights
from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ModelError
from plumbline.operators.metaeval.word_ratings import judge_words
from plumbline.operators.metrics.metric import Evidence
from plumbline.operators.models.calls import Pair
from plumbline.operators.stages.similarities import PromptTexts, SimilaritiesStage
from plumbline.operators.statistics.options import Sampling
from plumbline.plugins.reward_models.fga_blip2 import FgaBlip2Config, find_words
from tests.operators import tiny
from tests.operators.models.alike import IMAGES, TEXTS
from tests.operators.models.families.library import load_tokenizer
from tests.operators.models.families.test_families import load_model
from tests.operators.stages.given import decode, make_options
from tests.operators.tiny import rewards

PROMPT = "Two blue-ish stars (LEFT of a circle)! 9"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_rewards.save_fga_blip2(tmp_path_factory.mktemp("fga") / "fga_blip2")


def test_words_have_their_positions_in_the_prompt() -> None:
    words = find_words(PROMPT)
    assert [word.text for word in words] == ["two", "blue-ish", "stars", "left", "of", "a", "circle", "9"]
    assert [PROMPT[word.start : word.end].lower() for word in words] == [word.text for word in words]
    assert [word.text for word in find_words("\u0130stanbul ...\n")] == ["\u0130stanbul"]


def test_a_words_score_equals_the_released_score_of_its_element(folder: Path) -> None:
    """The release averages the scores of an element's tokens, which it finds among the prompt's tokens (eval.py)."""
    model = load_model("fga_blip2", folder, "similarity")
    features = model.encode([model.preprocess(image) for image in IMAGES])
    (result, _) = model.compare(features, [Pair(1, PROMPT), Pair(0, TEXTS[1])], "reward")
    with torch.no_grad():
        score, tokens = score_fga_blip2_tokens(folder, Pair(1, PROMPT))
    assert result.similarity == pytest.approx(score, abs=1e-5)
    words, place, expected = load_tokenizer(folder), 1, []
    for word in find_words(PROMPT):
        count = len(words(word.text).input_ids) - 2
        expected.append(fmean(tokens[place : place + count]))
        place += count
    assert place == len(tokens) - 1
    assert list(result.ratings.values()) == pytest.approx(expected, abs=1e-5)


def test_words_are_elements_of_the_score_and_a_bad_row_has_none(folder: Path) -> None:
    metric, model = FgaBlip2Config(), load_model("fga_blip2", folder, "similarity")
    stage = SimilaritiesStage({"f": metric}, {"model": model}, make_options(image_batch=2))
    images = tiny.make_image_table(
        [tiny.encode_image(IMAGES[0]), b"no image", tiny.encode_image(IMAGES[0])], ["p", "p", "q"]
    )
    table = stage.measure(decode(stage, images), {"f": PromptTexts({"p": "A red circle."}, metric)})["f"]
    first, *others = table.to_pylist()
    assert [row["similarity"] for row in others] == [None, None]
    scored = metric.score(Evidence(first))
    assert scored.ratings is None and scored.elements is not None and 1 <= (scored.score or 0) <= 5
    assert [(one.text, one.start, one.end) for one in scored.elements] == [
        ("a", 0, 1),
        ("red", 2, 5),
        ("circle", 6, 12),
    ]
    assert all(0 <= (one.score or 0) <= 1 for one in scored.elements)


def test_peoples_ratings_of_words_are_compared_with_the_words_scores() -> None:
    prompt, metric = "A RED circle.", FgaBlip2Config()
    names = {word.name: score for word, score in zip(find_words(prompt), (0.2, 0.9, 0.4), strict=True)}
    ratings = [{"name": name, "value": value} for name, value in names.items()]
    scored = metric.score(Evidence({"similarity": 3.0, "truncated": False, "ratings": ratings}))
    ids = {"image_id": "i", "prompt_id": "p", "generator": "g"}
    row = {**ids, "metric": "fga_blip2", "elements": [element._asdict() for element in scored.elements or ()]}
    word = {"rater": "0", "word": "RED", "start": 2, "end": 5, "aligned": 1.0}
    words = pa.Table.from_pylist([{**ids, **word}], schema=schemas.WORDS)
    _, matches = judge_words(words, [pa.Table.from_pylist([row])], "image", {}, Sampling(resamples=10))
    assert matches[["word", "score", "n_questions"]].to_numpy().tolist() == [["RED", 0.9, 1]]


def test_a_prompt_of_more_than_50_words_is_truncated_as_in_the_release(folder: Path) -> None:
    model = load_model("fga_blip2", folder, "similarity")
    features = model.encode([model.preprocess(IMAGES[0])])
    pairs = [Pair(0, "red " * count) for count in (50, 51)]
    whole, cut = model.compare(features, pairs, "reward")
    assert (whole.truncated, cut.truncated) == (False, True)
    assert cut.similarity == pytest.approx(whole.similarity) and len(cut.ratings) == 50


NAME_PATTERNS = (
    (r"^vision_model\.embeddings\.class_embedding$", "visual_encoder.cls_token"),
    (r"^vision_model\.embeddings\.position_embedding$", "visual_encoder.pos_embed"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "visual_encoder.patch_embed.proj."),
    (r"^vision_model\.post_layernorm\.", "ln_vision."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.self_attn\.projection\.", r"visual_encoder.blocks.\1.attn.proj."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.self_attn\.", r"visual_encoder.blocks.\1.attn."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.layer_norm", r"visual_encoder.blocks.\1.norm"),
    (r"^vision_model\.encoder\.layers\.", "visual_encoder.blocks."),
    (r"^qformer\.layernorm\.", "Qformer.bert.embeddings.LayerNorm."),
    (r"^embeddings\.", "Qformer.bert.embeddings."),
    (r"^(qformer\..*attention)\.attention\.", r"\1.self."),
    (r"^qformer\.", "Qformer.bert."),
    (r"^(vision|text)_projection\.", r"\1_proj."),
)
"""Patterns and replacements that convert transformers' weight names to LAVIS's."""


def test_a_converted_fga_blip2_has_the_scores_of_its_release(folder: Path, tmp_path: Path) -> None:
    released = rename_as_released(load_file(folder / "model.safetensors"), NAME_PATTERNS)
    for name in [name for name in released if name.endswith("qkv.bias")]:
        query, _, value = released.pop(name).chunk(3)
        layer = name.removesuffix("qkv.bias")
        released |= {f"{layer}q_bias": query.clone(), f"{layer}v_bias": value.clone()}
    released |= {"temp": torch.tensor(0.07), "mask_proj.layers.0.weight": torch.zeros(2, 2)}
    released |= {"Qformer.cls.predictions.bias": torch.zeros(2)}
    released["Qformer.bert.embeddings.position_ids"] = torch.arange(4)[None]
    file = save_weights(tmp_path / "fga_blip2.pth", {"model": released, "epoch": 4, "scaler": None})
    given = {"release": "fga_blip2", "weights": file}
    made = convert_release(tmp_path / "made", base=rewards.save_blip2_itm(tmp_path / "base", seed=5), **given)
    scores = []
    for place in (made, folder):
        model = load_model("fga_blip2", place, "similarity")
        features = model.encode([model.preprocess(image) for image in IMAGES])
        pairs = [Pair(image, text) for image in range(len(IMAGES)) for text in TEXTS]
        scores.append([result.similarity for result in model.compare(features, pairs, "reward")])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    with pytest.raises(ModelError, match="expected a BLIP-2 model in transformers' layout"):
        convert_release(tmp_path / "again", base=rewards.save_pickscore(tmp_path / "clip"), **given)
