"""The prefix cache changes nothing: every answer is what the whole model says of the image and the question alone."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from plumbline.operators.errors import HopelessRow, ModelError
from plumbline.operators.metrics.vqascore import VqaScoreConfig, reduce_answer
from plumbline.operators.models import loading
from plumbline.operators.models.calls import ImageRequest, Message, Question, Request
from plumbline.operators.models.families import model_config
from plumbline.operators.models.families.vlm import CHAT, LLAVA_1_5
from plumbline.operators.models.model import Engine
from plumbline.operators.models.networks import prefixes, vlm
from plumbline.operators.models.networks.image_prompts import Pixels
from plumbline.operators.models.networks.vlm import ChatVlm
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models import alike

PICTURES = [*alike.PICTURES, tiny.picture(4)]
QUESTIONS = [
    *alike.QUESTIONS,
    Question(3, "?", ("Yes", "")),
    Question(4, "Is it green, is it?", ("a", "abc def")),
    Question(1, "Of what colour?", ("red", "red")),
    Question(1, "Is there nothing to choose from?", ()),
]
BUILD: dict[str, Callable[[Path], Path]] = {
    "llava": tiny.save_llava,
    "llava with siglip": tiny.save_llava_siglip,
    "llava with siglip but its first patch": partial(tiny.save_llava_siglip, strategy="default"),
    "qwen2_vl": tiny.save_qwen2_vl,
    "qwen2_5_vl": partial(tiny.save_qwen2_vl, kind="qwen2_5_vl"),
    "qwen3_vl": partial(tiny.save_qwen2_vl, kind="qwen3_vl"),
    "qwen3_vl_moe": partial(tiny.save_qwen2_vl, kind="qwen3_vl_moe"),
}
SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions. "
)


REPLY = 5


@pytest.fixture(scope="module", params=list(BUILD))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return BUILD[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(autouse=True)
def short_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlm, "LONGEST_REPLY", REPLY)


def load(folder: Path, **options: Any) -> ChatVlm:
    model = loading.load(
        resolve_model(model_config(family="vlm", checkpoint=str(folder), **options), on_gpu=False), "likelihood"
    )
    assert isinstance(model, ChatVlm)
    return model


class WholeModel:
    """Transformers' model on one image and one text at a time, nothing cached."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.llava = self.model.config.model_type == "llava"
        self.vicuna = self.llava and self.model.config.vision_config.model_type == "clip_vision_model"

    def prompt(self, question: str) -> str:
        if self.vicuna:
            return f"{SYSTEM}USER: <image>\n{question} ASSISTANT:"
        shown = "<image>\n" if self.llava else "<|vision_start|><|image_pad|><|vision_end|>"
        return f"<|im_start|>user\n{shown}{question}<|im_end|>\n<|im_start|>assistant\n"

    def inputs(self, pixels: Pixels, text: str) -> dict[str, Any]:
        image = self.model.config.image_token_id
        ids = [
            token
            for read in self.tokenizer(text).input_ids
            for token in ([image] * pixels.ids.count(image) if read == image else [read])
        ]
        rows = torch.tensor([ids])
        kinds = {} if self.llava else {"mm_token_type_ids": (rows == image).int()}
        return {"input_ids": rows, "attention_mask": torch.ones_like(rows), **kinds, **pixels.inputs}

    @torch.inference_mode()
    def logprobs(self, pixels: Pixels, question: str, choice: str) -> list[float]:
        gap, end = (" ", "</s>") if self.vicuna else ("", "<|im_end|>")
        inputs = self.inputs(pixels, self.prompt(question) + gap + choice + end)
        answer = len(self.tokenizer(gap + choice + end).input_ids)
        predicted = self.model(**inputs).logits[0].log_softmax(-1)[:-1]
        chosen = predicted.gather(1, inputs["input_ids"][0, 1:, None])[-answer:, 0]
        return [float(number) for number in chosen]

    @torch.inference_mode()
    def generated(self, pixels: Pixels, question: str, choice: str) -> list[float]:
        """The log-probability of each of an answer's tokens, by the scores that `generate` has for what comes next."""
        gap, end = (" ", "</s>") if self.vicuna else ("", "<|im_end|>")
        inputs = self.inputs(pixels, self.prompt(question) + gap + choice + end)
        ids = inputs["input_ids"]
        found = []
        for place in range(ids.shape[1] - len(self.tokenizer(gap + choice + end).input_ids), ids.shape[1]):
            before = {name: part[:, :place] if part.shape == ids.shape else part for name, part in inputs.items()}
            said = self.model.generate(
                **before,
                max_new_tokens=1,
                temperature=1.0,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )
            found.append(float(said.scores[0][0].log_softmax(-1)[ids[0, place]]))
        return found

    @torch.inference_mode()
    def reply(self, pixels: Pixels, question: str, *, length: int = REPLY) -> str:
        inputs = self.inputs(pixels, self.prompt(question))
        output = self.model.generate(
            **inputs, max_new_tokens=length, do_sample=False, eos_token_id=self.tokenizer.eos_token_id
        )
        new = output[0, inputs["input_ids"].shape[1] :]
        return str(self.tokenizer.decode(new, skip_special_tokens=True)).strip()


