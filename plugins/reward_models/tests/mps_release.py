"""MPS with the modules and formulas of its release (Kwai-Kolors/MPS be9027f: trainer/models, evaluation scripts)."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import einsum, nn
from torch.nn.functional import cosine_similarity, layer_norm, silu
from transformers import CLIPConfig, CLIPModel

from plumbline.operators.models.networks.clip import rename_weight

OVERALL_CONDITION = (
    "light, color, clarity, tone, style, ambiance, artistry, shape, face, hair, hands, limbs, structure, instance, "
    "texture, quantity, attributes, position, number, location, word, things."
)
THRESHOLD = 0.3
"""Threshold in eval_overall_mps_on_hpdv2.py and eval_overall_mps_on_imagereward.py."""
WIDTH_OF_HEAD = 64
NAME_PATTERNS = (
    (r"^(?!cross_model)", "model."),
    (r"^(cross_model\.layers\.\d+\.\d)\.", r"\1.fn."),
    (r"\.inv_freq$", ".rotary_emb.inv_freq"),
)
"""Patterns and replacements that convert our weight names to those of the release."""


class LayerNorm(nn.Module):
    """A layer norm whose bias is a buffer of zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("bias", torch.zeros(width))

    def forward(self, states: Any) -> Any:
        return layer_norm(states, states.shape[-1:], self.weight, self.bias)


class Residual(nn.Module):
    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.fn = function

    def forward(self, states: Any, *others: Any) -> Any:
        return self.fn(states, *others) + states


class SwiGLU(nn.Module):
    def forward(self, states: Any) -> Any:
        values, gate = states.chunk(2, dim=-1)
        return silu(gate) * values


class RotaryEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, WIDTH_OF_HEAD, 2).float() / WIDTH_OF_HEAD)))

    def forward(self, length: int) -> Any:
        freqs = einsum("i , j -> i j", torch.arange(length).float(), self.inv_freq)
        return torch.cat((freqs, freqs), dim=-1)


def rotate(angles: Any, states: Any) -> Any:
    half = WIDTH_OF_HEAD // 2
    return states * angles.cos() + torch.cat((-states[..., half:], states[..., :half]), dim=-1) * angles.sin()


class ParallelTransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = LayerNorm(width), heads
        self.fused_dims = (heads * WIDTH_OF_HEAD, WIDTH_OF_HEAD, WIDTH_OF_HEAD, 8 * width)
        self.rotary_emb = RotaryEmbedding()
        self.fused_attn_ff_proj = nn.Linear(width, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(heads * WIDTH_OF_HEAD, width, bias=False)
        self.ff_out = nn.Sequential(SwiGLU(), nn.Linear(4 * width, width, bias=False))
        self.register_buffer("pos_emb", None, persistent=False)

    def forward(self, states: Any) -> Any:
        q, k, v, ff = self.fused_attn_ff_proj(self.norm(states)).split(self.fused_dims, dim=-1)
        q = q.view(*q.shape[:2], self.heads, WIDTH_OF_HEAD).permute(0, 2, 1, 3)
        self.register_buffer("pos_emb", self.rotary_emb(states.shape[1]), persistent=False)
        q, k = rotate(self.pos_emb, q), rotate(self.pos_emb, k)
        attn = einsum("b h i d, b j d -> b h i j", q * WIDTH_OF_HEAD**-0.5, k).softmax(dim=-1)
        out = einsum("b h i j, b j d -> b h i d", attn, v).permute(0, 2, 1, 3).flatten(2)
        return self.attn_out(out) + self.ff_out(ff)


class CrossAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.context_norm, self.heads = LayerNorm(width), nn.Identity(), heads
        self.to_q = nn.Linear(width, heads * WIDTH_OF_HEAD, bias=False)
        self.to_kv = nn.Linear(width, WIDTH_OF_HEAD * 2, bias=False)
        self.to_out = nn.Linear(heads * WIDTH_OF_HEAD, width, bias=False)
        self.ff = nn.Sequential(
            nn.Linear(width, 8 * width, bias=False), SwiGLU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, states: Any, context: Any, mask: Any) -> Any:
        states = self.norm(states)
        q = self.to_q(states).view(*states.shape[:2], self.heads, WIDTH_OF_HEAD).permute(0, 2, 1, 3)
        k, v = self.to_kv(self.context_norm(context)).chunk(2, dim=-1)
        sim = einsum("b h i d, b j d -> b h i j", q * WIDTH_OF_HEAD**-0.5, k) + mask.unsqueeze(1)
        out = einsum("b h i j, b j d -> b h i d", sim.softmax(dim=-1), v).permute(0, 2, 1, 3).flatten(2)
        return self.to_out(out) + self.ff(states)


class Cross_model(nn.Module):
    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Residual(CrossAttention(width, heads)), Residual(ParallelTransformerBlock(width, heads))])
            for _ in range(layers)
        )

    def forward(self, states: Any, context: Any, mask: Any) -> Any:
        for cross, own in self.layers:
            states = own(cross(states, context, mask))
        return states


