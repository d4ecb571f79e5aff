"""The tiny checkpoints as folders: weights in half precision, loaded in single by the production code."""

import copy
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from plumbline.operators.models.model import ModelConfig, ResolvedModel
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5, save_clip_flant5
from plumbline.operators.models.resolution import resolve_model

CLIP_FOLDER = "clip-shapes"
VQA_FOLDER = "clip-flant5-shapes"
WRITER_FOLDER = "question-writer-shapes"
NLI_FOLDER = "nli-shapes"
FAMILIES = {CLIP_FOLDER: "clip", VQA_FOLDER: "clip_flant5", WRITER_FOLDER: "causal_lm", NLI_FOLDER: "nli"}
BATCH = 128


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes a checkpoint in transformers' own layout."""
    halves = {name: tensor.to(torch.float16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=halves)
    tokenizer.save_pretrained(folder)


def save_vqa(model: ClipFlanT5, tokenizer: PreTrainedTokenizerFast, assets: Path) -> None:
    """Writes the CLIP-FlanT5 checkpoint beside the CLIP whose tower's shape it shares."""
    folder = assets / VQA_FOLDER
    save_clip_flant5(copy.deepcopy(model).half(), folder, tower_name=f"../{CLIP_FOLDER}")
    tokenizer.save_pretrained(folder)


def resolve_checkpoint(assets: Path, folder: str) -> ResolvedModel:
    """One of the saved checkpoints as production resolves it."""
    config = ModelConfig(family=FAMILIES[folder], checkpoint=str(assets / folder), pair_batch=BATCH)
    return resolve_model(config, on_gpu=False)
