"""The embedded models get the same input in training as in sweeps, and sweeps can load the committed checkpoints."""

import io
import json
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPModel

from plumbline.assets.making.accuracy import measure_judge, measure_order, measure_vqa, sample_held_out_questions
from plumbline.assets.making.claims import SKILLS, Description, ExistenceClaim
from plumbline.assets.making.networks import (
    JUDGE_FOLDER,
    VQA_FOLDER,
    build_clip_flant5,
    draw_pixels,
    make_image_processor,
    resolve_checkpoint,
)
from plumbline.assets.making.pair_training import (
    JUDGE_CONFIG,
    SCENES_PER_PROMPT,
    ContestMaker,
    compute_contest_loss,
    find_right_choice,
    sample_hard_contest,
)
from plumbline.assets.making.prompts import Prompt
from plumbline.assets.making.scenes import Entity, Scene, draw_scene, sample_scene, to_png
from plumbline.assets.making.tokens import make_clip_tokenizer, make_t5_tokenizer, write_sentences
from plumbline.assets.making.vqa_training import (
    CELL_LABELS,
    QUESTION_MIXTURES,
    ExerciseMaker,
    QuestionMixture,
    compute_max_entities,
    label_cells,
    make_training_questions,
)
from plumbline.operators.models.calls import Question
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.clip_flant5 import TEXT_BEFORE_IMAGE
from plumbline.operators.models.pixels import make_pixel_input
from plumbline.operators.models.processing import PixelTransform
from plumbline.plugins.training.exercises import TRAINED_PARTS, compute_exercise_loss
from plumbline.plugins.training.loop import StageTrainer, TrainingStage, train
from plumbline.plugins.training.trainee import freeze_all_but

PLACED_SHAPES = (("heart", (0, 0)), ("star", (2, 1)))
ASSETS_FOLDER = Path(__file__).parents[2] / "assets"


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return write_sentences(0)


def test_training_pixels_equal_the_pixels_of_a_decoded_png() -> None:
    transform = PixelTransform(make_image_processor(), pad_to_square=True)
    scenes = [sample_scene(Random(seed)) for seed in range(5)]
    seeds = Random(1)
    for scene, pixels in zip(scenes, draw_pixels(Random(1), scenes), strict=True):
        png = to_png(draw_scene(scene, seeds.getrandbits(32)))
        shown = transform(Image.open(io.BytesIO(png)).convert("RGB"))
        assert torch.equal(pixels, make_pixel_input(transform, device="cpu", dtype=torch.float32)([shown[None]])[0])


def test_a_chunk_keeps_its_end_of_sequence_token_and_fixed_phrases_are_single_tokens(sentences: list[str]) -> None:
    tokenizer = make_t5_tokenizer(sentences)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert len(tokenizer(TEXT_BEFORE_IMAGE).input_ids) == 4
    yes = tokenizer("Yes").input_ids
    assert len(yes) == 2 and yes[-1] == 1


def test_every_word_of_the_world_is_one_token_and_unknown_words_are_spelt_out(sentences: list[str]) -> None:
    tokenizer = make_t5_tokenizer(sentences)
    text = "two large red circles with a stripe to the left of every heart"
    assert len(tokenizer(text).input_ids) == len(text.split()) + 1
    zebra = tokenizer("zebra").input_ids
    assert len(zebra) > 3 and tokenizer.unk_token_id not in zebra


def test_clip_pools_at_the_token_that_ends_a_text(sentences: list[str]) -> None:
    tokenizer = make_clip_tokenizer(sentences)
    ids = tokenizer("a red circle").input_ids
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, 2}) == 3


def test_grid_cells_are_labelled_with_the_entities_in_them() -> None:
    entity = Entity(shape="star", colour="blue", size="small", part=None, cell=(1, 2))
    labels = label_cells([Scene(entities=(entity,))])
    read = {field: [CELL_LABELS[field][index] for index in labels[field][0].tolist()] for field in CELL_LABELS}
    assert (read["shape"][5], read["colour"][5], read["part"][5]) == ("star", "blue", "plain")
    assert read["shape"].count("empty") == 8


