"""BLIP, BLIP-2, InstructBLIP and ImageReward: matching and rating images and texts, and question answering."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.checkpoints.parts import (
    CONVERT_AGAIN_REMEDY,
    QFORMER_TOKENIZER_FOLDER,
    Checkpoint,
    Fields,
    FileDigest,
    Part,
    find_architecture,
    find_part,
    read_fields,
    read_subfields,
)
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, Files, defer_import
from plumbline.operators.models.model import LocalModel, ResolvedModel
from plumbline.operators.models.networks.similarity import JointEncoder, MatchingEncoder
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    import torch


class BlipMatcher(MatchingEncoder):
    """BLIP's retrieval model. Its text encoder attends to an image's states; embeddings come from the first token."""

    architecture = "BlipForImageTextRetrieval"
    context = 35

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        from plumbline.operators.models.networks.blip import load_blip

        return load_blip(cls.architecture, model)

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=states)
        return _compute_match_probability(self.model.itm_head(words.last_hidden_state[:, 0]))

    def embed_images(self, states: "torch.Tensor") -> "torch.Tensor":
        """Return the embedding of each image's class token, (n, width)."""
        embeddings: torch.Tensor = self.model.vision_proj(states[:, 0])
        return embeddings

    def embed_texts(self, texts: Sequence[str]) -> "torch.Tensor":
        """Return the embedding of each text's first token, (n, width)."""
        inputs = self.tokenize(texts, context=self.context)
        words = self.model.text_encoder(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)
        embeddings: torch.Tensor = self.model.text_proj(words.last_hidden_state[:, 0])
        return embeddings


class Blip2Matcher(MatchingEncoder):
    """BLIP-2's retrieval model. The Q-Former's queries attend to an image and, for matching, also to the text."""

    architecture = "Blip2ForImageTextRetrieval"
    context = 32

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        import torch

        queries = self.model.query_tokens.expand(len(ids), -1, -1)
        embedded = self.model.embeddings(input_ids=ids, query_embeds=queries)
        seen = self.model.qformer(
            query_embeds=embedded,
            query_length=queries.shape[1],
            attention_mask=torch.cat([mask.new_ones(queries.shape[:2]), mask], dim=1),
            encoder_hidden_states=states,
        ).last_hidden_state[:, : queries.shape[1]]
        logits = self.model.itm_head(seen.to(self.model.itm_head.weight.dtype))
        return _compute_match_probability(logits.mean(dim=1))  # over the queries

    def embed_images(self, states: "torch.Tensor") -> "torch.Tensor":
        """Return the embeddings of all queries for each image, (n, queries, width)."""
        queries = self.model.query_tokens.expand(len(states), -1, -1)
        seen = self.model.qformer(query_embeds=queries, encoder_hidden_states=states).last_hidden_state
        embeddings: torch.Tensor = self.model.vision_projection(seen.to(self.model.vision_projection.weight.dtype))
        return embeddings

    def embed_texts(self, texts: Sequence[str]) -> "torch.Tensor":
        """Return the embedding of each text's first token, (n, width)."""
        inputs = self.tokenize(texts, context=self.context)
        words = self.model.qformer(
            query_embeds=self.model.embeddings(input_ids=inputs.input_ids),
            query_length=0,
            attention_mask=inputs.attention_mask,
        ).last_hidden_state
        first = words[:, 0].to(self.model.text_projection.weight.dtype)
        embeddings: torch.Tensor = self.model.text_projection(first)
        return embeddings


def _compute_match_probability(logits: "torch.Tensor") -> "torch.Tensor":
    return logits.float().softmax(dim=-1)[:, 1]


MATCHING_MODELS = {model.architecture: model for model in (BlipMatcher, Blip2Matcher)}
BLIP_ITM_FAMILY = Family(
    loads={
        "similarity": lambda model: MATCHING_MODELS[find_architecture(read_fields(model.parts["checkpoint"]))].load(
            model
        )
    },
    form="a BlipForImageTextRetrieval or a Blip2ForImageTextRetrieval",
    suits=lambda fields: find_architecture(fields) in MATCHING_MODELS,
    files=(TOKENIZER, IMAGES),
    measures=("match", "cosine"),
)
"""BLIP and BLIP-2, trained for image-text matching (ITM) and image-text contrast (ITC) (Li et al. 2022, 2023)."""


