"""Batched CLIP-FlanT5 follows docs/conventions.md: its scores equal those of plain code for one pair at a time."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoTokenizer, CLIPVisionConfig, CLIPVisionModel, T5Config
from transformers import T5ForConditionalGeneration as T5

from plumbline.operators.metrics.questions.vqascore import reduce_answer
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.families.dual_encoders import ClipSimilarity
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5, ClipFlanT5Likelihood, save_clip_flant5
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny

METRIC = tiny.make_vqascore()
SYSTEM_MESSAGE = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
TEXTS = ("a red circle", "star", "two blue star left of a green square , three red circle above the square", "unheard")
IMAGES = [
    tiny.draw_image(0),
    tiny.draw_image(1, width=64, height=40),
    tiny.draw_image(2, width=33, height=90),
    tiny.draw_image(3, width=7, height=7),
]
PAIRS = [(image, text) for image in range(len(IMAGES)) for text in TEXTS]
CHOICES = ("Yes", "No", "maybe not a circle")


class PlainClipFlanT5:
    """An implementation of the released method without batches or caches, independent of the code under test."""

    def __init__(self, checkpoint: Path, tower: Path, before: str = f"{SYSTEM_MESSAGE} USER: ") -> None:
        self.before = before
        weights = load_file(checkpoint / "model.safetensors")
        fields = json.loads((checkpoint / "config.json").read_text())
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.tower = self.read_tower(weights, tower)
        width, hidden = fields["d_model"], fields["mm_hidden_size"]
        self.projector = nn.Sequential(nn.Linear(hidden, width), nn.GELU(), nn.Linear(width, width))
        self.projector.load_state_dict(
            {name[13:]: tensor for name, tensor in weights.items() if name.startswith("mm_projector.")}
        )
        self.language = T5(T5Config(**tiny.T5_FIELDS)).eval()
        self.language.lm_head.weight = nn.Parameter(weights["lm_head.weight"])  # a separate matrix, unlike T5's
        own = {name: tensor for name, tensor in weights.items() if name in self.language.state_dict()}
        self.language.load_state_dict(own, strict=False)
        assert torch.equal(self.language.encoder.embed_tokens.weight, weights["shared.weight"])
        assert torch.equal(self.language.lm_head.weight, weights["lm_head.weight"])

    def read_tower(self, weights: dict[str, torch.Tensor], tower: Path) -> CLIPVisionModel:
        saved = {name.removeprefix(tiny.TOWER_PREFIX): tensor for name, tensor in weights.items()
                 if name.startswith(tiny.TOWER_PREFIX)}  # fmt: skip
        if not saved:
            return CLIPVisionModel.from_pretrained(tower).eval()
        model = CLIPVisionModel(CLIPVisionConfig(**tiny.VISION_FIELDS)).eval()
        model.load_state_dict(saved)
        return model

    def make_pixels(self, image: Image.Image) -> torch.Tensor:
        """Pad to a square with CLIP's mean colour, resize (bicubic), scale and normalise; return (1, 3, side, side)."""
        side = max(image.size)
        square = np.empty((side, side, 3), dtype=np.uint8)
        square[:] = [int(255 * mean) for mean in tiny.IMAGE_MEAN]
        left, top = (side - image.width) // 2, (side - image.height) // 2
        square[top : top + image.height, left : left + image.width] = np.asarray(image)
        resized = Image.fromarray(square).resize((tiny.IMAGE_SIDE, tiny.IMAGE_SIDE), Image.Resampling.BICUBIC)
        normalised = (np.asarray(resized) / 255 - tiny.IMAGE_MEAN) / tiny.IMAGE_STD
        return torch.from_numpy(normalised.transpose(2, 0, 1)[None]).float()

    def make_inputs(self, image: Image.Image, question: str) -> torch.Tensor:
        """Return the encoder's inputs (1, tokens, width); the texts around the image each have an end token."""
        before, after = f"{self.before}<image>\n{question} ASSISTANT: ".split("<image>")
        hidden = self.tower(pixel_values=self.make_pixels(image), output_hidden_states=True).hidden_states
        assert len(hidden) == tiny.VISION_FIELDS["num_hidden_layers"] + 1, "all layers are run"
        chunks = [self.language.shared(torch.tensor([self.tokenizer(chunk).input_ids])) for chunk in (before, after)]
        return torch.cat([chunks[0], self.projector(hidden[-2][:, 1:]), chunks[1]], dim=1)

    @torch.inference_mode()
    def score(self, image: Image.Image, question: str, answer: str) -> float:
        """Return exp(-mean cross-entropy) over the answer's tokens and the end-of-sequence token."""
        labels = torch.tensor([self.tokenizer(answer).input_ids])
        loss = self.language(inputs_embeds=self.make_inputs(image, question), labels=labels).loss
        return math.exp(-loss.item())

    def compute_yes_scores(self) -> list[float]:
        return [self.score(IMAGES[image], METRIC.question(text), "Yes") for image, text in PAIRS]