def test_a_few_caption_steps_lower_the_loss_and_leave_the_tower_unchanged(sentences: list[str]) -> None:
    torch.manual_seed(0)
    tokenizer = make_t5_tokenizer(sentences)
    model = build_clip_flant5(tokenizer)
    freeze_all_but(model, TRAINED_PARTS)
    tower = {name: tensor.clone() for name, tensor in model.vision_tower.state_dict().items()}
    maker, stage = ExerciseMaker(tokenizer, Random(2)), TrainingStage(steps=8, peak=2e-3, size=4, each=2)
    batch = maker.make_captions(stage, 0)
    before = compute_exercise_loss(model, batch).item()
    train(
        "captions",
        StageTrainer(model, stage),
        compute_exercise_loss,
        partial(maker.make_captions, stage),
        lambda line: None,
    )
    assert compute_exercise_loss(model, batch).item() < 0.9 * before
    assert all(torch.equal(tower[name], tensor) for name, tensor in model.vision_tower.state_dict().items())


def test_two_heads_attend_to_the_words_before_and_after_from_the_first_step(sentences: list[str]) -> None:
    torch.manual_seed(0)
    attention = build_clip_flant5(make_t5_tokenizer(sentences)).language_model.encoder.block[0].layer[0].SelfAttention
    before, after = attention.compute_bias(6, 6)[0, :2].argmax(-1).tolist()
    assert before[1:] == [0, 1, 2, 3, 4] and after[:-1] == [1, 2, 3, 4, 5]


def test_the_first_lesson_asks_where_two_things_are_in_the_order_of_their_names() -> None:
    things = [Entity(shape=shape, colour="red", size="small", part=None, cell=cell) for shape, cell in PLACED_SHAPES]
    scene = Scene(entities=tuple(things))
    asked = [
        question
        for question in make_training_questions(Random(0), scene, QUESTION_MIXTURES["place"], 40)
        if "Where are" in question.text
    ]
    answers = {
        tuple(
            shape for shape, _ in sorted(PLACED_SHAPES, key=lambda placed: question.text.index(placed[0]))
        ): question.answer
        for question in asked
    }
    assert answers == {("heart", "star"): "top left and bottom", ("star", "heart"): "bottom and top left"}


def test_a_scene_without_anything_to_ask_about_has_no_questions() -> None:
    alone = Scene(entities=(Entity(shape="star", colour="red", size="small", part=None, cell=(0, 0)),))
    assert (
        make_training_questions(Random(0), alone, QuestionMixture(forms={"open": 1}, topics={"relation": 1}), 4) == []
    )


def test_learning_rate_warms_up_and_decays_and_scenes_grow() -> None:
    stage = TrainingStage(steps=100, peak=1.0, size=1)
    rates = [stage.compute_learning_rate(step) for step in range(100)]
    assert max(rates) == pytest.approx(1.0) and rates[0] < 0.5 and rates[-1] < 0.1
    assert [compute_max_entities(stage, step) for step in (0, 15, 30, 99)] == [2, 4, 6, 6]


def test_committed_clip_loads_in_transformers_and_agrees_with_its_tokenizer() -> None:
    model = CLIPModel.from_pretrained(ASSETS_FOLDER / "clip-shapes")
    tokenizer = AutoTokenizer.from_pretrained(ASSETS_FOLDER / "clip-shapes")
    text = model.config.text_config
    assert model.dtype == torch.float32
    assert (text.pad_token_id, text.bos_token_id, text.eos_token_id) == (
        tokenizer.pad_token_id,
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    )
    assert text.vocab_size == len(tokenizer)


