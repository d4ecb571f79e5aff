"""A benchmark whose files change: rows in any order, uneven shards, and prompts with several images or without any."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench_of import SHAPES_FOLDER, read_prompt_rows

GENERATORS = ("atlas", "drift", "flint", "garnet")
MAX_GROUP = 9
"""Maximum number of rows in a row group."""
BROKEN_IMAGE = b"this is no image"


@cache
def read_images(generator: str) -> dict[str, bytes]:
    """Return a generator's images in the embedded benchmark, keyed by prompt."""
    table = pq.read_table(SHAPES_FOLDER / "images" / generator, columns=["prompt_id", "image"])
    return dict(zip(table.column("prompt_id").to_pylist(), table.column("image").to_pylist(), strict=True))


@dataclass(kw_only=True)
class ChangingBench:
    """The benchmark's current rows, and the folder with the files that contain them."""

    folder: Path
    chance: Random
    prompts: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows by generator."""
    images: str = "images"
    """Folder of the images, relative to the benchmark's folder."""
    version: int = 0
    """Number of times that the benchmark's files have been written or moved."""

    def begin(self, count: int, generators: int) -> None:
        """Start with `count` random prompts of the embedded benchmark, and images by `generators` generators."""
        self.spare = self.chance.sample(read_prompt_rows(256), 256)
        self.prompts = [self.spare.pop() for _ in range(count)]
        for name in GENERATORS[:generators]:
            self.add_generator(name)
        self.write_prompts()

    def write_prompts(self) -> None:
        self.version += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(self.prompts), self.folder / "prompts.parquet")

    def write_images(self, name: str) -> None:
        """Rewrite a generator's files with new row groups, and remove surplus files."""
        self.version += 1
        folder = self.folder / self.images / name
        folder.mkdir(parents=True, exist_ok=True)
        parts = self.chance.randint(1, 2)
        for part in range(2):
            path = folder / f"{part:05d}.parquet"
            rows = self.rows[name][part::parts] if part < parts else []
            if rows:
                self._write_file(path, rows)
            else:
                path.unlink(missing_ok=True)

    def _write_file(self, path: Path, rows: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(rows)
        with pq.ParquetWriter(path, table.schema) as writer:
            start = 0
            while start < len(rows):
                size = self.chance.randint(1, MAX_GROUP)
                writer.write_table(table.slice(start, size))
                start += size

    def _make_image(self, name: str, prompt: dict[str, Any], of: str | None = None) -> dict[str, Any]:
        image_id = f"{name}-{self.chance.getrandbits(40):010x}"
        return {
            "image_id": image_id,
            "prompt_id": prompt["prompt_id"],
            "image": read_images(of or name)[prompt["prompt_id"]],
        }

    def _choose_row(self) -> tuple[str, dict[str, Any]]:
        name = self.chance.choice(sorted(self.rows))
        return name, self.chance.choice(self.rows[name])

    # names of the possible changes

    def add_generator(self, name: str | None = None) -> None:
        """Add a generator with any number of images for each prompt, in random order."""
        left = [one for one in GENERATORS if one not in self.rows]
        if name is None and not left:
            return
        name = name or left[0]
        counts = [self.chance.choice([0, 1, 1, 1, 1, 2]) for _ in self.prompts]
        several = [prompt for prompt, count in zip(self.prompts, counts, strict=True) for _ in range(count)]
        rows = [self._make_image(name, prompt, self.chance.choice([name, *GENERATORS])) for prompt in several]
        self.rows[name] = self.chance.sample(rows, len(rows)) or [self._make_image(name, self.prompts[0])]
        self.write_images(name)

    def edit_prompt(self) -> None:
        """Change the text of a randomly chosen prompt."""
        self.chance.choice(self.prompts)["text"] = self.spare.pop()["text"]
        self.write_prompts()

    def add_prompt(self) -> None:
        """Add a prompt at a random position in the table, possibly without any image."""
        prompt = self.spare.pop()
        self.prompts.insert(self.chance.randint(0, len(self.prompts)), prompt)
        self.write_prompts()
        if self.chance.random() < 0.7:
            name = self.chance.choice(sorted(self.rows))
            self.rows[name].insert(self.chance.randint(0, len(self.rows[name])), self._make_image(name, prompt))
            self.write_images(name)

    def shuffle_prompts(self) -> None:
        self.chance.shuffle(self.prompts)
        self.write_prompts()

    def replace_image(self) -> None:
        """Replace the image in a randomly chosen row."""
        name, row = self._choose_row()
        row["image"] = self._make_image(name, self.chance.choice(self.prompts), self.chance.choice(GENERATORS))["image"]
        self.write_images(name)

    def break_image(self) -> None:
        """Replace the image in a randomly chosen row with bytes that cannot be decoded."""
        name, row = self._choose_row()
        row["image"] = BROKEN_IMAGE
        self.write_images(name)

    def repair_images(self) -> None:
        """Replace every broken image with the generator's original image for the row's prompt."""
        for name, rows in self.rows.items():
            broken = [row for row in rows if row["image"] == BROKEN_IMAGE]
            for row in broken:
                row["image"] = read_images(name)[row["prompt_id"]]
            if broken:
                self.write_images(name)

    def drop_image(self) -> None:
        """Remove a randomly chosen row, unless it is the only row of its generator."""
        name, row = self._choose_row()
        if len(self.rows[name]) > 1:
            self.rows[name].remove(row)
            self.write_images(name)

    def shuffle_images(self) -> None:
        """Shuffle a randomly chosen generator's rows, and divide them differently into files and row groups."""
        name = self.chance.choice(sorted(self.rows))
        self.chance.shuffle(self.rows[name])
        self.write_images(name)

    def move_images(self) -> None:
        self.version += 1
        moved = f"images-{self.version}"
        (self.folder / self.images).rename(self.folder / moved)
        self.images = moved


CHANGE_METHODS = (
    "add_generator",
    "edit_prompt",
    "add_prompt",
    "shuffle_prompts",
    "replace_image",
    "break_image",
    "repair_images",
    "drop_image",
    "shuffle_images",
    "move_images",
)
