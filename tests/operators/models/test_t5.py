"""Our FlanT5 computation returns the same logits as transformers' own forward pass, with less work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import T5Config
from transformers import T5ForConditionalGeneration as T5
from transformers.modeling_outputs import BaseModelOutput

from plumbline.operators.models.networks.encoder_decoder import (
    EncodedQuestions,
    compute_choice_logits,
    encode,
    fuse_kernels,
)
from tests.releases import is_older

N_LAYERS, WIDTH, INPUT_LENGTHS = 3, 32, (21, 15, 19)
CHOICE_TOKENS = [[[5, 1], [7, 8, 9, 1]], [[4, 1]], [[3, 1], [6, 2, 1], [9, 1]]]


@pytest.fixture(params=[True, False], ids=["own head", "tied head"])
def t5(request: pytest.FixtureRequest) -> T5:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=99, d_model=WIDTH, d_kv=8, d_ff=40, num_layers=N_LAYERS, num_heads=4, feed_forward_proj="gated-gelu",
        scale_decoder_outputs=not request.param, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = T5(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def encoded_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    mask = (torch.arange(max(INPUT_LENGTHS)) < torch.tensor(INPUT_LENGTHS)[:, None]).long()
    return torch.randn(len(INPUT_LENGTHS), max(INPUT_LENGTHS), WIDTH, generator=torch.Generator().manual_seed(1)), mask


def compute_with_transformers(t5: T5, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the logits of every choice, computed separately by transformers."""
    states = t5.encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
    logits = []
    for row, choices in enumerate(CHOICE_TOKENS):
        for choice in choices:
            output = t5(
                encoder_outputs=BaseModelOutput(last_hidden_state=states[row : row + 1]),
                attention_mask=mask[row : row + 1],
                decoder_input_ids=torch.tensor([[0, *choice[:-1]]]),
                use_cache=False,
            )
            logits.append(output.logits[0])
    return torch.cat(logits)


@torch.inference_mode()
@pytest.mark.parametrize("alignment", [1, 16])
def test_logits_equal_those_of_transformers(
    t5: T5, encoded_inputs: tuple[torch.Tensor, torch.Tensor], alignment: int
) -> None:
    expected = compute_with_transformers(t5, *encoded_inputs)
    torch.testing.assert_close(
        compute_choice_logits(t5, encode(t5, *encoded_inputs, alignment=alignment), CHOICE_TOKENS), expected
    )
    fuse_kernels(t5)
    encoded = encode(t5, *encoded_inputs, alignment=alignment)
    assert encoded.states.shape[1] % alignment == 0
    torch.testing.assert_close(compute_choice_logits(t5, encoded, CHOICE_TOKENS), expected)


NEEDS_FUSED_ATTENTION = pytest.mark.skipif(is_older("5.16"), reason="transformers computes T5's attention step by step")


def count_calls(name: str, run: Callable[[], object]) -> int:
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return sum(event.count for event in seen.key_averages() if event.key == name)


@NEEDS_FUSED_ATTENTION
def test_the_mask_is_made_once_and_not_in_every_layer(
    t5: T5, encoded_inputs: tuple[torch.Tensor, torch.Tensor]
) -> None:
    inputs, mask = encoded_inputs
    before = count_calls("aten::where", lambda: t5.encoder(inputs_embeds=inputs, attention_mask=mask))
    after = count_calls("aten::where", lambda: encode(t5, *encoded_inputs))
    assert before - after >= N_LAYERS - 1


@NEEDS_FUSED_ATTENTION
def test_a_questions_encoding_is_read_once_for_all_choices(t5: T5) -> None:
    """If the choices were decoded one by one, four choices would cost four times as much as one."""
    states, mask = torch.randn(1, 600, WIDTH), torch.ones(1, 600, dtype=torch.long)

    def count_operations(choices: list[list[int]]) -> int:
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            compute_choice_logits(t5, EncodedQuestions(states, mask), [choices])
        return int(counter.get_total_flops())

    assert count_operations([[5, 1], [6, 1], [7, 1], [8, 1]]) < 1.5 * count_operations([[5, 1]])


class MaskRecorder(TorchFunctionMode):
    """A mode that records the mask of every attention call."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            self.masks.append(kwargs["attn_mask"])
        return func(*args, **(kwargs or {}))


@NEEDS_FUSED_ATTENTION
@torch.inference_mode()
@pytest.mark.parametrize("padded", [True, False])
def test_a_gpus_attention_kernels_accept_the_masks(
    t5: T5, encoded_inputs: tuple[torch.Tensor, torch.Tensor], padded: bool
) -> None:
    """The kernels need the entries of a row to be contiguous in memory; otherwise torch falls back to float32."""
    inputs, mask = encoded_inputs
    with MaskRecorder() as seen:
        compute_choice_logits(
            t5, encode(t5, inputs, mask if padded else torch.ones_like(mask), alignment=16), CHOICE_TOKENS
        )
    assert len(seen.masks) == 3 * N_LAYERS
    assert {mask.stride(-1) for mask in seen.masks} == {1}
