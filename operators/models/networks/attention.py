"""Attention where transformers' own does work over again: vision towers with windows, and questions after a prefix.

A tower that looks within windows, or at each of several images by itself (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4.1V),
attends in all windows of one size in one call. Transformers loops over them in Python, some 2,800 calls for an image of
1024 x 1024 pixels in Qwen2.5-VL.

A language model whose heads share keys and values reads them as they are, under a mask too. Transformers repeats them
for each head, sevenfold in Qwen2.5-VL-7B.
"""

from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

WINDOWS = "flash_by_window_size"
"""Where its attention's name has `flash` in it, transformers hands a tower's attention the bounds of the windows."""
SHARED = "sdpa_of_shared_keys"
ALIGNED = 16
"""A GPU's kernels read masks whose rows lie a multiple of this apart; any other is copied at every call."""


def join_windows(model: Any) -> None:
    """Has the vision tower of a network, where it is one of these, attend in windows of one size together."""
    tower = getattr(model.model, "visual", None)
    if tower is not None:
        tower.config._attn_implementation = WINDOWS


def share_keys(decoder: Any) -> int:
    """Has a language model's heads share keys and values under a mask.

    Returns how many of its heads share them, in the layer in which most do: a mask (n, 1, tokens, places) has so many
    times its rows, all of them and then all again.
    """
    if decoder.config._attn_implementation != "sdpa":
        return 1
    decoder.config._attn_implementation = SHARED
    return max(getattr(module, "num_key_value_groups", 1) for module in decoder.modules())


def _attend_in_windows(
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


def _attend_to_shared_keys(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What tokens (n, heads, tokens, width) see, (n, tokens, heads, width); the heads that share keys stand in rows."""
    tokens, sharing = query.shape[2], query.shape[1] // key.shape[1]
    mask = None if attention_mask is None else attention_mask[:, :, : sharing * tokens]
    if mask is None or mask.shape[2] < sharing * tokens:
        mask = None if mask is None else mask[:, :, :tokens]
        states, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)
        return states, None
    rows = query.reshape(*key.shape[:2], sharing * tokens, -1)
    attended = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(*query.shape[:3], -1).transpose(1, 2), None


AttentionInterface.register(WINDOWS, _attend_in_windows)
AttentionInterface.register(SHARED, _attend_to_shared_keys)
AttentionMaskInterface.register(SHARED, sdpa_mask)
