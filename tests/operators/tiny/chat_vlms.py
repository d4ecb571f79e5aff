"""Tiny vision chat models in their real architectures, with the processor files of the released checkpoints."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

from tests.operators.tiny import BYTE_TOKENS, EXPERT_FIELDS, IMAGE_MEAN, IMAGE_STD, make_byte_tokenizer, write_json

IMAGE_SIDE = 16
"""Width of the vision tower's image in pixels; patches are 4 pixels wide."""
HALF_VALUES = [0.5] * 3
LANGUAGE_FIELDS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
}
TOWER_FIELDS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": IMAGE_SIDE,
    "patch_size": 4,
}
MERGED_TOKENS = ("\u010a\u010a", "Yes", "No", "\u0120Yes", "\u0120No")
"""Strings of several bytes that are one token, as in released vocabularies; two line breaks are one token."""
GRID_PINPOINTS = [[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]]

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + IMAGES }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ MARK }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "{{ '<|im_end|>' + TURN }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Chat template of LLaVA-OneVision and InternVL, which differ in the text around an image."""
ONEVISION_TEMPLATE = CHATML_TEMPLATE.replace("IMAGES", "' '").replace("MARK", "'<image>'").replace("TURN", "''")
ONEVISION_TEMPLATE = ONEVISION_TEMPLATE.replace("{{ part['text'] }}", "{{ '\n' + part['text'] }}")
INTERNVL_TEMPLATE = (
    CHATML_TEMPLATE.replace("IMAGES", "'\n'").replace("MARK", "'<IMG_CONTEXT>\n'").replace("TURN", "'\n'")
)
MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "{{ ' [/INST]' }}{% else %}{{ ' ' + message['content'][0]['text'] + eos_token }}{% endif %}{% endfor %}"
)
SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


GLM_TEMPLATE = (
    "[gMASK]<sop>{% for message in messages %}{{ '<|' + message['role'] + '|>\n' }}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|begin_of_image|><|image|><|end_of_image|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% if message['role'] == 'user' and enable_thinking is false %}/nothink{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is false %}<think></think>\n{% endif %}{% endif %}"
)
"""Chat template of GLM-4.5V and GLM-4.6V, which think unless thinking is disabled."""
GEMMA4_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '\n\n<|image|>\n\n' }}"
    "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}{{ '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}"
    "{% if not enable_thinking %}{{ '<|channel>thought\n<channel|>' }}{% endif %}{% endif %}"
)
"""Chat template of the larger Gemma 4 models, which think only when asked to.

Unless asked, it writes an empty thought; the template of the smaller models does not.
"""


def save_tokenizer(
    folder: Path, special: list[str], *, eos: str, bos: str | None = None, template: str | None, **marks: str
) -> dict[str, int]:
    """Save a byte-level tokenizer and return its ids by token; the first ids are those of `special`.

    `marks` contains extra special tokens by attribute name.
    """
    words = {token: index for index, token in enumerate([*special, *BYTE_TOKENS])}
    merges = []
    for word in MERGED_TOKENS:
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            words.setdefault(word[:end], len(words))
    names = {"pad_token": special[0], "eos_token": eos, "bos_token": bos, "extra_special_tokens": marks}
    fast = make_byte_tokenizer(words, special, list(dict.fromkeys(merges)), **names)
    fast.chat_template = template
    fast.save_pretrained(folder)
    return words


def save_processor(
    folder: Path, name: str, images: dict[str, Any], own: dict[str, Any] | None, *, kind: str = ""
) -> Path:
    """Save the settings of an image processor (`images`) and those of the processor around it (`own`, if not None).

    Both classes are named after `name`, unless `kind` names the image processor's class. Return the folder.
    """
    named = {"image_processor_type": kind or f"{name}ImageProcessor", "processor_class": f"{name}Processor"}
    colours = {"image_mean": HALF_VALUES, "image_std": HALF_VALUES}
    write_json(folder / "preprocessor_config.json", named | colours | images)
    if own is not None:
        write_json(folder / "processor_config.json", own | {"processor_class": f"{name}Processor"})
    return folder


def save_network(folder: Path, kind: str, *, seed: int, **fields: Any) -> None:
    """Save a random model of type `kind`, with weights large enough that answers differ between inputs."""
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **fields))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
            elif not weight.any():
                weight.normal_(std=0.1)
    model.save_pretrained(folder)


