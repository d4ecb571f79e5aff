"""Random captioning models in the layouts of real ones."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    Florence2Config,
    Florence2ForConditionalGeneration,
    GitConfig,
    GitForCausalLM,
    PreTrainedTokenizerFast,
)

from tests.operators import tiny

BERT_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_VOCABULARY = {
    word: index
    for index, word in enumerate([*BERT_SPECIAL_TOKENS, *dict.fromkeys(tiny.VOCABULARY_TEXT.lower().split())])
}
LOCATION_TOKENS = tuple(f"<loc_{place}>" for place in range(0, 1000, 8))
LETTERS = [chr(code) for code in range(33, 127)] + ["\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"]
"""Printable ASCII characters as a byte-level tokenizer writes them; the last one is the space."""
FLORENCE_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<image>")
FLORENCE_VOCABULARY = {
    token: index for index, token in enumerate([*FLORENCE_SPECIAL_TOKENS, *LETTERS, *LOCATION_TOKENS])
}


def save_bert_tokenizer(folder: Path) -> None:
    """Save a BERT tokenizer that splits texts into whole words."""
    tokenizer = Tokenizer(models.WordPiece(BERT_VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def save_blip(folder: Path, *, seed: int = 4) -> Path:
    """Save a BLIP captioner; as released, the token that starts a caption is not in its tokenizer."""
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {
        "vocab_size": len(BERT_VOCABULARY) + 2,
        "encoder_hidden_size": 32,
        "projection_dim": 16,
        "initializer_range": 0.6,
    }
    ends = {
        "bos_token_id": len(BERT_VOCABULARY),
        "sep_token_id": BERT_VOCABULARY["[SEP]"],
        "pad_token_id": 0,
        "eos_token_id": 2,
    }
    vision = {**size, "image_size": tiny.IMAGE_SIDE, "patch_size": 8, "initializer_range": 0.4}
    config = BlipConfig(text_config={**size, **text, **ends}, vision_config=vision, projection_dim=16)
    BlipForConditionalGeneration(config).save_pretrained(folder)
    save_bert_tokenizer(folder)
    BlipImageProcessor(size={"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}).save_pretrained(folder)
    return folder


def save_git(folder: Path, *, seed: int = 2) -> Path:
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": BERT_VOCABULARY["[CLS]"], "eos_token_id": BERT_VOCABULARY["[SEP]"], "pad_token_id": 0}
    vision = {**size, "image_size": tiny.IMAGE_SIDE, "patch_size": 8}
    config = GitConfig(vision_config=vision, **size, **ends, vocab_size=len(BERT_VOCABULARY), initializer_range=0.6)
    GitForCausalLM(config).save_pretrained(folder)
    save_bert_tokenizer(folder)
    tiny.save_preprocessor(folder)
    return folder


def save_blip2_opt(folder: Path, *, seed: int = 0) -> Path:
    """Save a BLIP-2 with an OPT and a Q-Former of four queries; its captions end with `a` instead of a line break."""
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    marks = {"bos_token_id": 2, "eos_token_id": FLORENCE_VOCABULARY["a"], "pad_token_id": 1}
    text = {
        "model_type": "opt", "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "word_embed_proj_dim": 32, "vocab_size": len(FLORENCE_VOCABULARY), "max_position_embeddings": 96,
        "init_std": 0.6,
    }  # fmt: skip
    config = Blip2Config(
        vision_config={**size, "image_size": tiny.IMAGE_SIDE, "patch_size": 8, "initializer_range": 0.4},
        qformer_config={**size, "encoder_hidden_size": 32, "initializer_range": 0.4},
        text_config={**text, **marks},
        num_query_tokens=4,
        image_token_index=FLORENCE_VOCABULARY["<image>"],
    )
    model = Blip2ForConditionalGeneration(config)
    torch.nn.init.normal_(model.query_tokens)
    model.save_pretrained(folder)
    save_florence_tokenizer(folder)
    BlipImageProcessor(size={"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}).save_pretrained(folder)
    return folder


def save_florence_tokenizer(folder: Path) -> None:
    """Save a byte-level tokenizer with position tokens, in BART's layout."""
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    fast = tiny.make_byte_tokenizer(FLORENCE_VOCABULARY, **names, extra_special_tokens={"image_token": "<image>"})
    fast.add_tokens(list(LOCATION_TOKENS), special_tokens=True)
    fast.save_pretrained(folder)


def save_florence2(folder: Path, *, seed: int = 0) -> Path:
    """Save a Florence-2 for images 32 pixels wide."""
    torch.manual_seed(seed)
    layers = {f"{half}_{name}": number for half in ("encoder", "decoder")
              for name, number in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 48))}  # fmt: skip
    text = {"d_model": 32, **layers, "vocab_size": len(FLORENCE_VOCABULARY), "max_position_embeddings": 96}
    ends = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    forced = {"forced_bos_token_id": 0, "forced_eos_token_id": 2}
    stages = {"embed_dim": [8, 16], "depths": [1, 1], "num_heads": [2, 2], "num_groups": [2, 2], "patch_size": [7, 3],
              "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]}  # fmt: skip
    vision = {**stages, "window_size": 4, "projection_dim": 32, "initializer_range": 0.4}
    text |= {**ends, **forced, "init_std": 0.6}
    marks = {"image_token_id": FLORENCE_VOCABULARY["<image>"]}
    config = Florence2Config(text_config=text, vision_config=vision, **marks)
    model = Florence2ForConditionalGeneration(config)
    model.generation_config.update(num_beams=3, no_repeat_ngram_size=3, **forced)
    model.save_pretrained(folder)
    save_florence_tokenizer(folder)
    fields = {
        "image_processor_type": "CLIPImageProcessor", "size": {"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE},
        "resample": 3, "do_center_crop": False, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
        "image_seq_length": 17,
    }  # fmt: skip
    tiny.write_json(folder / "preprocessor_config.json", fields)
    tasks = {"description_with_bboxes": {"PATTERN": None}, "pure_text": {}}
    tiny.write_json(
        folder / "processor_config.json", {"processor_class": "Florence2Processor", "post_processor_config": tasks}
    )
    return folder
