"""Reads files from the Hugging Face hub, from GitHub or from this machine by address, up to a maximum size.

Addresses have one of these forms:

- `hf://OWNER/NAME@REVISION/PATH` for a model, `hf://datasets/OWNER/NAME@REVISION/PATH` for a data set
- `https://raw.githubusercontent.com/OWNER/NAME/COMMIT/PATH`
- a path on this machine
"""

import re
import shutil
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from plumbline.operators.base.errors import ModelError, SourceError

HUB_ADDRESS_PATTERN = re.compile(
    r"hf://(?:(?P<kind>datasets|spaces)/)?(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>refs/[\w-]+/[\w-]+|[\w.-]+)/(?P<path>.+)"
)
GITHUB_PREFIX = "https://raw.githubusercontent.com/"
REPOSITORY_KINDS = {None: "model", "datasets": "dataset", "spaces": "space"}
"""The hub's name of each kind of repository, by its prefix in an address."""
MAX_FILE_BYTES = 64_000_000
"""Largest size of an image, or of a table of images or scores."""
TIMEOUT_SECONDS = 60
"""Seconds allowed for each wait for GitHub."""


class FoundFile(NamedTuple):
    """A file on this machine, which may have been downloaded from the hub."""

    path: Path
    commit: str | None
    """Commit on the hub; None if the file is not from the hub."""


def fetch_file(address: str, max_bytes: int = MAX_FILE_BYTES) -> FoundFile:
    """Return a file from the hub or from this machine, after downloading it if necessary.

    Raises SourceError if the file cannot be found or downloaded, or is larger than `max_bytes`.
    """
    hub = HUB_ADDRESS_PATTERN.fullmatch(address)
    if hub is not None:
        return _fetch_from_hub(address, hub, max_bytes)
    path = Path(address).expanduser()
    if "://" in address or not path.is_file():
        raise SourceError(
            f"{address}: expected a file on the hub (hf://OWNER/NAME@REVISION/PATH) or an existing local file; "
            "correct the address"
        )
    _check_size(address, path.stat().st_size, max_bytes)
    return FoundFile(path, None)


def download_bytes(address: str) -> bytes:
    """Return the content of a file. Raises SourceError if it cannot be read or is larger than MAX_FILE_BYTES."""
    if address.startswith(GITHUB_PREFIX):
        return _fetch_from_github(address)
    return fetch_file(address).path.read_bytes()


def _fetch_from_hub(address: str, hub: re.Match[str], max_bytes: int) -> FoundFile:
    # importing the hub's client takes a second, and help texts do not need it
    from huggingface_hub import (
        constants,
        errors,
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's; from release 2 on, httpx2's

    repo, name, revision = hub["repo"], hub["path"], hub["revision"]
    kind = REPOSITORY_KINDS[hub["kind"]]
    cached = try_to_load_from_cache(repo, name, revision=revision, repo_type=kind)
    if not isinstance(cached, str):
        try:
            found = get_hf_file_metadata(hf_hub_url(repo, name, revision=revision, repo_type=kind))
            _check_size(address, found.size or 0, max_bytes)
            check_free_space(Path(constants.HF_HUB_CACHE), found.size or 0)
            cached = hf_hub_download(repo, name, revision=found.commit_hash or revision, repo_type=kind)
        except (
            HTTPError,
            errors.HfHubHTTPError,
            errors.OfflineModeIsEnabled,
            errors.HFValidationError,
            OSError,
        ) as error:
            raise SourceError(
                f"{address}: cannot be downloaded ({type(error).__name__}); check the connection to the hub, and log "
                "in (`hf auth login`) if the repository is gated"
            ) from error
    path = Path(cached)
    _check_size(address, path.stat().st_size, max_bytes)
    parts = path.parts  # HF_HUB_CACHE/datasets--OWNER--NAME/snapshots/COMMIT/PATH
    return FoundFile(path, parts[parts.index("snapshots") + 1] if "snapshots" in parts else None)


def _fetch_from_github(address: str) -> bytes:
    try:
        with urlopen(address, timeout=TIMEOUT_SECONDS) as response:
            if not response.geturl().startswith(GITHUB_PREFIX):
                raise SourceError(f"{address}: redirects to another host, which is not allowed; correct the address")
            content: bytes = response.read(MAX_FILE_BYTES + 1)
    except (URLError, OSError) as error:
        raise SourceError(f"{address}: cannot be downloaded ({error}); check the connection to GitHub") from error
    _check_size(address, len(content), MAX_FILE_BYTES)
    return content


def _check_size(address: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise SourceError(f"{address}: expected at most {max_bytes:,} bytes, found more; choose a smaller file")


def check_free_space(folder: Path, size: int) -> None:
    """Raise ModelError if the folder's disk has less than `size` bytes free. The folder need not exist yet."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise ModelError(
            f"the download is {size / 1e9:.1f} GB, but the disk has only {free / 1e9:.1f} GB free; free some space, "
            "or set HF_HUB_CACHE to a folder on a larger disk"
        )
