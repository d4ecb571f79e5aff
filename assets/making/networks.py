"""The tiny networks, which are saved in half precision and loaded in single precision by the production code.

The networks are: a CLIP for 48-pixel images of nine patches, a CLIP-FlanT5 with the same vision tower, a copy of it
that compares two images, a Llama that writes questions, and a BERT that judges entailment.
"""

import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from plumbline.assets.making.scenes import Scene, draw_scene
from plumbline.assets.making.tokens import CLIP_CONTEXT_TOKENS, NLI_CONTEXT_TOKENS, WRITER_CONTEXT_TOKENS
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5, save_clip_flant5
from plumbline.operators.models.resolution import resolve_model

IMAGE_SIDE = 48
PATCH_SIDE = 16
HIDDEN_SIZE = 128
ATTENTION_HEADS = 4
INITIAL_LOGIT_SCALE = 2.6592
NLI_LABELS = ("not_entailment", "entailment")
MAX_ATTENDED_DISTANCE = 4
NEXT_WORD_BIAS = 6.0
"""Initial bias that makes one encoder head attend to the previous word, and another to the next word.

T5's own biases start near zero.
"""
POSITION_EMBEDDING_STD = 0.5
"""Standard deviation of the position embeddings.

It is as large as that of the patch embeddings, instead of 50 times smaller as in CLIP, because nine patches must be
enough to show a shape's position.
"""
LAYER_OPTIONS = {"hidden_size": HIDDEN_SIZE, "num_attention_heads": ATTENTION_HEADS}


def make_vision_config() -> CLIPVisionConfig:
    """Configure a vision tower of four layers of width 128, with one patch per grid cell of a scene."""
    return CLIPVisionConfig(
        **LAYER_OPTIONS,
        intermediate_size=4 * HIDDEN_SIZE,
        num_hidden_layers=4,
        image_size=IMAGE_SIDE,
        patch_size=PATCH_SIDE,
        projection_dim=HIDDEN_SIZE,
    )


