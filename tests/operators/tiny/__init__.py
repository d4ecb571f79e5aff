"""Random checkpoints in the layouts of released models, small enough to build in a test, and images for them."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
    T5Config,
)
from transformers import T5ForConditionalGeneration as T5

from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.models.families.clip_flant5 import CLIP_FLANT5_PROFILE

CONTEXT_TOKENS = 12
"""Maximum number of CLIP's text tokens, including the first and the last token."""
IMAGE_SIDE = 32
N_PATCHES = 16
VOCABULARY_TEXT = (
    "a the red blue green circle square star left of above two three photo depicts A Yes No maybe Does this figure "
    'show Please answer yes or no . , ? : " { } chat between curious user and an artificial intelligence assistant '
    "The gives helpful detailed polite answers to s ' USER ASSISTANT"
)
SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>", "<s>")
VOCABULARY = {word: index for index, word in enumerate([*SPECIAL_TOKENS, *dict.fromkeys(VOCABULARY_TEXT.split())])}

VISION_FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": IMAGE_SIDE,
    "patch_size": 8,
}
TEXT_FIELDS = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
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
CHAT_SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>",
                "<|vision_end|>", "<image>")  # fmt: skip
BYTE_TOKENS = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_VOCABULARY = {token: index for index, token in enumerate([*CHAT_SPECIAL_TOKENS, *BYTE_TOKENS])}
"""Vocabulary with one token per byte, so that any text can be read and written."""
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><image><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING_TEMPLATE = QWEN_TEMPLATE.replace(
    "assistant\n{% endif",
    "assistant\n<think>\n{% if enable_thinking is false %}{{ '\n</think>\n\n' }}{% endif %}{% endif",
)
"""Qwen3.5's chat template, which opens a thought unless thinking is disabled."""
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' '}}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""The chat template of llava-hf/llava-1.5-7b-hf for user turns."""
DECODER_FIELDS: dict[str, Any] = {
    "vocab_size": len(BYTE_VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "bos_token_id": BYTE_VOCABULARY["<s>"],
    "pad_token_id": BYTE_VOCABULARY["<pad>"],
    "tie_word_embeddings": False,
}
IMAGE_MEAN = [0.48145466, 0.4578275, 0.40821073]
IMAGE_STD = [0.26862954, 0.26130258, 0.27577711]
TRL_OPTIONS: dict[str, Any] = {
    "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "seed": 0,
    "gradient_checkpointing": False, "dataloader_pin_memory": False,
}  # fmt: skip
"""Options for training tiny models with TRL: on the CPU, without reports or saved files."""
TOWER_PREFIX = "vision_tower.vision_tower.vision_model."


def make_vqascore(**options: Any) -> VqaScoreConfig:
    """Return the configuration of VQAScore with CLIP-FlanT5's question; `options` override fields."""
    return VqaScoreConfig(**options).complete_options(lambda role: CLIP_FLANT5_PROFILE)


