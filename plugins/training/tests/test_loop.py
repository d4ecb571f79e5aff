"""The optimiser loop follows its learning rate schedule, and a resumed training equals an uninterrupted one."""

import pytest
import torch
from torch import nn

from plumbline.plugins.training.loop import Course, TrainingStage, alone, train

STAGE = TrainingStage(steps=6, peak=0.1, size=4, quick={"2.": 3.0})


def course(seed: str = "a") -> Course[nn.Sequential]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[2].bias.requires_grad_(False)
    return Course(model, STAGE, seed=seed)


def loss(model: nn.Sequential, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - 1).float().square().mean()


def batch_of(step: int) -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3) / 12 + step


def taken(training: Course[nn.Sequential]) -> dict[str, torch.Tensor]:
    train("test", training, loss, batch_of, lambda line: None)
    return {name: tensor.clone() for name, tensor in training.state().items()}


@pytest.mark.parametrize("ended_after", [1, 5])
def test_a_training_resumed_from_a_state_ends_with_the_same_weights_and_moments(ended_after: int) -> None:
    undisturbed = taken(course())
    states: list[dict[str, torch.Tensor]] = []
    first = course()

    def keep() -> None:
        states.append({name: tensor.clone() for name, tensor in first.state().items()})

    train("test", first, loss, batch_of, lambda line: None, after=keep)
    resumed = course()
    resumed.restore(states[ended_after - 1], ended_after)
    ended = taken(resumed)
    assert ended.keys() == undisturbed.keys() and any(name.startswith("optimiser.exp_avg") for name in ended)
    assert all(torch.equal(ended[name], tensor) for name, tensor in undisturbed.items())


def test_what_is_frozen_is_neither_trained_nor_in_the_state() -> None:
    training = course()
    bias = training.model[2].bias.clone()
    assert "weights.2.bias" not in taken(training)
    assert torch.equal(training.model[2].bias, bias)


def test_parameters_of_a_quick_name_take_longer_steps() -> None:
    training = course()
    before = [training.model[place].weight.detach().clone() for place in (0, 2)]
    training.take(loss, batch_of(0), alone)
    slow, quick = (
        (training.model[place].weight.detach() - weight).abs().max()
        for place, weight in zip((0, 2), before, strict=True)
    )
    assert quick / slow == pytest.approx(3.0, rel=0.05)


def test_what_is_dropped_out_follows_from_the_seed() -> None:
    assert torch.equal(taken(course())["weights.0.weight"], taken(course())["weights.0.weight"])
    assert not torch.equal(taken(course())["weights.0.weight"], taken(course("b"))["weights.0.weight"])


def test_gradients_and_losses_are_averaged_before_a_step_is_taken() -> None:
    lines: list[str] = []

    def nothing_to_learn(tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor.zero_()

    training = course()
    weights = training.model[0].weight.clone()
    stage = TrainingStage(steps=1, peak=0.1, size=4, decay=0.0)
    training.stage = stage
    training.optimiser.param_groups[0]["weight_decay"] = 0.0
    train("test", training, loss, batch_of, lines.append, average=nothing_to_learn)  # type: ignore[arg-type]
    assert torch.equal(training.model[0].weight, weights)
    assert lines[0].startswith("test: step 1 of 1, loss 0.0000, ")


def test_the_rate_warms_up_and_decays_to_its_final_share() -> None:
    stage = TrainingStage(steps=100, peak=1.0, size=1, final=0.0)
    rates = [stage.rate(step) for step in range(100)]
    assert max(rates) == pytest.approx(1.0) and rates[0] < 0.5 and rates[-1] < 0.01
