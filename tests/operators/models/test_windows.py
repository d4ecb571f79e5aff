"""Qwen2.5-VL's vision tower with windows of one size in one call, against transformers' loop over them."""

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from plumbline.operators.models.networks.windows import join_windows

LAYERS = 4
GRIDS = torch.tensor([[1, 74, 74], [1, 30, 46]])
"""Patches of an image of 1024 x 1024 pixels, and of a smaller one whose last windows are cut."""


VISION = {
    "depth": LAYERS, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32,
    "fullatt_block_indexes": [LAYERS - 1], "patch_size": 14, "window_size": 112,
}  # fmt: skip
TEXT = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64,
    "num_key_value_heads": 1, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}  # fmt: skip


def test_windows_of_one_size_are_attended_to_in_one_call_with_the_same_result() -> None:
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=TEXT, vision_config=VISION)).eval()
    pixels = torch.randn(int(GRIDS.prod(1).sum()), 3 * 2 * 14 * 14)

    def run() -> tuple[torch.Tensor, int]:
        with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU]) as seen:
            states = model.model.visual(pixels, grid_thw=GRIDS).pooler_output
        calls = sum(event.count for event in seen.key_averages() if event.key == "aten::scaled_dot_product_attention")
        return states, calls

    expected, before = run()
    join_windows(model)
    states, after = run()
    torch.testing.assert_close(states, expected)
    assert before > 300
    assert after <= 5 * LAYERS, "one for each size of window in each layer"
