"""Folders of files for tests."""

from collections.abc import Mapping
from pathlib import Path


def put(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    """Writes the files by their paths below a folder, and gives the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder
