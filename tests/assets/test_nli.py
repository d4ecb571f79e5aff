"""The entailment model learns which hypotheses follow, and the committed model detects made-up questions."""

import json
from pathlib import Path
from random import Random

import torch
from transformers import AutoTokenizer

from plumbline.assets.making.accuracy import measure_pairs, sample_held_out_pairs
from plumbline.assets.making.claims import Claim
from plumbline.assets.making.lessons import find_planted_claim, make_choice_question, make_yes_no_question
from plumbline.assets.making.networks import NLI_FOLDER, build_nli, resolve_checkpoint
from plumbline.assets.making.prompts import is_held_out, make_prompts
from plumbline.assets.making.scenes import edit_scene, sample_palette
from plumbline.assets.making.text_training import (
    compute_nli_loss,
    make_hypothesis,
    make_nli_batch,
    sample_entailed_claim,
    sample_illustrated_prompt,
    sample_pair,
    sample_unentailed_claim,
    vary_claim,
)
from plumbline.operators.models.loading import load
from plumbline.plugins.training.loop import StageTrainer, TrainingStage, train

ASSETS_FOLDER = Path(__file__).parents[2] / "assets"
NLI_MODEL_FOLDER = ASSETS_FOLDER / "nli-shapes"


def test_an_entailed_claim_holds_in_every_scene_in_which_the_prompt_does() -> None:
    rng = Random("entailed")
    for _ in range(200):
        prompt, scene = sample_illustrated_prompt(rng, held_out=False)
        claim = sample_entailed_claim(rng, prompt)
        scenes = [scene, *(edit_scene(rng, scene, sample_palette(rng)) for _ in range(20))]
        assert all(claim.holds(scene) for scene in scenes if prompt.holds(scene)), (prompt.text, claim)


def test_a_claim_that_is_not_entailed_is_never_a_requirement() -> None:
    rng = Random("not entailed")
    claims: list[Claim | None] = []
    for _ in range(200):
        illustrated = sample_illustrated_prompt(rng, held_out=False)
        claim = sample_unentailed_claim(rng, illustrated)
        assert claim not in {node.claim for node in illustrated.prompt.requirements}
        claims.append(claim)
    assert claims.count(None) < 10


def test_varying_a_claim_changes_it() -> None:
    rng = Random("vary")
    for _ in range(200):
        for node in sample_illustrated_prompt(rng, held_out=False).prompt.requirements:
            assert vary_claim(rng, node.claim) != node.claim


def test_half_of_the_pairs_are_entailed_and_none_mixes_training_with_held_out_wordings() -> None:
    rng = Random("pairs")
    for held_out in (True, False):
        pairs = [sample_pair(rng, held_out=held_out) for _ in range(200)]
        assert all(is_held_out(pair.premise) is held_out for pair in pairs)
        assert 70 < sum(pair.entailed for pair in pairs) < 130


def test_a_tokenized_pair_is_two_segments_of_known_words() -> None:
    tokenizer = AutoTokenizer.from_pretrained(NLI_MODEL_FOLDER)
    rng = Random("segments")
    for _ in range(50):
        pair = sample_pair(rng, held_out=True)
        tokens = tokenizer(pair.premise, pair.hypothesis)
        words = tokenizer.convert_ids_to_tokens(tokens.input_ids)
        assert words[0] == "[CLS]" and words.count("[SEP]") == 2 and words[-1] == "[SEP]"
        assert set(tokens.token_type_ids) == {0, 1}
        assert all(word.startswith(("▁", "[")) for word in words), words


def test_a_few_training_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(NLI_MODEL_FOLDER)
    model, rng = build_nli(tokenizer), Random(5)
    batch = make_nli_batch(tokenizer, rng, 64)
    before = compute_nli_loss(model, batch).item()
    stage = TrainingStage(steps=12, peak=1e-3, size=16)
    train(
        "nli",
        StageTrainer(model, stage),
        compute_nli_loss,
        lambda step: make_nli_batch(tokenizer, rng, stage.size),
        lambda line: None,
    )
    assert compute_nli_loss(model, batch).item() < before


def test_committed_model_judges_as_well_as_its_accuracy_file_says() -> None:
    committed = json.loads((ASSETS_FOLDER / "accuracy.json").read_text())["nli"]
    measured = measure_pairs(
        load(resolve_checkpoint(ASSETS_FOLDER, NLI_FOLDER), "entailment"), sample_held_out_pairs(1, 400)
    )
    assert abs(measured["accuracy"] - committed["accuracy"]) < 0.05
    assert (NLI_MODEL_FOLDER / "model.safetensors").stat().st_size <= 6_000_000


def test_committed_model_separates_planted_questions_from_implied_ones() -> None:
    model = load(resolve_checkpoint(ASSETS_FOLDER, NLI_FOLDER), "entailment")
    prompts = [prompt for prompt in make_prompts(0, 32) if find_planted_claim(prompt.text)]
    imagined = [
        (prompt.text, make_hypothesis(make_yes_no_question(claim)))
        for prompt in prompts
        if (claim := find_planted_claim(prompt.text))
    ]
    implied = [
        (prompt.text, make_hypothesis(make_choice_question(node.claim)))
        for prompt in prompts
        for node in prompt.requirements
    ]
    assert sum(p < 0.5 for p in model.entailment(imagined)) > 0.9 * len(imagined)
    assert sum(p > 0.5 for p in model.entailment(implied)) > 0.9 * len(implied)
