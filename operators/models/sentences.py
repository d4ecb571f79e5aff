"""Sentence encoders through transformers: texts as unit-length mean-pooled embeddings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize
from transformers import AutoModel

from operators.errors import ModelError
from operators.models.calls import TextFeatures
from operators.models.encoders import context_of, in_batches
from operators.models.processing import load_tokenizer, readable_load


class SentenceEmbedder:
    """Text embeddings by a BERT-like encoder in the manner of MiniLM: the mean over a text's tokens, of unit length."""

    def __init__(self, model: Any, tokenizer: Any, *, context: int | None, pair_batch: int) -> None:
        """Texts beyond `context` tokens are cut; `pair_batch` texts are read together."""
        self.model = model
        self.tokenizer = tokenizer
        self.context = context
        self.pair_batch = pair_batch

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        lengths = [len(ids) for ids in self.tokenizer(list(texts)).input_ids] if texts else []
        rows = in_batches(self._encode_batch, texts, lengths, size=self.pair_batch)
        features = torch.stack(rows) if rows else torch.empty(0, int(self.model.config.hidden_size))
        return TextFeatures(features, [self.context is not None and length > self.context for length in lengths])

    def _encode_batch(self, texts: Sequence[str]) -> list[torch.Tensor]:
        inputs = self.tokenizer(
            list(texts), padding=True, truncation=self.context is not None, max_length=self.context, return_tensors="pt"
        ).to(self.model.device)
        states = self.model(**inputs).last_hidden_state.float()
        mask = inputs.attention_mask[:, :, None]
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return list(normalize(mean, dim=-1).cpu())


def load_sentences(
    checkpoint: Path, *, tokenizer: Path, device: str, dtype: torch.dtype, pair_batch: int
) -> SentenceEmbedder:
    """The encoder of a checkpoint folder (safetensors only); raises ModelError where a weight is missing."""
    with readable_load(checkpoint, "weights"):
        model, report = AutoModel.from_pretrained(
            checkpoint, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    missing = [name for name in report["missing_keys"] if not name.startswith("pooler.")]  # the mean needs no pooler
    if missing:
        raise ModelError(f"{checkpoint}: the weights do not fit its config.json: lacks {min(missing)}")
    tokens = load_tokenizer(tokenizer)
    return SentenceEmbedder(
        model.to(device).eval(), tokens, context=_context(checkpoint, model.config, tokens), pair_batch=pair_batch
    )


def _context(checkpoint: Path, config: Any, tokenizer: Any) -> int | None:
    """The model's own limit, or the lower one that sentence-transformers keeps beside it."""
    file = checkpoint / "sentence_bert_config.json"
    with readable_load(checkpoint, file.name):
        stated = json.loads(file.read_text()).get("max_seq_length") if file.is_file() else None
    limits = [limit for limit in (stated, context_of(config, tokenizer)) if limit is not None]
    return min(limits) if limits else None