class ReleasedMps(nn.Module):
    """The network in the release's pickle."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        self.model = CLIPModel(config)
        self.cross_model = Cross_model(config.projection_dim, config.cross_layers, config.cross_heads)

    def embed_words(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embedding of each token, and of each text as a whole."""
        read = self.model.text_model(input_ids=ids)
        return self.model.text_projection(read.last_hidden_state), self.model.text_projection(read.pooler_output)

    def score(self, pixels: torch.Tensor, prompt: torch.Tensor, condition: torch.Tensor, threshold: float) -> float:
        """Return the score of an image (1, 3, height, width) for a prompt; `prompt` and `condition` are token ids."""
        text_f, text_features = self.embed_words(prompt)
        image_f = self.model.visual_projection(self.model.vision_model(pixel_values=pixels).last_hidden_state)
        condition_f, _ = self.embed_words(condition)
        sim = torch.max(einsum("b i d, b j d -> b j i", text_f, condition_f), dim=1, keepdim=True)[0]
        sim = sim / sim.max()
        mask = torch.where(sim > threshold, 0, float("-inf")).repeat(1, image_f.shape[1], 1)
        image_features = self.cross_model(image_f, text_f, mask)[:, 0, :]
        return float(self.model.logit_scale.exp() * cosine_similarity(text_features, image_features))


def load_weights(config: CLIPConfig, weights: dict[str, torch.Tensor]) -> ReleasedMps:
    """Return the released network with the weights of a converted checkpoint."""
    network = ReleasedMps(config)
    named = {rename_weight(name, NAME_PATTERNS): tensor for name, tensor in weights.items()}
    zeros = {name: tensor for name, tensor in network.state_dict().items() if name.endswith("fn.norm.bias")}
    network.load_state_dict(named | zeros)
    return network.eval()


RELEASED_MODULES = {
    "trainer": (),
    "trainer.models": (),
    "trainer.models.clip_model": (ReleasedMps,),
    "trainer.models.cross_modeling": (
        LayerNorm,
        Residual,
        SwiGLU,
        RotaryEmbedding,
        ParallelTransformerBlock,
        CrossAttention,
        Cross_model,
    ),
}
"""Classes of the network, by the modules in which the release defines them."""


def save_pickled_network(network: ReleasedMps, file: Path) -> Path:
    """Pickle the network as if its classes were defined in the release's modules, and return the file."""
    try:
        for module, owned in RELEASED_MODULES.items():
            sys.modules[module] = ModuleType(module)
            for each in owned:
                each.__module__ = module
                setattr(sys.modules[module], each.__name__, each)
        torch.save(network, file)
    finally:
        for module, owned in RELEASED_MODULES.items():
            del sys.modules[module]
            for each in owned:
                each.__module__ = __name__
    return file
