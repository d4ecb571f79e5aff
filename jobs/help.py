"""What `--help` tells of a job besides its purpose: its choices and its keys, from the files of conf/."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from plumbline.jobs.defaults import kinds_of_others
from plumbline.operators.extensions import Extensions

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
OTHERS = Extensions[Path]("conf", {}, Path)
"""The folders of choices that other packages bring."""
WIDTH = 110
"""Characters of a line."""
MOST_LISTED = 8
"""Choices that fit into a message."""
EXAMPLE = re.compile(r"^# .*: (python -m jobs\..*)$", flags=re.MULTILINE)
"""In the first line of a job's file of conf/."""


def describe(name: str, config_dir: str | None) -> str:
    """An example, the groups with their choices, a user's own among them, and the keys with their defaults and what
    they mean.
    """
    choices = [_choice(as_written(group, name), choices_of(group, config_dir)) for group in groups_of(name)]
    shown = [*_keys(name), *(["benchmark:", *_keys("any_benchmark", "  ")] if _sweeps(name) else [])]
    keys = [_within(f"  {line}") for line in shown]
    example = EXAMPLE.findall((CONF / f"{name}.yaml").read_text(encoding="utf-8"))[:1]
    titled = {
        "example:": [f"  {line}" for line in example],
        "choices:": choices,
        "keys, with those of the choices in --config:": keys,
    }
    return "\n\n".join("\n".join([title, *lines]) for title, lines in titled.items() if lines)


def listed(group: str, choices: Sequence[str]) -> str:
    """The choices of a group for a message, as they are written."""
    others = len(choices) - MOST_LISTED
    shown = ", ".join(f"{group}={choice}" for choice in choices[:MOST_LISTED])
    return shown if others <= 0 else f"{shown} or {others} others (see --help)"


def _choice(group: str, choices: Sequence[str]) -> str:
    """A group with its choices, on as many lines as they take."""
    names = " | ".join(choices)
    return textwrap.fill(f"  {group}={names}", WIDTH, subsequent_indent="      ", break_on_hyphens=False)


def _within(line: str) -> str:
    """A line that sets a key, its remark going on below itself where it is long."""
    setting, mark, remark = line.partition(" # ")
    if len(line) <= WIDTH or not mark:
        return line
    return textwrap.fill(
        remark, max(WIDTH, len(setting) + 40), initial_indent=f"{setting} # ",
        subsequent_indent=f"{' ' * len(setting)} # ", break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def _sweeps(name: str) -> bool:
    """Whether a job takes what sweeps take."""
    return name == "sweep" or "sweep" in _defaults(name)


def groups_of(name: str) -> list[str]:
    """The groups that a job chooses from."""
    groups = _named(CONF / f"{name}.yaml")
    if _sweeps(name):
        groups |= {"sweep", *_named(CONF / "sweep.yaml")}
        while (
            new := {named for group in groups for file in (CONF / group).glob("*.yaml") for named in _named(file)}
            - groups
        ):
            groups |= new  # what the choices of a group choose from in their turn
    return sorted(groups)


def as_written(group: str, name: str) -> str:
    """How a job's group is chosen from: by its name, or for a role, where its files do not choose otherwise."""
    files = [file for one in groups_of(name) for file in (CONF / one).glob("*.yaml")]
    used = [key for file in files for key in _chosen(file) if key.partition("@")[0] == group]
    places = {key.partition("@")[2].rpartition(".")[0] for key in used}
    return f"{group}@{places.pop()}.ROLE" if len(places) == 1 and all(places) else group


@cache
def _loaded(file: Path) -> DictConfig | ListConfig:
    """A file of conf/, which is asked for again and again."""
    return OmegaConf.load(file)


def _named(file: Path) -> set[str]:
    """The groups that a file of conf/ has something chosen of."""
    return {key.partition("@")[0] for key in _chosen(file)}


def _chosen(file: Path) -> list[str]:
    """The groups as a file of conf/ names them, with the key that each choice is put at where that is another."""
    entries = OmegaConf.select(_loaded(file), "defaults", default=[])
    keys = (str(key) for entry in entries if not isinstance(entry, str) for key in entry)
    return [key.split()[-1].lstrip("/") for key in keys]


def keys_of(name: str, prefix: str = "") -> list[str]:
    """The keys that a job's file sets, dotted, and those of the files that it stands on."""
    values = OmegaConf.to_container(_loaded(CONF / f"{name}.yaml"))
    assert isinstance(values, dict)
    keys = [f"{prefix}{key}" for key in dotted_keys({key: values[key] for key in values if key != "defaults"})]
    for file, place in _files(name):
        keys += keys_of(file, f"{prefix}{place}." if place else prefix)
    if name == "sweep":
        keys += keys_of("any_benchmark", "benchmark.")
    return keys


def dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> list[str]:
    """The dotted keys of nested mappings."""
    keys = []
    for key, value in values.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys


def choices_of(group: str, config_dir: str | None) -> list[str]:
    """The names of a group's files, of ours, of other packages and of the user's own."""
    files = {file.stem for folder in config_folders(config_dir) for file in (folder / group).glob("*.yaml")}
    return sorted(files | set(kinds_of_others() if group == "metric" else ()))


def config_folders(config_dir: str | None) -> list[Path]:
    """Where choices are looked for: in our folder, in those of other packages, in the user's."""
    return [CONF, *OTHERS.values(), *([Path(config_dir).absolute()] if config_dir else [])]


def _defaults(name: str) -> list[Any]:
    return list(OmegaConf.select(_loaded(CONF / f"{name}.yaml"), "defaults", default=[]))


def _keys(name: str, indent: str = "") -> Iterator[str]:
    """The lines of a file of conf/ that set keys, and those of the files that it stands on."""
    lines = iter((CONF / f"{name}.yaml").read_text(encoding="utf-8").splitlines())
    begun = in_defaults = False
    for line in lines:
        in_defaults = line.startswith("defaults:") or (in_defaults and line[:1] in (" ", "-"))
        begun = begun or (bool(line) and not line.startswith("#") and not in_defaults)
        if begun and not in_defaults and line.strip():
            yield indent + line
    for file, place in _files(name):
        if place:
            yield f"{indent}{place}:"
        yield from _keys(file, indent + "  " * bool(place))


def _files(name: str) -> Iterator[tuple[str, str]]:
    """The files that a file stands on, each with the key that it is placed at."""
    for entry in _defaults(name):
        if isinstance(entry, str) and entry != "_self_" and not entry.startswith("/"):  # a choice that is made
            file, _, place = entry.partition("@")
            yield file, place
