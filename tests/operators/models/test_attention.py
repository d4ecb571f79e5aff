"""Our attention makes fewer calls and copies fewer keys than transformers' own, with the same result."""

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from plumbline.operators.models.calls import Question
from plumbline.operators.models.networks.attention import speed_up_tower
from tests.operators import tiny
from tests.operators.models.families.test_vlm import load

N_LAYERS = 4
IMAGE_GRIDS = torch.tensor([[1, 74, 74], [1, 30, 46]])
"""Patch grids of a 1024 x 1024 image, and of a smaller image whose last windows are incomplete."""


VISION_FIELDS = {
    "depth": N_LAYERS, "hidden_size": 32, "num_heads": 2, "intermediate_size": 44, "out_hidden_size": 32,
    "fullatt_block_indexes": [N_LAYERS - 1], "patch_size": 14, "window_size": 112,
}  # fmt: skip
TEXT_FIELDS = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64,
    "num_key_value_heads": 1, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}  # fmt: skip


def test_attention_over_windows_of_one_size_takes_one_call_with_the_same_result() -> None:
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=TEXT_FIELDS, vision_config=VISION_FIELDS)
    ).eval()
    pixels = torch.randn(int(IMAGE_GRIDS.prod(1).sum()), 3 * 2 * 14 * 14)

    def run() -> tuple[torch.Tensor, int]:
        with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as seen:
            states = model.model.visual(pixels, grid_thw=IMAGE_GRIDS).pooler_output
        calls = sum(event.count for event in seen.key_averages() if event.key == "aten::scaled_dot_product_attention")
        return states, calls

    expected, before = run()
    speed_up_tower(model)
    states, after = run()
    torch.testing.assert_close(states, expected)
    assert before > 300
    assert after <= 5 * N_LAYERS, "at most one call per window size in each layer"
    assert {block.mlp.gate_proj.weight.shape[0] for block in model.model.visual.blocks} == {48}
    assert {block.mlp.down_proj.in_features for block in model.model.visual.blocks} == {48}, (
        "44 is padded to a fast width"
    )


class KeyRecorder(TorchFunctionMode):
    """A mode that records the number of query and key heads in each masked attention call."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention and (kwargs or {}).get("attn_mask") is not None:
            self.heads.append((args[0].shape[1], args[1].shape[1]))
        return func(*args, **(kwargs or {}))


def test_an_images_keys_are_not_repeated_for_each_head(tmp_path: Path) -> None:
    """test_vlm.py checks that the answers equal those of the whole model, which does repeat the keys."""
    model = load(tiny.save_qwen2_vl(tmp_path, kind="qwen2_5_vl"))
    text = model.reader.decoder.config
    assert text.num_attention_heads > text.num_key_value_heads
    questions = [Question(0, f"Is it {word}?", ("Yes", "No")) for word in ("red", "blue", "a dog")]
    features = model.encode([model.preprocess(tiny.draw_image(1))])
    with KeyRecorder() as seen:
        model.likelihood(features, questions)
    assert set(seen.heads) == {(text.num_key_value_heads, text.num_key_value_heads)}
    assert len(seen.heads) == text.num_hidden_layers, "each layer handles all questions in one call"
