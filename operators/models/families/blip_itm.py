"""BLIP and BLIP-2 as they were trained to match (ITM) and to contrast (ITC) images and texts (Li et al. 2022, 2023)."""

from typing import TYPE_CHECKING, Any

from plumbline.operators.models.checkpoints.parts import architecture, read_fields
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.joint_encoder import MatchingEncoder

if TYPE_CHECKING:
    import torch

    from plumbline.operators.models.model import ResolvedModel

FIRST, SECOND = "BlipForImageTextRetrieval", "Blip2ForImageTextRetrieval"


class BlipMatching(MatchingEncoder):
    """A text encoder that attends to the states of a vision tower; the first token of either is its embedding."""

    architecture = FIRST
    context = 35

    @classmethod
    def load_network(cls, model: "ResolvedModel[Any]") -> Any:
        from plumbline.operators.models.networks.blip import load_blip

        return load_blip(cls.architecture, model)

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """The probability that they match, (n,)."""
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=states)
        return _matched(self.model.itm_head(words.last_hidden_state[:, 0]))

    def image_points(self, states: "torch.Tensor") -> "torch.Tensor":
        """That of the class token, (n, width)."""
        points: torch.Tensor = self.model.vision_proj(states[:, 0])
        return points

    def word_points(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """That of the first token, (n, width)."""
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask)
        points: torch.Tensor = self.model.text_proj(words.last_hidden_state[:, 0])
        return points


class Blip2Matching(MatchingEncoder):
    """A Q-Former, whose queries attend to an image and, where the two are matched, to the text beside them."""

    architecture = SECOND
    context = 32

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """The probability that they match, by the mean of what the queries say, (n,)."""
        import torch

        queries = self._queries(len(ids))
        embedded = self.model.embeddings(input_ids=ids, query_embeds=queries)
        seen = self.model.qformer(
            query_embeds=embedded,
            query_length=queries.shape[1],
            attention_mask=torch.cat([mask.new_ones(queries.shape[:2]), mask], dim=1),
            encoder_hidden_states=states,
        ).last_hidden_state[:, : queries.shape[1]]
        return _matched(self.model.itm_head(seen.to(self.model.itm_head.weight.dtype)).mean(dim=1))

    def image_points(self, states: "torch.Tensor") -> "torch.Tensor":
        """Those of the queries, (n, queries, width)."""
        queries = self._queries(len(states))
        seen = self.model.qformer(query_embeds=queries, encoder_hidden_states=states).last_hidden_state
        points: torch.Tensor = self.model.vision_projection(seen.to(self.model.vision_projection.weight.dtype))
        return points

    def word_points(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """That of the first token, (n, width)."""
        embedded = self.model.embeddings(input_ids=ids)
        words = self.model.qformer(query_embeds=embedded, query_length=0, attention_mask=mask).last_hidden_state
        points: torch.Tensor = self.model.text_projection(words[:, 0].to(self.model.text_projection.weight.dtype))
        return points

    def _queries(self, rows: int) -> "torch.Tensor":
        queries: torch.Tensor = self.model.query_tokens.expand(rows, -1, -1)
        return queries


def _matched(logits: "torch.Tensor") -> "torch.Tensor":
    """The second of two classes: that they match."""
    return logits.float().softmax(dim=-1)[:, 1]


MATCHING = {FIRST: BlipMatching, SECOND: Blip2Matching}
"""By the class that a config.json names."""


def _load(model: "ResolvedModel[Any]") -> MatchingEncoder:
    return MATCHING[architecture(read_fields(model.parts["checkpoint"]))].load(model)


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": _load},
    form="a BlipForImageTextRetrieval or a Blip2ForImageTextRetrieval",
    suits=lambda fields: architecture(fields) in MATCHING,
    files=(TOKENIZER, IMAGES),
    measures=("match", "cosine"),
)