@pytest.fixture(scope="module")
def plain(checkpoints: Path) -> PlainClipFlanT5:
    return PlainClipFlanT5(checkpoints / "flant5", checkpoints / "clip")


@pytest.fixture(scope="module")
def plain_scores(plain: PlainClipFlanT5) -> list[float]:
    return plain.compute_yes_scores()


def load(folder: Path, **options: Any) -> ClipFlanT5Likelihood:
    config = make_model_config(family="clip_flant5", checkpoint=str(folder), **options)
    return loading.load(resolve_model(config, on_gpu=False), "likelihood")


def compute_likelihoods(model: ClipFlanT5Likelihood, choices: Sequence[str] = ("Yes",)) -> list[list[list[float]]]:
    """Return the log-probabilities of the choices for every pair, with one `encode` and one `likelihood` call."""
    features = model.encode([model.preprocess(image) for image in IMAGES])
    asked = [Question(image, METRIC.question(text), tuple(choices)) for image, text in PAIRS]
    return model.likelihood(features, asked)


def compute_mean_scores(model: ClipFlanT5Likelihood) -> list[float]:
    return [reduce_answer(choices[0], "mean") for choices in compute_likelihoods(model)]


def test_the_scores_differ_between_images_and_questions(plain_scores: list[float]) -> None:
    assert len({round(score, 6) for score in plain_scores}) == len(PAIRS), "otherwise agreement would prove little"
    assert min(plain_scores) > 1e-3


@pytest.mark.parametrize("pair_batch", [1, 7, 64])
def test_the_mean_reduction_is_the_plain_score_for_any_batch(
    checkpoints: Path, plain_scores: list[float], pair_batch: int
) -> None:
    model = load(checkpoints / "flant5", pair_batch=pair_batch)
    assert compute_mean_scores(model) == pytest.approx(plain_scores, abs=0, rel=1e-5)


@pytest.mark.parametrize(("system", "before"), [("", "USER: "), ("a red circle", "a red circle USER: ")])
def test_the_system_message_can_be_left_out_or_replaced(
    checkpoints: Path, plain_scores: list[float], system: str, before: str
) -> None:
    scores = compute_mean_scores(load(checkpoints / "flant5", system=system))
    expected = PlainClipFlanT5(checkpoints / "flant5", checkpoints / "clip", before).compute_yes_scores()
    assert scores == pytest.approx(expected, abs=0, rel=1e-5) and scores != pytest.approx(plain_scores, rel=1e-5)


@pytest.mark.slow
def test_a_compiled_encoder_gives_the_same_scores_with_one_compilation(
    checkpoints: Path, plain_scores: list[float]
) -> None:
    """Inductor compiles for the CPU at most three times: for two padded lengths, and for a batch of one question."""
    for pair_batch in (5, 64, 1):
        model = load(checkpoints / "flant5", pair_batch=pair_batch, compiled=True)
        before = counters["stats"]["unique_graphs"]
        assert compute_mean_scores(model) == pytest.approx(plain_scores, abs=0, rel=1e-5)
        assert counters["stats"]["unique_graphs"] - before <= 3