def save_llava_next(folder: Path, *, seed: int = 0, window: int | None = None) -> Path:
    """Save a LLaVA-NeXT with a Mistral, like llava-v1.6-mistral-7b-hf; it reads an image as tiles and as a whole."""
    special = ["<unk>", "<s>", "</s>", "<image>"]
    ids = save_tokenizer(folder, special, eos="</s>", bos="<s>", template=MISTRAL_TEMPLATE)
    text = LANGUAGE_FIELDS | {
        "model_type": "mistral",
        "vocab_size": len(ids),
        "sliding_window": window,
        "eos_token_id": 2,
    }
    save_network(
        folder,
        "llava_next",
        seed=seed,
        text_config=text,
        vision_config=TOWER_FIELDS | {"model_type": "clip_vision_model"},
        image_grid_pinpoints=GRID_PINPOINTS,
        image_token_index=ids["<image>"],
    )
    colours = {"image_mean": IMAGE_MEAN, "image_std": IMAGE_STD, "resample": 3}
    shape = {"crop_size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}, "size": {"shortest_edge": IMAGE_SIDE}}
    tiles = {"aspect_ratio_setting": "anyres", "image_grid_pinpoints": GRID_PINPOINTS}
    own = {"image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 4}
    own["vision_feature_select_strategy"] = "default"
    return save_processor(folder, "LlavaNext", colours | shape | tiles, own)


def save_llava_onevision(folder: Path, *, seed: int = 0) -> Path:
    """Save a LLaVA-OneVision with a SigLIP tower and a Qwen2; large images are reduced to the patches of nine tiles."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"]
    ids = save_tokenizer(folder, special, eos="<|im_end|>", template=ONEVISION_TEMPLATE)
    text = LANGUAGE_FIELDS | {"model_type": "qwen2", "vocab_size": len(ids), "eos_token_id": ids["<|im_end|>"]}
    save_network(
        folder,
        "llava_onevision",
        seed=seed,
        text_config=text | {"bos_token_id": None},
        vision_config=TOWER_FIELDS | {"model_type": "siglip_vision_model", "vision_use_head": False},
        image_grid_pinpoints=GRID_PINPOINTS,
        image_token_index=ids["<image>"],
        video_token_index=ids["<video>"],
        vision_aspect_ratio="anyres_max_2",
    )
    images = {
        "image_grid_pinpoints": GRID_PINPOINTS,
        "resample": 3,
        "size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
    }
    marks = {"image_token": "<image>", "num_image_tokens": 16, "video_token": "<video>"}
    own = marks | {"vision_aspect_ratio": "anyres_max_2", "vision_feature_select_strategy": "full"}
    return save_processor(folder, "LlavaOnevision", images, own)


def save_internvl(folder: Path, *, seed: int = 0, text: str = "qwen2") -> Path:
    """Save an InternVL in transformers' layout, which reads up to four tiles and the whole image with 4 tokens each.

    InternVL 3 has a `qwen2`, and InternVL 3.5 a `qwen3` or `qwen3_moe`.
    """
    marks = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    marks["video_token"] = "<video>"
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *marks.values()]
    ids = save_tokenizer(folder, special, eos="<|im_end|>", template=INTERNVL_TEMPLATE, **marks)
    language = LANGUAGE_FIELDS | {"model_type": text, "vocab_size": len(ids), "eos_token_id": ids["<|im_end|>"]}
    own = {"qwen2": {}, "qwen3": {"head_dim": 8}, "qwen3_moe": {"head_dim": 8, **EXPERT_FIELDS}}[text]
    save_network(
        folder,
        "internvl",
        seed=seed,
        text_config=language | own | {"bos_token_id": None},
        vision_config=TOWER_FIELDS
        | {"image_size": [IMAGE_SIDE, IMAGE_SIDE], "patch_size": [4, 4], "layer_scale_init_value": 1.0},
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    colours = {"image_mean": IMAGE_MEAN, "image_std": IMAGE_STD, "resample": 3}
    tiles = {
        "crop_to_patches": False,
        "max_patches": 4,
        "min_patches": 1,
        "size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
    }
    return save_processor(
        folder, "InternVL", colours | tiles, {"image_seq_length": 4}, kind="GotOcr2ImageProcessorFast"
    )


def save_smolvlm(folder: Path, *, seed: int = 0, kind: str = "smolvlm") -> Path:
    """Save a SmolVLM or an `idefics3`: each tile follows its position token, and the whole image comes last."""
    places = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    special = ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>"]
    special += ["<global-img>", *places]
    ids = save_tokenizer(folder, special, eos="<end_of_utterance>", bos="<|im_start|>", template=SMOLVLM_TEMPLATE)
    text = LANGUAGE_FIELDS | {"model_type": "llama", "vocab_size": len(ids), "eos_token_id": ids["<end_of_utterance>"]}
    save_network(
        folder,
        kind,
        seed=seed,
        text_config=text | {"pad_token_id": 0},
        vision_config={name: value for name, value in TOWER_FIELDS.items() if name != "model_type"},
        image_token_id=ids["<image>"],
        scale_factor=2,
        pad_token_id=0,
    )
    longest = {"max_image_size": {"longest_edge": IMAGE_SIDE}, "size": {"longest_edge": 3 * IMAGE_SIDE}}
    images = {"do_image_splitting": True, "resample": 1} | longest
    return save_processor(folder, {"smolvlm": "SmolVLM", "idefics3": "Idefics3"}[kind], images, {"image_seq_len": 4})


def save_gemma3(folder: Path, *, seed: int = 0, window: int = 8) -> Path:
    """Save a Gemma 3: two of three layers attend to `window` tokens, and an image's 4 tokens attend to each other."""
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", *marks.values()]
    ids = save_tokenizer(folder, special, eos="<eos>", bos="<bos>", template=GEMMA_TEMPLATE, **marks)
    ends = [ids["<eos>"], ids["<end_of_turn>"]]
    text = LANGUAGE_FIELDS | {
        "num_hidden_layers": 3,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": window,
    }
    save_network(
        folder,
        "gemma3",
        seed=seed,
        text_config=text | {"vocab_size": len(ids), "sliding_window_pattern": 3},
        vision_config=TOWER_FIELDS | {"model_type": "siglip_vision_model", "vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
        eos_token_id=ends,
        tie_word_embeddings=False,
    )
    write_json(folder / "generation_config.json", {"eos_token_id": ends, "bos_token_id": ids["<bos>"]})
    images = {"image_seq_length": 4, "resample": 2, "size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}}
    return save_processor(folder, "Gemma3", images, {"image_seq_length": 4})


GEMMA4_KINDS: dict[str, dict[str, Any]] = {
    "E4B": {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2},
    "26B-A4B": {
        "hidden_size_per_layer_input": 0,
        "use_bidirectional_attention": "vision",
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
    },
}


def save_gemma4(folder: Path, *, seed: int = 0, kind: str = "E4B", window: int = 8) -> Path:
    """Save a Gemma 4; two of three layers attend to only `window` tokens.

    In an `E4B`, the last two layers reuse earlier layers' keys; in a `26B-A4B`, an image's tokens attend to each other.
    """
    marks = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
    marks |= {"boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>"}
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|video|>"]
    special += marks.values()
    ids = save_tokenizer(folder, special, eos="<eos>", bos="<bos>", template=GEMMA4_TEMPLATE, **marks)
    ends = [ids["<eos>"], ids["<turn|>"]]
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    text = LANGUAGE_FIELDS | {"num_hidden_layers": 6, "layer_types": kinds * 2, "head_dim": 8, "global_head_dim": 16}
    text |= {"sliding_window": window, "final_logit_softcapping": 30.0, "vocab_size": len(ids)}
    tower = {name: size for name, size in TOWER_FIELDS.items() if name != "image_size"}
    save_network(
        folder,
        "gemma4",
        seed=seed,
        text_config=text | {"vocab_size_per_layer_input": len(ids)} | GEMMA4_KINDS[kind],
        vision_config=tower | {"num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 128},
        audio_config=None,
        boi_token_id=ids["<|image>"],
        eoi_token_id=ids["<image|>"],
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        audio_token_id=ids["<|audio|>"],
        eos_token_id=ends,
        tie_word_embeddings=False,
    )
    write_json(folder / "generation_config.json", {"eos_token_id": ends, "bos_token_id": ids["<bos>"]})
    images = {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "pooling_kernel_size": 3}
    images |= {"max_soft_tokens": 70, "do_normalize": False}
    named = {"processor_class": "Gemma4Processor", "image_seq_length": 70}
    write_json(folder / "processor_config.json", named | {"image_processor": images})
    return folder


def save_glm4v(folder: Path, *, seed: int = 0, kind: str = "glm4v", text: str = "glm4v_text") -> Path:
    """Save a GLM-4.1V, or the later model that `kind` names.

    Images are not resized, and a token stands for 4 patches of 4 x 4 pixels.
    """
    marks = [
        "<|begin_of_image|>",
        "<|image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|video|>",
        "<|end_of_video|>",
    ]
    special = ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", *marks]
    ids = save_tokenizer(folder, special, eos="<|endoftext|>", template=GLM_TEMPLATE)
    ends = [ids["<|endoftext|>"], ids["<|user|>"]]
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    language = LANGUAGE_FIELDS | {
        "vocab_size": len(ids),
        "rope_parameters": rope,
        "num_attention_heads": 2,
        "head_dim": 16,
    }
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    mixed = experts if "moe" in text else {}
    save_network(
        folder,
        kind,
        seed=seed,
        text_config=language | mixed | {"model_type": text, "eos_token_id": ends},
        vision_config={"depth": 2, "num_heads": 2, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48}
        | {"patch_size": 4, "image_size": 32},
        image_token_id=ids["<|image|>"],
        video_token_id=ids["<|video|>"],
        image_start_token_id=ids["<|begin_of_image|>"],
        image_end_token_id=ids["<|end_of_image|>"],
        video_start_token_id=ids["<|begin_of_video|>"],
        video_end_token_id=ids["<|end_of_video|>"],
    )
    write_json(folder / "generation_config.json", {"eos_token_id": ends})
    images = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
    images["size"] = {"shortest_edge": 128, "longest_edge": 2048}
    name = "Glm46V" if kind == "glm46v" else "Glm4v"
    return save_processor(folder, name, {"image_mean": IMAGE_MEAN, "image_std": IMAGE_STD} | images, None)


def save_paligemma(folder: Path, *, seed: int = 0, text: str = "gemma") -> Path:
    """Save a PaliGemma, or a PaliGemma 2 with a `gemma2`; images have 16 tokens, and there is no chat template."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<image>"]
    ids = save_tokenizer(folder, special, eos="<eos>", bos="<bos>", template=None)
    own = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8} if text == "gemma2" else {"head_dim": 8}
    save_network(
        folder,
        "paligemma",
        seed=seed,
        text_config=LANGUAGE_FIELDS | own | {"model_type": text, "vocab_size": len(ids) + 1200},
        vision_config=TOWER_FIELDS
        | {"model_type": "siglip_vision_model", "vision_use_head": False, "projection_dim": 32},
        image_token_index=ids["<image>"],
        projection_dim=32,
        hidden_size=32,
        tie_word_embeddings=False,
    )
    images = {"image_seq_length": 16, "resample": 3, "size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}}
    return save_processor(folder, "PaliGemma", images, None, kind="SiglipImageProcessor")


FUYU_TOKENS = ("|SPEAKER|", "|NEWLINE|", "|ENDOFTEXT|", "<0x04>", "\n", "▁", "▁Yes", "▁No")
"""Entries of Fuyu's vocabulary, including the image tokens, which are not special tokens."""


def save_fuyu(folder: Path, *, seed: int = 0) -> Path:
    """Save a Fuyu, which has no vision tower.

    It shrinks images to at most 32 x 24 pixels, and reads them as rows of 4 x 4 pixel patches. Its tokenizer writes a
    word marker before each text.
    """
    words = ["<unk>", "<s>", "</s>", *FUYU_TOKENS, *(chr(code) for code in range(33, 127))]
    tokenizer = Tokenizer(models.Unigram([(word, -float(len(word) == 1)) for word in words], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    text = {
        name: size
        for name, size in LANGUAGE_FIELDS.items()
        if name not in ("num_key_value_heads", "tie_word_embeddings")
    }
    save_network(
        folder,
        "fuyu",
        seed=seed,
        text_config=text | {"vocab_size": len(words), "model_type": "persimmon"},
        hidden_size=32,
        vocab_size=len(words),
        patch_size=4,
        image_token_id=words.index("|SPEAKER|"),
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    sizes = {"size": {"height": 24, "width": 32}, "patch_size": {"height": 4, "width": 4}}
    return save_processor(folder, "Fuyu", sizes, None)