def flat(answers: list[list[list[float]]]) -> list[float]:
    return [number for question in answers for choice in question for number in choice]


@pytest.fixture(scope="module")
def whole(folder: Path) -> WholeModel:
    return WholeModel(folder)


@pytest.fixture(scope="module")
def expected(folder: Path, whole: WholeModel) -> list[list[list[float]]]:
    """What the whole model says of every choice of every question."""
    model = load(folder)
    pixels = [model.preprocess(picture) for picture in PICTURES]
    return [
        [whole.logprobs(pixels[question.image], question.text, choice) for choice in question.choices]
        for question in QUESTIONS
    ]


@pytest.mark.parametrize("pair_batch", [1, 3, 64])
@pytest.mark.parametrize("packed_tokens", [1, 60, 512])
def test_likelihoods_are_the_whole_models_whatever_the_batch(
    folder: Path,
    expected: list[list[list[float]]],
    pair_batch: int,
    packed_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefixes, "PACKED_TOKENS", packed_tokens)
    model = load(folder, pair_batch=pair_batch)
    found = model.likelihood(model.encode([model.preprocess(picture) for picture in PICTURES]), QUESTIONS)
    assert [[len(choice) for choice in answer] for answer in found] == [
        [len(choice) for choice in answer] for answer in expected
    ]
    assert flat(found) == pytest.approx(flat(expected), abs=1e-4)
    assert len({round(number, 4) for number in flat(found)}) > len(flat(found)) / 2, "or agreeing would say little"


def test_replies_are_the_whole_models(folder: Path, whole: WholeModel) -> None:
    model = load(folder, pair_batch=4)
    pixels = [model.preprocess(picture) for picture in PICTURES]
    replies = model.reply(model.encode(pixels), QUESTIONS)
    assert replies == [whole.reply(pixels[question.image], question.text) for question in QUESTIONS]
    assert len(set(replies)) > 1


def test_conversations_about_an_image_are_the_whole_models_each_for_itself(folder: Path, whole: WholeModel) -> None:
    model = load(folder, pair_batch=3)
    pixels = [model.preprocess(picture) for picture in PICTURES]
    texts = [(0, "Describe it."), (1, "What is there, and of what colour?"), (0, "?"), (3, "Describe it.")]
    greedy = [ImageRequest(image, Request((Message("user", text),), max_tokens=9)) for image, text in texts]
    drawn = [asked._replace(request=asked.request._replace(temperature=1.0, seed=1)) for asked in greedy]
    features = model.encode(pixels)
    replies = [reply.text for reply in model.generate_from_images(features, [*drawn, *greedy])]  # type: ignore[union-attr]
    assert [text.strip() for text in replies[4:]] == [
        whole.reply(pixels[image], text, length=9) for image, text in texts
    ]
    alone = [model.generate_from_images(features, [asked])[0].text for asked in drawn]  # type: ignore[union-attr]
    assert replies[:4] == alone != replies[4:]


def test_likelihoods_after_replies_are_the_same(folder: Path) -> None:
    model = load(folder)
    features = model.encode([model.preprocess(picture) for picture in PICTURES])
    before = model.likelihood(features, QUESTIONS)
    model.reply(features, QUESTIONS)
    assert model.likelihood(features, QUESTIONS) == before, "the prefix cache is read and never written"


def test_an_image_of_another_picture_gives_other_answers(folder: Path) -> None:
    model = load(folder)
    features = model.encode([model.preprocess(tiny.picture(seed)) for seed in (0, 1)])
    one, other = (model.likelihood(features, [Question(image, "Is it?", ("Yes",))]) for image in (0, 1))
    assert flat(one) != pytest.approx(flat(other), abs=1e-4)


def test_every_question_after_an_images_first_reads_its_prefix_from_the_cache(folder: Path) -> None:
    model = load(folder)
    features = model.encode([model.preprocess(picture) for picture in PICTURES[:2]])
    asked = [Question(0, "a?", ("Yes",)), Question(0, "bb?", ("Yes", "No")), Question(1, "a?", ("Yes",))]
    model.likelihood(features, asked)
    first = model.usage
    assert (first.calls, first.cached_tokens) == (3, features[0].tokens)
    tails = [first.prompt_tokens - 2 * features[0].tokens - features[1].tokens]
    model.reply(features, asked)
    second = model.usage.minus(first)
    assert second.cached_tokens == 2 * features[0].tokens + features[1].tokens
    assert second.prompt_tokens - second.cached_tokens == tails[0] > 0
    assert 0 < second.new_tokens <= 3 * REPLY


