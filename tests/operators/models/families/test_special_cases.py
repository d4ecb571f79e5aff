"""Special cases of single model families behave as documented; test_families.py tests what they all have in common."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from plumbline.operators.base.errors import ConfigError, ModelError, RowError, UnprocessableRowError
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vpeval import VpevalConfig
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig, reduce_answer
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.models.calls import Call, DetectionRequest, Measure, Message, Pair, Question, Region, Request
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.families.clip_flant5 import CLIP_FLANT5_PROFILE
from plumbline.operators.models.families.image_to_text import parse_regions
from plumbline.operators.models.families.language_models import TEXT_ONLY_PROFILE, find_entailment_label
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.similarity import COSINE_PROFILE, format_choice
from plumbline.operators.models.networks.text_only import TextOnlyVqa
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.operators.stages.similarities import PromptTexts, SimilaritiesStage
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, write_benchmark
from tests.operators import tiny
from tests.operators.models.alike import CHOICE_QUESTIONS, IMAGES, MAX_DIFFERENCE, QUESTIONS, TEXTS, compute_likelihoods
from tests.operators.models.families import library
from tests.operators.models.families.test_families import require_equal_to_library
from tests.operators.stages.given import decode, make_options
from tests.operators.tiny import vqa_models
from tests.operators.tiny.families import KINDS


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that saves a kind of checkpoint once and returns its folder, which tests must not change."""
    torch.set_num_threads(1)
    saved: dict[str, Path] = {}

    def save_kind(name: str) -> Path:
        if name not in saved:
            saved[name] = KINDS[name].save(tmp_path_factory.mktemp(name) / name)
        return saved[name]

    return save_kind


def load_kind(name: str, folder: Path, call: Call, **options: Any) -> Any:
    config = make_model_config(family=KINDS[name].family, checkpoint=str(folder), **options)
    return load(resolve_model(config, on_gpu=False), call)


def read_profile(name: str, folder: Path) -> Any:
    return find_vqa_profile(make_model_config(family=KINDS[name].family, checkpoint=str(folder)))


def encode_images(model: Any) -> Any:
    return model.encode([model.preprocess(image) for image in IMAGES])


# Models that compare

KINDS_WITH_SHORT_CONTEXT = ("clip", "siglip", "siglip2_naflex", "align", "blip_itm", "blip2_itm", "imagereward")


@pytest.mark.parametrize("name", KINDS_WITH_SHORT_CONTEXT)
def test_a_text_beyond_the_context_is_truncated_and_reported(kinds: Callable[[str], Path], name: str) -> None:
    model, measure = load_kind(name, kinds(name), "similarity"), KINDS[name].measure
    long = " ".join(["red"] * (model.context + 1))
    rows = model.compare(encode_images(model), [Pair(0, text) for text in ("red", long, long + " circle")], measure)
    assert [row.truncated for row in rows] == [False, True, True]
    assert rows[1].similarity == pytest.approx(rows[2].similarity, abs=1e-5)


@pytest.mark.parametrize("name", ["siglip", "siglip2", "siglip2_naflex"])
def test_siglip_treats_capitals_as_in_training(kinds: Callable[[str], Path], name: str) -> None:
    model = load_kind(name, kinds(name), "similarity")
    small, large = model.encode_texts(["a red circle", "A Red CIRCLE"]).features
    torch.testing.assert_close(small, large)


FAINT_WEIGHT = 1e-3
"""Scale of image embeddings that is small enough for a layer norm's epsilon to matter."""


@pytest.mark.parametrize(
    ("name", "call", "measure"),
    [
        ("blip_itm", "similarity", "match"),
        ("blip_itm", "similarity", "cosine"),
        ("blip", "generate_from_images", "cosine"),
    ],
)
def test_a_blip_uses_the_released_epsilon(tmp_path: Path, name: str, call: Call, measure: Measure) -> None:
    folder = KINDS[name].save(tmp_path)
    weights = load_file(folder / "model.safetensors")
    faint = {
        name: tensor * FAINT_WEIGHT for name, tensor in weights.items() if name.startswith("vision_model.embeddings.")
    }
    assert len(faint) == 4
    save_file(weights | faint, folder / "model.safetensors", {"format": "pt"})
    require_equal_to_library(load_kind(name, folder, call), folder, name, call, measure)


