"""Files on a disk: a complete file is linked to its name, so that readers never see a partial file."""

import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from plumbline.pipelines.base.filesystems.filesystem import Entry, WritableFilesystem, make_entry

LOCAL_FILESYSTEM = LocalFileSystem()
GROUP_PERMISSIONS = stat.S_IRGRP | stat.S_IWGRP


class Disk(WritableFilesystem):
    check = rights = "the path and the rights to it"

    def __init__(self) -> None:
        super().__init__("", LOCAL_FILESYSTEM)

    def list(self, path: str) -> dict[str, Entry]:
        """Return the entries of a folder by name; a link has the entry of its target."""
        return {
            str(item["name"]).rpartition("/")[2]: read_entry(item["name"]) if item.get("islink") else make_entry(item)
            for item in self.fs.ls(path, detail=True)
        }

    def _iterate_below(self, path: str) -> Iterator[tuple[str, Entry]]:
        """Yield the files below a folder, following links; if several links lead to a folder, it is read only once."""
        if not self.fs.isdir(path):
            return
        seen: set[str] = set()
        for folder, folders, files in os.walk(path, onerror=_raise_error, followlinks=True):
            if (real := os.path.realpath(folder)) in seen:
                folders.clear()
                continue
            seen.add(real)
            for name in files:
                file = f"{folder}/{name}"
                yield file.removeprefix(path).lstrip("/"), read_entry(file)

    def create(self, path: str, data: bytes) -> bool:
        with _open_temporary_file(Path(path), data) as draft:
            return self._link_file(draft, path)

    def create_and_check_condition(self, path: str, data: bytes) -> bool:
        self.create(path, data)
        return True

    def write(self, path: str, data: bytes) -> None:
        with _open_temporary_file(Path(path), data) as draft:
            draft.replace(path)

    def get_draft_folder(self, path: str) -> Path:
        folder = Path(path).parent
        _make_folder(folder)
        return folder

    def move_draft(self, draft: Path, path: str, *, replace: bool) -> bool:
        with draft.open("rb") as file:
            os.fsync(file.fileno())  # committed files survive a crash of the machine
        _make_group_writable(draft, Path(path).parent)
        if not replace:
            return self._link_file(draft, path)
        draft.replace(path)
        return True

    def copy(self, source: str, target: str) -> None:
        _make_folder(Path(target).parent)
        link = _make_hidden_path(Path(target))
        os.link(source, link)
        try:
            link.replace(target)
        finally:
            link.unlink(missing_ok=True)  # a rename between two links of one file does nothing

    def remove_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            Path(path).unlink(missing_ok=True)

    @staticmethod
    def _link_file(source: Path, target: str) -> bool:
        with suppress(FileExistsError):
            os.link(source, target)
            return True
        return False


@contextmanager
def _open_temporary_file(path: Path, data: bytes) -> Iterator[Path]:
    """Write a file under a temporary name in the folder of `path`, and remove that name when the context ends."""
    _make_folder(path.parent)
    draft = _make_hidden_path(path)
    try:
        write_new_file(draft, data)
        _make_group_writable(draft, path.parent)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, each with the group permissions of its own parent."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    if folder.parent.stat().st_mode & stat.S_IWGRP:
        _make_shared_folder(folder)
    try:
        folder.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(folder.stat().st_mode):  # stat raises an error that names circular links
            raise
    else:  # making a shared folder fails if another writer replaces the parent folder at that moment
        _make_group_writable(folder, folder.parent)


def _make_shared_folder(folder: Path) -> None:
    """Create a folder that has the group permissions from the start, because another writer may use it immediately.

    If the name is taken, or the folder cannot be created, nothing is left behind.
    """
    draft = _make_hidden_path(folder)
    with suppress(OSError):
        draft.mkdir()
        _make_group_writable(draft, folder.parent)
        draft.rename(folder)  # can only replace an empty folder
    with suppress(OSError):
        draft.rmdir()


def _make_group_writable(path: Path, folder: Path) -> None:
    """Make a new file or folder group-writable if its parent folder is, regardless of the umask.

    Otherwise two people with the usual umask of 022 could not write to the same store.
    """
    if folder.stat().st_mode & stat.S_IWGRP:
        own = path.stat().st_mode
        rights = GROUP_PERMISSIONS | (stat.S_IXGRP if stat.S_ISDIR(own) else 0)
        if own & rights != rights:
            with suppress(OSError):  # the disk does not support these rights
                path.chmod(stat.S_IMODE(own) | rights)


def _make_hidden_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def write_new_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)


def _raise_error(error: OSError) -> None:
    raise error


def read_entry(path: str) -> Entry:
    """Return the entry of a local file; a broken link is neither a file nor a folder."""
    try:
        found = Path(path).stat()
    except OSError:
        return Entry("other", 0, "0.0", 0.0)
    entry_type = "file" if stat.S_ISREG(found.st_mode) else "directory" if stat.S_ISDIR(found.st_mode) else "other"
    return Entry(entry_type, found.st_size, str(found.st_mtime), found.st_mtime)
