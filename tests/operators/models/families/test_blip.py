"""BLIP-2, InstructBLIP and BLIP answer as the library's own models do, one image and question at a time."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    Blip2ForConditionalGeneration,
    BlipForConditionalGeneration,
    BlipForImageTextRetrieval,
    BlipForQuestionAnswering,
    BlipImageProcessorPil,
    InstructBlipForConditionalGeneration,
)

from plumbline.operators.errors import HopelessRow, ModelError
from plumbline.operators.metrics.vqascore import VqaScoreConfig, reduce_answer
from plumbline.operators.models.calls import ImageRequest, LikelihoodModel, Measure, Message, Question, Request
from plumbline.operators.models.families import model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.encoder_decoder import EncoderDecoder
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import sweep_config, write_benchmark
from tests.operators import tiny
from tests.operators.models.alike import (
    CLOSE,
    PICTURES,
    QUESTIONS,
    likelihoods,
    replies,
    require_alike,
    similarities,
)
from tests.operators.tiny import captioners, rewards, vqa_models

SAVES: dict[str, Callable[[Path], Path]] = {
    "blip2": vqa_models.save_blip2,
    "instructblip": vqa_models.save_instructblip,
    "blip_vqa": vqa_models.save_blip_vqa,
}
FAMILIES = list(SAVES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("blips")
    return {family: save(root / family) for family, save in SAVES.items()}


def loaded(family: str, folder: Path, **options: Any) -> LikelihoodModel:
    return load(
        resolve_model(model_config(family=family, checkpoint=str(folder), **options), on_gpu=False), "likelihood"
    )


def mean_colour_normalised(image: Image.Image) -> torch.Tensor:
    pixels = (np.asarray(image, dtype=np.float64) / 255 - tiny.IMAGE_MEAN) / tiny.IMAGE_STD
    return torch.tensor(pixels.transpose(2, 0, 1)[None], dtype=torch.float32)


def chosen(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    logprobs = logits.log_softmax(-1)
    return [float(logprobs[place, token]) for place, token in enumerate(tokens)]


class WholeBlip2:
    """One question at a time through all of a BLIP-2, in the frame of LAVIS."""

    model_class: Any = Blip2ForConditionalGeneration

    def __init__(self, folder: Path) -> None:
        self.model = self.model_class.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = BlipImageProcessorPil.from_pretrained(folder)

    def pixels(self, image: Image.Image) -> torch.Tensor:
        return self.processor(images=image, return_tensors="pt").pixel_values

    def text(self, question: str) -> str:
        return f"Question: {question} Short answer:"

    def inputs(self, image: Image.Image, question: str) -> dict[str, torch.Tensor]:
        image_ids = [self.tokenizer.convert_tokens_to_ids("<image>")] * vqa_models.QUERIES
        ids = [*image_ids, *self.tokenizer(self.text(question)).input_ids]
        return {"pixel_values": self.pixels(image), "input_ids": torch.tensor([ids])}

    @torch.no_grad()
    def answer(self, image: Image.Image, question: str, choice: str) -> list[float]:
        labels = self.tokenizer(choice, return_tensors="pt").input_ids
        return chosen(self.model(**self.inputs(image, question), labels=labels).logits[0], labels[0].tolist())

    @torch.no_grad()
    def reply(self, image: Image.Image, question: str) -> str:
        tokens = self.model.generate(**self.inputs(image, question), max_new_tokens=32, do_sample=False, num_beams=1)
        return self.tokenizer.decode(tokens[0], skip_special_tokens=True).strip()


class WholeInstructBlip(WholeBlip2):
    """The same of an InstructBLIP, shown the middle of an image as in the released VQAScore."""

    model_class = InstructBlipForConditionalGeneration

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.qformer_tokenizer = AutoTokenizer.from_pretrained(folder / "qformer_tokenizer")

    def pixels(self, image: Image.Image) -> torch.Tensor:
        width, height = image.size
        short = min(width, height)
        resized = image.resize((tiny.SIDE * width // short, tiny.SIDE * height // short), Image.Resampling.BICUBIC)
        left, top = (resized.width - tiny.SIDE) // 2, (resized.height - tiny.SIDE) // 2
        return mean_colour_normalised(resized.crop((left, top, left + tiny.SIDE, top + tiny.SIDE)))

    def text(self, question: str) -> str:
        return question

    def inputs(self, image: Image.Image, question: str) -> dict[str, torch.Tensor]:
        text = self.qformer_tokenizer(question, return_tensors="pt")
        seen = {"qformer_input_ids": text.input_ids, "qformer_attention_mask": text.attention_mask}
        return super().inputs(image, question) | seen


def released_blip(kind: Any, folder: Path) -> Any:
    """The library's model, whose vision tower divides as the release's: its layer norms add 1e-6 to the variance."""
    model = kind.from_pretrained(folder).eval()
    norms = [layer for layer in model.vision_model.modules() if isinstance(layer, torch.nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {1e-5}
    for norm in norms:
        norm.eps = 1e-6
    return model


class WholeBlipVqa(WholeBlip2):
    """The same of a BLIP, with the tokens that its release puts before question and answer."""

    model_class = BlipForQuestionAnswering

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.model = released_blip(self.model_class, folder)

    def inputs(self, image: Image.Image, question: str) -> dict[str, torch.Tensor]:
        ids = self.tokenizer(re.sub(r'["().!*#:;~]', "", question), return_tensors="pt").input_ids
        ids[:, 0] = vqa_models.QUESTION
        return {"pixel_values": self.pixels(image), "input_ids": ids, "attention_mask": torch.ones_like(ids)}

    @torch.no_grad()
    def answer(self, image: Image.Image, question: str, choice: str) -> list[float]:
        inputs = self.inputs(image, question)
        answer = self.tokenizer(choice, return_tensors="pt").input_ids
        answer[:, 0] = vqa_models.START
        states = self.model.text_encoder(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            encoder_hidden_states=self.model.vision_model(inputs["pixel_values"])[0],
        )[0]
        logits = self.model.text_decoder(input_ids=answer, encoder_hidden_states=states).logits[0]
        return chosen(logits[:-1], answer[0, 1:].tolist())

    @torch.no_grad()
    def reply(self, image: Image.Image, question: str) -> str:
        tokens = self.model.generate(**self.inputs(image, question), max_new_tokens=32)
        return self.tokenizer.decode(tokens[0, 1:], skip_special_tokens=True).strip()


WHOLE = {"blip2": WholeBlip2, "instructblip": WholeInstructBlip, "blip_vqa": WholeBlipVqa}


@pytest.mark.parametrize("family", FAMILIES)
def test_likelihoods_are_the_librarys_own_of_one_question_at_a_time(folders: dict[str, Path], family: str) -> None:
    whole = WHOLE[family](folders[family])
    expected = [
        [whole.answer(PICTURES[question.image], question.text, choice) for choice in question.choices]
        for question in QUESTIONS
    ]
    answered = likelihoods(loaded(family, folders[family]), PICTURES, QUESTIONS)
    for choices, wanted in zip(answered, expected, strict=True):
        assert choices == [pytest.approx(choice, abs=CLOSE) for choice in wanted]
    assert len({round(choices[0][0], 2) for choices in expected}) > 3, "scores differ between inputs"


FAINT = 1e-3
"""By which the images' embeddings are made so faint that it shows what a layer norm adds to their variance."""


