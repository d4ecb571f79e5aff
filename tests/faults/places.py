"""The benchmark and the store of a soak's round, in a folder or on S3, as their owner sees them, past all faults."""

from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

from plumbline.pipelines.base.storage import Entry, Place
from plumbline.pipelines.cells.runs import LATEST_REPORT, ORDER, newest_run, run_of_position
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.maintenance import working_sweeps
from plumbline.pipelines.maintenance.garbage import collect_garbage
from plumbline.pipelines.maintenance.gc_config import GcConfig
from tests.bench_of import images, prompts, write_rows
from tests.histories.damage import ROT, harmed, kind_of, overwrite

IMAGES, SHARD = 8, 2
GENERATORS = ("atlas", "flint")
PROMPTS, ATLAS, FLINT = "prompts.parquet", "images/atlas/00000.parquet", "images/flint/00000.parquet"
BENCHES = {
    "fresh": {PROMPTS: "prompts", ATLAS: "atlas"},
    "grown": {PROMPTS: "prompts", ATLAS: "atlas", FLINT: "flint"},
    "edited": {PROMPTS: "edited", ATLAS: "atlas", FLINT: "flint"},
}
"""Which file stands where in each state of the benchmark; none is ever removed, for some S3 servers go on listing a
folder that has become empty, and a sweep then says rightly that it lacks images."""


def write_masters(folder: Path) -> Path:
    """The files that the benchmark is made of in its states."""
    texts = prompts(IMAGES)
    write_rows(folder / "prompts", texts)
    texts[0] = {**prompts(2 * IMAGES)[-1], "prompt_id": texts[0]["prompt_id"]}
    write_rows(folder / "edited", texts)
    for generator in GENERATORS:
        write_rows(folder / generator, images(generator, IMAGES), row_group=SHARD)
    return folder


class Damaged(NamedTuple):
    """A file of a store that is not what it was."""

    path: str
    content: bytes


class Ground(NamedTuple):
    """The place of a round's benchmark and store, reached in a way that nothing disturbs."""

    root: Place
    masters: Path

    @property
    def bench(self) -> str:
        return str(self.root / "bench")

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    def show(self, bench: str) -> None:
        """Brings the benchmark into a state; a file that stays is not touched."""
        for name, master in BENCHES[bench].items():
            self._put(self.masters / master, self.root / f"bench/{name}")

    def _put(self, master: Path, place: Place) -> None:
        """On S3 the same content has the same ETag, and on a disk the same file has the same time."""
        if not place.is_local:
            place.write(master.read_bytes())
            return
        target = Path(place.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.hardlink_to(master)

    def files(self) -> Mapping[str, Entry]:
        """All that stands in the store, by its path there."""
        store = self.store.place
        return dict(store.files()) if store.exists() else {}

    def cells(self) -> dict[str, tuple[str, float]]:
        """What stands at each committed cell's path, which nothing but a cell that is computed anew changes."""
        return {path: (entry.etag, entry.modified) for path, entry in self.files().items() if kind_of(path) == "cell"}

    def damage(self, kind: str, choice: float) -> Damaged | None:
        """Flip a bit of one of the newest files of a kind, or cut off its end; return None if no file is damaged.

        On a disk, half of the flipped bits leave the file's size, its time and its other names as they were.
        """
        files = {path: entry for path, entry in self.files().items() if kind_of(path) == kind}
        if not files:
            return None
        newest = sorted(files, key=lambda path: (files[path].modified, path))[-3:]
        chance = Random(choice)
        path = chance.choice(newest)
        content = self.read(path)
        way = chance.choice(("flip", "truncate", *(ROT if self.root.is_local else ())))
        left = harmed(content or b"", way, chance)
        if not content or left is None or left == content:
            return None
        if way in ROT:
            overwrite(Path((self.store.place / path).path), left)
        else:
            self._put_bytes(left, path)
        return Damaged(path, left)

    def read(self, path: str) -> bytes | None:
        """A file of the store; None where it is gone."""
        try:
            return (self.store.place / path).read()
        except FileNotFoundError:
            return None

    def _put_bytes(self, content: bytes, path: str) -> None:
        """A hard link of another run's part stays whole, as on S3."""
        (self.store.place / path).write(content)

    def newest(self) -> str:
        """The address of the newest run."""
        return f"{self.store.place}/runs/{newest_run(self.store)}"

    def collect_garbage(self, damaged: Collection[str]) -> None:
        """Has removed what `jobs.gc` would some minutes later, when the signs of killed drivers are known as such.

        Deletes before it the earlier runs that have damaged files, as it asks for.
        """
        newest = newest_run(self.store)
        for run in {path.split("/")[1] for path in damaged if path.startswith("runs/") and path.count("/") > 1}:
            if run != newest:
                self.store.remove_folder(f"runs/{run}")
        working_sweeps.HEARTBEAT_TIMEOUT = 0.0
        collect_garbage(GcConfig(store=self.store.place.url, storage=self.root.storage, delete=True, grace_days=0.0))

    def leftovers(self) -> list[str]:
        """What is neither a committed cell nor a whole run's nor the store's own."""
        files = self.files()
        whole = {path.split("/")[1] for path in files if path.endswith("/manifest.json")}
        return [path for path in files if not _has_its_place(path, whole)]


def _has_its_place(path: str, whole_runs: set[str]) -> bool:
    folder, _, name = path.partition("/")
    if folder == "runs":
        return name == "latest" or (name.split("/")[0] in whole_runs and "/." not in name)
    if folder == ORDER:
        return run_of_position(path) in whole_runs
    if path == LATEST_REPORT or kind_of(path) == "cell":
        return True
    return folder in ("digests", "leases", "sources", "store.json") and "/." not in path
