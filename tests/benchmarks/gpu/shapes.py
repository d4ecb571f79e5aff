"""The networks to measure, given by the fields of their config.json: full-size networks, and tiny ones for any CPU."""

from typing import Any, NamedTuple

FAMILY_BY_MODEL = {
    "clip-flant5-xl": "clip_flant5",
    "clip-flant5-xxl": "clip_flant5",
    "qwen2.5-vl-7b": "vlm",
    "qwen3-vl-8b": "vlm",
    "llava-1.5-7b": "vlm",
}
"""Model families that support the models, keyed by the model's name."""


class NetworkShape(NamedTuple):
    """The sizes of one model: fields of its language and vision configs, and the size of its input images."""

    language: dict[str, Any]
    vision: dict[str, Any]
    side: int
    """Side in pixels of the square input images, before the model's own preprocessing."""


CLIP_L_336_CONFIG = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
"""Config of openai/clip-vit-large-patch14-336."""
FLAN_T5_FIELDS = {
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "is_encoder_decoder": True,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
T5_XL_CONFIG = {
    "d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_heads": 32, "num_layers": 24, "num_decoder_layers": 24,
    "vocab_size": 32_128, **FLAN_T5_FIELDS,
}  # fmt: skip
"""Config of google/flan-t5-xl, the base of zhiqiulin/clip-flant5-xl."""
T5_XXL_CONFIG = T5_XL_CONFIG | {"d_model": 4096, "d_ff": 10_240, "num_heads": 64}
QWEN_TEXT_CONFIG = {
    "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "max_position_embeddings": 128_000, "vocab_size": 152_064,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}  # fmt: skip
"""Config of Qwen/Qwen2.5-VL-7B-Instruct."""
QWEN_VISION_CONFIG = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": 3584, "tokens_per_second": 2,
}  # fmt: skip
QWEN3_TEXT_CONFIG = {
    "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262_144, "vocab_size": 151_936,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20],
    "mrope_interleaved": True},
}  # fmt: skip
"""Config of Qwen/Qwen3-VL-8B-Instruct."""
QWEN3_VISION_CONFIG = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
    "out_hidden_size": 4096, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
VICUNA_CONFIG = {
    "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "max_position_embeddings": 4096, "vocab_size": 32_064,
}  # fmt: skip
"""Config of llava-hf/llava-1.5-7b-hf."""

FULL_SHAPES = {
    "clip-flant5-xl": NetworkShape(T5_XL_CONFIG, CLIP_L_336_CONFIG, 1024),
    "clip-flant5-xxl": NetworkShape(T5_XXL_CONFIG, CLIP_L_336_CONFIG, 1024),
    "qwen2.5-vl-7b": NetworkShape(QWEN_TEXT_CONFIG, QWEN_VISION_CONFIG, 1024),
    "qwen3-vl-8b": NetworkShape(QWEN3_TEXT_CONFIG, QWEN3_VISION_CONFIG, 1024),
    "llava-1.5-7b": NetworkShape(VICUNA_CONFIG, CLIP_L_336_CONFIG, 1024),
}

TINY_CLIP_CONFIG = CLIP_L_336_CONFIG | {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
TINY_T5_CONFIG = T5_XL_CONFIG | {
    "d_model": 24, "d_kv": 8, "d_ff": 48, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 512,
}  # fmt: skip
TINY_TEXT_CONFIG = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 512, "initializer_range": 0.4,
}  # fmt: skip
TINY_ROPE_FIELDS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
TINY_QWEN_CONFIG = QWEN_VISION_CONFIG | {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "window_size": 16,
    "fullatt_block_indexes": [1], "out_hidden_size": 32,
}  # fmt: skip
TINY_QWEN3_CONFIG = QWEN3_VISION_CONFIG | {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "out_hidden_size": 32,
    "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
}  # fmt: skip

TINY_SHAPES = {
    "clip-flant5-xl": NetworkShape(TINY_T5_CONFIG, TINY_CLIP_CONFIG, 48),
    "clip-flant5-xxl": NetworkShape(TINY_T5_CONFIG | {"d_ff": 64}, TINY_CLIP_CONFIG, 48),
    "qwen2.5-vl-7b": NetworkShape(TINY_TEXT_CONFIG | {"rope_parameters": TINY_ROPE_FIELDS}, TINY_QWEN_CONFIG, 48),
    "qwen3-vl-8b": NetworkShape(
        TINY_TEXT_CONFIG | {"head_dim": 8, "rope_parameters": TINY_ROPE_FIELDS}, TINY_QWEN3_CONFIG, 48
    ),
    "llava-1.5-7b": NetworkShape(TINY_TEXT_CONFIG, TINY_CLIP_CONFIG, 48),
}
