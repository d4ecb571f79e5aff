"""The table of model families: a file each, and a line here."""

from collections.abc import Mapping

from operators.models.families import causal_lm, clip, clip_flant5, nli, openai_api, sentences, vlm
from operators.models.family import Call, Family

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        clip_flant5.FAMILY,
        clip.FAMILY,
        causal_lm.FAMILY,
        vlm.FAMILY,
        nli.FAMILY,
        sentences.FAMILY,
        openai_api.FAMILY,
    )
}


def serving(call: Call) -> str:
    """The families that serve a call, in words."""
    return " or ".join(name for name, family in FAMILIES.items() if call in family.calls)