def save_faint(save: Callable[[Path], Path], folder: Path) -> Path:
    weights = load_file(save(folder) / "model.safetensors")
    faint = {name: tensor * FAINT for name, tensor in weights.items() if name.startswith("vision_model.embeddings.")}
    assert len(faint) == 4
    save_file(weights | faint, folder / "model.safetensors", {"format": "pt"})
    return folder


@torch.no_grad()
@pytest.mark.parametrize("measure", ["match", "cosine"])
def test_a_blip_matches_with_the_epsilon_of_its_release(tmp_path: Path, measure: Measure) -> None:
    folder = save_faint(rewards.save_blip_itm, tmp_path)
    whole, processor = released_blip(BlipForImageTextRetrieval, folder), BlipImageProcessorPil.from_pretrained(folder)
    words = AutoTokenizer.from_pretrained(folder)(["a red circle"], return_tensors="pt")
    expected = []
    for picture in PICTURES:
        pixels = processor(images=picture, return_tensors="pt").pixel_values
        inputs = {"input_ids": words.input_ids, "attention_mask": words.attention_mask, "pixel_values": pixels}
        said = whole(**inputs, use_itm_head=measure == "match").itm_score
        expected.append(float(said.softmax(-1)[0, 1] if measure == "match" else said))
    model = load(resolve_model(model_config(family="blip_itm", checkpoint=str(folder)), on_gpu=False), "similarity")
    asked = [(image, "a red circle") for image in range(len(PICTURES))]
    numbers = [row.similarity for row in similarities(model, PICTURES, asked, measure)]
    assert numbers == pytest.approx(expected, abs=1e-5)


