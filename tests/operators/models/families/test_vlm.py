"""Each chat model with vision gives the same answers as transformers' whole model with its own processor."""

import inspect
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    Glm4vProcessor,
    Glm46VProcessor,
    InternVLProcessor,
    LlavaOnevisionProcessor,
    ProcessorMixin,
    SmolVLMProcessor,
)
from transformers.models.smolvlm import processing_smolvlm

from plumbline.operators.base.errors import ConfigError, ModelError, UnprocessableRowError
from plumbline.operators.metrics.metric import Evidence
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig, reduce_answer
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.conversation import find_turn_end
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.families.vlm import CHAT_PROFILE, LLAVA_1_5_PROFILE
from plumbline.operators.models.model import Engine
from plumbline.operators.models.networks import prefixes, vlm
from plumbline.operators.models.networks.image_prompts import enable_tensor_input
from plumbline.operators.models.networks.vlm import ChatVlm
from plumbline.operators.models.resolution import resolve_model, takes_several_images
from tests.operators import tiny
from tests.operators.models import alike
from tests.operators.models.alike import require_batch_invariance
from tests.operators.tiny import chat_vlms
from tests.releases import is_older

IMAGES = [*alike.IMAGES, tiny.draw_image(4)]
QUESTIONS = [
    *alike.QUESTIONS,
    Question(3, "?", ("Yes", "No")),
    Question(4, "Is it green,\n\nis it?", ("a", "abc def")),
    Question(1, "Of what colour?", ("red", "red")),
    Question(1, "Is there nothing to choose from?", ()),
]


class Checkpoint(NamedTuple):
    """A tiny checkpoint, and the text that its chat template produces for one question."""

    save: Callable[[Path], Path]
    prompt: str
    gap: str
    """Text before the answer."""
    end: str
    """Text after the answer."""
    processor: Any = AutoProcessor
    """Processor class, or None if transformers' own requires torchvision; our code then lays out the image tokens."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Settings of a processor that is built in the test, without video support."""


class Gemma4Processor:
    """Processor that puts an image's tokens between two markers; transformers' own requires torchvision."""

    def __init__(self, images: Any, tokenizer: Any, videos: None) -> None:
        self.images, self.tokenizer = images, tokenizer

    def __call__(self, images: list[Image.Image], text: list[str], return_tensors: str) -> dict[str, Any]:
        shown = self.images(images, return_tensors=return_tensors)
        before, *others = text[0].split("<|image|>")
        counts = shown.pop("num_soft_tokens_per_image").tolist()
        for count, after in zip(counts, others, strict=True):
            before += f"<|image>{'<|image|>' * count}<image|>{after}"
        read = self.tokenizer([before], return_tensors=return_tensors)
        return {**read, **shown, "mm_token_type_ids": (read.input_ids == self.tokenizer.image_token_id).int()}


SYSTEM_MESSAGE = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions. "
)
LLAVA_PROMPT = "<|im_start|>user\n<image>\n{}<|im_end|>\n<|im_start|>assistant\n"
QWEN_PROMPT = LLAVA_PROMPT.replace("<image>\n", "<|vision_start|><|image_pad|><|vision_end|>")
GLM_PROMPT = (
    "[gMASK]<sop><|user|>\n<|begin_of_image|><|image|><|end_of_image|>{}/nothink<|assistant|>\n<think></think>\n"
)
CHECKPOINTS = {
    "llava": Checkpoint(tiny.save_llava, SYSTEM_MESSAGE + "USER: <image>\n{} ASSISTANT:", " ", "</s>", None),
    "llava with siglip": Checkpoint(tiny.save_llava_siglip, LLAVA_PROMPT, "", "<|im_end|>", None),
    "llava with siglip but its first patch": Checkpoint(
        partial(tiny.save_llava_siglip, strategy="default"), LLAVA_PROMPT, "", "<|im_end|>", None
    ),
    **{
        kind: Checkpoint(partial(tiny.save_qwen2_vl, kind=kind), QWEN_PROMPT, "", "<|im_end|>", None)
        for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
    },
    **{
        kind: Checkpoint(
            partial(tiny.save_qwen2_vl, kind=kind), QWEN_PROMPT + "<think>\n\n</think>\n\n", "", "<|im_end|>", None
        )
        for kind in ("qwen3_5", "qwen3_5_moe")
    },
    **{
        f"{kind} with {text}": Checkpoint(
            partial(chat_vlms.save_glm4v, kind=kind, text=text), GLM_PROMPT, "", "<|user|>", processor
        )
        for kind, text, processor in (
            ("glm4v", "glm4v_text", Glm4vProcessor),
            ("glm4v_moe", "glm4v_moe_text", Glm4vProcessor),
            ("glm46v", "glm4v_text", Glm46VProcessor),
        )
    },
    "llava_next": Checkpoint(chat_vlms.save_llava_next, "<s>[INST] <image>\n{} [/INST]", " ", "</s>"),
    "llava_next that looks back a little": Checkpoint(
        partial(chat_vlms.save_llava_next, window=20), "<s>[INST] <image>\n{} [/INST]", " ", "</s>"
    ),
    "llava_onevision": Checkpoint(
        chat_vlms.save_llava_onevision,
        "<|im_start|>user <image>\n{}<|im_end|><|im_start|>assistant\n",
        "",
        "<|im_end|>",
        LlavaOnevisionProcessor,
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"},
    ),
    **{
        f"internvl with {text}": Checkpoint(
            partial(chat_vlms.save_internvl, text=text),
            "<|im_start|>user\n<IMG_CONTEXT>\n{}<|im_end|>\n<|im_start|>assistant\n",
            "",
            "<|im_end|>",
            InternVLProcessor,
            {"image_seq_length": 4},
        )
        for text in ("qwen2", "qwen3", "qwen3_moe")
    },
    "smolvlm": Checkpoint(
        chat_vlms.save_smolvlm,
        "<|im_start|>User:<image>{}<end_of_utterance>\nAssistant:",
        " ",
        "<end_of_utterance>",
        SmolVLMProcessor,
        {"image_seq_len": 4},
    ),
    "idefics3": Checkpoint(
        partial(chat_vlms.save_smolvlm, kind="idefics3"),
        "<|im_start|>User:<image>{}<end_of_utterance>\nAssistant:",
        " ",
        "<end_of_utterance>",
    ),
    "gemma3": Checkpoint(
        chat_vlms.save_gemma3,
        "<bos><start_of_turn>user\n<start_of_image>{}<end_of_turn>\n<start_of_turn>model\n",
        "",
        "<end_of_turn>",
    ),
    **{
        f"gemma4 {kind}": Checkpoint(
            partial(chat_vlms.save_gemma4, kind=kind),
            "<bos><|turn>user\n\n\n<|image|>\n\n{}<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
            "",
            "<turn|>",
            Gemma4Processor,
        )
        for kind in chat_vlms.GEMMA4_KINDS
    },
    "paligemma": Checkpoint(chat_vlms.save_paligemma, "{}", "", "<eos>"),
    "paligemma 2": Checkpoint(partial(chat_vlms.save_paligemma, text="gemma2"), "{}", "", "<eos>"),
    "fuyu": Checkpoint(chat_vlms.save_fuyu, "{}\n", "", "|ENDOFTEXT|"),
}


