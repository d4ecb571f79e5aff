"""Chinese CLIP: images and texts as points, the texts by a BERT (Yang et al. 2022)."""

from typing import TYPE_CHECKING

from plumbline.extending import TOKENIZER, Family, Files, LocalModel, Reading, Towers

if TYPE_CHECKING:
    from plumbline.extending import ResolvedModel


def _load(model: "ResolvedModel") -> Towers:
    from transformers import ChineseCLIPModel

    from plumbline.extending import load_pixel_transform, load_pretrained, load_tokenizer

    network = load_pretrained(ChineseCLIPModel, model)
    return Towers(
        network,
        load_tokenizer(model.folder("tokenizer")),
        load_pixel_transform(model.folder("checkpoint"), pad_to_square=False),
        width=int(network.config.projection_dim),
        reading=Reading(int(network.config.text_config.max_position_embeddings)),
        pair_batch=model.config.pair_batch,
    )


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": _load, "embedding": _load},
    form="'chinese_clip'",
    suits=lambda fields: fields["model_type"] == "chinese_clip",
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), "download the checkpoint again")),
)
