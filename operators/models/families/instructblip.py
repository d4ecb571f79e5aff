"""InstructBLIP with FlanT5 as a VQA model (Dai et al. 2023), as the VQAScore release asks it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plumbline.operators.errors import ModelError
from plumbline.operators.models.checkpoints.parts import Checkpoint, FileDigest, Part, find_part
from plumbline.operators.models.families.blip2 import has_t5
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile, YesQuestion

if TYPE_CHECKING:
    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.networks.blip import InstructBlipLikelihood

INSTRUCTBLIP = VqaProfile(
    name="instructblip",
    asks=YesQuestion('Question: Does this figure show "{}"? Please answer yes or no.', "yes", "mean"),
)
QFORMER_TOKENIZER = "qformer_tokenizer"
"""The folder within a checkpoint that has the tokenizer of the Q-Former, a BERT's."""


def _find_qformer_tokenizer(config: LocalModel, checkpoint: Checkpoint, digest: FileDigest) -> Mapping[str, Part]:
    """The Q-Former's tokenizer; of a hub model the commit identifies it too."""
    part = checkpoint.part
    if not any(part.file(f"{QFORMER_TOKENIZER}/{name}") for name in ("tokenizer.json", "vocab.txt")):
        raise ModelError(
            f"{part.source}: no {QFORMER_TOKENIZER}/tokenizer.json, by which its Q-Former reads questions; "
            "download the checkpoint again"
        )
    if part.commit is not None:
        return {}
    return {QFORMER_TOKENIZER: find_part(str(Path(part.source) / QFORMER_TOKENIZER), None, digest)}


def _load(model: "ResolvedModel") -> "InstructBlipLikelihood":
    from transformers import InstructBlipForConditionalGeneration

    from plumbline.operators.models.networks.blip import InstructBlipLikelihood
    from plumbline.operators.models.networks.encoder_decoder import check_entries
    from plumbline.operators.models.processing import (
        ReleasedTransform,
        load_image_processor,
        load_pretrained,
        load_tokenizer,
    )

    network = load_pretrained(InstructBlipForConditionalGeneration, model)
    folder, tokenizer = model.folder("checkpoint"), load_tokenizer(model.folder("tokenizer"))
    check_entries(model.folder("tokenizer"), tokenizer, network.language_model.shared.num_embeddings)
    qformer_tokenizer = load_tokenizer(folder / QFORMER_TOKENIZER)
    check_entries(folder / QFORMER_TOKENIZER, qformer_tokenizer, network.config.qformer_config.vocab_size)
    transform = ReleasedTransform(load_image_processor(folder))
    return InstructBlipLikelihood(network, tokenizer, qformer_tokenizer, transform, pair_batch=model.config.pair_batch)


FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": _load},
    form="'instructblip' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "instructblip" and has_t5(fields),
    files=(TOKENIZER, IMAGES),
    parts=_find_qformer_tokenizer,
    profile=lambda config, fields: INSTRUCTBLIP,
)
