"""Sentence encoders: texts as unit-length mean-pooled embeddings, close if the texts have similar meanings."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import Fields, Part, architecture
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.dual_encoder import TextEncoder
from plumbline.operators.models.networks.loaded import LoadedModel
from plumbline.operators.models.networks.texts import text_context

if TYPE_CHECKING:
    import torch

    from plumbline.operators.models.model import ResolvedModel

POOLING_MODES = {"cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"}


class SentenceEmbedder(LoadedModel, TextEncoder):
    """Text embeddings by a BERT-like encoder such as MiniLM: the mean over a text's tokens, at unit length."""

    architecture = "AutoModel"

    @classmethod
    def load(cls, model: "ResolvedModel[Any]", network: Any = None) -> Self:
        loaded = super().load(model, network)
        limits = [_stated_limit(model), text_context(loaded.model.config, loaded.tokenizer)]
        loaded.context = min((limit for limit in limits if limit is not None), default=None)
        return loaded

    @classmethod
    def load_network(cls, model: "ResolvedModel[Any]") -> Any:
        from plumbline.operators.models.processing import load_pretrained

        return load_pretrained(cls.architecture, model, unused="pooler.")  # the mean needs no pooler

    def text_points(self, texts: Sequence[str]) -> "torch.Tensor":
        inputs = self.tokens(texts, context=self.context)
        states = self.model(**inputs).last_hidden_state.float()
        mask = inputs.attention_mask[:, :, None]
        points: torch.Tensor = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return points


def _stated_limit(model: "ResolvedModel") -> int | None:
    """Return the limit in sentence-transformers' own configuration, if any."""
    from plumbline.operators.models.processing import readable_load

    file = model.folder("checkpoint") / "sentence_bert_config.json"
    with readable_load(file.parent, file.name):
        return json.loads(file.read_text()).get("max_seq_length") if file.is_file() else None


def _is_supported(fields: Fields) -> bool:
    whole = fields.get("is_encoder_decoder") or "vision_config" in fields
    return architecture(fields).endswith("Model") and not whole


def _check(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raise ModelError if the configuration of a sentence-transformers folder does not use mean pooling."""
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
    loads={"embedding": SentenceEmbedder.load},
    form="an encoder such as BertModel",
    suits=_is_supported,
    check=_check,
    precise=True,
)