def test_several_choices_have_the_same_scores_as_alone(
    likelihood: ClipFlanT5Likelihood, plain: PlainClipFlanT5
) -> None:
    answered = compute_likelihoods(likelihood, CHOICES)
    for (image, text), choices in zip(PAIRS, answered, strict=True):
        for choice, given in zip(CHOICES, choices, strict=True):
            assert len(given) == len(choice.split()) + 1, "every word and the end of sequence"
            expected = plain.score(IMAGES[image], METRIC.question(text), choice)
            assert reduce_answer(given, "mean") == pytest.approx(expected, abs=0, rel=1e-5)


def test_a_tokens_probability_is_over_the_full_vocabulary(likelihood: ClipFlanT5Likelihood) -> None:
    """The probabilities of all one-word answers and of the special tokens add up to one."""
    words = tuple(word for word in tiny.VOCABULARY if word not in tiny.SPECIAL_TOKENS)
    features = likelihood.encode([likelihood.preprocess(IMAGES[0])])
    (choices,) = likelihood.likelihood(features, [Question(0, "a circle ?", words)])
    total = math.fsum(math.exp(choice[0]) for choice in choices)
    assert 0.8 < total < 1.0
    specials = 1 - total
    assert specials == pytest.approx(compute_special_token_probability(likelihood, features[0], "a circle ?"), abs=1e-4)


@torch.inference_mode()
def compute_special_token_probability(model: ClipFlanT5Likelihood, feature: torch.Tensor, question: str) -> float:
    """Return the probability that the first answer token is special, from the network's logits."""
    after = torch.tensor([model.tokenizer(f"\n{question} ASSISTANT: ").input_ids])
    encoded = model.model.encode_questions(feature[None], model.before, after)
    logits = model.model.decode(encoded, torch.tensor([[tiny.VOCABULARY["Yes"]]]))[0, 0]
    return float(logits.softmax(-1)[[tiny.VOCABULARY[token] for token in tiny.SPECIAL_TOKENS]].sum())


def test_embedding_rows_without_a_token_are_ignored(
    checkpoints: Path, tmp_path: Path, plain_scores: list[float]
) -> None:
    """The released code truncates the embedding to the tokenizer's length before the softmax."""
    weights = tiny.make_flant5_weights()
    for name in ("shared.weight", "lm_head.weight"):
        weights[name] = torch.cat([weights[name], torch.randn(28, tiny.T5_FIELDS["d_model"])])
    folder = tiny.save_flant5(tmp_path / "wide", weights, tower_name=str(checkpoints / "clip"))
    tiny.edit_json(folder / "config.json", vocab_size=len(tiny.VOCABULARY) + 28)
    model = load(folder)
    assert compute_mean_scores(model) == pytest.approx(plain_scores, abs=0, rel=1e-5)
    asked = [Question(0, METRIC.question(text), ()) for text in TEXTS]
    plain = load(checkpoints / "flant5")
    replies = [one.reply(one.encode([one.preprocess(IMAGES[0])]), asked) for one in (model, plain)]
    assert replies[0] == replies[1]


def test_an_image_is_cropped_instead_of_padded_with_the_processor_option(
    checkpoints: Path, similarity: ClipSimilarity
) -> None:
    model = load(checkpoints / "flant5", padding="processor")
    for image in IMAGES:
        torch.testing.assert_close(model.preprocess(image), similarity.preprocess(image))


@pytest.mark.parametrize("select_layer", [-1, -3])
def test_the_selected_layer_comes_from_the_checkpoint(checkpoints: Path, tmp_path: Path, select_layer: int) -> None:
    tower = str((checkpoints / "clip").resolve())
    folder = tiny.save_flant5(tmp_path / "flant5", tiny.make_flant5_weights(), tower_name=tower)
    tiny.edit_json(folder / "config.json", mm_vision_select_layer=select_layer)
    model, plain = load(folder), PlainClipFlanT5(folder, checkpoints / "clip")
    (features,) = model.encode([model.preprocess(IMAGES[1])])
    with torch.inference_mode():
        hidden = plain.tower(pixel_values=plain.make_pixels(IMAGES[1]), output_hidden_states=True).hidden_states
        expected = plain.projector(hidden[select_layer][0, 1:])
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)


