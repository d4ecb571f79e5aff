"""A folder of image files as it is listed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.cells.store import outside_stores
from plumbline.pipelines.ingest.input_rows import FOREIGN_IMAGES, IMAGES, InputColumnsConfig

READERS = 16
"""Small files that are read at once."""
READ_AHEAD = 1024
"""Of their names."""
LARGEST_TEXT = 2**20
"""Bytes of a file beside an image."""
NO_GENERATORS = frozenset({"images", "samples", "train", "test", "validation", "val"})
"""Folders that images lie in, whoever made them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder's files, hidden ones left out, by their paths below it."""

    place: Place
    names: Sequence[str]
    columns: InputColumnsConfig = field(default_factory=InputColumnsConfig)
    """What its tables call theirs."""

    @property
    def images(self) -> list[str]:
        """Image files and videos."""
        return [name for name in self.names if PurePosixPath(name).suffix[1:].lower() in IMAGES]

    @property
    def foreign(self) -> list[str]:
        """Image files in formats that nothing here decodes."""
        return [name for name in self.names if PurePosixPath(name).suffix[1:].lower() in FOREIGN_IMAGES]

    def inside(self, name: str | None) -> "Folder":
        """With what lies in inner folders of this name alone, where anything does."""
        inside = [path for path in self.names if name in PurePosixPath(path).parts[:-1]]
        return replace(self, names=inside or self.names)

    def generator(self, image: str) -> str:
        """Whose an image is: the folder's own name; or that of the folder in it, where it is neither a number nor says
        what is in it.
        """
        first, _, rest = image.partition("/")
        inner = bool(rest) and not first.isdecimal() and first.lower() not in NO_GENERATORS
        return first if inner else PurePosixPath(self.place.path).name

    def at(self, name: str) -> str:
        """The address of a file, for a message."""
        return f"{self.place.url}/{name}"

    def without_prompt(self, image: str, message: str) -> Rejection:
        """Why an image has no prompt."""
        return Refused("empty_prompt", message).at(self.at(image))

    def read(self, name: str) -> bytes:
        """A small file; raises Refused for one that is not, or that is gone."""
        with readable_errors(self.place, f"{name} in images"):
            try:
                content = (self.place / name).read(LARGEST_TEXT + 1)
            except FileNotFoundError as error:
                raise Refused("unreadable_line", f"{self.at(name)} is gone; run again") from error
        if len(content) > LARGEST_TEXT:
            raise Refused("text_too_large", f"{self.at(name)} is over {LARGEST_TEXT} bytes; is it a prompt?")
        return content

    def read_all(self, names: Sequence[str]) -> Iterator[bytes | Refused]:
        """Small files in order, some of them at once; for one that cannot be taken the reason."""
        with ThreadPoolExecutor(READERS) as pool:
            for start in range(0, len(names), READ_AHEAD):
                yield from pool.map(self._read, names[start : start + READ_AHEAD])

    def _read(self, name: str) -> bytes | Refused:
        try:
            return self.read(name)
        except Refused as refused:
            return refused


def list_images(place: Place, key: str = "images", columns: InputColumnsConfig | None = None) -> Folder:
    """The folder as it is listed, in the order of the names, without the stores in it; raises ConfigError naming `key`
    where there is none.
    """
    with readable_errors(place, key):
        if not place.exists():
            raise FileNotFoundError(place.url)
        paths = outside_stores(place, sorted(path for path, _ in place.files()))
    names = [path or place.name for path in paths]
    return Folder(
        place=place, names=[name for name in names if not _hidden(name)], columns=columns or InputColumnsConfig()
    )


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.split("/"))
