"""The optimiser loop follows its learning rate schedule, and a resumed run equals an uninterrupted one."""

import pytest
import torch
from torch import nn

from plumbline.plugins.training.loop import StageTrainer, TrainingStage, skip_averaging, train

TRAINING_STAGE = TrainingStage(steps=6, peak=0.1, size=4, quick={"2.": 3.0})


def make_trainer(seed: str = "a") -> StageTrainer[nn.Sequential]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[2].bias.requires_grad_(False)
    return StageTrainer(model, TRAINING_STAGE, seed=seed)


def compute_loss(model: nn.Sequential, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - 1).float().square().mean()


def make_batch(step: int) -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3) / 12 + step


def train_and_copy_state(training: StageTrainer[nn.Sequential]) -> dict[str, torch.Tensor]:
    train("test", training, compute_loss, make_batch, lambda line: None)
    return {name: tensor.clone() for name, tensor in training.collect_state().items()}


@pytest.mark.parametrize("ended_after", [1, 5])
def test_a_resumed_training_ends_with_the_same_weights_and_moments(ended_after: int) -> None:
    undisturbed = train_and_copy_state(make_trainer())
    states: list[dict[str, torch.Tensor]] = []
    first = make_trainer()

    def keep() -> None:
        states.append({name: tensor.clone() for name, tensor in first.collect_state().items()})

    train("test", first, compute_loss, make_batch, lambda line: None, after=keep)
    resumed = make_trainer()
    resumed.restore(states[ended_after - 1], ended_after)
    ended = train_and_copy_state(resumed)
    assert ended.keys() == undisturbed.keys() and any(name.startswith("optimiser.exp_avg") for name in ended)
    assert all(torch.equal(ended[name], tensor) for name, tensor in undisturbed.items())


def test_frozen_parameters_are_neither_trained_nor_saved() -> None:
    training = make_trainer()
    bias = training.model[2].bias.clone()
    assert "weights.2.bias" not in train_and_copy_state(training)
    assert torch.equal(training.model[2].bias, bias)


def test_parameters_listed_as_quick_have_a_higher_learning_rate() -> None:
    training = make_trainer()
    before = [training.model[place].weight.detach().clone() for place in (0, 2)]
    training.take_step(compute_loss, make_batch(0), skip_averaging)
    slow, quick = (
        (training.model[place].weight.detach() - weight).abs().max()
        for place, weight in zip((0, 2), before, strict=True)
    )
    assert quick / slow == pytest.approx(3.0, rel=0.05)


def test_dropout_depends_on_the_seed() -> None:
    assert torch.equal(
        train_and_copy_state(make_trainer())["weights.0.weight"],
        train_and_copy_state(make_trainer())["weights.0.weight"],
    )
    assert not torch.equal(
        train_and_copy_state(make_trainer())["weights.0.weight"],
        train_and_copy_state(make_trainer("b"))["weights.0.weight"],
    )


def test_gradients_and_losses_are_averaged_before_each_step() -> None:
    lines: list[str] = []

    def set_to_zero(tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor.zero_()

    training = make_trainer()
    weights = training.model[0].weight.clone()
    stage = TrainingStage(steps=1, peak=0.1, size=4, decay=0.0)
    training.stage = stage
    training.optimiser.param_groups[0]["weight_decay"] = 0.0
    train("test", training, compute_loss, make_batch, lines.append, average=set_to_zero)  # type: ignore[arg-type]
    assert torch.equal(training.model[0].weight, weights)
    assert lines[0].startswith("test: step 1 of 1, loss 0.0000, ")


def test_the_learning_rate_rises_and_then_decays_to_its_final_fraction() -> None:
    stage = TrainingStage(steps=100, peak=1.0, size=1, final=0.0)
    rates = [stage.compute_learning_rate(step) for step in range(100)]
    assert max(rates) == pytest.approx(1.0) and rates[0] < 0.5 and rates[-1] < 0.01