def test_an_image_is_encoded_once_for_both_measures_and_each_text_with_the_image(
    kinds: Callable[[str], Path],
) -> None:
    model, counted = load_kind("blip_itm", kinds("blip_itm"), "similarity"), {"vision_model": 0, "text_encoder": 0}
    for name in counted:

        def count(module: Any, args: Any, kwargs: dict[str, Any], name: str = name) -> None:
            counted[name] += len(kwargs["pixel_values" if name == "vision_model" else "input_ids"])

        getattr(model.model, name).register_forward_pre_hook(count, with_kwargs=True)
    metrics = {"itm": SimilarityConfig(model="itm", measure="match"), "itc": SimilarityConfig(model="itm")}
    stage = SimilaritiesStage(metrics, {"model": model}, make_options())
    images = tiny.make_image_table([tiny.encode_image(image) for image in IMAGES], ["p", "q", "p", "q"])
    texts = {name: PromptTexts({"p": TEXTS[0], "q": TEXTS[1]}, metric) for name, metric in metrics.items()}
    tables = stage.measure(decode(stage, images), texts)
    assert counted == {"vision_model": len(IMAGES), "text_encoder": len(IMAGES) + 2}
    assert all(table.column("similarity").null_count == 0 for table in tables.values())
    assert tables["itm"] != tables["itc"]


# Detectors and captioners


@pytest.mark.parametrize("name", ["grounding_dino", "owlv2"])
def test_a_box_must_exceed_its_threshold_and_a_phrase_beyond_the_context_fails_alone(
    kinds: Callable[[str], Path], name: str
) -> None:
    model = load_kind(name, kinds(name), "detect")
    features = encode_images(model)
    (every,) = model.detect(features, [DetectionRequest(0, "Star", 0.0, 0.25)])
    scores = sorted(box.score for box in every)
    threshold = (scores[len(scores) // 2 - 1] + scores[len(scores) // 2]) / 2
    wanted = [DetectionRequest(0, "Star", threshold, 0.25), DetectionRequest(0, "dog " * 200, threshold, 0.25)]
    found, refused = model.detect(features, wanted)
    assert found == [box for box in every if box.score > threshold] and len(found) < len(every)
    assert (refused.kind, refused.retryable) == ("prompt_too_long", False)


def test_a_label_with_several_boxes_gives_several_regions() -> None:
    reply = "</s><s>a red car<loc_0><loc_500><loc_999><loc_999><loc_1><loc_2><loc_3><loc_4>sky <loc_9><loc_9></s><pad>"
    assert parse_regions(reply, 100, 200) == [Region("a red car", 0, 100, 99, 199), Region("a red car", 0, 0, 0, 0)]
    assert parse_regions("nothing", 10, 10) == parse_regions("", 10, 10) == []


def test_a_million_words_without_a_box_give_no_region() -> None:
    assert parse_regions("a red car " * 1_000_000, 10, 10) == []


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("florence2", {"auto_map": {"AutoModelForCausalLM": "modeling_florence2.Florence2"}}, "florence-community"),
        ("blip2", {"text_config": {"model_type": "opt"}}, "expected 'blip-2' with a T5 as its language model"),
        ("blip2_opt", {"text_config": {"model_type": "t5"}}, "a GitForCausalLM or a BLIP-2 with an OPT"),
    ],
)
def test_a_checkpoint_of_another_layout_is_refused_in_one_line(
    tmp_path: Path, name: str, fields: dict[str, Any], message: str
) -> None:
    folder = KINDS[name].save(tmp_path)
    tiny.edit_json(folder / "config.json", **fields)
    with pytest.raises(ModelError, match=message):
        resolve_model(make_model_config(family=KINDS[name].family, checkpoint=str(folder)), on_gpu=False)


