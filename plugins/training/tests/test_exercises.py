"""CLIP-FlanT5 is trained on captions split in two, on questions phrased as at inference, and on people's ratings."""

from pathlib import Path
from random import Random

import pytest
import torch
from torch.nn.functional import cross_entropy

from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.networks.clip_flant5 import TEXT_AFTER_IMAGE, TEXT_BEFORE_IMAGE
from plumbline.operators.models.resolution import resolve_model
from plumbline.plugins.training.checkpoint import load_trainee
from plumbline.plugins.training.exercises import (
    Exercise,
    compute_exercise_loss,
    make_batch,
    make_question_exercise,
    make_rating_exercises,
    split_caption,
)
from plumbline.plugins.training.loop import StageTrainer, TrainingStage, train
from plumbline.plugins.training.trainee import Trainee, freeze_all_but

VQA_FOLDER = Path(__file__).parents[3] / "assets/clip-flant5-shapes"


@pytest.fixture
def trainee() -> Trainee:
    return load_trainee(
        resolve_model(make_model_config(family="clip_flant5", checkpoint=str(VQA_FOLDER)), on_gpu=False),
        torch.device("cpu"),
    )


def test_captions_are_split_before_any_word_and_keep_all_words() -> None:
    rng = Random(0)
    cut = {split_caption(3, "a red  circle", rng) for _ in range(40)}
    assert {(exercise.after, exercise.answer) for exercise in cut} == {
        ("\n", "a red circle"),
        ("\na", "red circle"),
        ("\na red", "circle"),
    }
    assert {(exercise.image, exercise.before) for exercise in cut} == {(3, "")}


def test_questions_are_phrased_as_at_inference() -> None:
    assert make_question_exercise(0, "Is it?", "No") == Exercise(
        0, TEXT_BEFORE_IMAGE, TEXT_AFTER_IMAGE.format(question="Is it?"), "No", 1.0
    )


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_loss_of_a_rating_is_the_cross_entropy_of_yes_and_no(trainee: Trainee, share: float) -> None:
    pixels = torch.zeros(1, 3, 48, 48)
    network, tokenizer = trainee.network.eval(), trainee.likelihood.tokenizer
    with torch.no_grad():
        loss = compute_exercise_loss(
            network, make_batch(tokenizer, pixels, make_rating_exercises(tokenizer, 0, "Is it?", share))
        )
        (yes, no) = (
            compute_exercise_loss(network, make_batch(tokenizer, pixels, [make_question_exercise(0, "Is it?", answer)]))
            for answer in ("Yes", "No")
        )
    assert loss.item() == pytest.approx(share**2 * yes.item() + (1 - share**2) * no.item(), rel=1e-5)


def test_with_equal_weights_the_loss_is_the_mean_over_all_tokens(trainee: Trainee) -> None:
    network, tokenizer = trainee.network.eval(), trainee.likelihood.tokenizer
    exercises = [split_caption(0, "a red circle at the top", Random(1)), split_caption(1, "two stars", Random(2))]
    batch = make_batch(tokenizer, torch.zeros(2, 3, 48, 48), exercises)
    with torch.no_grad():
        encoded = network.encode_questions(network.encode_images(batch.pixels)[batch.images], batch.before, batch.after)
        logits = network.decode(encoded, batch.labels)
        mean = cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=network.pad_id)
        assert compute_exercise_loss(network, batch).item() == pytest.approx(mean.item(), rel=1e-5)


def test_stage_1_only_trains_the_projector(trainee: Trainee) -> None:
    network = trainee.network
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    freeze_all_but(network, ["mm_projector"])
    batch = make_batch(
        trainee.likelihood.tokenizer, torch.rand(2, 3, 48, 48), [split_caption(1, "a red circle", Random(0))]
    )
    stage = TrainingStage(steps=1, peak=1e-2, size=2)
    train("captions", StageTrainer(network, stage), compute_exercise_loss, lambda step: batch, lambda line: None)
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(before[name], tensor)}
    assert changed == {name for name in before if name.startswith("mm_projector.")}
