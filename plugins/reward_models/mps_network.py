"""The network of MPS: CLIP, and layers that let image patches attend to the words of a prompt (Zhang et al. 2024)."""

from typing import ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import CLIPConfig, CLIPModel

HEAD_WIDTH = 64
"""Width of an attention head in the cross layers (Kwai-Kolors/MPS be9027f, trainer/models/cross_modeling.py)."""
MLP_RATIO = 4
"""Width of the hidden layers relative to the network's width, in the cross layers."""
ROTARY_BASE = 10_000


class PromptFeatures(NamedTuple):
    """A prompt or a condition as read by the text tower, in float32."""

    words: torch.Tensor
    """Embeddings of all tokens, including padding; shape (context, width)."""
    embedding: torch.Tensor
    """Embedding of the whole text; shape (width,)."""


class SwiGlu(nn.Module):
    """Activation that multiplies the first half of a state by the SiLU of its second half."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return states of half the width."""
        values, gates = states.chunk(2, dim=-1)
        return silu(gates) * values


class CrossAttention(nn.Module):
    """Attention of image patches to words, in parallel with an MLP; all heads share one key and one value per word."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, bias=False)
        self.to_q = nn.Linear(width, heads * HEAD_WIDTH, bias=False)
        self.to_kv = nn.Linear(width, 2 * HEAD_WIDTH, bias=False)
        self.to_out = nn.Linear(heads * HEAD_WIDTH, width, bias=False)
        hidden = MLP_RATIO * width
        self.ff = nn.Sequential(
            nn.Linear(width, 2 * hidden, bias=False), SwiGlu(), nn.Linear(hidden, width, bias=False)
        )

    def forward(self, patches: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the layer's output (n, patches, width); the mask (n, words) is True for words to attend to."""
        normed = self.norm(patches)
        queries = self.to_q(normed).unflatten(-1, (self.heads, HEAD_WIDTH)).transpose(1, 2)
        keys, values = (half[:, None] for half in self.to_kv(words).chunk(2, dim=-1))
        # as in the release, the output is NaN if all words are masked, so that the row gets no score
        logits = (queries * HEAD_WIDTH**-0.5) @ keys.transpose(2, 3)
        attention = logits.masked_fill(~mask[:, None, None], float("-inf")).softmax(dim=-1)
        attended = (attention @ values).transpose(1, 2).flatten(2)
        states: torch.Tensor = patches + self.to_out(attended) + self.ff(normed)
        return states


class ParallelBlock(nn.Module):
    """Attention between image patches with rotary positions, in parallel with an MLP."""

    inv_freq: torch.Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, bias=False)
        hidden = MLP_RATIO * width
        self.widths = (heads * HEAD_WIDTH, HEAD_WIDTH, HEAD_WIDTH, 2 * hidden)
        self.fused_attn_ff_proj = nn.Linear(width, sum(self.widths), bias=False)
        self.attn_out = nn.Linear(heads * HEAD_WIDTH, width, bias=False)
        self.ff_out = nn.Sequential(SwiGlu(), nn.Linear(hidden, width, bias=False))
        # the release stores the frequencies, possibly rounded, with the weights
        self.register_buffer("inv_freq", ROTARY_BASE ** -(torch.arange(0, HEAD_WIDTH, 2).float() / HEAD_WIDTH))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Return the layer's output (n, patches, width)."""
        queries, keys, values, hidden = self.fused_attn_ff_proj(self.norm(patches)).split(self.widths, dim=-1)
        angles = torch.outer(torch.arange(patches.shape[1], device=patches.device).float(), self.inv_freq.float())
        angles = torch.cat([angles, angles], dim=-1)
        queries = _rotate(queries.unflatten(-1, (self.heads, HEAD_WIDTH)).transpose(1, 2), angles)
        shape = (-1, self.heads, -1, -1)
        keys, values = _rotate(keys[:, None], angles).expand(shape), values[:, None].expand(shape)
        attended = scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)
        states: torch.Tensor = patches + self.attn_out(attended) + self.ff_out(hidden)
        return states


def _rotate(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return states (..., patches, HEAD_WIDTH) rotated by the angles (patches, HEAD_WIDTH)."""
    first, second = states.float().chunk(2, dim=-1)
    rotated = states.float() * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()
    return rotated.to(states.dtype)


class CrossModel(nn.Module):
    """Alternating layers of CrossAttention and ParallelBlock."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([CrossAttention(width, heads), ParallelBlock(width, heads)]) for _ in range(layers)
        )

    def forward(self, patches: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the patches' states (n, patches, width) after all layers."""
        for layer in self.layers:
            cross, own = layer.children()
            patches = own(cross(patches, words, mask))
        return patches


class Mps(CLIPModel):  # type: ignore[misc]
    """A CLIP with a CrossModel between its towers, built from transformers' CLIP.

    In addition to CLIP's own fields, config.json contains `cross_layers` and `cross_heads`. The text tower is always in
    float32, because its similarities decide which words the image attends to.
    """

    _keep_in_fp32_modules_strict: ClassVar = {"text_model", "text_projection", "logit_scale", "inv_freq"}

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        self.cross_model = CrossModel(config.projection_dim, config.cross_heads, config.cross_layers)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # CLIP's method in transformers before 5.8 assumes that every LayerNorm has a bias
        if not (isinstance(module, nn.LayerNorm) and module.bias is None):
            super()._init_weights(module)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the vision tower and the cross layers."""
        weight: torch.Tensor = self.visual_projection.weight
        return weight.dtype

    def embed_patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of an image's class token and patches (n, patches + 1, width)."""
        embeddings: torch.Tensor = self.visual_projection(self.vision_model(pixel_values=pixels).last_hidden_state)
        return embeddings

    def read_texts(self, ids: torch.Tensor) -> list[PromptFeatures]:
        """Return the features of texts (n, context). Padding is read like other tokens, as in the release."""
        read = self.text_model(input_ids=ids)
        words, embeddings = (self.text_projection(states) for states in (read.last_hidden_state, read.pooler_output))
        return list(map(PromptFeatures, words, embeddings))


def select_words(prompt: PromptFeatures, condition: PromptFeatures, threshold: float) -> torch.Tensor:
    """Return True for each token of the prompt (context,) whose relevance to the condition exceeds the threshold.

    A token's relevance is its highest product with any token of the condition, divided by the highest such
    product of the whole prompt.
    """
    relevance = (prompt.words @ condition.words.T).amax(dim=1)
    return relevance / relevance.max() > threshold