# Models that answer questions

BLIP_KINDS = ("blip2", "instructblip", "blip_vqa")


@pytest.mark.parametrize("name", BLIP_KINDS)
def test_a_blip_replies_like_the_librarys_and_encodes_an_image_once(kinds: Callable[[str], Path], name: str) -> None:
    whole, model = library.WHOLE_MODELS[name](kinds(name)), load_kind(name, kinds(name), "likelihood")
    with torch.no_grad():
        expected = [whole.reply(question) for question in QUESTIONS]
    assert model.reply(encode_images(model), QUESTIONS) == expected and any(expected)
    shown: list[int] = []

    def count(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        shown.append(len(arguments[0] if arguments else named["pixel_values"]))

    model.model.vision_model.register_forward_pre_hook(count, with_kwargs=True)
    compute_likelihoods(model, IMAGES, [*QUESTIONS, *QUESTIONS])
    assert shown == [len(IMAGES)]


@pytest.mark.parametrize(
    ("name", "template", "reduction"),
    [
        ("instructblip", 'Question: Does this figure show "{}"? Please answer yes or no.', "mean"),
        ("blip2", 'Does this figure show "{}"? Please answer yes or no.', "mean"),
        ("blip_vqa", 'Does this figure show "{}"? Please answer yes or no.', "product"),
    ],
)
def test_vqascore_asks_each_kind_with_its_own_template(
    kinds: Callable[[str], Path], name: str, template: str, reduction: Any
) -> None:
    metric = VqaScoreConfig().complete_options(lambda role: read_profile(name, kinds(name)))
    assert metric.yes_question == (template, "yes", reduction)
    asked = Question(0, metric.question("a red star"), (metric.yes_question.answer,))
    ((answered,),) = compute_likelihoods(load_kind(name, kinds(name), "likelihood"), IMAGES, [asked])
    with torch.no_grad():
        whole = library.WHOLE_MODELS[name](kinds(name)).answer(Question(0, template.format("a red star"), ()), "yes")
    assert reduce_answer(answered, metric.yes_question.reduction) == pytest.approx(
        reduce_answer(whole, reduction), abs=MAX_DIFFERENCE
    )


@pytest.mark.parametrize("name", ["blip2", "instructblip"])
def test_the_flant5_has_a_separate_head_and_the_exact_gelu(kinds: Callable[[str], Path], name: str) -> None:
    model = load_kind(name, kinds(name), "likelihood")
    stored = load_file(kinds(name) / "model.safetensors")["language_model.lm_head.weight"]
    assert torch.equal(model.t5.lm_head.weight, stored)
    assert not torch.equal(model.t5.lm_head.weight, model.t5.shared.weight)
    assert type(model.t5.encoder.block[0].layer[1].DenseReluDense.act).__name__ == "GELUActivation"


@pytest.mark.parametrize("name", ["instructblip", "blip_vqa"])
def test_a_question_beyond_the_context_is_refused(kinds: Callable[[str], Path], name: str) -> None:
    with pytest.raises(UnprocessableRowError, match="the question takes"):
        compute_likelihoods(
            load_kind(name, kinds(name), "likelihood"), IMAGES, [Question(0, "a blue square " * 40, ("yes",))]
        )


def test_the_qformers_tokenizer_is_part_of_an_instructblips_identity(tmp_path: Path) -> None:
    folder = vqa_models.save_instructblip(tmp_path / "own")
    config = make_model_config(family="instructblip", checkpoint=str(folder))
    before = resolve_model(config, on_gpu=False).list_key_properties()
    (folder / "qformer_tokenizer" / "tokenizer.json").write_text("{}")
    assert resolve_model(config, on_gpu=False).list_key_properties() != before
    for file in (folder / "qformer_tokenizer").iterdir():
        file.unlink()
    with pytest.raises(ModelError, match=r"no qformer_tokenizer/tokenizer\.json"):
        resolve_model(config, on_gpu=False)


@pytest.mark.parametrize(
    ("vqa", "metrics"),
    [
        *((name, "vqascore,gecko,tifa,dsg") for name in BLIP_KINDS),
        ("clip_shapes", "gecko,tifa,dsg,vq2,vqascore_normalised"),
        ("question_writer_shapes", "gecko,tifa,dsg,vqascore"),
    ],
)
def test_metrics_with_every_kind_of_question_run_with_each_model(
    kinds: Callable[[str], Path], tmp_path: Path, vqa: str, metrics: str
) -> None:
    own = (
        f"models.vqa={{family: {vqa}, checkpoint: '{kinds(vqa)}'}}" if vqa in BLIP_KINDS else f"model@models.vqa={vqa}"
    )
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=2)
    config = make_sweep_config(folder, tmp_path / "store", f"metric=[{metrics}]", own)
    finished = run_sweep(plan_sweep(config), lambda progress: None)
    scores = finished.results.read_scores().column("score").to_pylist()
    assert len(scores) == 2 * len(metrics.split(",")) and None not in scores, finished.results.read_errors().to_pylist()
    assert all(0 <= score <= 1 for score in scores)


