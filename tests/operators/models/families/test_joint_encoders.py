"""Models that read image and text together: the number is the library's own, in a batch as alone."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    Blip2ForImageTextRetrieval,
    BlipForImageTextRetrieval,
    Qwen2Config,
    Qwen2Model,
    Qwen2VLForConditionalGeneration,
)

from plumbline.operators.errors import HopelessRow, ModelError
from plumbline.operators.metrics.similarity import SimilarityConfig
from plumbline.operators.models.calls import Measure, Pair
from plumbline.operators.models.families import model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.joint_encoder import JointEncoder
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.stages.similarities import PromptTexts, SimilaritiesStage
from tests.operators import tiny
from tests.operators.models.alike import PICTURES, TEXTS, require_alike
from tests.operators.stages.given import decoded, options
from tests.operators.tiny import rewards

PAIRS = [Pair(image, text) for image in range(len(PICTURES)) for text in TEXTS]
Library = Callable[[Path, Image.Image, str], float]
"""What the library's own model says of one pair, by the files of its checkpoint."""


@cache
def network(kind: Any, folder: Path) -> Any:
    return kind.from_pretrained(folder).eval()


def _inputs(folder: Path, picture: Image.Image, text: str) -> dict[str, torch.Tensor]:
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    words = AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt")
    pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
    return {"input_ids": words.input_ids, "attention_mask": words.attention_mask, "pixel_values": pixels}


@torch.no_grad()
def blip_match(folder: Path, picture: Image.Image, text: str) -> float:
    output = network(BlipForImageTextRetrieval, folder)(**_inputs(folder, picture, text))
    return float(output.itm_score.softmax(-1)[0, 1])


@torch.no_grad()
def blip_cosine(folder: Path, picture: Image.Image, text: str) -> float:
    output = network(BlipForImageTextRetrieval, folder)(**_inputs(folder, picture, text), use_itm_head=False)
    return float(output.itm_score)


@torch.no_grad()
def blip2_match(folder: Path, picture: Image.Image, text: str) -> float:
    inputs = _inputs(folder, picture, text)
    output = network(Blip2ForImageTextRetrieval, folder)(**inputs, use_image_text_matching_head=True)
    return float(output.logits_per_image.softmax(-1)[0, 1])


@torch.no_grad()
def blip2_cosine(folder: Path, picture: Image.Image, text: str) -> float:
    return float(network(Blip2ForImageTextRetrieval, folder)(**_inputs(folder, picture, text)).logits_per_image)


@torch.no_grad()
def image_reward(folder: Path, picture: Image.Image, text: str) -> float:
    """By transformers' BLIP and a chain of linear layers."""
    blip, head = network(BlipForImageTextRetrieval, folder), load_file(folder / "model.safetensors")
    inputs = _inputs(folder, picture, text)
    seen = blip.vision_model(inputs["pixel_values"]).last_hidden_state
    read = blip.text_encoder(inputs["input_ids"], inputs["attention_mask"], encoder_hidden_states=seen)
    state = read.last_hidden_state[0, 0]
    for layer in (0, 2, 4, 6, 7):
        state = head[f"reward_head.layers.{layer}.weight"] @ state + head[f"reward_head.layers.{layer}.bias"]
    return (float(state) - 0.16717362830052426) / 1.0333394966054072


@torch.no_grad()
def hpsv3(folder: Path, picture: Image.Image, text: str) -> float:
    """As released: its language half is given no image grid, so it numbers all tokens one after the other, as the
    language model does that it was made of, a Qwen2; by that one, Qwen2-VL's vision half, and three linear layers.
    """
    model, head = network(Qwen2VLForConditionalGeneration, folder).model, load_file(folder / "model.safetensors")
    tokenizer, processor = (
        AutoTokenizer.from_pretrained(folder),
        AutoImageProcessor.from_pretrained(folder, backend="pil"),
    )
    image = processor(images=picture, return_tensors="pt")
    read = rewards.INSTRUCTION.replace("{text_prompt}", text)
    places = int(image["image_grid_thw"].prod()) // 4
    asked = f"<|im_start|>user\n<|vision_start|>{'<|image_pad|>' * places}<|vision_end|>{read}<|im_end|>\n"
    ids = tokenizer(asked + "<|im_start|>assistant\n", return_tensors="pt").input_ids
    embedded = model.get_input_embeddings()(ids)
    embedded[ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")] = torch.cat(
        model.get_image_features(**image).pooler_output
    )
    state = plain_qwen2(folder)(inputs_embeds=embedded).last_hidden_state[0]
    state = state[ids[0] == tokenizer.convert_tokens_to_ids("<|Reward|>")][0]
    for layer in (0, 3):
        state = (head[f"rm_head.{layer}.weight"] @ state + head[f"rm_head.{layer}.bias"]).relu()
    return float((head["rm_head.5.weight"] @ state + head["rm_head.5.bias"])[0])


@cache
def plain_qwen2(folder: Path) -> Qwen2Model:
    """A Qwen2 with the weights of a Qwen2-VL's language half."""
    half = network(Qwen2VLForConditionalGeneration, folder).model.language_model
    fields = half.config.to_dict()
    rope = {"rope_type": "default", "rope_theta": fields["rope_parameters"]["rope_theta"]}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shape = {name: fields[name] for name in (*names, "num_key_value_heads", "hidden_act", "rms_norm_eps")}
    model = Qwen2Model(Qwen2Config(**shape, rope_parameters=rope))
    model.load_state_dict(half.state_dict())
    return model.eval()


