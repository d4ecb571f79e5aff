"""The tiny checkpoints as folders: weights in half precision, loaded in single by the production code."""

import copy
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from operators.models.calls import EntailmentModel, GenerateModel
from operators.models.checkpoints import ModelConfig, ResolvedModel, resolve_model
from operators.models.clip_flant5 import ClipFlanT5, ClipFlanT5Likelihood, save_clip_flant5
from operators.models.families.clip import ClipSimilarity
from operators.models.loading import load

CLIP_FOLDER = "clip-shapes"
VQA_FOLDER = "clip-flant5-shapes"
WRITER_FOLDER = "question-writer-shapes"
NLI_FOLDER = "nli-shapes"
IMAGE_BATCH = 128
REQUEST_BATCH = 64


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


def load_similarity(assets: Path) -> ClipSimilarity:
    """The saved CLIP as production loads it."""
    model = load(_resolve("clip", assets / CLIP_FOLDER, IMAGE_BATCH), "similarity")
    assert isinstance(model, ClipSimilarity)
    return model


def load_vqa(assets: Path) -> ClipFlanT5Likelihood:
    """The saved CLIP-FlanT5 as production loads it."""
    model = load(_resolve("clip_flant5", assets / VQA_FOLDER, IMAGE_BATCH), "likelihood")
    assert isinstance(model, ClipFlanT5Likelihood)
    return model


def load_writer(assets: Path) -> GenerateModel:
    """The saved question writer as production loads it."""
    return load(_resolve("causal_lm", assets / WRITER_FOLDER, REQUEST_BATCH), "generate")


def load_entailment(assets: Path) -> EntailmentModel:
    """The saved NLI model as production loads it."""
    return load(_resolve("nli", assets / NLI_FOLDER, REQUEST_BATCH), "entailment")


def _resolve(family: str, folder: Path, batch: int) -> ResolvedModel:
    return resolve_model(ModelConfig(family=family, checkpoint=str(folder), pair_batch=batch), on_gpu=False)
