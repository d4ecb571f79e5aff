"""The tiny checkpoints as folders: weights in half precision, loaded in single by the production code."""

import copy
from pathlib import Path

import torch
from transformers import CLIPModel, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from operators.models.clip_flant5 import ClipFlanT5, save_clip_flant5

CLIP_FOLDER = "clip-shapes"
VQA_FOLDER = "clip-flant5-shapes"
WRITER_FOLDER = "question-writer-shapes"
NLI_FOLDER = "nli-shapes"


def save_clip(
    model: CLIPModel, tokenizer: PreTrainedTokenizerFast, processor: CLIPImageProcessorPil, assets: Path
) -> None:
    """Writes the CLIP checkpoint under the assets folder in transformers' own layout."""
    folder = assets / CLIP_FOLDER
    halves = {name: tensor.to(torch.float16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=halves)
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)


def save_vqa(model: ClipFlanT5, tokenizer: PreTrainedTokenizerFast, assets: Path) -> None:
    """Writes the CLIP-FlanT5 checkpoint beside the CLIP whose tower's shape it shares."""
    folder = assets / VQA_FOLDER
    save_clip_flant5(copy.deepcopy(model).half(), folder, tower_name=f"../{CLIP_FOLDER}")
    tokenizer.save_pretrained(folder)


def save_text_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes a language model's checkpoint in transformers' own layout."""
    halves = {name: tensor.to(torch.float16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=halves)
    tokenizer.save_pretrained(folder)