def test_a_blip_captions_with_the_epsilon_of_its_release(tmp_path: Path) -> None:
    folder = save_faint(captioners.save_blip, tmp_path)
    whole, processor = (
        released_blip(BlipForConditionalGeneration, folder),
        BlipImageProcessorPil.from_pretrained(folder),
    )
    expected = []
    for picture in PICTURES:
        pixels = processor(images=picture, return_tensors="pt").pixel_values
        ids = whole.generate(pixel_values=pixels, max_new_tokens=16)[0]
        expected.append(AutoTokenizer.from_pretrained(folder).decode(ids, skip_special_tokens=True).strip())
    config = model_config(family="captioner", checkpoint=str(folder))
    model = load(resolve_model(config, on_gpu=False), "generate_from_images")
    asked = [ImageRequest(image, Request((Message("user", "Describe it."),), 16)) for image in range(len(PICTURES))]
    assert [reply.text for reply in replies(model, PICTURES, asked)] == expected and any(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_the_librarys_own(folders: dict[str, Path], family: str) -> None:
    whole, model = WHOLE[family](folders[family]), loaded(family, folders[family])
    features = model.encode([model.preprocess(picture) for picture in PICTURES])
    expected = [whole.reply(PICTURES[question.image], question.text) for question in QUESTIONS]
    assert model.reply(features, QUESTIONS) == expected
    assert any(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_padding_as_words_would_be_caught(
    folders: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(family, folders[family])
    assert isinstance(model, EncoderDecoder)
    read = model.read

    def read_all(images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> Any:
        encoded = read(images, questions, ids)
        return encoded._replace(mask=torch.ones_like(encoded.mask))

    monkeypatch.setattr(model, "read", read_all)
    with pytest.raises(AssertionError):
        require_alike(model, "likelihood")


def test_a_qformer_that_reads_padding_would_be_caught(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = loaded("instructblip", folders["instructblip"])
    forward = model.model.qformer.forward

    def forward_all(**inputs: Any) -> Any:
        return forward(**inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])})

    monkeypatch.setattr(model.model.qformer, "forward", forward_all)
    with pytest.raises(AssertionError):
        require_alike(model, "likelihood")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_images_tower_runs_once_for_all_its_questions(folders: dict[str, Path], family: str) -> None:
    model: Any = loaded(family, folders[family])
    shown: list[int] = []

    def count(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        shown.append(len(arguments[0] if arguments else named["pixel_values"]))

    model.model.vision_model.register_forward_pre_hook(count, with_kwargs=True)
    likelihoods(model, PICTURES, [*QUESTIONS, *QUESTIONS])
    assert shown == [len(PICTURES)]


@pytest.mark.parametrize(
    ("family", "template", "reduction"),
    [
        ("instructblip", 'Question: Does this figure show "{}"? Please answer yes or no.', "mean"),
        ("blip2", 'Does this figure show "{}"? Please answer yes or no.', "mean"),
        ("blip_vqa", 'Does this figure show "{}"? Please answer yes or no.', "product"),
    ],
)
def test_vqascore_asks_each_in_its_own_words(
    folders: dict[str, Path], family: str, template: str, reduction: Any
) -> None:
    config = model_config(family=family, checkpoint=str(folders[family]))
    metric = VqaScoreConfig().settled(lambda role: find_vqa_profile(config))
    assert metric.asks == (template, "yes", reduction)
    asked = Question(0, metric.question("a red star"), (metric.asks.answer,))
    ((answered,),) = likelihoods(loaded(family, folders[family]), PICTURES, [asked])
    whole = WHOLE[family](folders[family]).answer(PICTURES[0], template.format("a red star"), "yes")
    assert reduce_answer(answered, metric.asks.reduction) == pytest.approx(reduce_answer(whole, reduction), abs=CLOSE)


@pytest.mark.parametrize("family", ["blip2", "instructblip"])
def test_the_flant5_has_a_head_of_its_own_and_the_exact_gelu(folders: dict[str, Path], family: str) -> None:
    model: Any = loaded(family, folders[family])
    stored = load_file(folders[family] / "model.safetensors")["language_model.lm_head.weight"]
    assert torch.equal(model.t5.lm_head.weight, stored)
    assert not torch.equal(model.t5.lm_head.weight, model.t5.shared.weight)
    assert type(model.t5.encoder.block[0].layer[1].DenseReluDense.act).__name__ == "GELUActivation"


@pytest.mark.parametrize("family", ["instructblip", "blip_vqa"])
def test_a_question_beyond_the_model_is_refused_and_costs_no_other(folders: dict[str, Path], family: str) -> None:
    model = loaded(family, folders[family])
    with pytest.raises(HopelessRow, match="the question takes"):
        likelihoods(model, PICTURES, [Question(0, "a blue square " * 40, ("yes",))])


def test_the_qformers_tokenizer_is_part_of_what_an_instructblip_is(tmp_path: Path) -> None:
    folder = vqa_models.save_instructblip(tmp_path / "own")
    config = model_config(family="instructblip", checkpoint=str(folder))
    before = resolve_model(config, on_gpu=False).semantic()
    (folder / "qformer_tokenizer" / "tokenizer.json").write_text("{}")
    assert resolve_model(config, on_gpu=False).semantic() != before
    for file in (folder / "qformer_tokenizer").iterdir():
        file.unlink()
    with pytest.raises(ModelError, match=r"no qformer_tokenizer/tokenizer\.json"):
        resolve_model(config, on_gpu=False)


def test_a_blip2_with_a_decoder_alone_is_none_of_these(tmp_path: Path) -> None:
    folder = vqa_models.save_blip2(tmp_path / "own")
    tiny.edit_json(folder / "config.json", text_config={"model_type": "opt"})
    with pytest.raises(ModelError, match="expected 'blip-2' with a T5 as its language model for family blip2"):
        resolve_model(model_config(family="blip2", checkpoint=str(folder)), on_gpu=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_metrics_of_every_kind_of_question_run_with_each(folders: dict[str, Path], tmp_path: Path, family: str) -> None:
    bench = write_benchmark(tmp_path / "bench", ["atlas"], count=2)
    vqa = f"models.vqa={{family: {family}, checkpoint: '{folders[family]}'}}"
    config = sweep_config(bench, tmp_path / "store", "metric=[vqascore,gecko,tifa,dsg]", vqa)
    finished = run_sweep(plan_sweep(config), lambda progress: None)
    scores = finished.results.read_scores().column("score").to_pylist()
    assert len(scores) == 8 and None not in scores, finished.results.errors.to_pylist()
    assert all(0 <= score <= 1 for score in scores)
