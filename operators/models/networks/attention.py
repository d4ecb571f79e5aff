"""Speeds up networks from the transformers library without changing their results, mainly in attention.

Vision towers that attend within windows, or within each of several images (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4.1V),
process all windows of one size in one call. Transformers loops over the windows in Python, some 2,800 calls for an
image of 1024 x 1024 pixels in Qwen2.5-VL.

In language models whose heads share keys and values, the shared tensors are not copied, even with a mask. Transformers
repeats them for each head, which in Qwen2.5-VL-7B means seven copies.

The tower of Qwen2.5-VL has layers of width 3,420. They are padded, because fast matrix products on a GPU need multiples
of 16.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

WINDOW_ATTENTION_NAME = "flash_by_window_size"
"""Name of the attention implementation. It contains `flash`, so that transformers passes the bounds of the windows."""
SHARED_KEYS_ATTENTION_NAME = "sdpa_of_shared_keys"
SIZE_ALIGNMENT = 16
"""Mask rows and matrix widths are padded to a multiple of this for fast GPU kernels. Otherwise, masks are copied at
every call, and matrices are multiplied at less than half the speed.
"""


def speed_up_tower(model: Any) -> None:
    """Make a vision tower process windows of one size together, and pad its gated MLPs to multiples of SIZE_ALIGNMENT.

    A model without a vision tower is left unchanged.
    """
    tower = getattr(model.model, "visual", None)
    if tower is not None:
        tower.config._attn_implementation = WINDOW_ATTENTION_NAME
        for layer in tower.modules():
            extra = -layer.gate_proj.out_features % SIZE_ALIGNMENT if hasattr(layer, "gate_proj") else 0
            if extra == 0:
                continue
            for linear in (layer.gate_proj, layer.up_proj):  # padded with zeros, which do not change the output
                linear.weight = _pad_weight(linear.weight, (0, 0, 0, extra))
                linear.bias = None if linear.bias is None else _pad_weight(linear.bias, (0, extra))
                linear.out_features += extra
            layer.down_proj.weight = _pad_weight(layer.down_proj.weight, (0, extra))
            layer.down_proj.in_features += extra


def _pad_weight(weight: torch.Tensor, padding: Sequence[int]) -> nn.Parameter:
    return nn.Parameter(pad(weight.detach(), padding), requires_grad=weight.requires_grad)


def share_keys(decoder: Any) -> int:
    """Let heads of a language model share keys and values even with a mask; return the number of heads per shared key.

    If the number differs between layers, return the largest. A mask (n, 1, tokens, all tokens) must then be repeated
    this many times along its third dimension.
    """
    if decoder.config._attn_implementation != "sdpa":
        return 1
    decoder.config._attn_implementation = SHARED_KEYS_ATTENTION_NAME
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
    """Return the result (1, tokens, heads, width) of attention from each token to the tokens of its window."""
    attended = torch.empty_like(query)
    for indices in _find_token_indices_by_size(cu_seq_lens_q):
        q, k, v = (states[0][:, indices].transpose(0, 1) for states in (query, key, value))
        attended[0][:, indices] = scaled_dot_product_attention(q, k, v, scale=scaling).transpose(0, 1)
    return attended.transpose(1, 2), None


@lru_cache(maxsize=4)
def _find_token_indices_by_size(bounds: torch.Tensor) -> list[torch.Tensor]:
    """Return, for each window size, the indices (windows, size) of the windows' tokens.

    All layers pass the same `bounds` object, so the cache has few entries.
    """
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
    """Return the result (n, tokens, heads, width) of attention from tokens (n, heads, tokens, width).

    Heads that share keys and values are treated as rows of one head.
    """
    tokens, sharing = query.shape[2], query.shape[1] // key.shape[1]
    mask = None if attention_mask is None else attention_mask[:, :, : sharing * tokens]
    if mask is None or mask.shape[2] < sharing * tokens:
        mask = None if mask is None else mask[:, :, :tokens]
        states, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)
        return states, None
    rows = query.reshape(*key.shape[:2], sharing * tokens, -1)
    attended = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(*query.shape[:3], -1).transpose(1, 2), None


AttentionInterface.register(WINDOW_ATTENTION_NAME, _attend_in_windows)
AttentionInterface.register(SHARED_KEYS_ATTENTION_NAME, _attend_to_shared_keys)
AttentionMaskInterface.register(SHARED_KEYS_ATTENTION_NAME, sdpa_mask)
