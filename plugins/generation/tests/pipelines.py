"""Tiny pipelines with random weights, as saved by diffusers, in the architectures of real image generators."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers  # a lazy module: its classes take seconds to import and are loaded on first use
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

from tests.operators import tiny
from tests.operators.tiny.rewards import make_clip_tokenizer

IMAGE_SIDE = 32
"""Default width and height of an image in pixels."""
HIDDEN_SIZE = 32


def _build_clip_text(kind: Any = CLIPTextModel) -> Any:
    tokenizer = make_clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=HIDDEN_SIZE, intermediate_size=37, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=tokenizer.model_max_length, projection_dim=HIDDEN_SIZE,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return kind(config)


def _build_t5() -> dict[str, Any]:
    config = T5Config(
        vocab_size=len(tiny.BYTE_VOCABULARY),
        d_model=HIDDEN_SIZE,
        d_kv=8,
        d_ff=37,
        num_layers=1,
        num_heads=4,
        pad_token_id=0,
    )
    fast = tiny.make_byte_tokenizer(
        tiny.BYTE_VOCABULARY, tiny.CHAT_SPECIAL_TOKENS, pad_token="<pad>", eos_token="</s>", model_max_length=64
    )
    return {"encoder": T5EncoderModel(config), "tokenizer": fast}


def _build_vae(channels: int = 4, **options: Any) -> "diffusers.AutoencoderKL":
    return diffusers.AutoencoderKL(
        block_out_channels=[8, 16], norm_num_groups=4, latent_channels=channels, sample_size=IMAGE_SIDE,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2, **options,
    )  # fmt: skip


def _build_unet(**options: Any) -> "diffusers.UNet2DConditionModel":
    shape = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1, "sample_size": IMAGE_SIDE // 2}
    blocks = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }
    return diffusers.UNet2DConditionModel(**shape, **blocks, attention_head_dim=4, **options)


def _build_scheduler() -> "diffusers.DDIMScheduler":
    return diffusers.DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False)


def build_stable_diffusion() -> "diffusers.StableDiffusionPipeline":
    return diffusers.StableDiffusionPipeline(
        vae=_build_vae(), text_encoder=_build_clip_text(), tokenizer=make_clip_tokenizer(),
        unet=_build_unet(cross_attention_dim=HIDDEN_SIZE),
        scheduler=_build_scheduler(), safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def build_stable_diffusion_xl() -> "diffusers.StableDiffusionXLPipeline":
    unet = _build_unet(
        cross_attention_dim=2 * HIDDEN_SIZE, addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + HIDDEN_SIZE,
    )  # fmt: skip
    return diffusers.StableDiffusionXLPipeline(
        vae=_build_vae(), text_encoder=_build_clip_text(), text_encoder_2=_build_clip_text(CLIPTextModelWithProjection),
        tokenizer=make_clip_tokenizer(), tokenizer_2=make_clip_tokenizer(), unet=unet, scheduler=_build_scheduler(),
        add_watermarker=False,
    )  # fmt: skip


def build_stable_diffusion_3() -> "diffusers.StableDiffusion3Pipeline":
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=IMAGE_SIDE // 2, patch_size=1, in_channels=4, num_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_projection_dim=HIDDEN_SIZE, joint_attention_dim=HIDDEN_SIZE,
        pooled_projection_dim=2 * HIDDEN_SIZE, out_channels=4,
    )  # fmt: skip
    texts = {f"text_encoder{end}": _build_clip_text(CLIPTextModelWithProjection) for end in ("", "_2")}
    tokenizers = {f"tokenizer{end}": make_clip_tokenizer() for end in ("", "_2")}
    t5 = _build_t5()
    return diffusers.StableDiffusion3Pipeline(
        vae=_build_vae(shift_factor=0.06, scaling_factor=1.5), transformer=transformer, **texts, **tokenizers,
        text_encoder_3=t5["encoder"], tokenizer_3=t5["tokenizer"],
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


def build_flux() -> "diffusers.FluxPipeline":
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=HIDDEN_SIZE, pooled_projection_dim=HIDDEN_SIZE, axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )  # fmt: skip
    t5 = _build_t5()
    return diffusers.FluxPipeline(
        vae=_build_vae(shift_factor=0.06, scaling_factor=1.5), transformer=transformer, text_encoder=_build_clip_text(),
        tokenizer=make_clip_tokenizer(), text_encoder_2=t5["encoder"], tokenizer_2=t5["tokenizer"],
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


def build_qwen_image() -> "diffusers.QwenImagePipeline":
    latents = 4
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=8, z_dim=latents, dim_mult=[1, 2, 2, 2], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * latents, latents_std=[1.0] * latents,
    )  # fmt: skip
    transformer = diffusers.QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=HIDDEN_SIZE, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = tiny.DECODER_FIELDS | {"rope_scaling": rope}
    vision = tiny.QWEN_VISION_FIELDS["qwen2_5_vl"] | {"depth": 1, "num_heads": 2, "patch_size": 8, "in_chans": 3}
    reader = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    tokenizer = tiny.make_byte_tokenizer(
        tiny.BYTE_VOCABULARY, tiny.CHAT_SPECIAL_TOKENS, pad_token="<pad>", eos_token="<|im_end|>", model_max_length=512
    )
    return diffusers.QwenImagePipeline(
        vae=vae, transformer=transformer, text_encoder=reader, tokenizer=tokenizer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


PIPELINE_BUILDERS: Mapping[str, Callable[[], Any]] = {
    build.__name__.removeprefix("build_"): build
    for build in (
        build_stable_diffusion,
        build_stable_diffusion_xl,
        build_stable_diffusion_3,
        build_flux,
        build_qwen_image,
    )
}


def save_pipeline(folder: Path, kind: str = "stable_diffusion", *, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    PIPELINE_BUILDERS[kind]().save_pretrained(folder)
    return folder
