"""VQA models of "What makes a good metric?": a dual encoder that compares choices, and a blind language model."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel, LlamaForCausalLM

from plumbline.operators.errors import ConfigError, ModelError, RowError
from plumbline.operators.metrics.tifa import TifaConfig
from plumbline.operators.metrics.vqascore import VqaScoreConfig
from plumbline.operators.models.calls import LikelihoodModel, Message, Question, Request
from plumbline.operators.models.families import model_config
from plumbline.operators.models.families.causal_lm import TEXT_ONLY
from plumbline.operators.models.families.clip_flant5 import CLIP_FLANT5
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.cosine_vqa import COSINE, choice_text
from plumbline.operators.models.networks.text_only import TextOnlyVqa
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import sweep_config, write_benchmark
from tests.operators import tiny
from tests.operators.models.alike import CHOOSING, CLOSE, PICTURES, QUESTIONS, likelihoods, require_alike
from tests.operators.tiny import rewards

DUAL: dict[str, Callable[[Path], Path]] = {
    "clip": tiny.save_clip,
    "open_clip": rewards.save_open_clip,
    "siglip": rewards.save_siglip,
    "align": rewards.save_align,
}


def loaded(family: str, folder: Path, **options: Any) -> LikelihoodModel:
    return load(
        resolve_model(model_config(family=family, checkpoint=str(folder), **options), on_gpu=False), "likelihood"
    )


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_causal_lm(tmp_path_factory.mktemp("language"))


# CLIP


def test_clips_choices_are_weighed_by_the_softmax_of_their_scaled_cosines(clip: Path) -> None:
    model, tokenizer = CLIPModel.from_pretrained(clip).eval(), AutoTokenizer.from_pretrained(clip)
    processor = CLIPImageProcessorPil.from_pretrained(clip)
    for question, answer in zip(CHOOSING, likelihoods(loaded("clip", clip), PICTURES, CHOOSING), strict=True):
        texts = [f"{question.text.removesuffix('?')}? {choice}" for choice in question.choices]
        pixels = processor(images=PICTURES[question.image], return_tensors="pt").pixel_values
        with torch.no_grad():
            logits = [
                model(pixel_values=pixels, **tokenizer(text, return_tensors="pt")).logits_per_image[0, 0]
                for text in texts
            ]
        expected = torch.stack(logits).log_softmax(-1)
        assert answer == [[pytest.approx(float(logprob), abs=CLOSE), 0.0] for logprob in expected]


@pytest.mark.parametrize(
    ("question", "text"),
    [("is it red?", "is it red? no"), ("is it red? ", "is it red? no"), ("what is it", "what is it? no")],
)
def test_a_question_mark_stands_before_every_choice(question: str, text: str) -> None:
    assert choice_text(question, "no") == text


def test_a_choice_alone_or_one_that_would_be_cut_is_an_error(clip: Path) -> None:
    model = loaded("clip", clip)
    features = model.encode([model.preprocess(PICTURES[0])])
    long = "the red circle above the blue square left of a green star"
    asked = [Question(0, "is it red?", ("yes",)), Question(0, long, ("yes", "no")), CHOOSING[0]]
    alone, cut, sound = model.likelihood(features, asked)
    assert isinstance(alone, RowError) and (alone.kind, alone.retryable) == ("no_likelihood", False)
    assert isinstance(cut, RowError) and (cut.kind, cut.retryable) == ("prompt_too_long", False)
    assert isinstance(sound, list) and len(sound) == 2


def test_a_dual_encoder_has_no_words_of_its_own(clip: Path) -> None:
    model = loaded("clip", clip)
    replies = model.reply(model.encode([model.preprocess(PICTURES[0])]), CHOOSING[:2])
    assert [reply.kind for reply in replies if isinstance(reply, RowError)] == ["no_likelihood"] * 2


def test_vqascore_is_not_to_be_had_of_a_model_that_compares(clip: Path) -> None:
    config = model_config(family="clip", checkpoint=str(clip))
    assert find_vqa_profile(config) == COSINE
    with pytest.raises(ConfigError, match="says nothing of one alone; set normalise=yes_no"):
        VqaScoreConfig().settled(lambda role: find_vqa_profile(config))


def test_tifa_asks_for_the_likeliest_choice_where_there_are_no_words() -> None:
    metric = TifaConfig().settled(lambda role: COSINE)
    assert (metric.form, metric.roles) == ("likelihood", {"writer": "llm", "model": "vqa"})
    assert not metric.put("is it red?", ("yes", "no")).free
    assert TifaConfig().settled(lambda role: CLIP_FLANT5).form == "reply", "others answer in their own words"
    assert TifaConfig(answers="reply").settled(lambda role: COSINE).form == "reply"


# A language model


def test_a_blind_models_likelihoods_are_the_language_models_of_the_question_alone(language: Path) -> None:
    model, tokenizer = LlamaForCausalLM.from_pretrained(language).eval(), AutoTokenizer.from_pretrained(language)
    for question, answer in zip(
        QUESTIONS, likelihoods(loaded("causal_lm", language), PICTURES, QUESTIONS), strict=True
    ):
        turn = [{"role": "user", "content": question.text}]
        prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        start = len(tokenizer(prompt, add_special_tokens=False).input_ids)
        for choice, logprobs in zip(question.choices, answer, strict=True):
            ids = tokenizer(prompt + choice + "<|im_end|>", add_special_tokens=False, return_tensors="pt").input_ids
            with torch.no_grad():
                expected = model(ids).logits[0].log_softmax(-1)
            wanted = [float(expected[place - 1, ids[0, place]]) for place in range(start, ids.shape[1])]
            assert logprobs == pytest.approx(wanted, abs=CLOSE)


def test_a_blind_model_says_the_same_of_every_image(language: Path) -> None:
    model = loaded("causal_lm", language)
    asked = [Question(image, "Is it red?", ("Yes", "No")) for image in range(len(PICTURES))]
    answers = likelihoods(model, PICTURES, asked)
    assert all(answer == answers[0] for answer in answers)
    assert model.usage.calls == 2, "each choice is read once, however many images"


def test_a_blind_model_that_reads_padding_would_be_caught(language: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("causal_lm", language)
    assert isinstance(model, TextOnlyVqa)
    read = model._logits
    monkeypatch.setattr(model, "_logits", lambda ids, mask, keep: read(ids, torch.ones_like(mask), keep=keep))
    with pytest.raises(AssertionError):
        require_alike(model, "likelihood")


def test_without_a_chat_template_the_question_is_the_prompt(tmp_path: Path) -> None:
    folder = tiny.save_causal_lm(tmp_path, template=None)
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ((answer,),) = likelihoods(loaded("causal_lm", folder), PICTURES, [Question(0, "Is it red?", ("Yes",))])
    ids = tokenizer("Is it red? Yes<|im_end|>", return_tensors="pt").input_ids
    with torch.no_grad():
        expected = model(ids).logits[0].log_softmax(-1)
    start = len(tokenizer("Is it red?").input_ids)
    assert answer == pytest.approx(
        [float(expected[place - 1, ids[0, place]]) for place in range(start, ids.shape[1])], abs=CLOSE
    )


def test_a_blind_models_reply_is_what_it_would_generate(language: Path) -> None:
    model = loaded("causal_lm", language)
    assert isinstance(model, TextOnlyVqa)
    replies = model.reply([None] * 4, QUESTIONS)
    expected = model.language.generate([Request((Message("user", question.text),), 32) for question in QUESTIONS])
    assert replies == [reply if isinstance(reply, RowError) else reply.text.strip() for reply in expected]


def test_a_question_beyond_a_blind_model_is_an_error_and_costs_no_other(language: Path) -> None:
    model = loaded("causal_lm", language)
    asked = [Question(0, "red " * 200, ("Yes",)), QUESTIONS[0]]
    refused, answer = model.likelihood([None], asked)
    assert isinstance(refused, RowError) and (refused.kind, refused.retryable) == ("prompt_too_long", False)
    assert [answer] == likelihoods(model, PICTURES, QUESTIONS[:1])


def test_a_blind_model_that_thinks_first_is_refused(tmp_path: Path) -> None:
    folder = tiny.save_causal_lm(
        tmp_path, template=tiny.QWEN_TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    )
    with pytest.raises(ModelError, match="a thinking model"):
        loaded("causal_lm", folder)


def test_vqascore_asks_a_blind_model_for_one_token(language: Path) -> None:
    kind = find_vqa_profile(model_config(family="causal_lm", checkpoint=str(language)))
    assert kind == TEXT_ONLY
    assert VqaScoreConfig().settled(lambda role: kind).asks.reduction == "first"


# In sweeps


@pytest.mark.parametrize(
    ("model", "metrics"),
    [("clip_shapes", "gecko,tifa,dsg,vq2,vqascore_normalised"), ("question_writer_shapes", "gecko,tifa,dsg,vqascore")],
)
def test_the_metrics_run_with_either(tmp_path: Path, model: str, metrics: str) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=2)
    config = sweep_config(folder, tmp_path / "store", f"metric=[{metrics}]", f"model@models.vqa={model}")
    finished = run_sweep(plan_sweep(config), lambda progress: None)
    scores = finished.results.read_scores()
    assert len(scores) == 2 * len(metrics.split(","))
    assert scores.column("score").null_count == 0, finished.results.errors.to_pylist()
    assert all(0 <= score <= 1 for score in scores.column("score").to_pylist())


def test_a_sweep_of_vqascore_by_clip_is_refused_in_a_line(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=2)
    config = sweep_config(folder, tmp_path / "store", "metric=[vqascore]", "model@models.vqa=clip_shapes")
    with pytest.raises(
        ConfigError, match=re.escape("vqascore model: the role 'vqa' is a cosine model, which compares choices")
    ):
        plan_sweep(config)


def test_a_blind_model_on_vllm_is_refused_with_its_engine(tmp_path: Path) -> None:
    vqa = "models.vqa={family: causal_lm, checkpoint: owner/name, engine: vllm}"
    with pytest.raises(ConfigError, match=r"the role 'vqa' is a causal_lm on vllm$"):
        sweep_config(tmp_path, tmp_path / "store", "metric=[vqascore]", vqa)
