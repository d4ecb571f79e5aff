"""Vision towers that look within windows, or at each of several images by itself: windows of one size in one call.

Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4.1V have such towers. Transformers loops over the windows in Python, some 2,800
calls of attention for an image of 1024 x 1024 pixels in Qwen2.5-VL.
"""

from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "flash_by_window_size"
"""Where its attention's name has `flash` in it, transformers hands a tower's attention the bounds of the windows."""


def join_windows(model: Any) -> None:
    """Has the vision tower of a network, where it is one of these, attend in windows of one size together."""
    tower = getattr(model.model, "visual", None)
    if tower is not None:
        tower.config._attn_implementation = NAME


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What tokens (1, heads, tokens, width) see of their window, (1, tokens, heads, width)."""
    attended = torch.empty_like(query)
    for places in _places_by_size(cu_seq_lens_q):
        asked, seen, told = (states[0][:, places].transpose(0, 1) for states in (query, key, value))
        attended[0][:, places] = scaled_dot_product_attention(asked, seen, told, scale=scaling).transpose(0, 1)
    return attended.transpose(1, 2), None


@lru_cache(maxsize=4)
def _places_by_size(bounds: torch.Tensor) -> list[torch.Tensor]:
    """For each size of window, the places (windows, size) of its tokens. All layers are given the same `bounds`."""
    starts, sizes = bounds[:-1], bounds.diff()
    offsets = torch.arange(int(sizes.max()), device=bounds.device)
    return [starts[sizes == size, None] + offsets[:size] for size in sorted(set(sizes.tolist()))]


AttentionInterface.register(NAME, _attend)