def _describe_vocabulary(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Return the size and special tokens of the tokenizer, under the names that network configurations use."""
    special = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    return {"vocab_size": len(tokenizer)} | {name: token for name, token in special.items() if token is not None}


def build_clip(tokenizer: PreTrainedTokenizerFast) -> CLIPModel:
    """Build an untrained CLIP with the tokenizer's special tokens."""
    text = CLIPTextConfig(
        **_describe_vocabulary(tokenizer),
        **LAYER_OPTIONS,
        intermediate_size=4 * HIDDEN_SIZE,
        num_hidden_layers=3,
        max_position_embeddings=CLIP_CONTEXT_TOKENS,
        projection_dim=HIDDEN_SIZE,
    )
    config = CLIPConfig(
        text_config=text.to_dict(),
        vision_config=make_vision_config().to_dict(),
        projection_dim=HIDDEN_SIZE,
        logit_scale_init_value=INITIAL_LOGIT_SCALE,
    )
    model = CLIPModel(config)
    nn.init.normal_(model.vision_model.embeddings.position_embedding.weight, std=POSITION_EMBEDDING_STD)
    return model


def build_clip_flant5(tokenizer: PreTrainedTokenizerFast) -> ClipFlanT5:
    """Build an untrained CLIP-FlanT5 that, like FlanT5, has a gated GELU and a separate output matrix."""
    language = T5Config.from_dict(
        {
            **_describe_vocabulary(tokenizer),
            "d_model": HIDDEN_SIZE,
            "d_kv": HIDDEN_SIZE // ATTENTION_HEADS,
            "d_ff": 2 * HIDDEN_SIZE,
            "num_layers": 4,
            "num_decoder_layers": 2,
            "num_heads": ATTENTION_HEADS,
            "feed_forward_proj": "gated-gelu",
            "dropout_rate": 0.0,
            "tie_word_embeddings": False,
            "decoder_start_token_id": tokenizer.pad_token_id,
        }
    )
    model = ClipFlanT5(language, make_vision_config())
    nn.init.normal_(model.language_model.lm_head.weight, std=HIDDEN_SIZE**-0.5)
    _attend_to_neighbours(model.language_model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
    return model


@torch.no_grad()
def _attend_to_neighbours(biases: torch.Tensor) -> None:
    """Make one head attend to the previous word, and another to the next word.

    `biases` has the shape (buckets, heads); the second half of the buckets is for following words.
    """
    after = len(biases) // 2
    for distance in range(1, MAX_ATTENDED_DISTANCE + 1):
        biases[distance, 0] += NEXT_WORD_BIAS / distance
        biases[after + distance, 1] += NEXT_WORD_BIAS / distance


def build_writer(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build an untrained Llama with four layers and heads of 32 dimensions, a size that serving engines support."""
    config = LlamaConfig(
        **_describe_vocabulary(tokenizer),
        **LAYER_OPTIONS,
        intermediate_size=2 * HIDDEN_SIZE,
        num_hidden_layers=4,
        num_key_value_heads=ATTENTION_HEADS,
        head_dim=HIDDEN_SIZE // ATTENTION_HEADS,
        max_position_embeddings=WRITER_CONTEXT_TOKENS,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def build_nli(tokenizer: PreTrainedTokenizerFast) -> BertForSequenceClassification:
    """Build an untrained BERT with three layers that classifies pairs as entailed or not."""
    config = BertConfig(
        **_describe_vocabulary(tokenizer),
        **LAYER_OPTIONS,
        intermediate_size=2 * HIDDEN_SIZE,
        num_hidden_layers=3,
        max_position_embeddings=NLI_CONTEXT_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(NLI_LABELS)),
        label2id={name: index for index, name in enumerate(NLI_LABELS)},
    )
    return BertForSequenceClassification(config)


@cache
def make_image_processor() -> CLIPImageProcessorPil:
    """Return CLIP's image processor for 48 pixels: bicubic resize, centre crop, CLIP's mean and standard deviation."""
    side = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    return CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIDE}, crop_size=side)


def draw_pixels(rng: Random, scenes: Sequence[Scene]) -> torch.Tensor:
    """Draw the scenes as input for the vision towers, (n, 3, 48, 48), float32."""
    drawn = [draw_scene(scene, rng.getrandbits(32)) for scene in scenes]
    pixels: torch.Tensor = make_image_processor()(images=drawn, return_tensors="pt")["pixel_values"]
    return pixels


CLIP_FOLDER = "clip-shapes"
VQA_FOLDER = "clip-flant5-shapes"
JUDGE_FOLDER = "pair-judge-shapes"
WRITER_FOLDER = "question-writer-shapes"
NLI_FOLDER = "nli-shapes"
FAMILY_BY_FOLDER = {
    CLIP_FOLDER: "clip",
    VQA_FOLDER: "clip_flant5",
    JUDGE_FOLDER: "clip_flant5",
    WRITER_FOLDER: "causal_lm",
    NLI_FOLDER: "nli",
}
BATCH_SIZE = 128


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a checkpoint in the format of transformers."""
    halves = {name: tensor.to(torch.float16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=halves)
    tokenizer.save_pretrained(folder)


def save_vqa(model: ClipFlanT5, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a CLIP-FlanT5 checkpoint, which refers to the CLIP checkpoint beside it for the tower's shape."""
    save_clip_flant5(copy.deepcopy(model).half(), folder, tower_name=f"../{CLIP_FOLDER}")
    tokenizer.save_pretrained(folder)


def resolve_checkpoint(assets: Path, folder: str) -> ResolvedModel:
    """Resolve one of the saved checkpoints in the same way as in production."""
    config = make_model_config(family=FAMILY_BY_FOLDER[folder], checkpoint=str(assets / folder), pair_batch=BATCH_SIZE)
    return resolve_model(config, on_gpu=False)
