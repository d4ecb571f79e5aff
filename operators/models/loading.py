"""Loads a resolved model by the table of families."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import Call
from plumbline.operators.models.engines.thinking import LIKELIHOOD
from plumbline.operators.models.families import FAMILIES, serving
from plumbline.operators.models.model import ResolvedModel

CONFIGURATIONS = "transformers.configuration_utils"
"""Logger that warns if a checkpoint is read by the class of a part of it, which we do on purpose."""
FALSE_ALARM = "You are using a model of type"


def load(model: ResolvedModel, call: Call) -> Any:
    """Load a model that serves the call, by its protocol in calls.py.

    Raises ModelError if its family does not serve the call, the model does not load, or a service's key is missing.
    """
    loads = FAMILIES[model.config.family].loads_of(model.config)
    if call not in loads:
        raise ModelError(f"model family {model.config.family!r} does not serve `{call}`; use {serving(call)}")
    if call == "likelihood" and model.config.thinking == "allowed":
        raise ModelError(f"{model.config.checkpoint}: {LIKELIHOOD}")
    with _suppress_false_alarm():
        return loads[call](model)


@contextmanager
def _suppress_false_alarm() -> Iterator[None]:
    """Drop the warning within the body; the logger is the whole process's."""

    def is_meant(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(FALSE_ALARM)

    logger = logging.getLogger(CONFIGURATIONS)
    logger.addFilter(is_meant)
    try:
        yield
    finally:
        logger.removeFilter(is_meant)


def preflight(model: ResolvedModel, call: Call) -> None:
    """Ask a service for one small answer before the sweep begins. Does nothing for a model that runs here.

    Raises ModelError with the service's own words if the key is missing or refused, the service does not have the
    model, cannot be reached, or does not return what the call needs.
    """
    family = FAMILIES[model.config.family]
    if family.preflight is not None:
        family.preflight(model, call)
