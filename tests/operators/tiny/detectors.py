"""Random checkpoints of object detectors and an OCR model, in the layouts of their releases."""

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    GotOcr2Config,
    GotOcr2ForConditionalGeneration,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    Owlv2Config,
    Owlv2ForObjectDetection,
    SwinConfig,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.grounding_dino.image_processing_pil_grounding_dino import GroundingDinoImageProcessorPil
from transformers.models.owlv2.image_processing_pil_owlv2 import Owlv2ImageProcessorPil

from tests.operators import tiny
from tests.operators.tiny.rewards import enlarge_weights, make_clip_tokenizer
from tests.operators.tiny.vqa_models import WORDPIECES, save_bert_tokenizer

SHORTEST_SIDE, LONGEST_SIDE = 128, 160
"""Limits, in pixels, of the shorter and the longer side of the image that the detector reads."""
PAGE_SIDE = 128
"""Side in pixels of the image that the OCR model reads."""
GOT_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<imgpad>")
GOT_VOCABULARY = {token: index for index, token in enumerate([*GOT_SPECIAL_TOKENS, *tiny.BYTE_TOKENS])}


def save_grounding_dino(folder: Path, *, seed: int = 0) -> Path:
    """Save a Grounding DINO with a Swin and a BERT."""
    torch.manual_seed(seed)
    swin = SwinConfig(
        image_size=SHORTEST_SIDE, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2,
        out_indices=[2, 3, 4],
    )  # fmt: skip
    bert = BertConfig(
        vocab_size=len(WORDPIECES), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512,
    )  # fmt: skip
    config = GroundingDinoConfig(
        backbone_config=swin, text_config=bert, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, num_queries=6,
        max_text_len=256, num_feature_levels=4,
    )  # fmt: skip
    network = GroundingDinoForObjectDetection(config)
    enlarge_weights(network, seed=seed, deviation=0.3)
    network.save_pretrained(folder)
    size = {"shortest_edge": SHORTEST_SIDE, "longest_edge": LONGEST_SIDE}
    GroundingDinoImageProcessorPil(size=size).save_pretrained(folder)
    save_bert_tokenizer(folder)
    return folder


def save_owlv2(folder: Path, *, seed: int = 0) -> Path:
    """Save an OWLv2 with a context of 16 tokens."""
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokenizer = make_clip_tokenizer()
    text = {**size, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    vision = {**size, "image_size": 32, "patch_size": 8}
    network = Owlv2ForObjectDetection(Owlv2Config(text_config=text, vision_config=vision, projection_dim=32))
    enlarge_weights(network, seed=seed, deviation=0.3)
    network.save_pretrained(folder)
    Owlv2ImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_got_ocr2(folder: Path, *, seed: int = 0) -> Path:
    """Save a tiny GOT-OCR 2.0 with a byte tokenizer; an image of 128 x 128 pixels takes four tokens."""
    torch.manual_seed(seed)
    text = {
        "model_type": "qwen2", "vocab_size": len(GOT_VOCABULARY), "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "initializer_range": 0.4, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 48,
        "image_size": PAGE_SIDE, "patch_size": 16, "window_size": 4, "global_attn_indexes": [1],
        "initializer_range": 0.2,
    }  # fmt: skip
    config = GotOcr2Config(
        text_config=text, vision_config=vision, image_token_index=GOT_VOCABULARY["<imgpad>"], image_seq_length=4
    )
    network = GotOcr2ForConditionalGeneration(config)
    enlarge_weights(network, seed=seed, deviation=0.2)
    network.save_pretrained(folder)
    GotOcr2ImageProcessorPil(size={"height": PAGE_SIDE, "width": PAGE_SIDE}).save_pretrained(folder)
    end = {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    tiny.make_byte_tokenizer(GOT_VOCABULARY, GOT_SPECIAL_TOKENS, **end).save_pretrained(folder)
    return folder
