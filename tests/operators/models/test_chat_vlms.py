"""Chat models that see, each as the library's own whole model has it, whose own processor has laid out the prompt."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from functools import partial
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
    InternVLProcessor,
    LlavaOnevisionProcessor,
    ProcessorMixin,
    SmolVLMProcessor,
)
from transformers.models.smolvlm import processing_smolvlm

from plumbline.operators.metrics.metric import Evidence
from plumbline.operators.metrics.vqascore import VqaScoreConfig
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.conversation import turn_end
from plumbline.operators.models.families import model_config
from plumbline.operators.models.families.vlm import CHAT
from plumbline.operators.models.networks import prefixes
from plumbline.operators.models.networks.vlm import ChatVlm
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models import alike
from tests.operators.models.alike import require_likelihoods_alike
from tests.operators.tiny import chat_vlms

PICTURES = [*alike.PICTURES, tiny.picture(4)]
QUESTIONS = [
    *alike.QUESTIONS,
    Question(3, "?", ("Yes", "No")),
    Question(4, "Is it green,\n\nis it?", ("a", "abc def")),
    Question(1, "Of what colour?", ("red", "red")),
    Question(1, "Is there nothing to choose from?", ()),
]


class Checkpoint(NamedTuple):
    """A tiny checkpoint and what its chat template makes of one question."""

    save: Callable[[Path], Path]
    prompt: str
    gap: str
    """What stands before an answer."""
    end: str
    """What ends it."""
    processor: Any = AutoProcessor
    settings: Mapping[str, Any] = MappingProxyType({})
    """Of a processor that is made here, without its video half."""


CHECKPOINTS = {
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
    "internvl": Checkpoint(
        chat_vlms.save_internvl,
        "<|im_start|>user\n<IMG_CONTEXT>\n{}<|im_end|>\n<|im_start|>assistant\n",
        "",
        "<|im_end|>",
        InternVLProcessor,
        {"image_seq_length": 4},
    ),
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
    "paligemma": Checkpoint(chat_vlms.save_paligemma, "{}", "", "<eos>"),
    "paligemma 2": Checkpoint(partial(chat_vlms.save_paligemma, text="gemma2"), "{}", "", "<eos>"),
}


class WholeModel:
    """Transformers' model on one image and one text at a time, nothing cached, its processor as it comes."""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self.checkpoint = checkpoint
        self.model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        if checkpoint.processor is AutoProcessor:
            self.processor = AutoProcessor.from_pretrained(folder, backend="pil")
        else:
            images = AutoImageProcessor.from_pretrained(folder, backend="pil")
            self.processor = checkpoint.processor(images, self.tokenizer, None, **checkpoint.settings)

    def inputs(self, image: Image.Image, prompt: str, answer: str = "") -> dict[str, Any]:
        if self.model.config.model_type == "paligemma":  # whose processor must be told the answer from the prompt
            ending = {"suffix": [answer.removesuffix(self.checkpoint.end)]} if answer else {}
            inputs = self.processor(images=[image], text=[prompt], return_tensors="pt", **ending)
        else:
            inputs = self.processor(images=[image], text=[prompt + answer], return_tensors="pt")
        return {name: tensor for name, tensor in inputs.items() if name not in ("labels", "mm_token_type_ids")}

    @torch.inference_mode()
    def logprobs(self, image: Image.Image, question: str, choice: str) -> list[float]:
        answer = self.checkpoint.gap + choice + self.checkpoint.end
        inputs = self.inputs(image, self.checkpoint.prompt.format(question), answer)
        length = len(self.tokenizer(answer).input_ids)
        predicted = self.model(**inputs).logits[0].log_softmax(-1)[:-1]
        chosen = predicted.gather(1, inputs["input_ids"][0, 1:, None])[-length:, 0]
        return [float(number) for number in chosen]

    @torch.inference_mode()
    def reply(self, image: Image.Image, prompt: str, length: int) -> str:
        inputs = self.inputs(image, prompt)
        output = self.model.generate(**inputs, max_new_tokens=length, do_sample=False)
        return str(self.processor.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.fixture(scope="module", autouse=True)
def videos_left_out() -> Any:
    """Lets the library's processors be made without what only their videos want: torchvision and num2words."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessorMixin, "check_argument_for_proper_class", lambda self, name, argument: None)
        patch.setattr(processing_smolvlm, "num2words", str)
        yield


@pytest.fixture(scope="module", params=list(CHECKPOINTS))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WholeModel]:
    checkpoint = CHECKPOINTS[request.param]
    folder = checkpoint.save(tmp_path_factory.mktemp("chat"))
    return folder, WholeModel(checkpoint, folder)


def load(folder: Path, **options: Any) -> ChatVlm:
    config = model_config(family="vlm", checkpoint=str(folder), **options)
    model = loading.load(resolve_model(config, on_gpu=False), "likelihood")
    assert isinstance(model, ChatVlm)
    return model


def flat(answers: list[list[list[float]]]) -> list[float]:
    return [number for question in answers for choice in question for number in choice]


@pytest.mark.parametrize(("pair_batch", "packed_tokens"), [(1, 1), (3, 100), (64, 512)])
def test_likelihoods_are_the_whole_models(
    whole: tuple[Path, WholeModel], pair_batch: int, packed_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "PACKED_TOKENS", packed_tokens)
    folder, library = whole
    expected = [
        [library.logprobs(PICTURES[question.image], question.text, choice) for choice in question.choices]
        for question in QUESTIONS
    ]
    model = load(folder, pair_batch=pair_batch)
    found = model.likelihood(model.encode([model.preprocess(picture) for picture in PICTURES]), QUESTIONS)
    assert [[len(choice) for choice in answer] for answer in found] == [
        [len(choice) for choice in answer] for answer in expected
    ]
    assert flat(found) == pytest.approx(flat(expected), abs=1e-4)
    assert len({round(number, 4) for number in flat(found)}) > len(flat(found)) / 2, "or agreeing would say little"


def test_a_likelihood_is_the_same_alone_and_in_a_batch(whole: tuple[Path, WholeModel]) -> None:
    require_likelihoods_alike(load(whole[0], pair_batch=4))


@pytest.mark.parametrize(
    ("written", "end"),
    [("<stop>\n", "<stop>"), ("", "<user>"), ("<eos>", "<eos>"), ("\n\n", "<user>")],
)
def test_a_turn_ends_as_the_chat_template_ends_it_or_with_what_begins_the_next(
    tmp_path: Path, written: str, end: str
) -> None:
    template = (
        "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'][-1]['text'] }}"
        "{% if message['role'] == 'assistant' %}{{ WRITTEN }}{% endif %}{% endfor %}"
    ).replace("WRITTEN", repr(written))
    ids = chat_vlms.save_tokenizer(tmp_path, ["<pad>", "<eos>", "<stop>", "<user>"], eos="<eos>", template=template)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert turn_end(tokenizer, [ids["<eos>"], ids["<stop>"], ids["<user>"]], system=None) == ids[end]
    assert turn_end(tokenizer, [], system=None) == ids["<eos>"], "the tokenizer's own, where nothing is said to end"


def test_yes_is_weighed_against_no_as_the_whole_model_has_every_spelling_begin(whole: tuple[Path, WholeModel]) -> None:
    folder, library = whole
    metric, model = VqaScoreConfig(normalise="yes_no").settled(lambda role: CHAT), load(folder)
    question = metric.question("two stars")

    def said(*spellings: str) -> float:
        tokens = [library.logprobs(PICTURES[1], question, spelling)[:-1] for spelling in spellings]
        return math.fsum(math.exp(math.fsum(logprobs)) for logprobs in tokens)

    yes, no = said("Yes", " Yes", "yes", " yes"), said("No", " No", "no", " no")
    asked = Question(0, question, metric.choices)
    (answer,) = model.likelihood(model.encode([model.preprocess(PICTURES[1])]), [asked])
    scored = metric.score(Evidence({"answers": [{"question_id": "1", "token_logprobs": answer}]}))
    assert scored.score == pytest.approx(yes / (yes + no), rel=1e-3)


@pytest.mark.parametrize("save", [chat_vlms.save_llava_next, chat_vlms.save_smolvlm])
def test_padding_that_is_attended_to_does_not_pass_for_right(
    save: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug planted: the padding before a prefix that is shorter than others is seen."""
    real = prefixes.copied
    monkeypatch.setattr(
        prefixes, "copied", lambda *given: (copy := real(*given))._replace(real=torch.ones_like(copy.real))
    )
    with pytest.raises(AssertionError):
        require_likelihoods_alike(load(save(tmp_path / "own"), pair_batch=4))


def test_layers_that_look_back_a_little_do_so_from_an_image_prefix(
    whole: tuple[Path, WholeModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug planted: every layer sees all. Only where a layer has a window is that one."""
    model = load(whole[0])
    windows = model.reader.windows
    features = model.encode([model.preprocess(picture) for picture in PICTURES])
    right = flat(model.likelihood(features, QUESTIONS))
    monkeypatch.setattr(model.reader, "windows", dict.fromkeys(windows))
    same = flat(model.likelihood(features, QUESTIONS)) == pytest.approx(right, abs=1e-4)
    assert same == (set(windows.values()) == {None})


def test_penalties_that_a_checkpoint_names_for_generation_touch_nothing(
    whole: tuple[Path, WholeModel], tmp_path: Path
) -> None:
    penalised = tmp_path / "penalised"
    shutil.copytree(whole[0], penalised)
    named = {"repetition_penalty": 9.0, "temperature": 0.1, "do_sample": True, "bad_words_ids": [[20], [21]]}
    tiny.edit_json(penalised / "generation_config.json", **named)
    plain, other = load(whole[0]), load(penalised)
    features = [model.encode([model.preprocess(picture) for picture in PICTURES]) for model in (plain, other)]
    assert plain.likelihood(features[0], QUESTIONS) == other.likelihood(features[1], QUESTIONS)
    assert plain.reply(features[0], QUESTIONS) == other.reply(features[1], QUESTIONS)
    assert plain.generate_from_images(features[0], TALKS) == other.generate_from_images(features[1], TALKS)


# Conversations about an image


def ask(image: int, text: str, **fields: Any) -> ImageRequest:
    return ImageRequest(image, Request((Message("user", text),), **{"max_tokens": 12, **fields}))


TALKS = [
    ask(0, "Describe it."),
    ask(1, "What is there?", max_tokens=5),
    ask(0, "Describe it.", temperature=1.0, seed=3),
    ask(3, "Now in one word, and in the fewest letters that you can."),
    ask(2, "Describe it.", temperature=0.7, seed=4),
]


def replies(model: ChatVlm, requests: list[ImageRequest]) -> list[Generation]:
    found = model.generate_from_images(model.encode([model.preprocess(picture) for picture in PICTURES]), requests)
    assert all(isinstance(reply, Generation) for reply in found), found
    return [reply for reply in found if isinstance(reply, Generation)]


def test_greedy_replies_are_the_librarys_own(whole: tuple[Path, WholeModel]) -> None:
    folder, library = whole
    prompt = library.checkpoint.prompt
    greedy = [talk for talk in TALKS if talk.request.temperature == 0]
    expected = [
        library.reply(PICTURES[talk.image], prompt.format(talk.request.messages[0].text), talk.request.max_tokens)
        for talk in greedy
    ]
    assert [reply.text for reply in replies(load(folder), greedy)] == expected
    assert len(set(expected)) > 1


def test_a_reply_is_the_same_alone_and_in_a_batch(whole: tuple[Path, WholeModel]) -> None:
    model = load(whole[0], pair_batch=3)
    alone = [replies(model, [talk])[0].text for talk in TALKS]
    assert [reply.text for reply in replies(model, TALKS)] == alone
    assert [reply.text for reply in replies(model, TALKS[::-1])] == alone[::-1]


def test_a_conversation_goes_on_after_what_was_said(whole: tuple[Path, WholeModel]) -> None:
    folder, library = whole
    said = (Message("user", "Is it red?"), Message("assistant", "No"), Message("user", "What then?"))
    spoken = [{"role": message.role, "content": [{"type": "text", "text": message.text}]} for message in said]
    spoken[0]["content"].insert(0, {"type": "image"})
    if library.tokenizer.chat_template is None:  # PaliGemma's, which was trained on single questions
        prompt = "".join(message.text for message in said)
    else:
        prompt = str(library.tokenizer.apply_chat_template(spoken, tokenize=False, add_generation_prompt=True))
    (reply,) = replies(load(folder), [ImageRequest(0, Request(said, max_tokens=8))])
    assert reply.text == library.reply(PICTURES[0], prompt, 8)


def test_an_image_is_read_once_for_all_conversations_about_it(whole: tuple[Path, WholeModel]) -> None:
    model = load(whole[0])
    features = model.encode([model.preprocess(picture) for picture in PICTURES])
    found = [reply for reply in model.generate_from_images(features, TALKS) if isinstance(reply, Generation)]
    cached = {talk.image: 0 for talk in TALKS}
    for talk, reply in zip(TALKS, found, strict=True):
        assert reply.usage.calls == 1
        assert reply.usage.prompt_tokens > features[talk.image].tokens
        assert 0 < reply.usage.new_tokens <= talk.request.max_tokens
        cached[talk.image] += reply.usage.cached_tokens
    assert cached == {0: features[0].tokens, 1: 0, 2: 0, 3: 0}


def test_a_reply_is_cut_at_its_limit_and_says_so(whole: tuple[Path, WholeModel]) -> None:
    model = load(whole[0])
    longer, shorter = replies(model, [ask(0, "Describe it."), ask(0, "Describe it.", max_tokens=3)])
    assert longer.text.startswith(shorter.text.rstrip("\ufffd"))
    assert (shorter.complete, shorter.usage.new_tokens) == (False, 3)


def test_a_reply_ends_before_a_stop_string(whole: tuple[Path, WholeModel]) -> None:
    model = load(whole[0])
    (open_ended,) = replies(model, [ask(1, "Go on.", max_tokens=30)])
    stop = next(letter for letter in open_ended.text if letter.isascii())
    (stopped,) = replies(model, [ask(1, "Go on.", max_tokens=30, stop=("never said", stop))])
    assert (stopped.text, stopped.complete) == (open_ended.text.partition(stop)[0], True)


def test_a_seed_decides_what_is_drawn(whole: tuple[Path, WholeModel]) -> None:
    model = load(whole[0])
    drawn = replies(model, [ask(0, "Say.", temperature=1.0, seed=seed, max_tokens=8) for seed in (1, 1, 2, 3)])
    assert drawn[0].text == drawn[1].text
    assert len({reply.text for reply in drawn}) > 1


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 10}},
        "required": ["score"],
        "additionalProperties": False,
    }
)


def test_a_reply_that_has_a_schema_keeps_to_it_and_others_are_free(whole: tuple[Path, WholeModel]) -> None:
    model = load(whole[0])
    judged = [ask(0, "Rate it.", schema=SCHEMA, max_tokens=40), ask(2, "Rate it.", schema=SCHEMA, max_tokens=40)]
    judged.append(ask(1, "Rate it.", schema=SCHEMA, max_tokens=40, temperature=1.5, seed=2))
    *held, free = replies(model, [*judged, TALKS[0]])
    assert [0 <= json.loads(reply.text)["score"] <= 10 and reply.complete for reply in held] == [True] * 3
    assert held == [
        replies(model, [asked])[0]._replace(usage=reply.usage) for asked, reply in zip(judged, held, strict=True)
    ]
    assert free.text == replies(model, [TALKS[0]])[0].text
    (refused,) = model.generate_from_images(
        model.encode([model.preprocess(PICTURES[0])]), [ask(0, "Rate it.", schema='{"type": "nonsense"}')]
    )
    assert (refused.kind, refused.retryable) == ("request_refused", False)  # type: ignore[union-attr]


def test_a_conversation_beyond_the_context_has_its_reason_and_others_their_replies(
    whole: tuple[Path, WholeModel],
) -> None:
    model = load(whole[0])
    features = model.encode([model.preprocess(PICTURES[0])])
    long, placed, short = model.generate_from_images(
        features, [ask(0, "long " * 100), ask(0, f"a sign that says {model.prompts.image_mark}"), ask(0, "a?")]
    )
    assert (long.kind, long.retryable) == ("prompt_too_long", False)  # type: ignore[union-attr]
    assert (placed.kind, placed.retryable) == ("request_refused", False)  # type: ignore[union-attr]
    assert isinstance(short, Generation)


def test_no_conversations_have_no_replies(whole: tuple[Path, WholeModel]) -> None:
    assert load(whole[0]).generate_from_images([], []) == []
