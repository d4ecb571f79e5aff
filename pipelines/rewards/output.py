"""An export's output: shards written once each, and a manifest at the end, without which it is not finished."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, readable_errors, write_errors
from plumbline.pipelines.cells.cells import digest

OF_RUN = "@run"
"""What an output's address has in the place of its run's id."""
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"
"""Stands from the first byte until the manifest does."""
RECORDS = "_export"
"""What is known of shards that stand; gone with `unfinished.json`."""


class ExportedShardRecord(NamedTuple):
    """A shard that stands in the output."""

    name: str
    split: str
    files: Sequence[str]
    """Its table, or none where its rows go to a file of the whole split."""
    sha256: str
    rows: int
    examples: int
    left_out: Mapping[str, int]
    """Examples that could not be made, by the reason."""
    messages: Sequence[str]
    """The first of those reasons in full."""
    unverified: int
    """Images whose digest when they were scored is not known any more."""


class Output:
    """A place that holds one export."""

    def __init__(self, place: Place, identity: Mapping[str, Any]) -> None:
        self.place = place
        self.identity = identity
        self.key = digest(identity)

    def begin(self) -> dict[str, Any] | None:
        """The manifest where this export stands whole, None where it is to go on.

        Raises ConfigError where the place holds another export, or anything else.
        """
        manifest = self._read(MANIFEST)
        known = manifest if manifest is not None else self._read(UNFINISHED)
        if known is None:
            self._require_empty()
            (self.place / UNFINISHED).create(_encoded({"key": self.key, "export": self.identity}))
            known = self._read(UNFINISHED) or {}
        if known.get("key") != self.key:
            raise ConfigError(f"output {self.place.url}: {_difference(known.get('export', {}), self.identity)}")
        return manifest

    def _require_empty(self) -> None:
        with readable_errors(self.place, "output"):
            stands = self.place.exists() and self.place.list()
        if stands:
            raise ConfigError(
                f"output {self.place.url}: expected an empty folder, or one of this export; choose another"
            )

    def record(self, name: str) -> ExportedShardRecord | None:
        """What is known of a shard that stands."""
        known = self._read(f"{RECORDS}/{name}.json")
        return ExportedShardRecord(**known) if known is not None else None

    def write(self, path: str, data: bytes) -> None:
        """Puts a file in its place once; raises ConfigError where another stands there."""
        if not (self.place / path).create(data) and self._content(path) != data:
            raise ConfigError(f"{self.place / path}: another file stands there; choose another output")

    def commit(self, record: ExportedShardRecord) -> None:
        """Says that a shard stands, after all of its files do."""
        self.write(f"{RECORDS}/{record.name}.json", _encoded(record._asdict()))

    def piece(self, name: str, lines: bytes) -> None:
        """Keeps a shard's part of a file of the whole split."""
        self.write(f"{RECORDS}/{name}.jsonl", lines)

    def join(self, path: str, names: Iterable[str], *, as_list: bool) -> str:
        """Writes the file of a split from its parts, a part at a time in memory; its SHA-256."""
        sha256 = hashlib.sha256()
        with (self.place / path).writing() as draft, draft.open("wb") as file:
            for data in _as_list(self._pieces(names)) if as_list else self._pieces(names):
                sha256.update(data)
                file.write(data)
        return sha256.hexdigest()

    def _pieces(self, names: Iterable[str]) -> Iterator[bytes]:
        for name in names:
            yield self._content(f"{RECORDS}/{name}.jsonl") or b""

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Writes the manifest last, and removes what told that the export was under way."""
        self.write(MANIFEST, _encoded({"key": self.key, "export": self.identity, **manifest}))
        self.tidy()

    def tidy(self) -> None:
        """Removes what only an unfinished export needs."""
        with write_errors(self.place):
            for unneeded in (self.place / RECORDS, self.place / UNFINISHED):
                unneeded.remove_folder()

    def _content(self, path: str) -> bytes | None:
        with readable_errors(self.place, "output"):
            try:
                return (self.place / path).read()
            except FileNotFoundError:
                return None

    def _read(self, path: str) -> dict[str, Any] | None:
        content = self._content(path)
        if content is None:
            return None
        try:
            return dict(json.loads(content))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.place / path}: not written by an export; choose another output") from error


def _as_list(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines of JSON as one list of them."""
    before = b"[\n"
    for piece in pieces:
        for line in piece.splitlines():
            yield before + line
            before = b",\n"
    yield b"\n]\n" if before != b"[\n" else b"[]\n"


def _encoded(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What the place holds instead of what is wanted there, and what to do."""
    names = sorted(name for name in {*known, *wanted} if known.get(name) != json.loads(json.dumps(wanted.get(name))))
    if "run_id" in names:
        runs = f"the export of run {known.get('run_id')}, and this is of run {wanted['run_id']}"
        return f"holds {runs}; choose another output, or end it in /{OF_RUN}, which gives each run a folder of its own"
    differs = f"with another {names[0]}" if names else "of another version"
    return f"holds another export ({differs}); choose another output"
