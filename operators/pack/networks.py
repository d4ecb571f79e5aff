"""The shapes of the tiny networks: a CLIP of 48-pixel images in nine patches, and a CLIP-FlanT5 on its tower."""

from torch import nn
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig, PreTrainedTokenizerFast, T5Config
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from operators.models.clip_flant5 import ClipFlanT5
from operators.pack.tokens import CLIP_CONTEXT

IMAGE_SIDE = 48
PATCH = 16
WIDTH = 128
HEADS = 4
INITIAL_LOGIT_SCALE = 2.6592
POSITION_SPREAD = 0.5
"""As loud as the patches, not 50 times quieter as in CLIP: nine patches must tell where a shape stands."""


def vision_config() -> CLIPVisionConfig:
    """Four layers of width 128; a patch is one cell of the world's grid."""
    return CLIPVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        image_size=IMAGE_SIDE,
        patch_size=PATCH,
        projection_dim=WIDTH,
    )


def build_clip(tokenizer: PreTrainedTokenizerFast) -> CLIPModel:
    """An untrained CLIP whose special tokens are the tokenizer's."""
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        max_position_embeddings=CLIP_CONTEXT,
        projection_dim=WIDTH,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config = CLIPConfig(
        text_config=text.to_dict(),
        vision_config=vision_config().to_dict(),
        projection_dim=WIDTH,
        logit_scale_init_value=INITIAL_LOGIT_SCALE,
    )
    model = CLIPModel(config)
    nn.init.normal_(model.vision_model.embeddings.position_embedding.weight, std=POSITION_SPREAD)
    return model


def build_clip_flant5(tokenizer: PreTrainedTokenizerFast) -> ClipFlanT5:
    """An untrained CLIP-FlanT5 in FlanT5's form: gated GELU, its own output matrix."""
    language = T5Config.from_dict(
        {
            "vocab_size": len(tokenizer),
            "d_model": WIDTH,
            "d_kv": WIDTH // HEADS,
            "d_ff": 2 * WIDTH,
            "num_layers": 4,
            "num_decoder_layers": 2,
            "num_heads": HEADS,
            "feed_forward_proj": "gated-gelu",
            "dropout_rate": 0.0,
            "tie_word_embeddings": False,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "decoder_start_token_id": tokenizer.pad_token_id,
        }
    )
    model = ClipFlanT5(language, vision_config())
    nn.init.normal_(model.language_model.lm_head.weight, std=WIDTH**-0.5)
    return model


def image_processor() -> CLIPImageProcessorPil:
    """CLIP's preprocessing at 48 pixels: bicubic resize, centre crop, CLIP's mean and deviation."""
    side = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    return CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIDE}, crop_size=side)
