"""Chinese CLIP: images and texts as points, the texts by a BERT (Yang et al. 2022)."""

from plumbline.extending import IMAGES, TOKENIZER, Family, LocalModel, Towers


class ChineseClip(Towers):
    """The `similarity` and `embedding` calls served by a Chinese CLIP checkpoint."""

    architecture = "ChineseCLIPModel"


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": ChineseClip.load, "embedding": ChineseClip.load},
    form="'chinese_clip'",
    suits=lambda fields: fields["model_type"] == "chinese_clip",
    files=(TOKENIZER, IMAGES),
)
