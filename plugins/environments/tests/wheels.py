"""Wheels for uv, so that tests can create environments without a network."""

import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, text: str, requires: Sequence[str] = ()) -> None:
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    files = {
        f"{name}/__init__.py": text,
        f"{name}-{version}.dist-info/METADATA": "\n".join([*lines, ""]),
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    _write_zip(
        folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}", {k: v.encode() for k, v in files.items()}
    )


def copy_installed_package(folder: Path, name: str) -> None:
    found = distribution(name)
    files = {str(file): file.read_binary() for file in found.files or () if "__pycache__" not in file.parts}
    tags = [line.split()[1] for line in files[f"{name}-{found.version}.dist-info/WHEEL"].decode().splitlines()
            if line.startswith("Tag:")]  # fmt: skip
    kept = {path: content for path, content in files.items() if Path(path).name not in ("RECORD", "direct_url.json")}
    _write_zip(folder / f"{name}-{found.version}-{tags[0]}.whl", f"{name}-{found.version}", kept)


def _write_zip(wheel: Path, distribution_name: str, files: Mapping[str, bytes]) -> None:
    record = f"{distribution_name}.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as opened:
        for path, content in files.items():
            opened.writestr(path, content)
        opened.writestr(record, "".join(f"{path},,\n" for path in [*files, record]))