def test_an_image_is_its_patches_without_the_class_token(
    likelihood: ClipFlanT5Likelihood, plain: PlainClipFlanT5
) -> None:
    features = likelihood.encode([likelihood.preprocess(image) for image in IMAGES])
    assert {tuple(feature.shape) for feature in features} == {(tiny.N_PATCHES, tiny.T5_FIELDS["d_model"])}
    with torch.inference_mode():
        for image, feature in zip(IMAGES, features, strict=True):
            hidden = plain.tower(pixel_values=plain.make_pixels(image), output_hidden_states=True).hidden_states
            torch.testing.assert_close(feature, plain.projector(hidden[-2][0, 1:]), atol=1e-5, rtol=1e-5)


def test_the_output_matrix_comes_from_the_checkpoint_and_not_from_the_embedding(
    checkpoints: Path, tmp_path: Path, plain_scores: list[float]
) -> None:
    tower = str((checkpoints / "clip").resolve())
    weights = tiny.make_flant5_weights()
    assert not torch.equal(weights["lm_head.weight"], weights["shared.weight"])
    tied = weights | {"lm_head.weight": weights["shared.weight"].clone()}
    scores = compute_mean_scores(load(tiny.save_flant5(tmp_path / "tied", tied, tower_name=tower)))
    plain = PlainClipFlanT5(tmp_path / "tied", checkpoints / "clip")
    assert scores == pytest.approx(plain.compute_yes_scores(), abs=0, rel=1e-5)
    assert max(abs(one - other) for one, other in zip(scores, plain_scores, strict=True)) > 1e-3


def test_a_network_built_here_is_the_same_after_saving_and_loading(checkpoints: Path, tmp_path: Path) -> None:
    torch.manual_seed(9)
    network = ClipFlanT5(T5Config(**tiny.T5_FIELDS), CLIPVisionConfig(**tiny.VISION_FIELDS)).eval()
    with torch.no_grad():
        network.language_model.lm_head.weight.normal_(std=0.4)
    folder = tmp_path / "saved"
    save_clip_flant5(network, folder, tower_name=str(checkpoints / "clip"))
    tiny.save_tokenizer(folder, template="$A </s>")
    loaded = load(folder)
    in_memory = ClipFlanT5Likelihood(network, loaded.tokenizer, loaded.processor, pair_batch=64)
    assert compute_likelihoods(loaded, CHOICES) == compute_likelihoods(in_memory, CHOICES)
    plain = PlainClipFlanT5(folder, checkpoints / "clip")
    assert compute_mean_scores(loaded) == pytest.approx(plain.compute_yes_scores(), abs=0, rel=1e-5)


def test_a_saved_network_has_the_released_layout(tmp_path: Path) -> None:
    network = ClipFlanT5(T5Config(**tiny.T5_FIELDS), CLIPVisionConfig(**tiny.VISION_FIELDS))
    save_clip_flant5(network, tmp_path, tower_name="openai/clip-vit-large-patch14-336")
    assert set(load_file(tmp_path / "model.safetensors")) == set(tiny.make_flant5_weights())
    fields = json.loads((tmp_path / "config.json").read_text())
    released = {
        "model_type": "clip_t5",
        "tie_word_embeddings": False,
        "mm_vision_tower": "openai/clip-vit-large-patch14-336",
        "mm_hidden_size": tiny.VISION_FIELDS["hidden_size"],
        "mm_projector_type": "mlp2x_gelu",
        "mm_vision_select_layer": -2,
        "mm_vision_select_feature": "patch",
    }
    assert {name: fields[name] for name in released} == released


def test_weights_stored_in_half_precision_are_widened_before_use(checkpoints: Path, tmp_path: Path) -> None:
    weights = {name: tensor.half() for name, tensor in tiny.make_flant5_weights().items()}
    tower = str((checkpoints / "clip").resolve())
    folder = tiny.save_flant5(tmp_path / "half", weights, tower_name=tower)
    scores = compute_mean_scores(load(folder))
    save_file({name: tensor.float() for name, tensor in weights.items()}, folder / "model.safetensors")
    plain = PlainClipFlanT5(folder, checkpoints / "clip")
    assert scores == pytest.approx(plain.compute_yes_scores(), abs=0, rel=1e-5)