# A dual encoder as a VQA model


@pytest.mark.parametrize(
    ("question", "text"),
    [("is it red?", "is it red? no"), ("is it red? ", "is it red? no"), ("what is it", "what is it? no")],
)
def test_a_question_mark_comes_before_every_choice(question: str, text: str) -> None:
    assert format_choice(question, "no") == text


def test_a_dual_encoder_refuses_single_choices_too_long_questions_and_free_replies(
    kinds: Callable[[str], Path],
) -> None:
    model = load_kind("clip", kinds("clip"), "likelihood")
    long = "the red circle above the blue square left of a green star"
    asked = [Question(0, "is it red?", ("yes",)), Question(0, long, ("yes", "no")), CHOICE_QUESTIONS[0]]
    alone, cut, sound = model.likelihood(encode_images(model), asked)
    assert [(one.kind, one.retryable) for one in (alone, cut)] == [("no_likelihood", False), ("prompt_too_long", False)]
    assert isinstance(sound, list) and len(sound) == 2
    assert [reply.kind for reply in model.reply(encode_images(model), CHOICE_QUESTIONS[:2])] == ["no_likelihood"] * 2


def test_metrics_ask_a_dual_encoder_only_questions_that_it_can_answer(
    kinds: Callable[[str], Path], tmp_path: Path
) -> None:
    assert read_profile("clip", kinds("clip")) == COSINE_PROFILE
    with pytest.raises(ConfigError, match="cannot score a single answer; set normalise=yes_no"):
        VqaScoreConfig().complete_options(lambda role: COSINE_PROFILE)
    metric = TifaConfig().complete_options(lambda role: COSINE_PROFILE)
    assert (metric.form, metric.roles) == ("likelihood", {"writer": "llm", "model": "vqa"})
    assert not metric.make_vqa_prompt("is it red?", ("yes", "no")).free
    assert TifaConfig().complete_options(lambda role: CLIP_FLANT5_PROFILE).form == "reply", (
        "other models answer in free text"
    )
    for metric_in_words in (TifaConfig(answers="reply"), DsgConfig(answers="reply"), VpevalConfig(answers="reply")):
        with pytest.raises(ConfigError, match="cannot reply in words; set answers=likelihood"):
            metric_in_words.complete_options(lambda role: COSINE_PROFILE)
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=2)
    config = make_sweep_config(folder, tmp_path / "store", "metric=[vqascore]", "model@models.vqa=clip_shapes")
    with pytest.raises(ConfigError, match="vqascore model: the model for role 'vqa' is a cosine model, which compares"):
        plan_sweep(config)


# A language model that never sees the image


def test_a_blind_model_gives_the_same_answer_for_every_image(kinds: Callable[[str], Path]) -> None:
    model = load_kind("causal_lm", kinds("causal_lm"), "likelihood")
    asked = [Question(image, "Is it red?", ("Yes", "No")) for image in range(len(IMAGES))]
    answers = compute_likelihoods(model, IMAGES, asked)
    assert all(answer == answers[0] for answer in answers)
    assert model.usage.calls == 2, "each choice is read once, however many images"


