"""The benchmark and store of a soak round, in a folder or on S3, accessed without any faults."""

from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

from plumbline.pipelines.base.storage import Entry, Place
from plumbline.pipelines.maintenance import running_sweeps
from plumbline.pipelines.maintenance.garbage import collect_garbage
from plumbline.pipelines.maintenance.gc_config import GcConfig
from plumbline.pipelines.store.runs import LATEST_REPORT_FILE, ORDER_FOLDER, find_newest_run, parse_run_id
from plumbline.pipelines.store.store import Store
from tests.bench_of import read_image_rows, read_prompt_rows, write_rows
from tests.histories.damage import ROT_WAYS, damage_content, find_kind, overwrite

N_IMAGES, SHARD_ROWS = 8, 2
GENERATORS = ("atlas", "flint")
PROMPTS_FILE, ATLAS_FILE, FLINT_FILE = "prompts.parquet", "images/atlas/00000.parquet", "images/flint/00000.parquet"
BENCH_STATES = {
    "fresh": {PROMPTS_FILE: "prompts", ATLAS_FILE: "atlas"},
    "grown": {PROMPTS_FILE: "prompts", ATLAS_FILE: "atlas", FLINT_FILE: "flint"},
    "edited": {PROMPTS_FILE: "edited", ATLAS_FILE: "atlas", FLINT_FILE: "flint"},
}
"""The benchmark's files in each of its states.

No file is ever removed: some S3 servers keep listing a folder that has become empty, and a sweep would then correctly
report that its images are missing.
"""


def write_masters(folder: Path) -> Path:
    """Write the files for all states of the benchmark; return their folder."""
    texts = read_prompt_rows(N_IMAGES)
    write_rows(folder / "prompts", texts)
    texts[0] = {**read_prompt_rows(2 * N_IMAGES)[-1], "prompt_id": texts[0]["prompt_id"]}
    write_rows(folder / "edited", texts)
    for generator in GENERATORS:
        write_rows(folder / generator, read_image_rows(generator, N_IMAGES), row_group=SHARD_ROWS)
    return folder


class DamagedFile(NamedTuple):
    path: str
    content: bytes


class RoundStorage(NamedTuple):
    """The folder or bucket with a round's benchmark and store, accessed without faults."""

    root: Place
    masters: Path

    @property
    def bench(self) -> str:
        return str(self.root / "bench")

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    def set_bench_state(self, bench: str) -> None:
        """Bring the benchmark into the given state by copying or linking the files of this state."""
        for name, master in BENCH_STATES[bench].items():
            self._link_or_write(self.masters / master, self.root / f"bench/{name}")

    def _link_or_write(self, master: Path, place: Place) -> None:
        """Copy or link a file so that a sweep sees it as unchanged.

        On disk a hard link keeps its modification time; on S3 its ETag depends only on its content.
        """
        if not place.is_local:
            place.write(master.read_bytes())
            return
        target = Path(place.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.hardlink_to(master)

    def list_files(self) -> Mapping[str, Entry]:
        """List all files in the store, by path."""
        store = self.store.place
        return dict(store.files()) if store.exists() else {}

    def read_cells(self) -> dict[str, tuple[str, float]]:
        """Return the ETag and time of each committed cell's file; they change only if the cell is computed again."""
        return {
            path: (entry.etag, entry.modified) for path, entry in self.list_files().items() if find_kind(path) == "cell"
        }

    def damage(self, kind: str, choice: float) -> DamagedFile | None:
        """Damage one of the newest files of a kind, for example by flipping a bit; return None if no file was damaged.

        The kinds of damage in ROT_WAYS are only done on disk.
        """
        files = {path: entry for path, entry in self.list_files().items() if find_kind(path) == kind}
        if not files:
            return None
        newest = sorted(files, key=lambda path: (files[path].modified, path))[-3:]
        chance = Random(choice)
        path = chance.choice(newest)
        content = self.read(path)
        way = chance.choice(("flip", "truncate", *(ROT_WAYS if self.root.is_local else ())))
        left = damage_content(content or b"", way, chance)
        if not content or left is None or left == content:
            return None
        if way in ROT_WAYS:
            overwrite(Path((self.store.place / path).path), left)
        else:
            self._write_new_file(left, path)
        return DamagedFile(path, left)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file in the store, or None if the file no longer exists."""
        try:
            return (self.store.place / path).read()
        except FileNotFoundError:
            return None

    def _write_new_file(self, content: bytes, path: str) -> None:
        """Write a new file, so that another run's hard link to the old file stays intact, as on S3."""
        (self.store.place / path).write(content)

    def find_newest(self) -> str:
        return f"{self.store.place}/runs/{find_newest_run(self.store)}"

    def collect_garbage(self, damaged: Collection[str]) -> None:
        """Remove the files that `jobs.gc` would remove after the heartbeats of killed drivers have expired.

        First delete earlier runs with damaged files, as `jobs.gc` asks the user to do.
        """
        newest = find_newest_run(self.store)
        for run in {path.split("/")[1] for path in damaged if path.startswith("runs/") and path.count("/") > 1}:
            if run != newest:
                self.store.remove_folder(f"runs/{run}")
        running_sweeps.HEARTBEAT_TIMEOUT = 0.0
        collect_garbage(GcConfig(store=self.store.place.url, storage=self.root.storage, delete=True, grace_days=0.0))

    def find_leftovers(self) -> list[str]:
        """Return the files that belong neither to a committed cell, nor to a complete run, nor to the store itself."""
        files = self.list_files()
        whole = {path.split("/")[1] for path in files if path.endswith("/manifest.json")}
        return [path for path in files if not _is_expected(path, whole)]


def _is_expected(path: str, whole_runs: set[str]) -> bool:
    folder, _, name = path.partition("/")
    if folder == "runs":
        return name == "latest" or (name.split("/")[0] in whole_runs and "/." not in name)
    if folder == ORDER_FOLDER:
        return parse_run_id(path) in whole_runs
    if path == LATEST_REPORT_FILE or find_kind(path) == "cell":
        return True
    return folder in ("digests", "leases", "sources", "store.json") and "/." not in path
