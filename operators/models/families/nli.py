"""Natural-language inference: what says whether a text entails another."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from operators.errors import ModelError
from operators.models.family import Family
from operators.models.parts import Fields, Part, architecture, subfields

if TYPE_CHECKING:
    from operators.models.calls import EntailmentModel
    from operators.models.checkpoints import ModelConfig, ResolvedModel

ENTAILMENT = ("entailment", "entail", "entails", "entailed")


def _is_t5(fields: Fields) -> bool:
    return architecture(fields) == "T5ForConditionalGeneration"


def _check(config: "ModelConfig", parts: Mapping[str, Part], fields: Fields) -> None:
    """Raises ModelError where it is not known which of a classifier's labels is entailment."""
    labels = subfields(fields, "id2label")
    if not _is_t5(fields) and (len(labels) < 2 or entailment_label(labels) is None):
        raise ModelError(
            f"{parts['checkpoint'].source}: config.json has the labels {list(labels.values())}, none of which is "
            "entailment; name it in id2label"
        )


def entailment_label(id2label: Mapping[Any, str]) -> int | None:
    """The index of the entailment label in a config's id2label; None where no label or more than one is named so.

    `not_entailment`, `non-entailment` and the like are the opposite.
    """
    named = [index for index, label in id2label.items() if str(label).strip().lower() in ENTAILMENT]
    return int(named[0]) if len(named) == 1 and str(named[0]).isdecimal() else None


def _load(model: "ResolvedModel") -> "EntailmentModel":
    from operators.models.nli import load_nli
    from operators.models.processing import torch_arguments

    return load_nli(model.folder("checkpoint"), **torch_arguments(model))


FAMILY = Family(
    name="nli",
    loads={"entailment": _load},
    form="a ...ForSequenceClassification or a T5ForConditionalGeneration",
    suits=lambda fields: _is_t5(fields) or architecture(fields).endswith("ForSequenceClassification"),
    check=_check,
    precise=True,
)