def test_a_blind_model_without_a_chat_template_reads_only_the_question(tmp_path: Path) -> None:
    folder = tiny.save_causal_lm(tmp_path, template=None)
    require_equal_to_library(load_kind("causal_lm", folder, "likelihood"), folder, "causal_lm", "likelihood")


def test_a_blind_models_reply_equals_that_of_its_language_model(kinds: Callable[[str], Path]) -> None:
    model = load_kind("causal_lm", kinds("causal_lm"), "likelihood")
    assert isinstance(model, TextOnlyVqa)
    expected = model.language.generate([Request((Message("user", question.text),), 32) for question in QUESTIONS])
    assert model.reply([None] * 4, QUESTIONS) == [
        reply if isinstance(reply, RowError) else reply.text.strip() for reply in expected
    ]


def test_a_question_beyond_a_blind_models_context_only_fails_itself(kinds: Callable[[str], Path]) -> None:
    model = load_kind("causal_lm", kinds("causal_lm"), "likelihood")
    refused, answer = model.likelihood([None], [Question(0, "red " * 200, ("Yes",)), QUESTIONS[0]])
    assert (refused.kind, refused.retryable) == ("prompt_too_long", False)
    assert [answer] == compute_likelihoods(model, IMAGES, QUESTIONS[:1])


def test_a_blind_model_that_thinks_or_runs_on_vllm_is_refused(tmp_path: Path) -> None:
    thinking = tiny.QWEN_TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    with pytest.raises(ModelError, match="a thinking model"):
        load_kind("causal_lm", tiny.save_causal_lm(tmp_path / "thinking", template=thinking), "likelihood")
    vqa = ("models.vqa.family=causal_lm", "models.vqa.checkpoint=owner/name", "+models.vqa.engine=vllm")
    with pytest.raises(ConfigError, match=r"the model for role 'vqa' is a causal_lm on vllm; use such a model$"):
        make_sweep_config(tmp_path, tmp_path / "store", "metric=[vqascore]", *vqa)


def test_vqascore_asks_a_blind_model_for_one_token(kinds: Callable[[str], Path]) -> None:
    assert read_profile("causal_lm", kinds("causal_lm")) == TEXT_ONLY_PROFILE
    assert VqaScoreConfig().complete_options(lambda role: TEXT_ONLY_PROFILE).yes_question.reduction == "first"


def test_a_blind_t5_gives_the_same_answer_and_reply_for_every_image(kinds: Callable[[str], Path]) -> None:
    model = load_kind("text_only_t5", kinds("text_only_t5"), "likelihood")
    asked = [Question(image, text, ("yes", "no")) for image in range(len(IMAGES)) for text in ("Is it red?", "Is it?")]
    answers = compute_likelihoods(model, IMAGES, asked)
    assert answers[::2] == [answers[0]] * len(IMAGES) and answers[0] != answers[1]
    assert model.usage.calls == 4, "each choice is read once, however many images"
    with torch.no_grad():
        ids = model.tokenizer(["Is it red?"], return_tensors="pt").input_ids
        said = model.model.generate(input_ids=ids, max_new_tokens=32, do_sample=False)
    expected = model.tokenizer.decode(said[0], skip_special_tokens=True).strip()
    assert model.reply([None] * 4, asked[::2]) == [expected] * len(IMAGES)


# Entailment


@pytest.mark.parametrize("labels", [("entailment", "not_entailment"), ("not_entailment", "Entailment")])
def test_an_nli_model_with_only_two_labels_is_accepted(tmp_path: Path, labels: Sequence[str]) -> None:
    folder, pair = tiny.save_nli(tmp_path, labels=labels), ("a red circle", "a circle")
    label = [name.lower() for name in labels].index("entailment")
    with torch.no_grad():
        expected = library.score_by_label(folder, pair, "cosine", label).numbers
    assert load_kind("cross_encoder", folder, "entailment").entailment([pair]) == pytest.approx(expected, abs=1e-5)


