"""The code follows the project's machine-checkable rules: imports go one way, and nothing unsafe is called."""

import ast
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from plumbline.operators.metrics.table import METRICS
from plumbline.operators.models.families import FAMILIES
from plumbline.operators.stages.table import STAGES

ROOT = Path(__file__).parent.parent
FORBIDDEN_IMPORTS = {
    "operators": {"ray", "pipelines", "jobs", "assets", "plugins"},
    "pipelines": {"jobs", "assets", "plugins"},
    "jobs": {"assets", "plugins"},
    "assets": set[str](),
    "plugins": {"assets"},
}
CONVERSION_FILE = ROOT / "plugins/reward_models/conversion.py"
"""Module that reads other people's pickles, but only if the user asks for it, and never in a sweep."""
SOURCE_FILES = [
    file for room in FORBIDDEN_IMPORTS for file in sorted((ROOT / room).rglob("*.py")) if "tests" not in file.parts
]


def list_imported_packages(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a module imports anywhere, and the subpackages of our own package."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [f"{node.module}.{node.names[0].name}"] if isinstance(node, ast.ImportFrom) else []
        yield from (name.removeprefix("plumbline.").split(".")[0] for name in names)


@pytest.mark.parametrize("file", SOURCE_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_only_imports_what_its_folder_may_and_calls_nothing_unsafe(file: Path) -> None:
    tree = ast.parse(file.read_text())
    room = file.relative_to(ROOT).parts[0]
    assert not FORBIDDEN_IMPORTS[room] & set(list_imported_packages(tree))
    assert ast.get_docstring(tree), "a module must start with a docstring"
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func) for call in calls}
    assert not called & {"eval", "exec", "pickle.load", "pickle.loads", "joblib.load"}
    keywords = {ast.unparse(k) for call in calls for k in call.keywords}
    assert "trust_remote_code=True" not in keywords
    loading = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert not loading or file == CONVERSION_FILE, "a sweep opens no pickle"
    assert all("weights_only=True" in map(ast.unparse, call.keywords) for call in loading)


RAY_INTERNALS_FILE = ROOT / "pipelines/running/ray_internals.py"


def test_only_one_module_uses_private_names_of_ray() -> None:
    private = {
        file
        for file in SOURCE_FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and re.match(r"ray\b.*\._", node.module or "")
    }
    assert private == {RAY_INTERNALS_FILE}


USER_CODE_FILE = ROOT / "operators/metrics/user_code.py"
"""Module that loads the functions that a user names as metrics."""


def test_only_one_module_loads_user_code() -> None:
    loaders = {"exec_module", "load_module", "run_path", "spec_from_file_location", "SourceFileLoader", "compile"}
    naming = {
        file
        for file in SOURCE_FILES
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and (getattr(call.func, "attr", None) in loaders - {"compile"} or getattr(call.func, "id", None) in loaders)
    }
    assert naming == {USER_CODE_FILE}


MODULES = {
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__"): file
    for file in SOURCE_FILES
}


def list_imported_modules(file: Path) -> set[str]:
    """Return the project's modules that a module imports: at the top, inside functions, and for type checking."""
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [[alias.name] if isinstance(node, ast.Import) else [f"{node.module}.{alias.name}", node.module or ""]
             for node in imports for alias in node.names]  # fmt: skip
    ours = ([name.removeprefix("plumbline.") for name in both] for both in names)
    return {known for both in ours if (known := next((name for name in both if name in MODULES), None))}


def test_a_plugin_imports_no_other_plugin() -> None:
    for module, imports in list_imports().items():
        others = {name.split(".")[1] for name in (module, *imports) if name.startswith("plugins.")}
        assert not module.startswith("plugins.") or len(others) == 1, f"{module} imports {others}"


def find_cycle(edges: Mapping[str, Collection[str]]) -> str:
    """Return one cycle in the graph, from a node back to itself, or an empty string if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


@cache
def list_imports() -> dict[str, set[str]]:
    return {module: list_imported_modules(file) - {module} for module, file in MODULES.items()}


def test_files_do_not_import_each_other_in_a_circle() -> None:
    closed = find_cycle(list_imports())
    assert not closed, f"circular imports: {closed}"


def list_neighbours(folder: str) -> dict[str, set[str]]:
    """Return the files and subfolders of a folder, each with those of the same folder that it imports."""
    inside = {name for name in MODULES if name.startswith(f"{folder}.")}
    depth = folder.count(".") + 1
    edges: dict[str, set[str]] = {}
    imports = list_imports()
    for module in inside:
        own = module.split(".")[depth]
        others = {name.split(".")[depth] for name in imports[module] & inside}
        edges.setdefault(own, set()).update(others - {own})
    return edges


FOLDERS = sorted({name for module in MODULES for name in accumulate(module.split(".")[:-1], "{}.{}".format)})


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_parts_of_a_folder_have_no_circular_imports(folder: str) -> None:
    """A subfolder counts as a single part, including all files in it."""
    closed = find_cycle(list_neighbours(folder))
    assert not closed, f"circular imports in {folder}: {closed}"


def test_the_embedded_pack_is_small_and_contains_no_pickles() -> None:
    files = [file for file in (ROOT / "assets").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 30_000_000
    assert not {file.suffix for file in files} & {".bin", ".pt", ".pth", ".pkl", ".ckpt"}


PIPELINES_FOLDER = ROOT / "pipelines"
SWEEP_FILES = [
    file
    for room in ("base", "plans", "running", "sources", "store", "sweeps")
    for file in sorted((PIPELINES_FOLDER / room).rglob("*.py"))
]


@pytest.mark.parametrize("file", SWEEP_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_sweep_code_names_no_metric_and_no_model_family(file: Path) -> None:
    """Sweeps only read declarations, so a new metric or family requires no change to them."""
    tree = ast.parse(file.read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    kinds = {metric.__dataclass_fields__["kind"].default for metric in METRICS}
    assert not words & (kinds | set(FAMILIES))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules_of_one = {metric.__module__ for metric in METRICS} | {stage.__module__ for stage in STAGES.values()}
    assert not modules & (modules_of_one - STAGES_READ_AS_TABLES)


STAGES_READ_AS_TABLES = {"plumbline.operators.stages.scores"}
"""Modules of stages that the code of sweeps may import, because a run reads the tables of these stages itself."""


PROJECT_CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("text", PROJECT_CONFIG["dependencies"])
def test_a_dependency_has_a_lower_bound_and_an_upper_one_only_for_a_known_break(text: str) -> None:
    """Loose bounds let our package be installed next to others.

    A comment on the same line gives the reason for an upper bound.
    """
    wanted = Requirement(text)
    operators = {part.operator for part in wanted.specifier}
    assert operators in ({">="}, {">=", "<"}) and version(wanted.name) in wanted.specifier
    (line,) = (line for line in (ROOT / "pyproject.toml").read_text().splitlines() if f'"{text}"' in line)
    assert ("<" in operators) == ("#" in line)
