"""Loads a resolved model, and tests a service before a sweep begins."""

import logging
from typing import Any

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import Call
from plumbline.operators.models.engines.conversation import LIKELIHOOD_PROBLEM
from plumbline.operators.models.families import FAMILIES, list_families_serving
from plumbline.operators.models.model import ResolvedModel


def load(model: ResolvedModel, call: Call) -> Any:
    """Return a loaded model that implements the protocol of the call in calls.py.

    Raises ModelError if its family does not serve the call, the model does not load, or the key of a service is
    missing.
    """
    loads = FAMILIES[model.config.family].select_loaders(model.config)
    if call not in loads:
        raise ModelError(
            f"model family {model.config.family!r} does not serve `{call}`; use {list_families_serving(call)}"
        )
    if call == "likelihood" and model.config.thinking == "allowed":
        raise ModelError(f"{model.config.checkpoint}: {LIKELIHOOD_PROBLEM}")

    def is_relevant(record: logging.LogRecord) -> bool:
        """Return False for the warning that only one component of a checkpoint is loaded, which we do on purpose."""
        return not str(record.msg).startswith("You are using a model of type")

    logger = logging.getLogger("transformers.configuration_utils")
    logger.addFilter(is_relevant)
    try:
        return loads[call](model)
    finally:
        logger.removeFilter(is_relevant)


def preflight(model: ResolvedModel, call: Call) -> None:
    """Request one small answer from a service before the sweep begins; do nothing for a model that runs here.

    Raises ModelError with the service's message if the key is missing or refused, or if the service does not have the
    model, cannot be reached, or returns a reply that the call cannot use.
    """
    family = FAMILIES[model.config.family]
    if family.preflight is not None:
        family.preflight(model, call)
