"""States of a training on disk or S3: weights and AdamW's moments as safetensors, the rest as text in its header."""

import tempfile
from collections.abc import Mapping
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place

SUFFIX = ".safetensors"


class State(NamedTuple):
    """A training after so many steps."""

    tensors: Mapping[str, torch.Tensor]
    step: int
    failed: int
    """Rows that were left out so far, by all workers."""


def save_state(folder: Place, state: State) -> None:
    """Writes a state, whole or not at all, and then removes the older ones."""
    older = _names(folder)
    name = f"step-{state.step:09d}{SUFFIX}"
    facts = {"step": str(state.step), "failed": str(state.failed)}
    with (folder / name).writing() as draft:
        save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, draft, metadata=facts)
    folder.remove_below([other for other in older if other != name])


def newest_state(folder: Place) -> State | None:
    """The state after the most steps; None where there is none, SourceError where it cannot be read."""
    names = _names(folder)
    if not names:
        return None
    newest = folder / names[-1]
    with tempfile.TemporaryDirectory() as copies:
        local = newest.path if newest.is_local else f"{copies}/state{SUFFIX}"
        try:
            if not newest.is_local:
                newest.fs.get_file(newest.path, local)
            with safe_open(local, framework="pt") as file:
                facts = file.metadata()
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                return State(tensors, int(facts["step"]), int(facts["failed"]))
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{newest}: not a state of a training ({error}); remove it and run again") from error


def _names(folder: Place) -> list[str]:
    """The states that there are, the newest last."""
    try:
        return sorted(name for name in folder.list() if name.endswith(SUFFIX))
    except FileNotFoundError:
        return []


def remove_states(folder: Place) -> None:
    """Removes what a finished training need not resume from."""
    folder.remove_below(_names(folder))