def save_tokenizer(folder: Path, *, template: str, pair: str | None = None) -> None:
    """Save a word-level tokenizer. `template` and `pair` are its templates for one text and for two texts."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(token, VOCABULARY[token]) for token in ("<s>", "</s>") if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
        **({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if pair else {}),
    )
    fast.save_pretrained(folder)


def make_byte_tokenizer(
    vocabulary: Mapping[str, int], special: Sequence[str] = (), merges: Sequence[tuple[str, str]] = (), **names: Any
) -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer with these `merges`; `names` are keyword arguments that name special tokens."""
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bool(merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def save_byte_tokenizer(folder: Path, *, template: str | None = None, end: str = "<|im_end|>") -> None:
    """Save a tokenizer whose tokens are single bytes and chat markers; its end token is `end`."""
    fast = make_byte_tokenizer(BYTE_VOCABULARY, CHAT_SPECIAL_TOKENS, pad_token="<pad>", eos_token=end, bos_token="<s>")
    fast.chat_template = template
    fast.save_pretrained(folder)


def save_causal_lm(folder: Path, *, seed: int = 0, template: str | None = QWEN_TEMPLATE, **fields: Any) -> Path:
    """Save a Llama with a byte tokenizer; `fields` are added to its config."""
    torch.manual_seed(seed)
    ends = {"eos_token_id": BYTE_VOCABULARY["<|im_end|>"]}
    LlamaForCausalLM(LlamaConfig(**DECODER_FIELDS | ends | fields)).save_pretrained(folder)
    save_byte_tokenizer(folder, template=template)
    return folder


QWEN_VISION_FIELDS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
    "qwen2_5_vl": {
        "hidden_size": 32,
        "out_hidden_size": 32,
        "intermediate_size": 48,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
    "qwen3_vl": {
        "hidden_size": 32,
        "out_hidden_size": 32,
        "intermediate_size": 48,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    },
}
QWEN_VISION_FIELDS["qwen3_vl_moe"] = QWEN_VISION_FIELDS["qwen3_vl"]
QWEN_VISION_FIELDS["qwen3_5"] = {
    name: size for name, size in QWEN_VISION_FIELDS["qwen3_vl"].items() if "deepstack" not in name
}
QWEN_VISION_FIELDS["qwen3_5_moe"] = QWEN_VISION_FIELDS["qwen3_5"]
EXPERT_FIELDS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
QWEN_TEXT_FIELDS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {"head_dim": 8},
    "qwen3_vl_moe": {"head_dim": 8, **EXPERT_FIELDS},
    "qwen3_5": {
        "vocab_size": len(BYTE_VOCABULARY) + 7,
        "head_dim": 16,
        "initializer_range": 0.2,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5,
        },
    },
}  # fmt: skip
QWEN_TEXT_FIELDS["qwen3_5_moe"] = QWEN_TEXT_FIELDS["qwen3_5"] | EXPERT_FIELDS | {"shared_expert_intermediate_size": 16}


def save_qwen2_vl(folder: Path, *, seed: int = 0, kind: str = "qwen2_vl") -> Path:
    """Save a Qwen2-VL, or the later model that `kind` names.

    Images are not resized, and a token stands for 4 patches of 4 x 4 pixels.
    """
    torch.manual_seed(seed)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    ends = {"eos_token_id": BYTE_VOCABULARY["<|im_end|>"]}
    marks = {
        "image_token_id": BYTE_VOCABULARY["<|image_pad|>"],
        "vision_start_token_id": BYTE_VOCABULARY["<|vision_start|>"],
        "vision_end_token_id": BYTE_VOCABULARY["<|vision_end|>"],
        "video_token_id": BYTE_VOCABULARY["<image>"],
        "tie_word_embeddings": False,
    }
    config = AutoConfig.for_model(
        kind,
        text_config=DECODER_FIELDS | {"rope_parameters": rope} | ends | QWEN_TEXT_FIELDS.get(kind, {}),
        vision_config={"depth": 2, "num_heads": 2, "patch_size": 4, **QWEN_VISION_FIELDS[kind]},
        **marks,
    )
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    save_byte_tokenizer(folder, template=THINKING_TEMPLATE if kind.startswith("qwen3_5") else QWEN_TEMPLATE)
    fields = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 64,
        "max_pixels": 1024,
        "image_mean": IMAGE_MEAN,
        "image_std": IMAGE_STD,
    }
    write_json(folder / "preprocessor_config.json", fields)
    return folder


def save_llava(folder: Path, *, seed: int = 0) -> Path:
    """Save a LLaVA-1.5 with a CLIP tower, a Llama, and its chat template in a separate file, as released."""
    _save_llava_network(folder, CLIPVisionConfig(**VISION_FIELDS), end="</s>", seed=seed)
    save_byte_tokenizer(folder, end="</s>")
    write_json(folder / "chat_template.json", {"chat_template": LLAVA_TEMPLATE})
    save_preprocessor(folder)
    return folder