def test_a_premise_beyond_the_context_of_a_t5_is_truncated_and_the_hypothesis_is_not(tmp_path: Path) -> None:
    folder, premise = tiny.save_true_nli(tmp_path), "red circle " * 10
    tiny.edit_json(folder / "tokenizer_config.json", model_max_length=40)
    found = load_kind("t5", folder, "entailment").entailment([(premise, "a star")])
    kept = premise[: 40 - len("premise:  hypothesis: a star")]
    with torch.no_grad():
        assert found == pytest.approx(library.score_by_token(folder, (kept, "a star"), "cosine").numbers, rel=1e-3)


@pytest.mark.parametrize("name", ["cross_encoder", "t5"])
def test_empty_texts_get_a_probability(kinds: Callable[[str], Path], name: str) -> None:
    (found,) = load_kind(name, kinds(name), "entailment").entailment([("", "")])
    assert 0 <= found <= 1


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["contradiction", "neutral", "ENTAILMENT"], 2),
        (["entailment", "not_entailment"], 0),
        (["LABEL_0", "LABEL_1"], None),
        (["not_entailment", "non-entailment"], None),
        (["entailment", "Entailment"], None),
    ],
)
def test_the_entailment_label_is_found_by_its_name(labels: Sequence[str], expected: int | None) -> None:
    assert find_entailment_label({str(index): label for index, label in enumerate(labels)}) == expected


def test_a_tokenizer_that_cannot_separate_1_from_0_is_refused(tmp_path: Path) -> None:
    folder = tiny.save_true_nli(tmp_path)
    tiny.save_tokenizer(folder, template="$A </s>")
    with pytest.raises(ModelError, match="`1` and `0` begin with the same token"):
        load_kind("t5", folder, "entailment")


def test_a_t5_whose_config_ties_its_head_needs_no_head(tmp_path: Path) -> None:
    folder = tiny.save_true_nli(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"do not fit its config\.json: lm_head\.weight is missing"):
        load_kind("t5", folder, "entailment")
    tiny.edit_json(folder / "config.json", tie_word_embeddings=True)
    assert len(load_kind("t5", folder, "entailment").entailment([("a", "b")])) == 1


# Sentences

SENTENCES = ["a red circle", "star", "two blue star left of a green square", "circle " * 30, "unheard , of", ""]


def test_the_shorter_limit_of_sentence_transformers_applies(tmp_path: Path) -> None:
    folder = tiny.save_sentence_encoder(tmp_path)
    assert load_kind("sentences", folder, "embedding").encode_texts(SENTENCES).truncated == [False] * 3 + [
        True,
        False,
        False,
    ]
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 6}))
    texts = load_kind("sentences", folder, "embedding").encode_texts(SENTENCES)
    assert texts.truncated == [False, False, True, True, False, False]
    with torch.no_grad():
        expected = library.embed_text(folder, SENTENCES[2], "cosine", context=6).numbers
    assert texts.features[2].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_sentence_encoder_needs_no_pooler(tmp_path: Path) -> None:
    folder = tiny.save_sentence_encoder(tmp_path)
    expected = load_kind("sentences", folder, "embedding").encode_texts(SENTENCES).features
    weights = load_file(folder / "model.safetensors")
    del weights["pooler.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load_kind("sentences", folder, "embedding").encode_texts(SENTENCES).features, expected)


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, True),
        ({"pooling_mode": "mean"}, True),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, False),
        ({"pooling_mode": "cls"}, False),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, False),
    ],
)
def test_a_checkpoint_that_pools_in_another_way_is_refused(
    tmp_path: Path, fields: dict[str, Any], accepted: bool
) -> None:
    folder = tiny.save_sentence_encoder(tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))
    config = make_model_config(family="sentences", checkpoint=str(folder))
    if accepted:
        resolve_model(config, on_gpu=False)
    else:
        with pytest.raises(ModelError, match="does not use mean pooling"):
            resolve_model(config, on_gpu=False)