KINDS: dict[str, tuple[str, Callable[[Path], Path], Measure, Library]] = {
    "blip_itm": ("blip_itm", rewards.save_blip_itm, "match", blip_match),
    "blip_itc": ("blip_itm", rewards.save_blip_itm, "cosine", blip_cosine),
    "blip2_itm": ("blip_itm", rewards.save_blip2_itm, "match", blip2_match),
    "blip2_itc": ("blip_itm", rewards.save_blip2_itm, "cosine", blip2_cosine),
    "imagereward": ("imagereward", rewards.save_imagereward, "reward", image_reward),
    "hpsv3": ("hpsv3", rewards.save_hpsv3, "reward", hpsv3),
}


class Kind:
    """A model loaded by its family from the files of its release."""

    def __init__(self, name: str, folder: Path) -> None:
        self.family, save, self.measure, self.library = KINDS[name]
        self.folder = save(folder)

    def load(self, **options: Any) -> JointEncoder:
        config = model_config(family=self.family, checkpoint=str(self.folder), **options)
        return load(resolve_model(config, on_gpu=False), "similarity")

    def compared(self, model: JointEncoder) -> list[float]:
        features = model.encode([model.preprocess(picture) for picture in PICTURES])
        return [row.similarity for row in model.compare(features, PAIRS, self.measure)]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    torch.set_num_threads(1)
    return Kind(request.param, tmp_path_factory.mktemp(request.param))


def test_the_number_is_the_librarys_own(kind: Kind) -> None:
    numbers = kind.compared(kind.load())
    assert max(numbers) - min(numbers) > 0.01, "the pairs must differ for this to say something"
    expected = [kind.library(kind.folder, PICTURES[pair.image], pair.text) for pair in PAIRS]
    assert numbers == pytest.approx(expected, abs=1e-4)


def test_padding_that_is_read_as_words_is_found(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words at the end, or before the beginning of what a decoder reads."""
    model = kind.load()
    if kind.family == "hpsv3":
        before = partial(pad_sequence, padding_side="left", padding_value=1)
        monkeypatch.setattr("plumbline.operators.models.networks.hpsv3.pad_sequence", before)
    else:
        tokens = model.tokens
        monkeypatch.setattr(model, "tokens", lambda texts: (tokens(texts)[0], torch.ones_like(tokens(texts)[1])))
    with pytest.raises(AssertionError):
        require_alike(model, "similarity", measure=kind.measure)


def test_a_text_beyond_the_context_is_cut_and_reported(kind: Kind) -> None:
    model = kind.load()
    if kind.family == "hpsv3":
        pytest.skip("it cuts nothing")
    features = model.encode([model.preprocess(PICTURES[0])])
    long = " ".join(["red"] * model.context)
    rows = model.compare(features, [Pair(0, text) for text in ("red", long, long + " circle")], kind.measure)
    assert [row.truncated for row in rows] == [False, True, True]
    assert rows[1].similarity == pytest.approx(rows[2].similarity, abs=1e-5)


def test_an_image_is_encoded_once_for_both_measures_and_every_text_is_read_in_its_sight(tmp_path: Path) -> None:
    kind = Kind("blip_itm", tmp_path)
    model = kind.load()
    counted = {"vision_model": 0, "text_encoder": 0}
    for name in counted:
        half = getattr(model.model, name)

        def count(module: Any, args: Any, kwargs: dict[str, Any], name: str = name) -> None:
            counted[name] += len(kwargs["pixel_values" if name == "vision_model" else "input_ids"])

        half.register_forward_pre_hook(count, with_kwargs=True)
    metrics = {"itm": SimilarityConfig(model="itm", measure="match"), "itc": SimilarityConfig(model="itm")}
    stage = SimilaritiesStage(metrics, {"model": model}, options())
    images = tiny.image_table([tiny.encoded(picture) for picture in PICTURES], ["p", "q", "p", "q"])
    texts = {name: PromptTexts({"p": TEXTS[0], "q": TEXTS[1]}, metric) for name, metric in metrics.items()}
    tables = stage.measure(decoded(stage, images), texts)
    assert counted == {"vision_model": len(PICTURES), "text_encoder": len(PICTURES) + 2}
    assert all(table.column("similarity").null_count == 0 for table in tables.values())
    assert tables["itm"] != tables["itc"]


def test_a_prompt_that_has_a_mark_of_the_models_own_is_refused(tmp_path: Path) -> None:
    model = Kind("hpsv3", tmp_path).load()
    features = model.encode([model.preprocess(PICTURES[0])])
    for text in ("a <|Reward|> of red", "two <|image_pad|>"):
        with pytest.raises(HopelessRow, match="mark in it; change the prompt's text"):
            model.compare(features, [Pair(0, text)], "reward")
    assert len(model.compare(features, [Pair(0, "a {text_prompt} in {braces}")], "reward")) == 1


@pytest.mark.parametrize("instruction", ["rate it", "{text_prompt} and {text_prompt}"])
def test_an_instruction_without_its_place_for_the_prompt_is_refused(instruction: str, tmp_path: Path) -> None:
    rewards.save_hpsv3(tmp_path)
    (tmp_path / "instruction.txt").write_text(instruction)
    with pytest.raises(ModelError, match=r"expected one {text_prompt}, where the prompt stands; convert the release"):
        resolve_model(model_config(family="hpsv3", checkpoint=str(tmp_path)), on_gpu=False)


def test_a_tokenizer_without_the_mark_of_the_reward_is_refused(tmp_path: Path) -> None:
    rewards.save_hpsv3(tmp_path / "hpsv3")
    tiny.save_qwen2_vl(tmp_path / "plain")
    options = {"checkpoint": str(tmp_path / "hpsv3"), "tokenizer": str(tmp_path / "plain")}
    with pytest.raises(ModelError, match=r"has no <\|Reward\|>; convert the release again"):
        load(resolve_model(model_config(family="hpsv3", **options), on_gpu=False), "similarity")
