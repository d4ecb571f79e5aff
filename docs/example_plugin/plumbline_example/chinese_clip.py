"""Chinese CLIP: embeds images and texts, using a BERT for the texts (Yang et al. 2022)."""

from plumbline.extending import IMAGES, TOKENIZER, Family, LocalModel, Towers


class ChineseClip(Towers):
    """Implements the `similarity` and `embedding` calls for a Chinese CLIP checkpoint."""

    architecture = "ChineseCLIPModel"


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": ChineseClip.load, "embedding": ChineseClip.load},
    form="'chinese_clip'",
    suits=lambda fields: fields["model_type"] == "chinese_clip",
    files=(TOKENIZER, IMAGES),
)
