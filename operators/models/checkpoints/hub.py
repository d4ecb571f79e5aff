"""The model hub: commits, single files and snapshots; if it cannot be reached, its local cache is used."""

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from httpx import HTTPError
from huggingface_hub import HfApi, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    NotASafetensorsRepoError,
    OfflineModeIsEnabled,
)
from huggingface_hub.hf_api import RepoFile

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.weights import read_tensor_names

COMMIT = re.compile(r"[0-9a-f]{40}")


def find_commit(repo: str, revision: str | None) -> str:
    """Return the commit that a revision names now; offline, the commit in the local cache."""
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    try:
        return str(HfApi().model_info(repo, revision=revision).sha)
    except HfHubHTTPError as error:
        if error.response.status_code == 429 or error.response.status_code >= 500:
            return _cached_folder(repo, revision).name
        raise ModelError(
            f"model {repo!r} at revision {revision or 'main'!r}: the hub answered {error.response.status_code}; check "
            "the id and the revision, and log in (`hf auth login`) if the model is gated"
        ) from error
    except (HTTPError, OfflineModeIsEnabled, OSError, HFValidationError):
        return _cached_folder(repo, revision).name


def _cached_folder(repo: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise ModelError(
            f"model {repo!r}: neither a local folder, nor in the hub's cache, nor can the hub be reached; "
            "give a folder, or download it first (`hf download`)"
        ) from error


def download(repo: str, commit: str, patterns: Sequence[str]) -> Path:
    """Download the files of a snapshot that match `patterns`, and return its folder; offline, the cached folder."""
    try:
        return Path(snapshot_download(repo, revision=commit, allow_patterns=list(patterns)))
    except OfflineModeIsEnabled:
        return _cached_folder(repo, commit)


def download_file(repo: str, commit: str, name: str) -> Path | None:
    """Download one file of a snapshot; return None if the snapshot does not have it.

    Offline, a file that is not in the cache counts as missing from the snapshot, if the cache has the snapshot at all.
    """
    try:
        return Path(hf_hub_download(repo, name, revision=commit))
    except LocalEntryNotFoundError:
        _cached_folder(repo, commit)
        return None
    except HfHubHTTPError:
        return None


def find_missing_files(repo: str, commit: str, patterns: Sequence[str]) -> dict[str, int]:
    """Return the sizes in bytes of a snapshot's files that match `patterns` and are not in the cache.

    Returns nothing if the hub cannot be reached.
    """
    try:
        entries = HfApi().list_repo_tree(repo, revision=commit, recursive=True)
        files = [entry for entry in entries if isinstance(entry, RepoFile)]
    except (HTTPError, HfHubHTTPError, OfflineModeIsEnabled, OSError):
        return {}
    wanted = [file for file in files if any(fnmatch(file.path, pattern) for pattern in patterns)]
    return {
        file.path: file.size
        for file in wanted
        if not isinstance(try_to_load_from_cache(repo, file.path, revision=commit), str)
    }


def list_files(repo: str, commit: str) -> list[str]:
    """Return the names of a repository's files, with their folders; offline, of those in the cache."""
    try:
        return list(HfApi().list_repo_files(repo, revision=commit))
    except (HTTPError, HfHubHTTPError, OfflineModeIsEnabled, OSError):
        folder = _cached_folder(repo, commit)
        return [file.relative_to(folder).as_posix() for file in folder.rglob("*")]


def find_tensor_names(repo: str, commit: str, only: str | None = None) -> list[str]:
    """Return the tensors in the headers of a repository's safetensors files, or of the file `only`."""
    try:
        folder = Path(snapshot_download(repo, revision=commit, local_files_only=True))
        names = [name for file in sorted(folder.glob(only or "*.safetensors")) for name in read_tensor_names(file)]
    except LocalEntryNotFoundError:
        names = []
    if names:
        return names
    try:
        if only is not None:
            return list(HfApi().parse_safetensors_file_metadata(repo, only, revision=commit).tensors)
        return list(HfApi().get_safetensors_metadata(repo, revision=commit).weight_map)
    except (NotASafetensorsRepoError, EntryNotFoundError, OfflineModeIsEnabled):
        return []
