"""Finds commits, files and snapshots on the model hub; uses the local cache if the hub cannot be reached."""

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, errors, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's; from release 2 on, httpx2's
from huggingface_hub.hf_api import RepoFile

from plumbline.operators.base.errors import ModelError

COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")


def find_commit(repo: str, revision: str | None) -> str:
    """Return the commit that a revision of a hub repository refers to.

    Offline, return the commit that it referred to when it was last cached.
    """
    if revision is not None and COMMIT_PATTERN.fullmatch(revision):
        return revision
    try:
        return str(HfApi().model_info(repo, revision=revision).sha)
    except errors.HfHubHTTPError as error:
        if error.response.status_code == 429 or error.response.status_code >= 500:
            return _find_snapshot_folder(repo, revision).name
        raise ModelError(
            f"model {repo!r} at revision {revision or 'main'!r}: the hub answered {error.response.status_code}; check "
            "the id and the revision, and log in (`hf auth login`) if the model is gated"
        ) from error
    except (HTTPError, errors.OfflineModeIsEnabled, OSError, errors.HFValidationError):
        return _find_snapshot_folder(repo, revision).name


def _find_snapshot_folder(repo: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, OSError) as error:
        raise ModelError(
            f"model {repo!r}: not a local folder, not in the hub's cache, and the hub cannot be reached; "
            "give a folder, or download it first (`hf download`)"
        ) from error


def download_snapshot(repo: str, commit: str, patterns: Sequence[str]) -> Path:
    """Return the folder of a snapshot after downloading the files that match `patterns`; offline, the cached folder."""
    try:
        return Path(snapshot_download(repo, revision=commit, allow_patterns=list(patterns)))
    except errors.OfflineModeIsEnabled:
        return _find_snapshot_folder(repo, commit)


def download_file(repo: str, commit: str, name: str) -> Path | None:
    """Return the path of one file of a snapshot, downloaded if necessary.

    Returns None if the hub does not serve the file or, offline, if the file is not cached. Raises ModelError if the hub
    cannot be reached and no file of the snapshot is cached.
    """
    try:
        return Path(hf_hub_download(repo, name, revision=commit))
    except errors.LocalEntryNotFoundError:
        _find_snapshot_folder(repo, commit)  # raises ModelError if the cache lacks the whole snapshot
        return None
    except errors.HfHubHTTPError:
        return None


def find_missing_files(repo: str, commit: str, patterns: Sequence[str]) -> dict[str, int]:
    """Return the size in bytes of each file of a snapshot that matches `patterns` and is not cached, by path.

    The result is empty if the hub cannot be reached or refuses the request.
    """
    try:
        entries = HfApi().list_repo_tree(repo, revision=commit, recursive=True)
        files = {entry.path: entry.size for entry in entries if isinstance(entry, RepoFile)}
    except (HTTPError, errors.HfHubHTTPError, errors.OfflineModeIsEnabled, OSError):
        return {}
    return {
        path: size
        for path, size in files.items()
        if any(fnmatch(path, pattern) for pattern in patterns)
        and not isinstance(try_to_load_from_cache(repo, path, revision=commit), str)
    }


def list_files(repo: str, commit: str) -> list[str]:
    """Return the paths of a repository's files; offline, only of the cached files."""
    try:
        return list(HfApi().list_repo_files(repo, revision=commit))
    except (HTTPError, errors.HfHubHTTPError, errors.OfflineModeIsEnabled, OSError):
        folder = _find_snapshot_folder(repo, commit)
        return [file.relative_to(folder).as_posix() for file in folder.rglob("*")]


def find_cached_folder(repo: str, commit: str) -> Path | None:
    """Return the folder of a snapshot in the local cache, possibly with files missing; None if it is not cached."""
    try:
        return Path(snapshot_download(repo, revision=commit, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        return None


def fetch_tensor_names(repo: str, commit: str, only: str | None = None) -> list[str]:
    """Return the names of the tensors in a hub repository's safetensors files, or only in the file `only`.

    Returns an empty list if there are none, or if huggingface_hub is in offline mode.
    """
    try:
        if only is not None:
            return list(HfApi().parse_safetensors_file_metadata(repo, only, revision=commit).tensors)
        return list(HfApi().get_safetensors_metadata(repo, revision=commit).weight_map)
    except (errors.NotASafetensorsRepoError, errors.EntryNotFoundError, errors.OfflineModeIsEnabled):
        return []


def find_cached_file(repo: str, commit: str, name: str) -> Path | None:
    """Return the path of a snapshot's file in the local cache, or None if it is not cached."""
    cached = try_to_load_from_cache(repo, name, revision=commit)
    return Path(cached) if isinstance(cached, str) else None


def fetch_parameter_count(repo: str, commit: str, name: str) -> int | None:
    """Return the number of parameters in a safetensors file on the hub; None if it cannot be read."""
    try:
        return sum(HfApi().parse_safetensors_file_metadata(repo, name, revision=commit).parameter_count.values())
    except (HTTPError, errors.HfHubHTTPError, errors.OfflineModeIsEnabled, OSError, errors.SafetensorsParsingError):
        return None
