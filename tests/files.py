"""Functions that write files for tests."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_files(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files, given by their paths, below a folder; return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def make_tar(members: Sequence[tuple[str, bytes]], mode: str = "w") -> bytes:
    """Return a tar of these members in the given order."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return sink.getvalue()