def test_committed_vqa_model_answers_as_well_as_its_accuracy_file_says() -> None:
    committed = json.loads((ASSETS_FOLDER / "accuracy.json").read_text())["vqa"]
    model = load(resolve_checkpoint(ASSETS_FOLDER, VQA_FOLDER), "likelihood")
    measured = measure_vqa(model, sample_held_out_questions(1, 30))
    assert measured.keys() == committed.keys()
    mean = [sum(share["accuracy"] for share in shares.values()) / len(shares) for shares in (measured, committed)]
    assert abs(mean[0] - mean[1]) < 0.05


def test_committed_vqa_model_distinguishes_word_orders_as_its_accuracy_file_says() -> None:
    committed = json.loads((ASSETS_FOLDER / "accuracy.json").read_text())["order"]
    measured = measure_order(load(resolve_checkpoint(ASSETS_FOLDER, VQA_FOLDER), "likelihood"), 1, 60)
    assert abs(measured["told_apart"] - committed["told_apart"]) < 0.1
    assert abs(measured["right"] - committed["right"]) < 0.1


def test_the_better_scene_breaks_fewer_requirements() -> None:
    things = {
        shape: Entity(shape=shape, colour="red", size="small", part=None, cell=cell) for shape, cell in PLACED_SHAPES
    }
    both, heart, neither = (
        Scene(entities=tuple(things[shape] for shape in shapes)) for shapes in (("heart", "star"), ("heart",), ())
    )
    prompt = Prompt(
        text="a heart and a star",
        skill="object",
        claims=(ExistenceClaim(Description(shape="heart")), ExistenceClaim(Description(shape="star"))),
    )
    shown = [(both, heart), (neither, heart), (both, both), (heart, heart)]
    assert [find_right_choice(prompt, *pair) for pair in shown] == ["first", "second", "tie", "neither"]


def test_the_judge_reads_the_metrics_wording_as_two_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ASSETS_FOLDER / JUDGE_FOLDER)
    assert len(tokenizer(JUDGE_CONFIG.question("a circle")).input_ids) == 5, (
        "train the judge again after a change of wording"
    )
    assert [len(tokenizer(letter).input_ids) for letter in JUDGE_CONFIG.letters] == [2] * 4


def test_the_judges_training_lowers_the_loss_of_its_answers_in_sweeps() -> None:
    judge = load(resolve_checkpoint(ASSETS_FOLDER, JUDGE_FOLDER), "likelihood")
    contests = [sample_hard_contest(Random(seed), SKILLS[seed]) for seed in range(2)]
    drawn = iter(contests)
    maker = ContestMaker(judge.tokenizer, Random(3), lambda rng, skill: next(drawn))
    batch = maker.make_batch(TrainingStage(steps=1, peak=0.0, size=2 * SCENES_PER_PROMPT))
    with torch.no_grad():
        loss = compute_contest_loss(judge.model, batch).item()
    questions = [
        Question(
            number,
            JUDGE_CONFIG.question(contests[first // SCENES_PER_PROMPT].prompt.text),
            (judge.tokenizer.decode(labels, skip_special_tokens=True),),
        )
        for number, ((first, _), labels) in enumerate(zip(batch.shown.tolist(), batch.labels, strict=True))
    ]
    features = judge.encode([batch.pixels[shown] for shown in batch.shown])
    found = [sum(tokens) / len(tokens) for (tokens,) in judge.likelihood(features, questions)]
    assert loss == pytest.approx(-sum(found) / len(found), abs=0.02), "training rounds to bfloat16"


def test_committed_judge_answers_as_well_as_its_accuracy_file_says() -> None:
    committed = json.loads((ASSETS_FOLDER / "accuracy.json").read_text())["judge"]
    measured = measure_judge(load(resolve_checkpoint(ASSETS_FOLDER, JUDGE_FOLDER), "likelihood"), 1, 40)
    means = [
        sum(share["accuracy"] for share in result["by_skill"].values()) / len(result["by_skill"])
        for result in (measured, committed)
    ]
    assert abs(means[0] - means[1]) < 0.08
    for name in ("better_image", "same_in_both_orders"):
        assert abs(measured[name]["accuracy"] - committed[name]["accuracy"]) < 0.08
