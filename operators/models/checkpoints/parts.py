"""Finds, checks and identifies the repositories and folders of a model, without loading any weights."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from plumbline.operators.base.errors import ModelError

SMALL_FILE_PATTERNS = ["*.json", "*.jinja", "*.txt", "*.model"]
WANTED_FILE_PATTERNS = [*SMALL_FILE_PATTERNS, "*.safetensors"]
QFORMER_TOKENIZER_FOLDER = "qformer_tokenizer"
"""Folder in an InstructBLIP checkpoint with the tokenizer of its Q-Former, which is a BERT tokenizer."""
CONVERT_AGAIN_REMEDY = "convert the release again (docs/models.md)"
CONVERT_TO_SAFETENSORS_REMEDY = (
    "convert it on a machine you trust (the Hub's safetensors converter opens a pull request: pass its "
    "refs/pr/N as the revision)"
)

Fields = Mapping[str, Any]
"""Content of a checkpoint's config.json."""
FileDigest = Callable[[Path], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A hub repository at one commit, or a local folder, that is part of a model."""

    source: str
    """Hub id or absolute path of a folder."""
    commit: str | None
    """Hub commit; None for a local folder."""
    identity: str
    """The hub id and commit, or the digest of the folder's files. It is part of cell keys."""

    def folder(self, wanted: Sequence[str] = WANTED_FILE_PATTERNS) -> Path:
        """Return the local folder with the files; download wanted files that are missing."""
        if self.commit is None:
            return Path(self.source)
        from plumbline.operators.models.checkpoints import hub

        return hub.download_snapshot(self.source, self.commit, wanted)

    def find_missing_files(self, wanted: Sequence[str] = WANTED_FILE_PATTERNS) -> dict[str, int]:
        if self.commit is None:
            return {}
        from plumbline.operators.models.checkpoints import hub

        return hub.find_missing_files(self.source, self.commit, wanted)

    def find_file(self, name: str) -> Path | None:
        """Return the path of one file, or None if the part does not have it."""
        if self.commit is None:
            path = Path(self.source) / name
            return path if path.is_file() else None
        from plumbline.operators.models.checkpoints import hub

        return hub.download_file(self.source, self.commit, name)


class Checkpoint(NamedTuple):
    """The part that contains the model's weights, with its config.json and the names of its tensors."""

    part: Part
    fields: Fields
    tensors: Sequence[str]


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_part(
    source: str, revision: str | None, digest: FileDigest, wanted: Sequence[str] = WANTED_FILE_PATTERNS
) -> Part:
    """Return the local folder or hub repository `source` as a part of a model.

    A folder is identified by a digest of its `wanted` files. Raises ModelError if the source does not exist.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        identity = hashlib.sha256()
        for file in sorted({file for pattern in wanted for file in folder.glob(pattern)}):
            identity.update(f"{file.relative_to(folder).as_posix()}\0{digest(file)}\n".encode())
        return Part(source=str(folder.resolve()), commit=None, identity=identity.hexdigest())
    if folder.is_absolute() or source.startswith(".") or source.count("/") != 1:
        raise ModelError(
            f"model {source!r}: expected a folder or a hub id of the form owner/name, found neither; correct it, or "
            "convert published weights (docs/models.md)"
        )
    from plumbline.operators.models.checkpoints import hub  # takes a second to import, and only hub models need it

    commit = hub.find_commit(source, revision)
    return Part(source=source, commit=commit, identity=f"{source}@{commit}")


def read_fields(part: Part) -> dict[str, Any]:
    """Return the content of a part's config.json; raise ModelError if it has no model_type."""
    fields = read_json(part, "config.json")
    if not isinstance(fields.get("model_type"), str):
        raise ModelError(f"{part.source}: config.json has no model_type; download the checkpoint again")
    return fields


def read_json(part: Part, name: str) -> dict[str, Any]:
    """Return the JSON object in a part's file; empty if the file contains any other JSON value.

    Raise ModelError if the file is missing or is not JSON.
    """
    path = part.find_file(name)
    if path is None:
        raise ModelError(f"{part.source}: has no {name}, so it is not a checkpoint; correct the model's name or path")
    try:
        fields = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{part.source}: {name} is not JSON ({error}); download the checkpoint again") from error
    return fields if isinstance(fields, dict) else {}


def find_architecture(fields: Fields) -> str:
    """Return the first class listed under `architectures` in a config.json, or "none"."""
    named = fields.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "none"


def read_subfields(fields: Fields, name: str) -> Fields:
    """Return the mapping under a name in a config.json; empty if the name has any other value or none."""
    inner = fields.get(name)
    return inner if isinstance(inner, Mapping) else {}


def check_weights(part: Part, only: str | None = None) -> list[str]:
    """Check a part's safetensors files, or only the file `only`, and return the names of the tensors in them.

    For a hub model, only the files' headers are fetched. Raises ModelError if files are missing, damaged or not
    safetensors.
    """
    if part.commit is not None:
        from plumbline.operators.models.checkpoints import hub

        cached = hub.find_cached_folder(part.source, part.commit)
        files = [] if cached is None else sorted(cached.glob(only or "*.safetensors"))
        names = [name for file in files for name in read_tensor_names(file)]
        names = names or hub.fetch_tensor_names(part.source, part.commit, only)
        if not names:
            raise ModelError(
                f"{part.source}@{part.commit}: expected safetensors weights, found none; "
                f"{CONVERT_TO_SAFETENSORS_REMEDY}"
            )
        return names
    folder = Path(part.source)
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    try:
        indexed = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index}: not a valid index of weight files ({error!r}); download the checkpoint again"
        ) from error
    missing = sorted(indexed - {file.name for file in files})
    if missing:
        raise ModelError(
            f"{folder}: {missing[0]} is missing, though {index.name} lists it; download the checkpoint again"
        )
    files = [file for file in files if only is None or file.name == only]
    if not files:
        pickled = any(folder.glob("*.bin"))
        found = "only pickled .bin weights, which are never loaded" if pickled else "no weights"
        raise ModelError(
            f"{part.source}: expected {only or '*.safetensors'}, found {found}; {CONVERT_TO_SAFETENSORS_REMEDY}"
        )
    return [name for file in files for name in read_tensor_names(file)]


def read_tensor_names(file: Path) -> list[str]:
    """Return the names of the tensors in the header of a safetensors file. Raise ModelError if it is damaged."""
    with _open_safetensors(file) as stream:
        return list(stream.keys())


def count_parameters(file: Path) -> int:
    """Return the number of parameters in a safetensors file, from its header. Raise ModelError if it is damaged."""
    with _open_safetensors(file) as stream:
        return sum(math.prod(stream.get_slice(name).get_shape()) for name in stream.keys())  # noqa: SIM118


@contextmanager
def _open_safetensors(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="np") as stream:
            yield stream
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file}: not a safetensors file ({error}), or truncated; download the checkpoint again"
        ) from error
