"""Damages files of a store, as a failing disk does."""

import os
from pathlib import Path
from random import Random

from plumbline.operators.stages.table import STAGES

FILE_KINDS = (
    "cell",
    "draft",
    "manifest",
    "latest",
    "summary",
    "errors",
    "cells of a run",
    "part",
    "digest",
    "lease",
    "report",
)
ROT_WAYS = ("rot", "blank")
"""Ways of damaging a file in place: a bit is flipped or a sector reads as zeros.

The file keeps its size, its modification time and its hard links.
"""
DAMAGE_WAYS = ("flip", "truncate", "empty", "delete", "swap", "misplace", *ROT_WAYS)
"""All ways of damaging a file.

Besides ROT_WAYS, a bit can be flipped, the end or all of the content lost, the file deleted, its content replaced with
that of another file of its kind, or the file moved to the folder of another recipe of its stage. These ways write a new
file, so that another run's hard link stays intact.
"""
DRAWN_DAMAGE_WAYS = tuple(way for way in DAMAGE_WAYS if way != "misplace")
"""Ways of damaging generated images."""
SECTOR_BYTES = 512


def find_kind(path: str) -> str | None:
    """Return the kind of a file, given by its path in the store, or None for a kind that is never damaged."""
    folder, *rest = path.split("/")
    if folder in STAGES:
        return "draft" if ".draft." in path else "cell"
    if folder in ("digests", "leases"):
        return folder.removesuffix("s")
    if folder == "sources":
        return "what is known of source files"
    if folder != "runs":
        return None
    name = rest[-1]
    if rest == ["latest"]:
        return "latest"
    if "scores.parquet" in rest:
        return "part"
    if "errors.parquet" in rest:
        return "errors"
    return {
        "manifest.json": "manifest", "summary.parquet": "summary",
        "cells.parquet": "cells of a run", "report.html": "report", "unchanged.json": "what its sources looked like",
        "usual_scores.parquet": "usual scores",
    }.get(name)  # fmt: skip


def list_files_by_kind(store: Path) -> dict[str, list[Path]]:
    """Return the store's files by kind, newest last."""
    found: dict[str, list[Path]] = {}
    for path in sorted(store.rglob("*"), key=lambda path: (path.lstat().st_mtime_ns, path)):
        kind = find_kind(str(path.relative_to(store))) if path.is_file() else None
        if kind is not None:
            found.setdefault(kind, []).append(path)
    return found


def damage(store: Path, way: str, chance: Random) -> str:
    """Damage one to three of the newest files, most often cells; return a description."""
    damaged = []
    for _ in range(chance.randint(1, 3)):
        found = list_files_by_kind(store)
        if found:
            kind = chance.choice([*sorted(found), *(["cell"] * len(found) if "cell" in found else [])])
            damaged.append(_damage_random_cell(store, found[kind], way, chance))
    return ", ".join(filter(None, damaged)) or "nothing harmed"


def _damage_random_cell(store: Path, files: list[Path], way: str, chance: Random) -> str:
    """Damage one of the newest files; return an empty string if nothing changed."""
    path = chance.choice(files[-8:])
    strangers = _find_cells_with_other_recipes(store, path, files)
    if way == "misplace":
        return _misplace_cell(store, path, chance.choice(strangers)) if strangers else ""
    others = strangers or [other for other in files[-8:] if other != path]
    return f"{way} {path.relative_to(store)}" if damage_file(path, way, chance, others) else ""


def damage_images(folder: Path, generator: str, way: str, chance: Random) -> str:
    """Damage one of a generator's tables or cached files; return `way` and the path, or "" if nothing changed."""
    kept = folder / ".generate"
    files = [*(folder / generator).glob("*.parquet"), *(kept / "pictures").rglob("*.parquet")]
    files += (kept / "wanted" / generator).glob("*.parquet")
    path = chance.choice(sorted(files)) if files else None
    others = [other for other in files if other.parent == path.parent] if path is not None else []
    return f"{way} {path.relative_to(folder)}" if path is not None and damage_file(path, way, chance, others) else ""


def damage_file(path: Path, way: str, chance: Random, others: list[Path] | None = None) -> bool:
    """Damage a file; return False if its content did not change."""
    content = path.read_bytes()
    left = damage_content(content, way, chance, others)
    if left == content:
        return False
    if way in ROT_WAYS and left is not None:
        overwrite(path, left)
        return True
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    return True


def overwrite(path: Path, content: bytes) -> None:
    """Overwrite a file in place, so that all its hard links change, and keep its modification time."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _find_cells_with_other_recipes(store: Path, path: Path, files: list[Path]) -> list[Path]:
    """Return the cells of the same stage with a different recipe, or an empty list if the file is not a cell."""
    stage, recipe, *_ = path.relative_to(store).parts
    others = [other.relative_to(store).parts for other in files if stage in STAGES]
    return [store.joinpath(*other) for other in others if other[0] == stage and other[1] != recipe]


def _misplace_cell(store: Path, path: Path, stranger: Path) -> str:
    """Move the cell at `path` to the folder of `stranger`, a cell with a different recipe; return a description."""
    path.rename(stranger.with_name(path.name))
    return f"misplace {path.relative_to(store)} to {stranger.parent.relative_to(store)}"


def damage_content(content: bytes, way: str, chance: Random, others: list[Path] | None = None) -> bytes | None:
    """Return content damaged in the given way (one of DAMAGE_WAYS), or None if the file is deleted.

    `others` are files of the same kind, one of which provides the content if the way is `swap`.
    """
    if way == "delete":
        return None
    if way == "empty" or not content:
        return b""
    if way == "truncate":
        return content[: chance.randrange(len(content))]
    if way == "swap":
        return chance.choice(others).read_bytes() if others else content
    place = chance.randrange(len(content))
    if way == "blank":
        place -= place % SECTOR_BYTES
        return content[:place] + bytes(min(SECTOR_BYTES, len(content) - place)) + content[place + SECTOR_BYTES :]
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
