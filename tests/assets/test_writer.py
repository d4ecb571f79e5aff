"""The question writer learns to write replies that the metrics can parse; the committed writer writes such replies."""

import json
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from plumbline.assets.making.accuracy import count_filtered_questions, measure_sheets, write_sheets
from plumbline.assets.making.claims import CountClaim
from plumbline.assets.making.lessons import (
    QUESTION_METRICS,
    REPLY_WRITERS,
    GoldWriter,
    Lesson,
    find_mentions,
    find_planted_claim,
)
from plumbline.assets.making.networks import WRITER_FOLDER, build_writer, resolve_checkpoint
from plumbline.assets.making.prompts import Prompt, is_held_out, make_prompts
from plumbline.assets.making.text_training import (
    TOKENIZER_PHRASES,
    IllustratedPrompt,
    compute_reply_loss,
    make_lesson_batches,
    make_lessons,
    sample_illustrated_prompt,
)
from plumbline.assets.making.tokens import build_writer_tokenizer, split_pieces
from plumbline.operators.models.loading import load
from plumbline.plugins.training.loop import StageTrainer, TrainingStage, train

ASSETS_FOLDER = Path(__file__).parents[2] / "assets"
WRITER_MODEL_FOLDER = ASSETS_FOLDER / "question-writer-shapes"
RETRAIN_MESSAGE = (
    "a metric's instructions changed: train the question writer again (make train ARGS=steps=[writer,accuracy])"
)


@cache
def sample_illustrated_prompts() -> list[IllustratedPrompt]:
    rng = Random("test writer")
    return [sample_illustrated_prompt(rng, held_out=index % 2 == 0) for index in range(200)]


@cache
def sample_lessons() -> list[Lesson]:
    rng = Random("test lessons")
    return [lesson for sample in sample_illustrated_prompts()[:60] for lesson in make_lessons(rng, sample)]


@cache
def load_tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(WRITER_MODEL_FOLDER)


def write_questions(prompt: Prompt, metric: str) -> list[str]:
    return [one.text for one in GoldWriter(prompt, plant=False).write(metric).questions]


def test_the_claims_of_a_prompt_are_the_requirements_that_nothing_else_presupposes() -> None:
    for prompt, scene in sample_illustrated_prompts():
        parents = {parent for node in prompt.requirements for parent in node.parents}
        assert prompt.holds(scene)
        assert [node.claim for node in prompt.requirements if node.requirement_id not in parents] == list(prompt.claims)
        assert {mention.claim for mention in find_mentions(prompt)} == {node.claim for node in prompt.requirements}


def test_every_requirement_has_its_own_words() -> None:
    for prompt, _ in sample_illustrated_prompts():
        mentioned = find_mentions(prompt)
        assert all(prompt.text[mention.start : mention.end] == mention.text for mention in mentioned)
        assert all(first.end <= second.start for first, second in pairwise(mentioned))


@pytest.mark.parametrize("metric", ["gecko", "tifa"])
def test_gecko_and_tifa_ask_about_every_requirement_in_the_order_of_the_text(metric: str) -> None:
    for prompt, _ in sample_illustrated_prompts():
        written = GoldWriter(prompt, plant=False).write(metric).questions
        assert len(written) == len(prompt.requirements)
        for one, mention in zip(written, find_mentions(prompt), strict=True):
            wanted = (
                f"How many {mention.claim.what.plural} are there?" if isinstance(mention.claim, CountClaim) else None
            )
            assert one.text == (wanted or mention.claim.question)
            assert one.span == mention.text and one.answer in one.choices and one.keep is not False
            assert metric == "tifa" or (one.start, one.end) == (mention.start, mention.end)


def test_dsg_asks_about_the_requirements_with_their_graph() -> None:
    for prompt, _ in sample_illustrated_prompts():
        written = GoldWriter(prompt).write("dsg").questions
        assert [one.text for one in written] == [node.claim.question for node in prompt.requirements]
        assert [one.parents for one in written] == [
            tuple(parent.removeprefix("r") for parent in node.parents) for node in prompt.requirements
        ]


def test_vq2_asks_questions_that_the_prompt_answers() -> None:
    for prompt, _ in sample_illustrated_prompts():
        written = GoldWriter(prompt).write("vq2").questions
        assert written and all(one.keep for one in written)
        assert all(one.span and one.span in prompt.text for one in written)
        assert len({one.text for one in written}) == len(written)


def test_planted_questions_are_about_things_that_the_prompt_does_not_name() -> None:
    prompts = make_prompts(0, 32)
    imagined = {prompt.text: claim for prompt in prompts if (claim := find_planted_claim(prompt.text))}
    assert 0.05 < len(imagined) / len(prompts) < 0.15
    for text, claim in imagined.items():
        assert str(claim.what.shape) not in text and str(claim.what.colour) not in text


@pytest.mark.parametrize("metric", ["gecko", "tifa"])
def test_a_planted_question_comes_last_and_only_tifas_filter_drops_it(metric: str) -> None:
    prompts = [prompt for prompt, _ in sample_illustrated_prompts() if find_planted_claim(prompt.text)]
    assert prompts
    for prompt in prompts:
        written = GoldWriter(prompt).write(metric).questions
        assert [one.text for one in written[:-1]] == write_questions(prompt, metric)
        assert [one.keep is False for one in written] == [False] * (len(written) - 1) + [metric == "tifa"]