def test_a_question_beyond_the_context_is_refused_and_not_answered_at_random(folder: Path) -> None:
    model = load(folder)
    features = model.encode([model.preprocess(PICTURES[0])])
    with pytest.raises(HopelessRow, match="beyond the model's context of 512") as refused:
        model.likelihood(features, [Question(0, "long " * 100, ("Yes",))])
    assert (refused.value.error.kind, refused.value.error.retryable) == ("prompt_too_long", False)


def test_a_question_that_has_the_mark_of_an_image_in_it_is_refused_by_name(folder: Path) -> None:
    model = load(folder)
    features = model.encode([model.preprocess(PICTURES[0])])
    mark = str(model.prompts.tokenizer.convert_ids_to_tokens(model.prompts.image_id))
    with pytest.raises(HopelessRow, match="to this model is a second image; change the prompt's text") as refused:
        model.likelihood(features, [Question(0, f"a sign that says {mark}", ("Yes",))])
    assert (refused.value.error.kind, refused.value.error.retryable) == ("request_refused", False)
    assert repr(mark) in refused.value.error.message


def test_no_images_and_no_questions_have_no_answers(folder: Path) -> None:
    model = load(folder)
    assert (model.encode([]), model.likelihood([], []), model.reply([], [])) == ([], [], [])


@pytest.mark.parametrize("build", [tiny.save_llava, tiny.save_qwen2_vl])
def test_penalties_that_a_checkpoint_names_for_generation_touch_neither_scores_nor_replies(
    tmp_path: Path, build: Callable[[Path], Path]
) -> None:
    folder = build(tmp_path / "own")
    penalised = build(tmp_path / "penalised")
    named = {"repetition_penalty": 9.0, "temperature": 0.1, "do_sample": True, "bad_words_ids": [[20], [21]]}
    tiny.write_json(penalised / "generation_config.json", named)
    found = []
    for model in (load(folder), load(penalised)):
        features = model.encode([model.preprocess(picture) for picture in PICTURES])
        found.append((model.likelihood(features, QUESTIONS), model.reply(features, QUESTIONS)))
    assert found[0] == found[1]


