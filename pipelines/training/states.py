"""States of a training on disk or S3: weights and AdamW's moments as safetensors, the rest as text in its header."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Location, list_folder, remove_all, write_errors, written_whole

SUFFIX = ".safetensors"


class State(NamedTuple):
    """A training after so many steps."""

    tensors: Mapping[str, torch.Tensor]
    step: int
    failed: int
    """Rows that were left out so far, by all workers."""


def save_state(folder: Location, state: State) -> None:
    """Writes a state, whole or not at all, and then removes the older ones."""
    older = _paths(folder)
    path = folder.at(f"step-{state.step:09d}{SUFFIX}")
    facts = {"step": str(state.step), "failed": str(state.failed)}
    with write_errors(path), written_whole(folder, path) as draft:
        save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, draft, metadata=facts)
    remove_all(folder, [other for other in older if other != path])


def newest_state(folder: Location) -> State | None:
    """The state after the most steps; None where there is none, SourceError where it cannot be read."""
    paths = _paths(folder)
    if not paths:
        return None
    with tempfile.TemporaryDirectory() as copies:
        path = paths[-1]
        local = path if Path(path).is_file() else f"{copies}/state{SUFFIX}"
        try:
            if local != path:
                folder.fs.get_file(path, local)
            with safe_open(local, framework="pt") as file:
                facts = file.metadata()
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                return State(tensors, int(facts["step"]), int(facts["failed"]))
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{path}: not a state of a training ({error}); remove it and run again") from error


def _paths(folder: Location) -> list[str]:
    """The states that there are, the newest last."""
    try:
        entries = list_folder(folder)
    except FileNotFoundError:
        return []
    return sorted(entry["name"] for entry in entries if str(entry["name"]).endswith(SUFFIX))


def remove_states(folder: Location) -> None:
    """Removes what a finished training need not resume from."""
    remove_all(folder, _paths(folder))
