"""If a field of a question pack has a value of the wrong type, only the field's row fails, with a one-line error.

The line names the file and the row.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.question_packs import PackFile, read_pack
from plumbline.pipelines.sources.question_packs import pack as pack_module
from plumbline.pipelines.sources.question_packs.pack import QuestionPack
from tests.question_packs import make_choice_question, make_propositions

STORAGE_CONFIG = StorageConfig()
N_PROMPTS = 3
"""Number of prompts in a pack."""
Fields = dict[str, Any]
JsonPath = tuple[str | int, ...]


class EncodedObject(dict[str, Any]):
    """A JSON object that is stored in its file as a string of JSON text."""


def make_rows(row: Callable[[int], Fields]) -> list[Fields]:
    return [row(number) for number in range(N_PROMPTS)]


def copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value; instances of EncodedObject keep their type."""
    if isinstance(value, dict):
        return type(value)((name, copy_json(one)) for name, one in value.items())
    return [copy_json(one) for one in value] if isinstance(value, list) else value


PROPOSITIONS = [row for number in range(N_PROMPTS) for row in make_propositions(f"p{number}", f"a circle {number}")]

PACK_FILES: Mapping[str, Mapping[str, Any]] = {
    "dsg_1k": {"q.json": PROPOSITIONS},
    "tifa_v1": {
        "q.json": make_rows(lambda n: make_choice_question(f"p{n}", f"a circle {n}", "is it?", ["yes", "no"], "yes"))
    },
}  # fmt: skip
"""Content of each pack's files, keyed by the pack's name and the file's name."""
MISSING_FIELD = "(missing)"
NESTED_LISTS = json.loads("[" * 300 + "]" * 300)
LEAF_VALUES = (None, True, 7, -5, 1.5, 10**30, float("nan"), float("inf"), "", " ", "7", "9" * 5000, "²", "x" * 100_000,
          "7," * 5000, "[", '{"1": 7}', NESTED_LISTS, MISSING_FIELD)  # fmt: skip
JSON_VALUES = st.recursive(
    st.sampled_from(LEAF_VALUES),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["1", "question", "x"]), inner, max_size=2)
    ),
    max_leaves=3,
)


def list_paths(value: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    """Yield the paths of all fields and list items in a JSON value; a path starts with `path`."""
    inner = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for name, one in inner:
        yield (*path, name)
        yield from list_paths(one, (*path, name))


def change_value(files: Mapping[str, Any], path: JsonPath, value: Any) -> dict[str, Any]:
    """Return a copy of the files with `value` at `path`, or without this field if `value` is MISSING_FIELD."""
    copy: dict[str, Any] = copy_json(dict(files))
    holder: Any = copy
    for name in path[:-1]:
        holder = holder[name]
    if value is MISSING_FIELD:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return copy


def encode_all(value: Any) -> Any:
    """Return a JSON value with each EncodedObject replaced by its JSON text."""
    if isinstance(value, list):
        return [encode_all(one) for one in value]
    if not isinstance(value, dict):
        return value
    whole = {name: encode_all(one) for name, one in value.items()}
    return json.dumps(whole) if isinstance(value, EncodedObject) else whole


def write(folder: Path, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        told = encode_all(content)
        if name.endswith(".jsonl"):
            file.write_text("".join(json.dumps(row) + "\n" for row in told))
        elif name.endswith(".csv"):
            names = list(dict.fromkeys(one for row in content for one in row)) if content else []
            cells = [
                [one if isinstance(one := row.get(name, ""), str) else json.dumps(one) for name in names]
                for row in told
            ]
            quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in [names, *cells]]
            file.write_text("\n".join(quoted) + "\n")
        else:
            file.write_text(json.dumps(told))


def read(name: str, folder: Path, files: Mapping[str, Any], inner: str = "") -> QuestionPack:
    """Write the files to the folder, and return the question pack that they contain.

    The pack is read from the only file or, if there are several files, from the subfolder `inner`.
    """
    write(folder, files)
    place = folder / (next(iter(files)) if len(files) == 1 else inner)
    return read_pack(PackFile(pack=name, place=STORAGE_CONFIG.locate(str(place)), convention="fixed"), "suite")


def index_questions_by_prompt(pack: QuestionPack) -> dict[str, Any]:
    """Return each prompt's text and questions, keyed by prompt_id."""
    found = {row["prompt_id"]: [row["text"]] for row in pack.prompts.to_pylist()}
    for row in pack.questions.to_pylist():
        found[row["prompt_id"]].append((row["text"], row["choices"], row["answer"]))
    return found


def test_a_pack_has_a_maximum_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pack_module, "MAX_PACK_BYTES", 2**20)
    row = make_choice_question("p", "x" * 2**20, "is it?", ["yes", "no"], "yes")
    with pytest.raises(SourceError, match=r"q\.json: over 1 MiB; check that this is the question file"):
        read("tifa_v1", tmp_path, {"q.json": [row]})


@pytest.mark.parametrize("name", PACK_FILES)
def test_a_field_of_another_type_only_costs_its_row_and_is_reported_by_file_and_row(name: str) -> None:
    require_others_unaffected(name, PACK_FILES[name])


def require_others_unaffected(
    name: str,
    files: Mapping[str, Any],
    row_depth: int = 2,
    *,
    inner: str = "",
    numbered: bool = False,
    prompts_per_row: int = 1,
) -> None:
    """Fail if changing a field of a row affects another row.

    `row_depth` is the length of a row's path. `inner` is the folder, relative to the files, from which the pack is
    read. `numbered` is True if a prompt's id is its line number, so that a missing line changes all later ids.
    `prompts_per_row` is the number of prompts that each row contains.
    """
    with TemporaryDirectory() as folder:
        before = index_questions_by_prompt(read(name, Path(folder), files, inner))
    cells = row_depth + 1  # values of a CSV have no other type
    paths = [p for p in list_paths(dict(files)) if len(p) >= (cells if str(p[0]).endswith(".csv") else row_depth)]

    @settings(max_examples=60, derandomize=True, deadline=None)
    @given(st.sampled_from(paths), JSON_VALUES)
    def check(path: JsonPath, value: Any) -> None:
        if value is MISSING_FIELD and len(path) == 2 and numbered:
            return
        with TemporaryDirectory() as folder:
            pack = read(name, Path(folder), change_value(files, path, value), inner)
        after = index_questions_by_prompt(pack)
        lost = [prompt for prompt, content in before.items() if after.get(prompt) != content]
        assert len(lost) <= prompts_per_row
        for line in pack.problems:
            assert "\n" not in line and len(line) < 1000
            assert re.search(r"\.(csv|jsonl?), row \d+", line), line

    check()