@pytest.mark.parametrize("build", [partial(tiny.save_qwen2_vl, kind="qwen2_5_vl"), tiny.save_llava])
def test_a_released_penalty_is_that_of_generate_token_by_token(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    """As t2v_metrics asks Qwen2.5-VL: the scores that `generate` gives the answer's tokens, and their softmax."""
    folder = build(tmp_path)
    tiny.write_json(folder / "generation_config.json", {"repetition_penalty": 1.7, "temperature": 0.1, "top_k": 1})
    model, whole = load(folder, repetition_penalty="released"), WholeModel(folder)
    pixels = [model.preprocess(picture) for picture in PICTURES]
    asked = [Question(one.image, one.text + " Yes", ("Yes", "red")) for one in QUESTIONS[:5]]
    answers = model.likelihood(model.encode(pixels), asked)
    for question, answer in zip(asked, answers, strict=True):
        for choice, logprobs in zip(question.choices, answer, strict=True):
            expected = whole.generated(pixels[question.image], question.text, choice)
            assert logprobs == pytest.approx(expected, abs=1e-4)
    plain = load(folder)
    assert plain.likelihood(plain.encode(pixels), asked)[0][0] != pytest.approx(answers[0][0], rel=0.01)


@pytest.mark.parametrize(("named", "options", "message"), [
    ({}, {}, "names no repetition_penalty"), ({"repetition_penalty": 1.05}, {"engine": "vllm"}, "engine=transformers")
])  # fmt: skip
def test_a_penalty_that_cannot_be_had_is_refused(
    tmp_path: Path, named: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    folder = tiny.save_qwen2_vl(tmp_path, kind="qwen2_5_vl")
    tiny.write_json(folder / "generation_config.json", named)
    with pytest.raises(ModelError, match=message):
        load(folder, repetition_penalty="released", **options)


# How an image is shown


WIDE = tiny.picture(5, width=70, height=30)


def processed(folder: Path, image: Image.Image) -> torch.Tensor:
    """The image as transformers' own processor has it."""
    pixels: torch.Tensor = AutoImageProcessor.from_pretrained(folder, backend="pil")(image, return_tensors="pt")
    return pixels["pixel_values"]


def test_llava_1_5_sees_an_image_on_a_square_of_its_mean_colour_as_released(tmp_path: Path) -> None:
    folder = tiny.save_llava(tmp_path / "llava")
    square = Image.new("RGB", (70, 70), (122, 116, 104))
    square.paste(WIDE, (0, 20))
    shown = load(folder).preprocess(WIDE).inputs["pixel_values"]
    torch.testing.assert_close(shown, processed(folder, square), atol=1e-6, rtol=0)


def test_llava_1_5_sees_the_middle_of_an_image_where_its_processor_is_asked_for(tmp_path: Path) -> None:
    folder = tiny.save_llava(tmp_path / "llava")
    shown = load(folder, padding="processor").preprocess(WIDE).inputs["pixel_values"]
    torch.testing.assert_close(shown, processed(folder, WIDE), atol=1e-6, rtol=0)


@pytest.mark.parametrize("build", [tiny.save_llava_siglip, tiny.save_qwen2_vl])
def test_other_models_see_an_image_as_their_processor_has_it(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    folder = build(tmp_path / "own")
    shown = load(folder).preprocess(WIDE).inputs["pixel_values"]
    torch.testing.assert_close(shown, processed(folder, WIDE), atol=1e-6, rtol=0)


# VQAScore by kind


def score(model: ChatVlm, metric: VqaScoreConfig, image: Image.Image, text: str) -> float:
    (feature,) = model.encode([model.preprocess(image)])
    asked = Question(0, metric.question(text), (metric.asks.answer,))
    return reduce_answer(model.likelihood([feature], [asked])[0][0], metric.asks.reduction)


def test_a_chat_model_is_scored_by_the_probability_of_yes_at_once(tmp_path: Path) -> None:
    """Transformers' model on the whole prompt, its reply empty: softmax over all entries, the first token of Yes."""
    folder = tiny.save_qwen2_vl(tmp_path / "qwen")
    metric, model, whole = VqaScoreConfig().settled(lambda role: CHAT), load(folder), WholeModel(folder)
    prompt = whole.prompt('Does this figure show "two "red" stars"? Please answer Yes or No.')
    with torch.inference_mode():
        logits = whole.model(**whole.inputs(model.preprocess(WIDE), prompt)).logits[0, -1]
    expected = logits.softmax(-1)[whole.tokenizer("Yes").input_ids[0]].item()
    assert score(model, metric, WIDE, 'two "red" stars') == pytest.approx(expected, rel=1e-4)


def test_llava_1_5_is_scored_as_released(tmp_path: Path) -> None:
    """exp of minus the mean cross-entropy over Yes and the end of the turn, after the question of the paper."""
    folder = tiny.save_llava(tmp_path / "llava")
    metric, model, whole = VqaScoreConfig().settled(lambda role: LLAVA_1_5), load(folder), WholeModel(folder)
    question = 'Does this figure show "two stars"? Please answer yes or no.'
    losses = whole.logprobs(model.preprocess(WIDE), question, "Yes")
    expected = math.exp(sum(losses) / len(losses))
    assert score(model, metric, WIDE, "two stars") == pytest.approx(expected, rel=1e-4)


# What does not load


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_chat_template_that_lets_the_model_think_first_is_refused(tmp_path: Path, engine: Engine) -> None:
    """The plan reads a template's text; this one hides the mark from it."""
    folder = tiny.save_qwen2_vl(tmp_path / "qwen")
    hidden = tiny.QWEN_TEMPLATE.replace("assistant\n{% endif", "assistant\n{{ '<thi' + 'nk>' }}{% endif")
    tiny.save_byte_tokenizer(folder, template=hidden)
    with pytest.raises(ModelError, match=r"a thinking model: .*Instruct"):
        load(folder, engine=engine)


@pytest.mark.parametrize("name", ["lm_head.weight", "layers.0.mlp.up_proj.weight"])
def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path, name: str) -> None:
    folder = tiny.save_llava(tmp_path / "llava")
    weights = load_file(folder / "model.safetensors")
    (lost,) = [tensor for tensor in weights if tensor.endswith(name)]
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"do not fit its config\.json: lacks"):
        load(folder)


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = tiny.save_llava(tmp_path / "llava")
    (folder / "chat_template.json").unlink()
    with pytest.raises(ModelError, match=r"no chat template.*chat_template\.json"):
        load(folder)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"other": 1})])
def test_a_garbled_chat_template_is_refused(tmp_path: Path, content: str) -> None:
    folder = tiny.save_llava(tmp_path / "llava")
    (folder / "chat_template.json").write_text(content)
    with pytest.raises(ModelError, match=r"chat_template\.json: not a chat template"):
        load(folder)


def test_a_template_that_does_not_show_the_image_is_refused(tmp_path: Path) -> None:
    folder = tiny.save_qwen2_vl(tmp_path / "qwen")
    tiny.save_byte_tokenizer(folder, template="{{ messages[0]['role'] }}")
    with pytest.raises(ModelError, match="expected the chat template to place one image token"):
        load(folder)
