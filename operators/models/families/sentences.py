"""Sentence encoders: texts as unit-length mean-pooled embeddings, near where the texts mean the same."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.batches import BatchSize, in_batches
from plumbline.operators.errors import ModelError
from plumbline.operators.models.calls import TextFeatures
from plumbline.operators.models.checkpoints.parts import Fields, Part, architecture
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.texts import context_of

if TYPE_CHECKING:
    import torch

    from plumbline.operators.models.model import ResolvedModel

POOLING_MODES = {"cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"}


class SentenceEmbedder:
    """Text embeddings by a BERT-like encoder in the manner of MiniLM: the mean over a text's tokens, of unit length."""

    def __init__(self, model: Any, tokenizer: Any, *, context: int | None, pair_batch: int) -> None:
        """Texts beyond `context` tokens are cut; `pair_batch` texts are read together."""
        self.model = model
        self.tokenizer = tokenizer
        self.context = context
        self.pair_batch = BatchSize(pair_batch)

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Texts as unit-length embeddings (n, width), float32; those beyond the context are cut and reported."""
        import torch

        lengths = [len(ids) for ids in self.tokenizer(list(texts)).input_ids] if texts else []
        rows = in_batches(self._encode_batch, texts, lengths, size=self.pair_batch)
        features = torch.stack(rows) if rows else torch.empty(0, int(self.model.config.hidden_size))
        return TextFeatures(features, [self.context is not None and length > self.context for length in lengths])

    def _encode_batch(self, texts: Sequence[str]) -> "list[torch.Tensor]":
        from torch.nn.functional import normalize

        inputs = self.tokenizer(
            list(texts), padding=True, truncation=self.context is not None, max_length=self.context, return_tensors="pt"
        ).to(self.model.device)
        states = self.model(**inputs).last_hidden_state.float()
        mask = inputs.attention_mask[:, :, None]
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return list(normalize(mean, dim=-1).cpu())


def _load(model: "ResolvedModel") -> SentenceEmbedder:
    from transformers import AutoModel

    from plumbline.operators.models.processing import load_pretrained, load_tokenizer

    network = load_pretrained(AutoModel, model, unused="pooler.")  # the mean needs no pooler
    tokenizer = load_tokenizer(model.folder("tokenizer"))
    limits = [_stated_limit(model), context_of(network.config, tokenizer)]
    context = min((limit for limit in limits if limit is not None), default=None)
    return SentenceEmbedder(network, tokenizer, context=context, pair_batch=model.config.pair_batch)


def _stated_limit(model: "ResolvedModel") -> int | None:
    """The limit that sentence-transformers keeps beside the model's own."""
    from plumbline.operators.models.processing import readable_load

    file = model.folder("checkpoint") / "sentence_bert_config.json"
    with readable_load(file.parent, file.name):
        return json.loads(file.read_text()).get("max_seq_length") if file.is_file() else None


def _suits(fields: Fields) -> bool:
    whole = fields.get("is_encoder_decoder") or "vision_config" in fields
    return architecture(fields).endswith("Model") and not whole


def _check(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """A sentence-transformers folder says how it pools; only the mean is served."""
    part = parts["checkpoint"]
    path = part.file("1_Pooling/config.json")
    if path is None:
        return
    try:
        pooling = json.loads(path.read_text())
        modes = {name.removeprefix("pooling_mode_") for name, on in pooling.items() if on is True}
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not a pooling config ({error}); download the checkpoint again") from error
    if pooling.get("pooling_mode") != "mean" and modes & POOLING_MODES != {"mean_tokens"}:
        raise ModelError(f"{part.source}: 1_Pooling/config.json is not mean pooling, which alone is served")


FAMILY = Family(
    config=LocalModel,
    loads={"embedding": _load},
    form="an encoder such as BertModel",
    suits=_suits,
    check=_check,
    precise=True,
)
