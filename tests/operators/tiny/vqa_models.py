"""Tiny random BLIP-2, InstructBLIP and BLIP checkpoints in the layouts of their releases."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import (
    BertTokenizerFast,
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipConfig,
    BlipForQuestionAnswering,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from tests.operators.tiny import (
    IMAGE_MEAN,
    IMAGE_SIDE,
    IMAGE_STD,
    T5_FIELDS,
    TEXT_FIELDS,
    VISION_FIELDS,
    edit_json,
    write_json,
)

N_QUERIES = 4
"""Number of image tokens that a Q-Former produces; 32 in the releases."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PUNCTUATION = '?.!,:"()*#;~'
WORDPIECES = {
    piece: index
    for index, piece in enumerate(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *PUNCTUATION,
         *"0123456789", "yes", "no", "red", "blue", "star", "circle", "the"]
    )
}  # fmt: skip
"""Vocabulary of an uncased BERT that can spell any word."""
START_TOKEN, QUESTION_TOKEN = len(WORDPIECES), len(WORDPIECES) + 1
"""Ids of [DEC] and [ENC], which are in BLIP's embedding but not in the tokenizer of its release."""
T5_PIECES = ("<pad>", "</s>", "<unk>")
T5_LETTERS = f"▁{LETTERS}{LETTERS.upper()}{PUNCTUATION}0123456789"
T5_WORDS = ("yes", "no", "Yes", "No", "red", "circle", "the", "star")
T5_VOCABULARY = [
    *((piece, 0.0) for piece in T5_PIECES),
    *((letter, -6.0) for letter in T5_LETTERS),
    *((f"▁{word}", -8.0) for word in T5_WORDS),
]
IMAGE_TOKEN = "<image>"
EMBEDDING_ROWS = len(T5_VOCABULARY) + 8
"""Number of rows in FlanT5's embedding, which has more rows than its tokenizer has entries."""
WEIGHT_DEVIATION = 0.4
"""Standard deviation of the random weights, large enough that scores differ between inputs."""


def save_blip2(folder: Path, *, seed: int = 0) -> Path:
    """Save a BLIP-2 with a FlanT5."""
    torch.manual_seed(seed)
    config = Blip2Config(**_make_fields("blip_2_vision_model"))
    return _save(Blip2ForConditionalGeneration(config), folder, "Blip2Processor")


def save_instructblip(folder: Path, *, seed: int = 0) -> Path:
    """Save an InstructBLIP with a FlanT5; the tokenizer of its Q-Former is in a separate folder."""
    torch.manual_seed(seed)
    config = InstructBlipConfig(**_make_fields("instructblip_vision_model"))
    _save(InstructBlipForConditionalGeneration(config), folder, "InstructBlipProcessor")
    save_bert_tokenizer(folder / "qformer_tokenizer")
    return folder


def save_blip_vqa(folder: Path, *, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    marks = {"bos_token_id": START_TOKEN, "sep_token_id": WORDPIECES["[SEP]"], "pad_token_id": WORDPIECES["[PAD]"]}
    sizes = {"vocab_size": len(WORDPIECES) + 2, "max_position_embeddings": 256, "encoder_hidden_size": 32}
    model = BlipForQuestionAnswering(
        BlipConfig(text_config=TEXT_FIELDS | marks | sizes, vision_config=VISION_FIELDS, projection_dim=16)
    )
    enlarge_weights(model)
    model.save_pretrained(folder)
    save_bert_tokenizer(folder)
    _save_preprocessor(folder, "BlipProcessor")
    return folder


def save_bert_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in WORDPIECES))
    BertTokenizerFast(vocab=WORDPIECES, do_lower_case=True).save_pretrained(folder)


def save_t5_tokenizer(folder: Path) -> None:
    """Save a T5 tokenizer for letters and a few words, with the image marker that processors add."""
    tokenizer = Tokenizer(models.Unigram(T5_VOCABULARY, unk_id=2))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.add_tokens([IMAGE_TOKEN], special_tokens=True)
    fast.save_pretrained(folder)
    edit_json(folder / "tokenizer_config.json", tokenizer_class="T5Tokenizer", extra_ids=0)


def enlarge_weights(model: nn.Module) -> None:
    """Set large random weights and biases, so that the network's output differs between inputs."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=WEIGHT_DEVIATION / max(1.0, parameter.shape[-1] / 32) ** 0.5)
        elif name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)


def _make_fields(vision: str) -> dict[str, Any]:
    """Return the config of a Q-Former between a vision tower and a FlanT5 with the exact GELU, as released."""
    language = T5_FIELDS | {"model_type": "t5", "vocab_size": EMBEDDING_ROWS, "dense_act_fn": "gelu"}
    qformer = TEXT_FIELDS | {
        "vocab_size": len(WORDPIECES),
        "max_position_embeddings": 96,
        "encoder_hidden_size": VISION_FIELDS["hidden_size"],
        "cross_attention_frequency": 2,
    }
    tower = VISION_FIELDS | {"model_type": vision}
    return {
        "vision_config": tower,
        "qformer_config": qformer,
        "text_config": language,
        "num_query_tokens": N_QUERIES,
        "image_token_index": len(T5_VOCABULARY),
    }


def _save(model: Any, folder: Path, processor: str) -> Path:
    enlarge_weights(model)
    model.language_model.lm_head.weight = nn.Parameter(
        torch.randn(EMBEDDING_ROWS, T5_FIELDS["d_model"]) * WEIGHT_DEVIATION
    )
    model.save_pretrained(folder)
    _write_released_config(folder, model)
    save_t5_tokenizer(folder)
    _save_preprocessor(folder, processor)
    write_json(folder / "processor_config.json", {"num_query_tokens": N_QUERIES, "processor_class": processor})
    return folder


def _write_released_config(folder: Path, model: Any) -> None:
    """Write the text config as released; transformers 5 would save every T5's head as tied."""
    text = model.config.text_config.to_dict() | {"tie_word_embeddings": False}
    edit_json(folder / "config.json", text_config={k: v for k, v in text.items() if k != "scale_decoder_outputs"})


def _save_preprocessor(folder: Path, processor: str) -> None:
    fields = {
        "image_processor_type": "BlipImageProcessor",
        "processor_class": processor,
        "size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
        "resample": 3,
        "image_mean": IMAGE_MEAN,
        "image_std": IMAGE_STD,
    }
    write_json(folder / "preprocessor_config.json", fields)