def save_llava_siglip(folder: Path, *, seed: int = 0, strategy: str = "full") -> Path:
    """Save a LLaVA with a SigLIP tower (without class token) and its own chat template, like LLaVA-Interleave."""
    tower = SiglipVisionConfig(**VISION_FIELDS)
    _save_llava_network(folder, tower, end="<|im_end|>", seed=seed, vision_feature_select_strategy=strategy)
    save_byte_tokenizer(
        folder, template=QWEN_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>\n")
    )
    fields = {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
        "resample": 3,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    write_json(folder / "preprocessor_config.json", fields)
    return folder


def _save_llava_network(folder: Path, tower: Any, *, end: str, seed: int, **fields: Any) -> None:
    torch.manual_seed(seed)
    config = LlavaConfig(
        text_config=LlamaConfig(**DECODER_FIELDS | {"eos_token_id": BYTE_VOCABULARY[end]}),
        vision_config=tower,
        image_token_id=BYTE_VOCABULARY["<image>"],
        image_seq_length=N_PATCHES,
        tie_word_embeddings=False,
        **fields,
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)


def make_bert_config(**fields: Any) -> BertConfig:
    """Return the config of a BERT with the words of VOCABULARY and a context of CONTEXT_TOKENS tokens."""
    return BertConfig(**TEXT_FIELDS | {"initializer_range": 0.4} | fields)


def save_sentence_encoder(folder: Path, *, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    BertModel(make_bert_config()).save_pretrained(folder)
    save_tokenizer(folder, template="<s> $A </s>")
    return folder


def save_nli(
    folder: Path, *, seed: int = 0, labels: Sequence[str] = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
) -> Path:
    """Save a cross-encoder for natural-language inference with these labels."""
    torch.manual_seed(seed)
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    BertForSequenceClassification(make_bert_config(**named)).save_pretrained(folder)
    save_tokenizer(folder, template="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1")
    return folder


def save_true_nli(folder: Path, *, seed: int = 0) -> Path:
    """Save a T5 for entailment with an untied head, like TRUE's, but with a byte tokenizer."""
    torch.manual_seed(seed)
    size = {"vocab_size": len(BYTE_VOCABULARY), "eos_token_id": BYTE_VOCABULARY["</s>"]}
    model = T5(T5Config(**T5_FIELDS | size))
    model.lm_head.weight = nn.Parameter(torch.randn(len(BYTE_VOCABULARY), T5_FIELDS["d_model"]))
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    edit_json(folder / "config.json", tie_word_embeddings=False)
    save_byte_tokenizer(folder, end="</s>")
    return folder


def save_preprocessor(folder: Path) -> None:
    """Save CLIP's image preprocessing for a vision tower that takes IMAGE_SIDE x IMAGE_SIDE pixels."""
    fields = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": IMAGE_SIDE},
        "crop_size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
        "resample": 3,
        "image_mean": IMAGE_MEAN,
        "image_std": IMAGE_STD,
    }
    write_json(folder / "preprocessor_config.json", fields)


def save_clip(folder: Path, *, seed: int = 0) -> Path:
    """Save a CLIP checkpoint with its own tokenizer and preprocessor, as transformers would."""
    torch.manual_seed(seed)
    config = CLIPConfig(vision_config=VISION_FIELDS, text_config=TEXT_FIELDS, projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    save_tokenizer(folder, template="<s> $A </s>")
    save_preprocessor(folder)
    return folder


def make_flant5_weights(*, seed: int = 4) -> dict[str, torch.Tensor]:
    """Return CLIP-FlanT5's tensors under their released names: T5 with an untied head, projector and tower."""
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


def remove_tower(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return all tensors except the tower's, for a checkpoint whose tower is loaded from the CLIP checkpoint."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith(TOWER_PREFIX)}


def save_flant5(folder: Path, weights: dict[str, torch.Tensor], *, tower_name: str = "../clip") -> Path:
    """Save a CLIP-FlanT5 checkpoint in the released layout, without using the code under test."""
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
    """Replace a checkpoint's weight file with two shards and their index."""
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
    """Set fields of a JSON file; None removes the field."""
    edited = json.loads(path.read_text()) | fields
    write_json(path, {name: value for name, value in edited.items() if value is not None})


def draw_image(seed: int, *, width: int = 48, height: int = 48) -> Image.Image:
    """Draw an image of coarse random blocks that depends on the seed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)


def draw_frames(count: int, *, width: int = 112, height: int = 88, first: int = 0) -> list[Image.Image]:
    """Draw the frames of a video, by default in a size that the tiny chat models do not need to resize."""
    return [draw_image(first + number, width=width, height=height) for number in range(count)]


def encode_image(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()


def make_image_table(images: Sequence[bytes | None], prompt_ids: Sequence[str | None]) -> pa.Table:
    """Return a source table of images with the ids `i0`, `i1` and so on."""
    return pa.table(
        {
            "image_id": pa.array([f"i{number}" for number in range(len(images))], pa.string()),
            "prompt_id": pa.array(list(prompt_ids), pa.string()),
            "image": pa.array(list(images), pa.binary()),
        }
    )


def refuse_fetch(uri: str) -> bytes:
    """Fail if called, because every image of the table is stored in its row."""
    raise AssertionError(f"{uri!r} was fetched")