def read_chat_template(folder: Path) -> str | None:
    """Return the chat template from its separate file; None if there is no such file."""
    file = folder / "chat_template.json"
    return str(json.loads(file.read_text())["chat_template"]) if file.is_file() else None


class WholeModel:
    """Transformers' model with its own processor, run on one image and one text at a time without caches."""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self.checkpoint = checkpoint
        self.folder = folder
        self.model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
        bound = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        if bound is not None and self.model.config.model_type == "paligemma" and is_older("5.23"):
            self.model.lm_head.register_forward_hook(lambda *called: (called[-1] / bound).tanh() * bound)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        if checkpoint.processor is None:
            self.own = load(folder)
        elif checkpoint.processor is AutoProcessor:
            self.processor = AutoProcessor.from_pretrained(folder, backend="pil")
        else:
            images = AutoImageProcessor.from_pretrained(folder, backend="pil")
            self.processor = checkpoint.processor(images, self.tokenizer, None, **checkpoint.settings)
        if self.model.config.model_type == "fuyu":
            enable_tensor_input(self.processor.image_processor)

    def make_inputs(self, image: Image.Image, prompt: str, answer: str = "") -> dict[str, Any]:
        if self.checkpoint.processor is None:
            return self.lay_out([image], prompt + answer)
        if self.model.config.model_type == "paligemma":  # the processor needs answer and prompt separately
            ending = {"suffix": [answer.removesuffix(self.checkpoint.end)]} if answer else {}
            inputs = self.processor(images=[image], text=[prompt], return_tensors="pt", **ending)
        elif self.model.config.model_type == "fuyu":  # the processor writes the token that starts an answer
            inputs = self.processor(images=[image], text=[prompt], return_tensors="pt")
            said = (
                self.tokenizer(answer, return_tensors="pt").input_ids.long() if answer else inputs["input_ids"][:, :0]
            )
            inputs["input_ids"] = torch.cat([inputs["input_ids"], said], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        else:
            return self.read([image], prompt + answer)
        return self.select_inputs(inputs)

    def read(self, images: list[Image.Image], text: str) -> dict[str, Any]:
        """Return the model's inputs for images and a text with image markers."""
        if self.checkpoint.processor is None:
            return self.lay_out(images, text)
        return self.select_inputs(self.processor(images=images, text=[text], return_tensors="pt"))

    def select_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        parameters = inspect.signature(self.model.forward).parameters
        return {name: tensor for name, tensor in inputs.items() if name in parameters and name != "labels"}

    def lay_out(self, images: list[Image.Image], text: str) -> dict[str, Any]:
        mark, preprocess = self.model.config.image_token_id, self.own.prompts.preprocess
        pixels, tokens = preprocess(*images), iter(preprocess(image).ids.count(mark) for image in images)
        ids = [
            token
            for read in self.tokenizer(text).input_ids
            for token in ([mark] * next(tokens) if read == mark else [read])
        ]
        rows = torch.tensor([ids])
        kinds = {} if self.model.config.model_type == "llava" else {"mm_token_type_ids": (rows == mark).int()}
        return {
            "input_ids": rows,
            "attention_mask": torch.ones_like(rows),
            **kinds,
            **self.own.reader.make_vision_inputs([pixels]),
        }

    @torch.inference_mode()
    def compute_logprobs(self, image: Image.Image, question: str, choice: str) -> list[float]:
        answer = self.checkpoint.gap + choice + self.checkpoint.end
        inputs = self.make_inputs(image, self.checkpoint.prompt.format(question), answer)
        length = len(self.tokenizer(answer).input_ids)
        predicted = self.model(**inputs).logits[0].log_softmax(-1)[:-1]
        chosen = predicted.gather(1, inputs["input_ids"][0, 1:, None])[-length:, 0]
        return [float(number) for number in chosen]

    @torch.inference_mode()
    def compute_logprobs_of_two(self, images: list[Image.Image], question: str, choice: str) -> list[float]:
        answer = self.checkpoint.gap + choice + self.checkpoint.end
        content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": question}]
        shown = AutoTokenizer.from_pretrained(self.folder).apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=read_chat_template(self.folder),
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        before = SYSTEM_MESSAGE if self.checkpoint.prompt.startswith(SYSTEM_MESSAGE) else ""
        inputs = self.read(images, before + shown.removeprefix(before) + answer)
        predicted = self.model(**inputs).logits[0].log_softmax(-1)[:-1]
        chosen = predicted.gather(1, inputs["input_ids"][0, 1:, None])[:, 0]
        return [float(number) for number in chosen[-len(self.tokenizer(answer).input_ids) :]]

    @cache  # noqa: B019 - as long as the module's fixture
    def compute_expected_logprobs(self) -> list[list[list[float]]]:
        """Return the log-probabilities of the choices for all QUESTIONS."""
        return [
            [self.compute_logprobs(IMAGES[question.image], question.text, choice) for choice in question.choices]
            for question in QUESTIONS
        ]

    @torch.inference_mode()
    def compute_generated_logprobs(self, image: Image.Image, question: str, choice: str) -> list[float]:
        """Return the log-probability of each token of an answer, from the next-token scores of `generate`."""
        answer = self.checkpoint.gap + choice + self.checkpoint.end
        inputs = self.make_inputs(image, self.checkpoint.prompt.format(question), answer)
        ids = inputs["input_ids"]
        logprobs = []
        for place in range(ids.shape[1] - len(self.tokenizer(answer).input_ids), ids.shape[1]):
            before = {name: part[:, :place] if part.shape == ids.shape else part for name, part in inputs.items()}
            said = self.model.generate(
                **before,
                max_new_tokens=1,
                temperature=1.0,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )
            logprobs.append(float(said.scores[0][0].log_softmax(-1)[ids[0, place]]))
        return logprobs

    @torch.inference_mode()
    def reply(self, image: Image.Image, prompt: str, length: int) -> str:
        return self.reply_to(self.make_inputs(image, prompt), length)

    @torch.inference_mode()
    def reply_to(self, inputs: Mapping[str, Any], length: int) -> str:
        named = self.model.generation_config.eos_token_id
        ends = [self.tokenizer.eos_token_id, *(named if isinstance(named, list) else [])]
        output = self.model.generate(**inputs, max_new_tokens=length, do_sample=False, eos_token_id=ends)
        tokenizer = self.tokenizer if self.checkpoint.processor is None else self.processor.tokenizer
        return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.fixture(scope="module", autouse=True)
def leave_out_videos() -> Any:
    """Let transformers' processors work without torchvision and num2words, which only videos need."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessorMixin, "check_argument_for_proper_class", lambda self, name, argument: None)
        patch.setattr(processing_smolvlm, "num2words", str)
        yield


REPLY_TOKENS = 5
USUAL_NAMES = ["llava_next that looks back a little", "qwen2_5_vl", "paligemma"]
"""Checkpoints for tests of claims that do not depend on the architecture."""
USUAL_CHECKPOINTS = {
    *USUAL_NAMES,
    "llava",
    "qwen3_vl",
    "glm4v with glm4v_text",
    "internvl with qwen3",
    "gemma3",
    "idefics3",
}
SLOW_NAMES = [name if name in USUAL_CHECKPOINTS else pytest.param(name, marks=pytest.mark.slow) for name in CHECKPOINTS]
"""Checkpoints for long tests: the usual ones, or all checkpoints in `make slow`."""


@pytest.fixture(autouse=True)
def shorten_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlm, "MAX_ANSWER_TOKENS", REPLY_TOKENS)


@pytest.fixture(scope="module", params=list(CHECKPOINTS))
def whole_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WholeModel]:
    checkpoint = CHECKPOINTS[request.param]
    folder = checkpoint.save(tmp_path_factory.mktemp("chat"))
    return folder, WholeModel(checkpoint, folder)


def load(folder: Path, **options: Any) -> ChatVlm:
    config = make_model_config(family="vlm", checkpoint=str(folder), **options)
    model = loading.load(resolve_model(config, on_gpu=False), "likelihood")
    assert isinstance(model, ChatVlm)
    return model


def flatten(answers: list[list[list[float]]]) -> list[float]:
    return [number for question in answers for choice in question for number in choice]


@pytest.mark.parametrize(
    ("pair_batch", "packed_tokens"), [pytest.param(1, 1, marks=pytest.mark.slow), (3, 100), (64, 512)]
)
def test_likelihoods_equal_the_whole_models(
    whole_model: tuple[Path, WholeModel], pair_batch: int, packed_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "MAX_PACKED_TOKENS", packed_tokens)
    folder, library = whole_model
    expected = library.compute_expected_logprobs()
    model = load(folder, pair_batch=pair_batch)
    found = model.likelihood(model.encode([model.preprocess(image) for image in IMAGES]), QUESTIONS)
    assert [[len(choice) for choice in answer] for answer in found] == [
        [len(choice) for choice in answer] for answer in expected
    ]
    assert flatten(found) == pytest.approx(flatten(expected), abs=1e-4)
    assert len({round(number, 4) for number in flatten(found)}) > len(flatten(found)) / 2, (
        "otherwise agreement would prove little"
    )


PAIRS = [IMAGES[:2], IMAGES[1::-1]]
"""Images of different sizes that are given to the model together."""


def test_likelihoods_about_two_images_in_one_question_equal_the_whole_models(
    whole_model: tuple[Path, WholeModel],
) -> None:
    folder, library = whole_model
    config = make_model_config(family="vlm", checkpoint=str(folder))
    if library.model.config.model_type in ("paligemma", "fuyu"):
        assert not takes_several_images(config)
        return
    assert takes_several_images(config)
    model = load(folder)
    asked = [Question(pair, "Is it red?", ("Yes",)) for pair in range(len(PAIRS))]
    found = model.likelihood(model.encode([model.preprocess_several(pair) for pair in PAIRS]), asked)
    expected = [library.compute_logprobs_of_two(pair, "Is it red?", "Yes") for pair in PAIRS]
    assert flatten(found) == pytest.approx([number for pair in expected for number in pair], abs=1e-4)
    assert len({round(pair[0], 4) for pair in expected}) == len(PAIRS), "the model sees both images and their order"


def test_a_fuyu_is_served_as_a_model_with_vision_and_an_image_may_be_a_single_patch(tmp_path: Path) -> None:
    """Given a single patch, transformers' own processor drops an axis, and its network fails."""
    folder = chat_vlms.save_fuyu(tmp_path / "fuyu")
    with pytest.raises(ModelError, match="is served by family vlm"):
        resolve_model(make_model_config(family="causal_lm", checkpoint=str(folder)), on_gpu=False)
    model, asked = load(folder), Question(0, "Is it red?", ("Yes",))
    dots = [model.preprocess(Image.new("RGB", (3, 2), colour)) for colour in ("red", "blue")]
    assert [dot.ids for dot in dots] == [[model.prompts.image_id]] * 2
    red, blue = (model.likelihood(model.encode([dot]), [asked]) for dot in dots)
    assert flatten(red) != pytest.approx(flatten(blue), abs=1e-3)
    both = model.likelihood(model.encode(dots), [asked, asked._replace(image=1)])
    assert flatten(both) == pytest.approx(flatten(red + blue), abs=1e-4)


@pytest.mark.parametrize(
    ("written", "end"),
    [("<stop>\n", "<stop>"), ("", "<user>"), ("<eos>", "<eos>"), ("\n\n", "<user>")],
)
def test_a_turn_ends_with_the_chat_templates_end_or_the_start_of_the_next_turn(
    tmp_path: Path, written: str, end: str
) -> None:
    template = (
        "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'][-1]['text'] }}"
        "{% if message['role'] == 'assistant' %}{{ WRITTEN }}{% endif %}{% endfor %}"
    ).replace("WRITTEN", repr(written))
    ids = chat_vlms.save_tokenizer(tmp_path, ["<pad>", "<eos>", "<stop>", "<user>"], eos="<eos>", template=template)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert find_turn_end(tokenizer, [ids["<eos>"], ids["<stop>"], ids["<user>"]], system=None) == ids[end]
    assert find_turn_end(tokenizer, [], system=None) == ids["<eos>"], "the tokenizer's own"


@pytest.mark.parametrize("whole_model", SLOW_NAMES, indirect=True)
def test_the_normalised_share_of_yes_sums_the_whole_models_spellings(whole_model: tuple[Path, WholeModel]) -> None:
    folder, library = whole_model
    metric, model = VqaScoreConfig(normalise="yes_no").complete_options(lambda role: CHAT_PROFILE), load(folder)
    question = metric.question("two stars")

    def sum_probabilities(*spellings: str) -> float:
        tokens = [library.compute_logprobs(IMAGES[1], question, spelling)[:-1] for spelling in spellings]
        return math.fsum(math.exp(math.fsum(logprobs)) for logprobs in tokens)

    yes, no = sum_probabilities("Yes", " Yes", "yes", " yes"), sum_probabilities("No", " No", "no", " no")
    asked = Question(0, question, metric.choices)
    (answer,) = model.likelihood(model.encode([model.preprocess(IMAGES[1])]), [asked])
    scored = metric.score(Evidence({"answers": [{"question_id": "1", "token_logprobs": answer}]}))
    assert scored.score == pytest.approx(yes / (yes + no), rel=1e-3)


@pytest.mark.parametrize("save", [chat_vlms.save_llava_next, chat_vlms.save_smolvlm])
def test_attending_to_padding_is_noticed(
    save: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug lets the model attend to the padding before a shorter prefix, and the comparison must fail."""
    real = prefixes.copy_prefixes
    monkeypatch.setattr(
        prefixes, "copy_prefixes", lambda *given: (copy := real(*given))._replace(real=torch.ones_like(copy.real))
    )
    with pytest.raises(AssertionError):
        require_batch_invariance(load(save(tmp_path / "own"), pair_batch=4), "likelihood")


@pytest.mark.parametrize(
    "whole_model", ["llava_next that looks back a little", "gemma3", "gemma4 E4B", "qwen2_5_vl"], indirect=True
)
def test_layers_with_a_window_apply_it_to_an_image_prefix(
    whole_model: tuple[Path, WholeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing all windows changes the answers of exactly those models that have layers with a window."""
    model = load(whole_model[0])
    windows = model.reader.windows
    features = model.encode([model.preprocess(image) for image in IMAGES])
    right = flatten(model.likelihood(features, QUESTIONS))
    monkeypatch.setattr(model.reader, "windows", dict.fromkeys(windows))
    same = flatten(model.likelihood(features, QUESTIONS)) == pytest.approx(right, abs=1e-4)
    assert same == (set(windows.values()) == {None})


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_a_checkpoints_own_penalties_have_no_effect(whole_model: tuple[Path, WholeModel], tmp_path: Path) -> None:
    penalised = tmp_path / "penalised"
    shutil.copytree(whole_model[0], penalised)
    named = {"repetition_penalty": 9.0, "temperature": 0.1, "do_sample": True, "bad_words_ids": [[20], [21]]}
    tiny.edit_json(penalised / "generation_config.json", **named)
    plain, other = load(whole_model[0]), load(penalised)
    features = [model.encode([model.preprocess(image) for image in IMAGES]) for model in (plain, other)]
    assert plain.likelihood(features[0], QUESTIONS) == other.likelihood(features[1], QUESTIONS)
    assert plain.reply(features[0], QUESTIONS) == other.reply(features[1], QUESTIONS)
    assert plain.generate_from_images(features[0], CONVERSATIONS) == other.generate_from_images(
        features[1], CONVERSATIONS
    )


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_replies_equal_the_whole_models(whole_model: tuple[Path, WholeModel]) -> None:
    folder, library = whole_model
    model, questions = load(folder, pair_batch=4), QUESTIONS[:6]
    replies = model.reply(model.encode([model.preprocess(image) for image in IMAGES]), questions)
    prompts = [library.checkpoint.prompt.format(question.text) for question in questions]
    assert replies == [
        library.reply(IMAGES[question.image], prompt, REPLY_TOKENS).strip()
        for question, prompt in zip(questions, prompts, strict=True)
    ]
    assert len(set(replies)) > 1


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_likelihoods_do_not_change_after_replies(whole_model: tuple[Path, WholeModel]) -> None:
    model = load(whole_model[0])
    features = model.encode([model.preprocess(image) for image in IMAGES])
    before = model.likelihood(features, QUESTIONS)
    model.reply(features, QUESTIONS)
    assert model.likelihood(features, QUESTIONS) == before, "the prefix cache is only read"


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_later_questions_about_an_image_read_its_prefix_from_the_cache(whole_model: tuple[Path, WholeModel]) -> None:
    model = load(whole_model[0])
    features = model.encode([model.preprocess(image) for image in IMAGES[:2]])
    asked = [Question(0, "a?", ("Yes",)), Question(0, "bb?", ("Yes", "No")), Question(1, "a?", ("Yes",))]
    model.likelihood(features, asked)
    first = model.usage
    assert (first.calls, first.cached_tokens) == (3, features[0].tokens)
    tails = [first.prompt_tokens - 2 * features[0].tokens - features[1].tokens]
    model.reply(features, asked)
    second = model.usage.minus(first)
    assert second.cached_tokens == 2 * features[0].tokens + features[1].tokens
    assert second.prompt_tokens - second.cached_tokens == tails[0] > 0
    assert 0 < second.new_tokens <= 3 * REPLY_TOKENS


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_a_question_beyond_the_context_or_with_an_image_marker_is_refused(
    whole_model: tuple[Path, WholeModel],
) -> None:
    model = load(whole_model[0])
    features = model.encode([model.preprocess(IMAGES[0])])
    mark = str(model.prompts.tokenizer.convert_ids_to_tokens(model.prompts.image_id))
    for text, kind, message in (
        ("long " * 100, "prompt_too_long", "beyond the model's context of 512"),
        (f"a sign that says {mark}", "request_refused", f"contains {mark!r}, which this model reads as a second image"),
    ):
        with pytest.raises(UnprocessableRowError, match=re.escape(message)) as refused:
            model.likelihood(features, [Question(0, text, ("Yes",))])
        assert (refused.value.error.kind, refused.value.error.retryable) == (kind, False)


# Conversations about an image


def make_request(image: int, text: str, **fields: Any) -> ImageRequest:
    return ImageRequest(image, Request((Message("user", text),), **{"max_tokens": 12, **fields}))


CONVERSATIONS = [
    make_request(0, "Describe it."),
    make_request(1, "What is there?", max_tokens=5),
    make_request(0, "Describe it.", temperature=1.0, seed=3),
    make_request(3, "Now in one word, and in the fewest letters that you can."),
    make_request(2, "Describe it.", temperature=0.7, seed=4),
]


def generate_replies(model: ChatVlm, requests: list[ImageRequest]) -> list[Generation]:
    found = model.generate_from_images(model.encode([model.preprocess(image) for image in IMAGES]), requests)
    assert all(isinstance(reply, Generation) for reply in found), found
    return [reply for reply in found if isinstance(reply, Generation)]


@pytest.mark.parametrize("whole_model", SLOW_NAMES, indirect=True)
def test_greedy_replies_are_the_librarys_own(whole_model: tuple[Path, WholeModel]) -> None:
    folder, library = whole_model
    prompt = library.checkpoint.prompt
    greedy = [talk for talk in CONVERSATIONS if talk.request.temperature == 0]
    expected = [
        library.reply(IMAGES[talk.image], prompt.format(talk.request.messages[0].text), talk.request.max_tokens)
        for talk in greedy
    ]
    assert [reply.text for reply in generate_replies(load(folder), greedy)] == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("whole_model", [*USUAL_NAMES, "qwen3_5"], indirect=True)
def test_a_reply_is_the_same_alone_and_in_a_batch(whole_model: tuple[Path, WholeModel]) -> None:
    model = load(whole_model[0], pair_batch=3)
    alone = [generate_replies(model, [talk])[0].text for talk in CONVERSATIONS]
    assert [reply.text for reply in generate_replies(model, CONVERSATIONS)] == alone
    assert [reply.text for reply in generate_replies(model, CONVERSATIONS[::-1])] == alone[::-1]


@pytest.mark.parametrize(
    "whole_model", ["llava", "llava_next", "qwen2_5_vl", "qwen3_5", "glm4v_moe with glm4v_moe_text",
                    "internvl with qwen3", "smolvlm", "gemma3", "gemma4 E4B", "gemma4 26B-A4B"],
    indirect=True,
)  # fmt: skip
def test_a_conversation_without_an_image_has_the_librarys_own_replies(whole_model: tuple[Path, WholeModel]) -> None:
    folder, library = whole_model
    asked = [talk.request for talk in CONVERSATIONS if talk.request.temperature == 0]
    config = make_model_config(family="vlm", checkpoint=str(folder))
    found = loading.load(resolve_model(config, on_gpu=False), "generate").generate(asked)
    if (folder / "chat_template.json").is_file():
        library.tokenizer.chat_template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
    for request, reply in zip(asked, found, strict=True):
        turns = [{"role": "user", "content": [{"type": "text", "text": request.messages[0].text}]}]
        rendered = {"add_generation_prompt": True, "enable_thinking": False, "tokenize": False}
        prompt = library.tokenizer.apply_chat_template(turns, **rendered)
        inputs = library.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
        assert reply.text == library.reply_to(inputs, request.max_tokens)


@pytest.mark.parametrize("whole_model", SLOW_NAMES, indirect=True)
def test_a_conversation_continues_after_earlier_turns(whole_model: tuple[Path, WholeModel]) -> None:
    folder, library = whole_model
    said = (Message("user", "Is it red?"), Message("assistant", "No"), Message("user", "What then?"))
    spoken = [{"role": message.role, "content": [{"type": "text", "text": message.text}]} for message in said]
    spoken[0]["content"].insert(0, {"type": "image"})
    if (folder / "chat_template.json").is_file():
        library.tokenizer.chat_template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
        spoken.insert(0, {"role": "system", "content": [{"type": "text", "text": SYSTEM_MESSAGE.strip()}]})
    if library.tokenizer.chat_template is None:  # PaliGemma and Fuyu were trained on single questions
        prompt = library.checkpoint.prompt.format("".join(message.text for message in said))
    else:
        prompt = str(
            library.tokenizer.apply_chat_template(
                spoken, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )
    (reply,) = generate_replies(load(folder), [ImageRequest(0, Request(said, max_tokens=8))])
    assert reply.text == library.reply(IMAGES[0], prompt, 8)


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_an_image_is_read_once_for_all_conversations_about_it(whole_model: tuple[Path, WholeModel]) -> None:
    model = load(whole_model[0])
    features = model.encode([model.preprocess(image) for image in IMAGES])
    found = [reply for reply in model.generate_from_images(features, CONVERSATIONS) if isinstance(reply, Generation)]
    cached = {talk.image: 0 for talk in CONVERSATIONS}
    for talk, reply in zip(CONVERSATIONS, found, strict=True):
        assert reply.usage.calls == 1
        assert reply.usage.prompt_tokens > features[talk.image].tokens
        assert 0 < reply.usage.new_tokens <= talk.request.max_tokens
        cached[talk.image] += reply.usage.cached_tokens
    assert cached == {0: features[0].tokens, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_a_reply_follows_its_limit_stop_strings_and_seed(whole_model: tuple[Path, WholeModel]) -> None:
    model = load(whole_model[0])
    longer, shorter, said = generate_replies(
        model,
        [
            make_request(0, "Describe it."),
            make_request(0, "Describe it.", max_tokens=3),
            make_request(1, "Go on.", max_tokens=30),
        ],
    )
    assert longer.text.startswith(shorter.text.rstrip("\ufffd"))
    assert (shorter.complete, shorter.usage.new_tokens) == (False, 3)
    stop = next(letter for letter in said.text if letter.isascii())
    (stopped,) = generate_replies(model, [make_request(1, "Go on.", max_tokens=30, stop=("never said", stop))])
    assert (stopped.text, stopped.complete) == (said.text.partition(stop)[0], True)
    drawn = generate_replies(
        model, [make_request(0, "Say.", temperature=1.0, seed=seed, max_tokens=8) for seed in (1, 1, 2, 3)]
    )
    assert drawn[0].text == drawn[1].text and len({reply.text for reply in drawn}) > 1


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 10}},
        "required": ["score"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_a_reply_with_a_schema_follows_it_and_other_replies_are_unconstrained(
    whole_model: tuple[Path, WholeModel],
) -> None:
    model = load(whole_model[0])
    judged = [
        make_request(0, "Rate it.", schema=SCHEMA, max_tokens=40),
        make_request(2, "Rate it.", schema=SCHEMA, max_tokens=40),
    ]
    judged.append(make_request(1, "Rate it.", schema=SCHEMA, max_tokens=40, temperature=1.5, seed=2))
    *held, free = generate_replies(model, [*judged, CONVERSATIONS[0]])
    assert [0 <= json.loads(reply.text)["score"] <= 10 and reply.complete for reply in held] == [True] * 3
    assert held == [
        generate_replies(model, [asked])[0]._replace(usage=reply.usage)
        for asked, reply in zip(judged, held, strict=True)
    ]
    assert free.text == generate_replies(model, [CONVERSATIONS[0]])[0].text
    (refused,) = model.generate_from_images(
        model.encode([model.preprocess(IMAGES[0])]), [make_request(0, "Rate it.", schema='{"type": "nonsense"}')]
    )
    assert (refused.kind, refused.retryable) == ("request_refused", False)  # type: ignore[union-attr]


@pytest.mark.parametrize("whole_model", USUAL_NAMES, indirect=True)
def test_a_conversation_beyond_the_context_is_an_error_and_the_others_get_replies(
    whole_model: tuple[Path, WholeModel],
) -> None:
    model = load(whole_model[0])
    features = model.encode([model.preprocess(IMAGES[0])])
    long, placed, short = model.generate_from_images(
        features,
        [
            make_request(0, "long " * 100),
            make_request(0, f"a sign that says {model.prompts.image_mark}"),
            make_request(0, "a?"),
        ],
    )
    assert (long.kind, long.retryable) == ("prompt_too_long", False)  # type: ignore[union-attr]
    assert (placed.kind, placed.retryable) == ("request_refused", False)  # type: ignore[union-attr]
    assert isinstance(short, Generation)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava"])
def test_a_released_penalty_gives_the_token_scores_of_generate(tmp_path: Path, kind: str) -> None:
    """t2v_metrics scores Qwen2.5-VL by the softmax of the scores that `generate` returns for the answer's tokens."""
    folder = CHECKPOINTS[kind].save(tmp_path)
    tiny.write_json(folder / "generation_config.json", {"repetition_penalty": 1.7, "temperature": 0.1, "top_k": 1})
    model, whole_model = load(folder, repetition_penalty="released"), WholeModel(CHECKPOINTS[kind], folder)
    pixels = [model.preprocess(image) for image in IMAGES]
    asked = [Question(one.image, one.text + " Yes", ("Yes", "red")) for one in QUESTIONS[:5]]
    answers = model.likelihood(model.encode(pixels), asked)
    for question, answer in zip(asked, answers, strict=True):
        for choice, logprobs in zip(question.choices, answer, strict=True):
            expected = whole_model.compute_generated_logprobs(IMAGES[question.image], question.text, choice)
            assert logprobs == pytest.approx(expected, abs=1e-4)
    plain = load(folder)
    assert plain.likelihood(plain.encode(pixels), asked)[0][0] != pytest.approx(answers[0][0], rel=0.01)


@pytest.mark.parametrize(("named", "options", "message"), [
    ({}, {}, "has no repetition_penalty"), ({"repetition_penalty": 1.05}, {"engine": "vllm"}, "engine=transformers")
])  # fmt: skip
def test_an_unsupported_penalty_is_refused(
    tmp_path: Path, named: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    folder = tiny.save_qwen2_vl(tmp_path, kind="qwen2_5_vl")
    tiny.write_json(folder / "generation_config.json", named)
    with pytest.raises(ModelError, match=message):
        load(folder, repetition_penalty="released", **options)


# Preprocessing of images


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        *((kind, {"max_pixels": 112**2}) for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")),
        ("glm46v with glm4v_text", {"size": {"shortest_edge": 128, "longest_edge": 2 * 112**2}}),
    ],
)
def test_an_image_is_shrunk_to_max_pixels_by_the_models_processor(
    tmp_path: Path, kind: str, limit: dict[str, Any]
) -> None:
    """GLM's processors count an image as two frames, so the limit that is passed to them is twice as high."""
    folder = CHECKPOINTS[kind].save(tmp_path)
    image = tiny.draw_image(6, width=448, height=448)
    few, many = (make_vision_inputs(load(folder, max_pixels=side**2), image) for side in (112, 224))
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil", **limit)
    torch.testing.assert_close(few["pixel_values"], processor(image, return_tensors="pt")["pixel_values"])
    assert few["image_grid_thw"].tolist() == [[1, 112 // 4, 112 // 4]]
    assert 4 * few["image_grid_thw"].prod() == many["image_grid_thw"].prod(), "a quarter of the patches"
    assert resolve_key(folder, max_pixels=224 * 224) != resolve_key(folder) == resolve_key(folder, max_pixels=None)


def make_vision_inputs(model: ChatVlm, image: Image.Image) -> Mapping[str, torch.Tensor]:
    return model.reader.make_vision_inputs([model.preprocess(image)])


def resolve_key(folder: Path, **options: Any) -> Any:
    return resolve_model(
        make_model_config(family="vlm", checkpoint=str(folder), **options), on_gpu=False
    ).list_key_properties()


def test_max_pixels_is_refused_if_the_processor_fixes_the_size(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="max_pixels is only for qwen2_vl"):
        load(CHECKPOINTS["llava"].save(tmp_path), max_pixels=50_000)
    with pytest.raises(ModelError, match="vLLM applies a different pixel limit to this model; set engine=transformers"):
        load(chat_vlms.save_glm4v(tmp_path / "glm"), max_pixels=50_000, engine="vllm")
    with pytest.raises(ConfigError, match="max_pixels: expected at least 3136"):
        load(tmp_path, max_pixels=100)
    with pytest.raises(ConfigError, match="set max_pixels only there"):
        load(tmp_path, max_pixels=50_000, engine="vllm", engine_options={"mm_processor_kwargs": {"max_pixels": 1}})


WIDE_IMAGE = tiny.draw_image(5, width=70, height=30)


def process(folder: Path, image: Image.Image) -> torch.Tensor:
    """Return the pixels of the image after preprocessing by transformers' own processor."""
    pixels: torch.Tensor = AutoImageProcessor.from_pretrained(folder, backend="pil")(image, return_tensors="pt")
    return pixels["pixel_values"]


def pad_to_square(image: Image.Image) -> Image.Image:
    square = Image.new("RGB", (70, 70), (122, 116, 104))
    square.paste(image, (0, 20))
    return square


@pytest.mark.parametrize(
    ("build", "options", "seen"),
    [
        (tiny.save_llava, {}, pad_to_square),
        (tiny.save_llava, {"padding": "processor"}, lambda image: image),
        (tiny.save_llava_siglip, {}, lambda image: image),
        (tiny.save_qwen2_vl, {}, lambda image: image),
    ],
)
def test_llava_1_5_pads_an_image_to_a_square_and_other_models_use_their_processor(
    tmp_path: Path,
    build: Callable[[Path], Path],
    options: dict[str, Any],
    seen: Callable[[Image.Image], Image.Image],
) -> None:
    shown = make_vision_inputs(load(build(tmp_path), **options), WIDE_IMAGE)["pixel_values"]
    torch.testing.assert_close(shown, process(tmp_path, seen(WIDE_IMAGE)), atol=1e-6, rtol=0)


# VQAScore by kind


def score_image(model: ChatVlm, metric: VqaScoreConfig, image: Image.Image, text: str) -> float:
    (feature,) = model.encode([model.preprocess(image)])
    asked = Question(0, metric.question(text), (metric.yes_question.answer,))
    return reduce_answer(model.likelihood([feature], [asked])[0][0], metric.yes_question.reduction)


def test_a_chat_model_is_scored_by_the_probability_of_yes_as_the_first_token(tmp_path: Path) -> None:
    """The reference runs transformers' model on the whole prompt, and takes the softmax over the vocabulary."""
    folder = tiny.save_qwen2_vl(tmp_path / "qwen")
    metric, model = VqaScoreConfig().complete_options(lambda role: CHAT_PROFILE), load(folder)
    whole_model = WholeModel(CHECKPOINTS["qwen2_vl"], folder)
    prompt = QWEN_PROMPT.format('Does this figure show "two "red" stars"? Please answer Yes or No.')
    with torch.inference_mode():
        logits = whole_model.model(**whole_model.make_inputs(WIDE_IMAGE, prompt)).logits[0, -1]
    expected = logits.softmax(-1)[whole_model.tokenizer("Yes").input_ids[0]].item()
    assert score_image(model, metric, WIDE_IMAGE, 'two "red" stars') == pytest.approx(expected, rel=1e-4)


def test_llava_1_5_is_scored_as_released(tmp_path: Path) -> None:
    """The score is exp(-mean cross-entropy) of "Yes" and the end of the turn, after the paper's question."""
    folder = tiny.save_llava(tmp_path / "llava")
    metric, model = VqaScoreConfig().complete_options(lambda role: LLAVA_1_5_PROFILE), load(folder)
    whole_model = WholeModel(CHECKPOINTS["llava"], folder)
    question = 'Does this figure show "two stars"? Please answer yes or no.'
    losses = whole_model.compute_logprobs(WIDE_IMAGE, question, "Yes")
    expected = math.exp(sum(losses) / len(losses))
    assert score_image(model, metric, WIDE_IMAGE, "two stars") == pytest.approx(expected, rel=1e-4)


# The system message


SYSTEM_TURN = "<|im_start|>system\nAnswer in one word.<|im_end|>\n"


@pytest.mark.parametrize(
    ("kind", "system", "prompt"),
    [
        ("llava", "", "USER: <image>\n{} ASSISTANT:"),
        ("llava", "Answer in one word.", "Answer in one word. USER: <image>\n{} ASSISTANT:"),
        ("qwen2_vl", "", QWEN_PROMPT),
        ("qwen2_vl", "Answer in one word.", SYSTEM_TURN + QWEN_PROMPT),
    ],
)
def test_the_configured_system_message_comes_before_every_question(
    tmp_path: Path, kind: str, system: str, prompt: str
) -> None:
    """VQAScore omits Vicuna's system message (footnote 3), and T2IScoreScore asks LLaVA to be brief (section 5.4)."""
    folder = CHECKPOINTS[kind].save(tmp_path)
    library, model = WholeModel(CHECKPOINTS[kind]._replace(prompt=prompt), folder), load(folder, system=system)
    found = model.likelihood(model.encode([model.preprocess(image) for image in IMAGES]), QUESTIONS)
    assert flatten(found) == pytest.approx(flatten(library.compute_expected_logprobs()), abs=1e-4)
    assert resolve_key(folder, system=system) == resolve_key(folder) | {"system": system}


def test_a_system_message_that_a_model_would_ignore_is_refused(tmp_path: Path) -> None:
    folder = tiny.save_qwen2_vl(tmp_path / "qwen")
    deaf = tiny.QWEN_TEMPLATE.replace("messages %}<", "messages if message['role'] != 'system' %}<")
    tiny.save_byte_tokenizer(folder, template=deaf)
    with pytest.raises(
        ModelError, match="the chat template leaves out the system message; set the model's system=null"
    ):
        load(folder, system="Answer in one word.")
    with pytest.raises(ModelError, match="reads a question instead of a conversation; set system=null"):
        load(CHECKPOINTS["paligemma"].save(tmp_path / "paligemma"), system="Answer in one word.")


# Checkpoints that do not load


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_chat_template_that_opens_a_thought_is_refused(tmp_path: Path, engine: Engine) -> None:
    """The template assembles the marker that starts a thought from parts, so planning cannot find it in the text."""
    folder = tiny.save_qwen2_vl(tmp_path / "qwen")
    hidden = tiny.QWEN_TEMPLATE.replace("assistant\n{% endif", "assistant\n{{ '<thi' + 'nk>' }}{% endif")
    tiny.save_byte_tokenizer(folder, template=hidden)
    with pytest.raises(ModelError, match=r"a thinking model, .*Instruct"):
        load(folder, engine=engine)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("llava", None, r"no chat template.*chat_template\.json"),
        *(("llava", content, r"chat_template\.json: not a chat template") for content in ("{", "[]", '{"other": 1}')),
        ("qwen2_vl", '{"chat_template": "{{ messages[0][\'role\'] }}"}', "expected the chat template to place one im"),
    ],
)
def test_a_chat_template_that_is_missing_or_garbled_or_shows_no_image_is_refused(
    tmp_path: Path, kind: str, content: str | None, message: str
) -> None:
    folder = CHECKPOINTS[kind].save(tmp_path)
    if kind == "qwen2_vl":  # its tokenizer contains a template
        tiny.save_byte_tokenizer(folder)
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.json").unlink(missing_ok=True)
    if content is not None:
        (folder / "chat_template.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        load(folder)
