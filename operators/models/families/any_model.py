"""The pydantic type of a model's options. Only reading a configuration needs pydantic; running a model does not."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag

from plumbline.operators.models.families import FAMILIES, drop_foreign_options
from plumbline.operators.models.model import ModelConfig


def _get_family(options: Any) -> str | None:
    family = options.get("family") if isinstance(options, Mapping) else getattr(options, "family", None)
    return str(family) if family is not None else None


if TYPE_CHECKING:
    AnyModel = ModelConfig
else:
    _TAGGED = [Annotated[family.config, Tag(name)] for name, family in FAMILIES.items()]
    AnyModel = Annotated[reduce(or_, _TAGGED), Discriminator(_get_family), BeforeValidator(drop_foreign_options)]
    """A model's options; pydantic selects the class according to `family`."""
