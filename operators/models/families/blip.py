"""BLIP, BLIP-2 and InstructBLIP: matching of images and texts, and question answering."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import (
    QFORMER_TOKENIZER,
    Checkpoint,
    Fields,
    FileDigest,
    Part,
    architecture,
    find_part,
    read_fields,
    subfields,
)
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, lazily
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.joint_encoder import MatchingEncoder
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    import torch

    from plumbline.operators.models.model import ResolvedModel

FIRST, SECOND = "BlipForImageTextRetrieval", "Blip2ForImageTextRetrieval"


class BlipMatching(MatchingEncoder):
    """BLIP's retrieval model: its text encoder attends to an image's states, and its first token is the embedding."""

    architecture = FIRST
    context = 35

    @classmethod
    def load_network(cls, model: "ResolvedModel[Any]") -> Any:
        from plumbline.operators.models.networks.blip import load_blip

        return load_blip(cls.architecture, model)

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the probabilities that images and texts match, (n,)."""
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=states)
        return _match_probability(self.model.itm_head(words.last_hidden_state[:, 0]))

    def image_points(self, states: "torch.Tensor") -> "torch.Tensor":
        """Return the embedding of the class token, (n, width)."""
        points: torch.Tensor = self.model.vision_proj(states[:, 0])
        return points

    def word_points(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the embedding of the first token, (n, width)."""
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask)
        points: torch.Tensor = self.model.text_proj(words.last_hidden_state[:, 0])
        return points


class Blip2Matching(MatchingEncoder):
    """BLIP-2's retrieval model: the Q-Former's queries attend to an image and, for matching, also to the text."""

    architecture = SECOND
    context = 32

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the probabilities that images and texts match, averaged over the queries, (n,)."""
        import torch

        queries = self._queries(len(ids))
        embedded = self.model.embeddings(input_ids=ids, query_embeds=queries)
        seen = self.model.qformer(
            query_embeds=embedded,
            query_length=queries.shape[1],
            attention_mask=torch.cat([mask.new_ones(queries.shape[:2]), mask], dim=1),
            encoder_hidden_states=states,
        ).last_hidden_state[:, : queries.shape[1]]
        return _match_probability(self.model.itm_head(seen.to(self.model.itm_head.weight.dtype)).mean(dim=1))

    def image_points(self, states: "torch.Tensor") -> "torch.Tensor":
        """Return the embeddings of the queries, (n, queries, width)."""
        queries = self._queries(len(states))
        seen = self.model.qformer(query_embeds=queries, encoder_hidden_states=states).last_hidden_state
        points: torch.Tensor = self.model.vision_projection(seen.to(self.model.vision_projection.weight.dtype))
        return points

    def word_points(self, ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the embedding of the first token, (n, width)."""
        embedded = self.model.embeddings(input_ids=ids)
        words = self.model.qformer(query_embeds=embedded, query_length=0, attention_mask=mask).last_hidden_state
        points: torch.Tensor = self.model.text_projection(words[:, 0].to(self.model.text_projection.weight.dtype))
        return points

    def _queries(self, rows: int) -> "torch.Tensor":
        queries: torch.Tensor = self.model.query_tokens.expand(rows, -1, -1)
        return queries


def _match_probability(logits: "torch.Tensor") -> "torch.Tensor":
    """Return the probability of the second class: a match."""
    return logits.float().softmax(dim=-1)[:, 1]


MATCHING = {FIRST: BlipMatching, SECOND: Blip2Matching}
"""Models by the class that a config.json names."""


BLIP_ITM = Family(
    config=LocalModel,
    loads={"similarity": lambda model: MATCHING[architecture(read_fields(model.parts["checkpoint"]))].load(model)},
    form="a BlipForImageTextRetrieval or a Blip2ForImageTextRetrieval",
    suits=lambda fields: architecture(fields) in MATCHING,
    files=(TOKENIZER, IMAGES),
    measures=("match", "cosine"),
)
"""BLIP and BLIP-2 as they were trained to match (ITM) and to contrast (ITC) images and texts (Li et al. 2022, 2023)."""


BLIP_VQA = VqaProfile(name="blip_vqa", question="blip")

BLIP_VQA_FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.blip:BlipVqaLikelihood.load")},
    form="a BlipForQuestionAnswering",
    suits=lambda fields: architecture(fields) == "BlipForQuestionAnswering",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP_VQA,
)
"""BLIP for question answering (Li et al. 2022): a text encoder that attends to the image, and an answer decoder."""


BLIP2 = VqaProfile(name="blip2", question="blip2")
"""The question of InstructBLIP, which has the same FlanT5, without `Question: `, which BLIP-2's frame adds."""


def has_t5(fields: Fields) -> bool:
    """Return True if the language model of a config.json is a T5."""
    return subfields(fields, "text_config").get("model_type") == "t5"


BLIP2_FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.blip:Blip2Likelihood.load")},
    form="'blip-2' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "blip-2" and has_t5(fields),
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP2,
)
"""BLIP-2 with FlanT5 as a VQA model (Li et al. 2023)."""


INSTRUCTBLIP = VqaProfile(name="instructblip", question="instructblip")


def _find_qformer_tokenizer(config: LocalModel, checkpoint: Checkpoint, digest: FileDigest) -> Mapping[str, Part]:
    """Find the Q-Former's tokenizer in a local folder; a hub model's commit identifies it too."""
    part = checkpoint.part
    if not any(part.file(f"{QFORMER_TOKENIZER}/{name}") for name in ("tokenizer.json", "vocab.txt")):
        raise ModelError(
            f"{part.source}: no {QFORMER_TOKENIZER}/tokenizer.json, which its Q-Former needs to read questions; "
            "download the checkpoint again"
        )
    if part.commit is not None:
        return {}
    return {QFORMER_TOKENIZER: find_part(str(Path(part.source) / QFORMER_TOKENIZER), None, digest)}


INSTRUCTBLIP_FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.blip:InstructBlipLikelihood.load")},
    form="'instructblip' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "instructblip" and has_t5(fields),
    files=(TOKENIZER, IMAGES),
    parts=_find_qformer_tokenizer,
    profile=lambda config, fields: INSTRUCTBLIP,
)
"""InstructBLIP with FlanT5 as a VQA model (Dai et al. 2023), asked as in the VQAScore release."""
