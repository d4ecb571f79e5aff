"""Random checkpoints in the layouts of the real ones, small enough to build in a test, and pictures to show them."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig, CLIPVisionModel, PreTrainedTokenizerFast, T5Config
from transformers import T5ForConditionalGeneration as T5

CONTEXT = 12
"""Text tokens the CLIP reads, its first and last token included."""
SIDE = 32
PATCHES = 16
TEXT = (
    "a the red blue green circle square star left of above two three photo depicts A Yes No maybe Does this figure "
    'show Please answer yes or no . , ? : " { } chat between curious user and an artificial intelligence assistant '
    "The gives helpful detailed polite answers to s ' USER ASSISTANT"
)
SPECIAL = ("<pad>", "</s>", "<unk>", "<s>")
VOCABULARY = {word: index for index, word in enumerate([*SPECIAL, *dict.fromkeys(TEXT.split())])}

VISION_FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 8,
}
TEXT_FIELDS = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 3,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
T5_FIELDS: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "is_encoder_decoder": True,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
IMAGE_MEAN = [0.48145466, 0.4578275, 0.40821073]
IMAGE_STD = [0.26862954, 0.26130258, 0.27577711]
TOWER_PREFIX = "vision_tower.vision_tower.vision_model."


def save_tokenizer(folder: Path, *, template: str) -> None:
    """A word-level tokenizer; `template` says which special tokens stand around a text."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(token, VOCABULARY[token]) for token in ("<s>", "</s>") if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", bos_token="<s>"
    )
    fast.save_pretrained(folder)


def save_preprocessor(folder: Path) -> None:
    """CLIP's image preprocessing, for a tower of SIDE pixels."""
    fields = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
        "resample": 3,
        "image_mean": IMAGE_MEAN,
        "image_std": IMAGE_STD,
    }
    write_json(folder / "preprocessor_config.json", fields)


def save_clip(folder: Path, *, seed: int = 0) -> Path:
    """A CLIP checkpoint with its own tokenizer and preprocessor, as transformers saves one."""
    torch.manual_seed(seed)
    config = CLIPConfig(vision_config=VISION_FIELDS, text_config=TEXT_FIELDS, projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    save_tokenizer(folder, template="<s> $A </s>")
    save_preprocessor(folder)
    return folder


def flant5_weights(*, seed: int = 4) -> dict[str, torch.Tensor]:
    """CLIP-FlanT5 tensors under their released names: T5's own, the projector's, the tower's; the head is untied."""
    torch.manual_seed(seed)
    language = T5(T5Config(**T5_FIELDS)).state_dict()
    aliases = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    weights = {name: tensor for name, tensor in language.items() if name not in aliases}
    weights["lm_head.weight"] = torch.randn(len(VOCABULARY), T5_FIELDS["d_model"]) * 0.4
    width, hidden = T5_FIELDS["d_model"], VISION_FIELDS["hidden_size"]
    projector = nn.Sequential(nn.Linear(hidden, width), nn.GELU(), nn.Linear(width, width))
    weights |= {f"mm_projector.{name}": tensor * 4 for name, tensor in projector.state_dict().items()}
    tower = CLIPVisionModel(CLIPVisionConfig(**VISION_FIELDS)).state_dict()
    weights |= {TOWER_PREFIX + name.removeprefix("vision_model."): tensor for name, tensor in tower.items()}
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def without_tower(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint that leaves its tower's weights in the CLIP checkpoint."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith(TOWER_PREFIX)}


def save_flant5(folder: Path, weights: dict[str, torch.Tensor], *, tower_name: str = "../clip") -> Path:
    """A CLIP-FlanT5 checkpoint in the released layout, written without the code under test."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = T5_FIELDS | {
        "model_type": "clip_t5",
        "mm_vision_tower": tower_name,
        "mm_hidden_size": VISION_FIELDS["hidden_size"],
        "mm_projector_type": "mlp2x_gelu",
        "mm_vision_select_layer": -2,
        "mm_vision_select_feature": "patch",
    }
    write_json(folder / "config.json", fields)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(folder, template="$A </s>")
    return folder


def shard_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Replaces a checkpoint's one weight file by two and their index."""
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    weight_map: dict[str, str] = {}
    for number, half in enumerate(halves, start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: weights[name] for name in half}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(half, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_json(path: Path, fields: Any) -> None:
    path.write_text(json.dumps(fields, indent=1))


def edit_json(path: Path, **fields: Any) -> None:
    """Sets fields of a JSON file; None removes a field."""
    edited = json.loads(path.read_text()) | fields
    write_json(path, {name: value for name, value in edited.items() if value is not None})


def picture(seed: int, *, width: int = 48, height: int = 48) -> Image.Image:
    """A picture of coarse random blocks, different for every seed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)


def encoded(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()


def image_table(images: Sequence[bytes | None], prompt_ids: Sequence[str | None]) -> pa.Table:
    """A source table of images with the ids `i0`, `i1`, ..."""
    return pa.table(
        {
            "image_id": pa.array([f"i{number}" for number in range(len(images))], pa.string()),
            "prompt_id": pa.array(list(prompt_ids), pa.string()),
            "image": pa.array(list(images), pa.binary()),
        }
    )


def no_fetch(uri: str) -> bytes:
    """For tables whose images all stand in the row."""
    raise AssertionError(f"{uri!r} was fetched")
