"""Output of an export. Each shard is written once; the manifest is written last and marks the export as complete."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, convert_read_errors, convert_write_errors
from plumbline.pipelines.store.cells import digest

RUN_PLACEHOLDER = "@run"
"""Placeholder for the run's id in the output path."""
MANIFEST_FILE = "manifest.json"
UNFINISHED_FILE = "unfinished.json"
"""File that marks an unfinished export: it is written first, and removed after the manifest is written."""
RECORDS_FOLDER = "_export"
"""Folder with the records of shards; removed together with `unfinished.json`."""


class ExportedShardRecord(NamedTuple):
    """Record of a shard that has been exported: its files, their digest and the numbers of rows and examples."""

    name: str
    split: str
    files: Sequence[str]
    """The shard's table; empty if the format has one file per split."""
    sha256: str
    rows: int
    examples: int
    left_out: Mapping[str, int]
    """Number of examples left out, by reason."""
    messages: Sequence[str]
    """Messages about the first examples that were left out."""
    unverified: int
    """Number of images that could not be verified, because their digests at the time of scoring were deleted."""


class ExportOutput:
    """A folder that contains one export."""

    def __init__(self, place: Place, identity: Mapping[str, Any]) -> None:
        self.place = place
        self.identity = identity
        self.key = digest(identity)

    def begin(self) -> dict[str, Any] | None:
        """Return the manifest if this export is complete; otherwise start or continue the export and return None.

        Raises ConfigError if the folder contains anything else.
        """
        manifest = self._read_json(MANIFEST_FILE)
        known = manifest if manifest is not None else self._read_json(UNFINISHED_FILE)
        if known is None:
            with convert_read_errors(self.place, "output"):
                occupied = self.place.exists() and self.place.list()
            if occupied:
                raise ConfigError(
                    f"output {self.place.url}: expected an empty folder, or the output of this export; choose another"
                )
            (self.place / UNFINISHED_FILE).create(_encode_json({"key": self.key, "export": self.identity}))
            known = self._read_json(UNFINISHED_FILE) or {}
        if known.get("key") != self.key:
            raise ConfigError(f"output {self.place.url}: {_describe_conflict(known.get('export', {}), self.identity)}")
        return manifest

    def read_record(self, name: str) -> ExportedShardRecord | None:
        """Return the record of a shard; None if the shard is not committed."""
        known = self._read_json(f"{RECORDS_FOLDER}/{name}.json")
        return ExportedShardRecord(**known) if known is not None else None

    def write(self, path: str, data: bytes) -> None:
        """Create a file; raise ConfigError if it already exists with different content."""
        if not (self.place / path).create(data) and self._read_bytes(path) != data:
            raise ConfigError(f"{self.place / path}: already exists with different content; choose another output")

    def commit(self, record: ExportedShardRecord) -> None:
        """Write the record of a shard whose files have been written."""
        self.write(f"{RECORDS_FOLDER}/{record.name}.json", _encode_json(record._asdict()))

    def write_piece(self, name: str, lines: bytes) -> None:
        """Write the part that a shard contributes to the file of its split."""
        self.write(f"{RECORDS_FOLDER}/{name}.jsonl", lines)

    def join(self, path: str, names: Iterable[str], *, as_list: bool) -> str:
        """Join the parts of all shards into the file of a split, one part at a time, and return the file's SHA-256."""
        sha256 = hashlib.sha256()
        pieces = (self._read_bytes(f"{RECORDS_FOLDER}/{name}.jsonl") or b"" for name in names)
        with (self.place / path).open_draft() as draft, draft.open("wb") as file:
            for data in _wrap_in_json_list(pieces) if as_list else pieces:
                sha256.update(data)
                file.write(data)
        return sha256.hexdigest()

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, and then remove the files that mark the export as unfinished."""
        self.write(MANIFEST_FILE, _encode_json({"key": self.key, "export": self.identity, **manifest}))
        self.remove_temporary_files()

    def remove_temporary_files(self) -> None:
        """Remove the files that are only needed while the export is unfinished."""
        with convert_write_errors(self.place):
            for unneeded in (self.place / RECORDS_FOLDER, self.place / UNFINISHED_FILE):
                unneeded.remove_folder()

    def _read_bytes(self, path: str) -> bytes | None:
        with convert_read_errors(self.place, "output"):
            try:
                return (self.place / path).read()
            except FileNotFoundError:
                return None

    def _read_json(self, path: str) -> dict[str, Any] | None:
        content = self._read_bytes(path)
        if content is None:
            return None
        try:
            return dict(json.loads(content))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.place / path}: not written by an export; choose another output") from error


def _wrap_in_json_list(pieces: Iterable[bytes]) -> Iterator[bytes]:
    before = b"[\n"
    for piece in pieces:
        for line in piece.splitlines():
            yield before + line
            before = b",\n"
    yield b"\n]\n" if before != b"[\n" else b"[]\n"


def _encode_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _describe_conflict(known: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    ours = json.loads(json.dumps(identity))
    names = sorted(name for name in {*known, *ours} if known.get(name) != ours.get(name))
    if "run_id" in names:
        runs = f"the export of run {known.get('run_id')}, but this is run {identity['run_id']}"
        return f"contains {runs}; choose another output, or end it in /{RUN_PLACEHOLDER}, so that each run has a folder"
    differs = f"with another {names[0]}" if names else "of another version"
    return f"contains another export ({differs}); choose another output"