class ImageRewardSimilarity(JointEncoder):
    architecture = "plumbline.operators.models.networks.blip:ImageReward"
    context = 35

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        from plumbline.operators.models.processing import ReleasedTransform, load_pixel_transform

        return ReleasedTransform(load_pixel_transform(model.folder("checkpoint"), pad_to_square=False).processor)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """Return the image (3, height, width), preprocessed as in OpenAI's CLIP code; `rule` is ignored."""
        return self.pixels.pin(self.processor(image))

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the rewards as standard scores, (n,)."""
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=states)
        rewards: torch.Tensor = self.model.reward_head(words.last_hidden_state[:, 0])
        return rewards


IMAGEREWARD_FAMILY = Family(
    loads={"similarity": ImageRewardSimilarity.load},
    form="an ImageReward folder from jobs.convert",
    suits=lambda fields: find_architecture(fields) == "ImageReward",
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), CONVERT_AGAIN_REMEDY)),
    measures=("reward",),
)
"""A BLIP with a regression head that predicts human ratings of an image for its prompt (Xu et al. 2023).

The published checkpoint has weights but no configuration; `plumbline convert` turns it into a folder (docs/models.md).
"""


BLIP_VQA_PROFILE = VqaProfile(name="blip_vqa", question="blip")
BLIP_VQA_FAMILY = Family(
    loads={"likelihood": defer_import("networks.blip:BlipVqaLikelihood.load")},
    form="a BlipForQuestionAnswering",
    suits=lambda fields: find_architecture(fields) == "BlipForQuestionAnswering",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP_VQA_PROFILE,
)
"""BLIP for question answering (Li et al. 2022): a text encoder that attends to the image, and a decoder for answers."""


BLIP2_PROFILE = VqaProfile(name="blip2", question="blip2")
"""Profile of BLIP-2 with FlanT5. It uses InstructBLIP's question, because both have the same FlanT5, but without the
`Question: ` that BLIP-2's template adds.
"""


def _has_t5(fields: Fields) -> bool:
    return read_subfields(fields, "text_config").get("model_type") == "t5"


BLIP2_FAMILY = Family(
    loads={"likelihood": defer_import("networks.blip:Blip2Likelihood.load")},
    form="'blip-2' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "blip-2" and _has_t5(fields),
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP2_PROFILE,
)
"""BLIP-2 with FlanT5 as a VQA model (Li et al. 2023)."""


INSTRUCTBLIP_PROFILE = VqaProfile(name="instructblip", question="instructblip")


def _find_qformer_tokenizer(config: LocalModel, checkpoint: Checkpoint, digest: FileDigest) -> Mapping[str, Part]:
    """Return the Q-Former's tokenizer in a local folder as an additional part; raise ModelError if it is missing.

    For a hub model, the result is empty, because the commit already identifies the tokenizer.
    """
    part = checkpoint.part
    if not any(part.find_file(f"{QFORMER_TOKENIZER_FOLDER}/{name}") for name in ("tokenizer.json", "vocab.txt")):
        raise ModelError(
            f"{part.source}: has no {QFORMER_TOKENIZER_FOLDER}/tokenizer.json, which the Q-Former needs to read "
            "questions; download the checkpoint again"
        )
    if part.commit is not None:
        return {}
    return {QFORMER_TOKENIZER_FOLDER: find_part(str(Path(part.source) / QFORMER_TOKENIZER_FOLDER), None, digest)}


INSTRUCTBLIP_FAMILY = Family(
    loads={"likelihood": defer_import("networks.blip:InstructBlipLikelihood.load")},
    form="'instructblip' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "instructblip" and _has_t5(fields),
    files=(TOKENIZER, IMAGES),
    parts=_find_qformer_tokenizer,
    profile=lambda config, fields: INSTRUCTBLIP_PROFILE,
)
"""InstructBLIP with FlanT5 as a VQA model (Dai et al. 2023), with questions as in the VQAScore release."""