def test_lessons_never_show_held_out_wordings() -> None:
    batches = islice(make_lesson_batches(load_tokenizer(), Random(1), 16), 4)
    texts = [load_tokenizer().decode(ids) for batch in batches for ids in batch.ids]
    described = [text.rpartition("Description:\n")[2].partition("\n")[0] for text in texts]
    assert described and not any(is_held_out(text) for text in described)


def test_the_pieces_of_a_text_join_to_the_text() -> None:
    text = "About {1}:\nQ: Is there a zebra?\n\nA:  42 é\n"
    pieces = split_pieces(text, TOKENIZER_PHRASES)
    assert "".join(pieces) == text and pieces[:3] == ["About {", "1", "}:\nQ: "]


def test_committed_tokenizer_reads_each_instruction_as_one_token() -> None:
    for instruction in REPLY_WRITERS:
        assert len(load_tokenizer()(instruction).input_ids) == 2, RETRAIN_MESSAGE
    longest = max(sample_lessons(), key=lambda lesson: len(lesson.text))
    assert len(load_tokenizer()(longest.text).input_ids) < 100, RETRAIN_MESSAGE


def test_committed_tokenizer_decodes_exactly_the_text_that_it_read() -> None:
    unknown = "  {1}[naïve zebra, x]\n\n\t'quoted' — 17 "
    for text in [unknown, *(one.reply for one in sample_lessons()), *(one.text for one in sample_lessons()[:50])]:
        ids = load_tokenizer()(text, add_special_tokens=False).input_ids
        assert load_tokenizer().decode(ids, skip_special_tokens=True) == text


def test_committed_tokenizer_knows_every_word_of_the_lessons() -> None:
    letters = set(load_tokenizer()("abcdefghijklmnopqrstuvwxyz", add_special_tokens=False).input_ids)
    article = load_tokenizer()("a", add_special_tokens=False).input_ids
    for one in sample_lessons():
        assert not (letters - set(article)) & set(load_tokenizer()(one.reply, add_special_tokens=False).input_ids)


def test_a_new_tokenizer_reads_each_instruction_as_one_token() -> None:
    made = build_writer_tokenizer(["a red circle\nReply:\n"], instructions=["Read this.\n\n"], phrases=["\nReply:\n"])
    ids = made("Read this.\n\na red circle\nReply:\n").input_ids
    assert [made.decode([token]) for token in ids] == ["<s>", "Read this.\n\n", "a", " red", " circle", "\nReply:\n"]


def test_only_the_tokens_of_replies_are_learnt() -> None:
    batch = next(make_lesson_batches(load_tokenizer(), Random(2), 8))
    for ids, labels in zip(batch.ids, batch.labels, strict=True):
        reply = labels[labels >= 0]
        assert reply[-1] == load_tokenizer().eos_token_id
        first = int((labels >= 0).nonzero()[0])
        assert ids[first + 1 : first + len(reply)].tolist() == reply[:-1].tolist()


def test_a_few_training_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    model = build_writer(load_tokenizer())
    batch = next(make_lesson_batches(load_tokenizer(), Random(3), 8))
    before = compute_reply_loss(model, batch).item()
    batches = make_lesson_batches(load_tokenizer(), Random(3), 8)
    stage = TrainingStage(steps=8, peak=2e-3, size=8)
    train("writer", StageTrainer(model, stage), compute_reply_loss, lambda step: next(batches), lambda line: None)
    assert compute_reply_loss(model, batch).item() < 0.95 * before


def test_committed_writer_loads_in_transformers_and_agrees_with_its_tokenizer_on_the_end_token() -> None:
    model = LlamaForCausalLM.from_pretrained(WRITER_MODEL_FOLDER)
    assert model.config.vocab_size == len(load_tokenizer())
    assert model.generation_config.eos_token_id == load_tokenizer().eos_token_id
    assert (WRITER_MODEL_FOLDER / "model.safetensors").stat().st_size <= 6_000_000


@pytest.mark.parametrize("metric", list(QUESTION_METRICS))
def test_committed_writer_asks_as_well_as_its_accuracy_file_says(metric: str) -> None:
    committed = json.loads((ASSETS_FOLDER / "accuracy.json").read_text())["writer"][metric]
    measured = measure_sheets(
        write_sheets(
            load(resolve_checkpoint(ASSETS_FOLDER, WRITER_FOLDER), "generate"), metric, make_prompts(0, 32)[:32]
        )
    )
    assert measured["read"] == 1.0, RETRAIN_MESSAGE
    assert measured["accuracy"] > committed["accuracy"] - 0.1, RETRAIN_MESSAGE


def test_committed_writer_imagines_planted_questions_and_its_own_filter_catches_them() -> None:
    prompts = [prompt for prompt in make_prompts(0, 32) if find_planted_claim(prompt.text)][:8]
    verdicts = count_filtered_questions(
        write_sheets(load(resolve_checkpoint(ASSETS_FOLDER, WRITER_FOLDER), "generate"), "tifa", prompts)
    )
    assert verdicts["planted"] == 8 and verdicts["written"] >= 6 and verdicts["caught"] >= 6
