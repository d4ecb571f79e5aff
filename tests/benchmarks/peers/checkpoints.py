"""The embedded checkpoints in the layouts that the peers read; the weights are the same."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.benchmarks.size import ROOT
from tests.vllm.tiny import make_qwen2_vl

ASSETS = ROOT / "assets"
CLIP, CLIP_FLANT5 = ASSETS / "clip-shapes", ASSETS / "clip-flant5-shapes"
CLIP_NAME, OPEN_CLIP, CLIP_T5, QWEN2_VL = "clip", "open_clip", "clip-flant5", "qwen2-vl"
CURATOR_MODELS, CURATOR_CLIP = "nemo-curator", "openai/clip-vit-large-patch14"
"""Folder of models for NeMo Curator, which loads its CLIP from the subfolder with this name."""
MODELSCOPE_CLIP, MODELSCOPE_CLIP_T5 = "openai/clip", "local/clip-flant5"
"""Ids of the models in modelscope's cache that evalscope loads; it replaces openai by the name of a mirror."""
MODELSCOPE_MODELS = "models"
"""Folder of the models in that cache."""
BLOCK_NAMES = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
"""Names in a block of open_clip's towers, by the names in transformers."""
OTHER_NAMES = {
    "logit_scale": "logit_scale",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
}
"""Names of the other weights in open_clip, by the names in transformers."""


def write_checkpoints(folder: Path) -> None:
    """Write all checkpoints that contenders read, below a folder."""
    shutil.copytree(CLIP, folder / CLIP_NAME)
    write_open_clip(folder / OPEN_CLIP)
    write_clip_flant5(folder / CLIP_T5, str(folder / CLIP_NAME))
    shutil.copytree(CLIP, folder / MODELSCOPE_MODELS / MODELSCOPE_CLIP.replace("openai", "openai-mirror"))
    write_clip_flant5(folder / MODELSCOPE_MODELS / MODELSCOPE_CLIP_T5, MODELSCOPE_CLIP)
    shutil.copytree(CLIP, folder / CURATOR_MODELS / CURATOR_CLIP)
    _write_tokenizer(CLIP, folder / CURATOR_MODELS / CURATOR_CLIP)
    make_qwen2_vl(folder / QWEN2_VL)


def write_open_clip(folder: Path) -> None:
    """Write the embedded CLIP as a folder that open_clip reads by `local-dir:`."""
    import torch

    config, weights = json.loads((CLIP / "config.json").read_text()), load_file(CLIP / "model.safetensors")
    folder.mkdir(parents=True, exist_ok=True)
    converted = {theirs: weights[ours] for ours, theirs in OTHER_NAMES.items()}
    converted["text_projection"] = weights["text_projection.weight"].T.contiguous()
    converted["visual.proj"] = weights["visual_projection.weight"].T.contiguous()
    for prefix, theirs, tower in (
        ("text_model", "transformer", "text_config"),
        ("vision_model", "visual.transformer", "vision_config"),
    ):
        for layer in range(config[tower]["num_hidden_layers"]):
            source, target = f"{prefix}.encoder.layers.{layer}", f"{theirs}.resblocks.{layer}"
            for kind in ("weight", "bias"):
                parts = [weights[f"{source}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
                converted[f"{target}.attn.in_proj_{kind}"] = torch.cat(parts)
                for ours, name in BLOCK_NAMES.items():
                    converted[f"{target}.{name}.{kind}"] = weights[f"{source}.{ours}.{kind}"]
    save_file(converted, folder / "open_clip_model.safetensors")
    preprocessor = json.loads((CLIP / "preprocessor_config.json").read_text())
    preprocess = {"mean": preprocessor["image_mean"], "std": preprocessor["image_std"], "interpolation": "bicubic"}
    described = {"model_cfg": _describe_for_open_clip(config), "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(described))
    _write_tokenizer(CLIP, folder)


def _describe_for_open_clip(config: dict[str, Any]) -> dict[str, Any]:
    text, vision = config["text_config"], config["vision_config"]
    return {
        "embed_dim": config["projection_dim"],
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": vision["image_size"],
            "layers": vision["num_hidden_layers"],
            "width": vision["hidden_size"],
            "head_width": vision["hidden_size"] // vision["num_attention_heads"],
            "patch_size": vision["patch_size"],
        },
        "text_cfg": {
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
            "width": text["hidden_size"],
            "heads": text["num_attention_heads"],
            "layers": text["num_hidden_layers"],
            "pool_type": "eos",
            "eos_id": text["eos_token_id"],
            "hf_tokenizer_name": "tokenizer",
        },
    }


def write_clip_flant5(folder: Path, tower: str) -> None:
    """Write the embedded CLIP-FlanT5 as a folder that t2v_metrics and evalscope read.

    `tower` is the path or id of a CLIP. They load it first, and then replace its weights by those of the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((CLIP_FLANT5 / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "mm_vision_tower": tower}))
    shutil.copy(CLIP_FLANT5 / "model.safetensors", folder)
    _write_tokenizer(CLIP_FLANT5, folder)


def _write_tokenizer(source: Path, folder: Path) -> None:
    """Copy a tokenizer in a form that all versions of transformers and tokenizers read."""
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    for part in ("pre_tokenizer", "decoder"):
        if (tokenizer[part] or {}).get("type") == "Metaspace":
            tokenizer[part] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((source / "tokenizer_config.json").read_text())
    changed = {**config, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(changed))
