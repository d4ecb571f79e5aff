"""InstructBLIP with FlanT5 as a VQA model (Dai et al. 2023), as the VQAScore release asks it."""

from collections.abc import Mapping
from pathlib import Path

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import QFORMER_TOKENIZER, Checkpoint, FileDigest, Part, find_part
from plumbline.operators.models.families.blip2 import has_t5
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, lazily
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile, YesQuestion

INSTRUCTBLIP = VqaProfile(
    name="instructblip",
    asks=YesQuestion('Question: Does this figure show "{}"? Please answer yes or no.', "yes", "mean"),
)


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


FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.blip:InstructBlipLikelihood.load")},
    form="'instructblip' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "instructblip" and has_t5(fields),
    files=(TOKENIZER, IMAGES),
    parts=_find_qformer_tokenizer,
    profile=lambda config, fields: INSTRUCTBLIP,
)
