"""What `--help` tells of a job besides its purpose: its choices, from the files of conf/, and its keys."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from plumbline.jobs.defaults import Key, keys_of, kinds_of_others
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import Extensions

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
OTHERS = Extensions[Path]("conf", {}, Path)
"""The folders of choices that plugins and other packages bring."""
WIDTH = 110
"""Characters of a line."""
HELD_BY = {"benchmarks": "benchmark"}
"""The folder of a group of which several are chosen at once."""
MAX_LINES = 45
"""Lines of choices and keys that --help prints; of more, it prints the beginning."""
FIRST_CHOICES = 6
"""Choices of a group in such a beginning."""
REMARKS = 30
"""Characters of a line before its remark."""
MOST_LISTED = 8
"""Choices that fit into a message."""
EXAMPLE = re.compile(r"^# .*: (plumbline [a-z_]+\b.*)$", flags=re.MULTILINE)
"""In the first line of a job's file of conf/."""


def describe(name: str, schema: Any, config_dir: str | None, *, whole: bool = True) -> str:
    """Return an example, the groups with their choices, a user's own among them, and the keys with their defaults and
    meanings; unless the `whole` is wanted, and it is long, only the first choices and the names of keys.
    """
    text = _describe_all(name, schema, config_dir)
    if whole or text.count("\n") < MAX_LINES:
        return text
    groups = {as_written(group, name): choices_of(group, config_dir) for group in groups_of(name)}
    keys = dict.fromkeys(key.path.partition(".")[0] for key in keys_of_job(name, schema))
    wrapped = textwrap.wrap(", ".join(keys), WIDTH, initial_indent="  ", subsequent_indent="  ")
    return _titled(
        {
            "example:": _example(name),
            "choices (--help-all lists every one):": [
                f"  {group}={' | '.join(each[:FIRST_CHOICES])}{' | ...' if len(each) > FIRST_CHOICES else ''}"
                for group, each in groups.items()
            ],
            "keys (--help-all explains them):": wrapped,
        }
    )


def _describe_all(name: str, schema: Any, config_dir: str | None) -> str:
    choices = [_choice(as_written(group, name), choices_of(group, config_dir)) for group in groups_of(name)]
    keys = [_within(_line(key)) for key in keys_of_job(name, schema)]
    return _titled(
        {"example:": _example(name), "choices:": choices, "keys, with those of the choices in --config:": keys}
    )


def _example(name: str) -> list[str]:
    return [f"  {line}" for line in EXAMPLE.findall(config_file(name).read_text(encoding="utf-8"))[:1]]


def _titled(titled: Mapping[str, Sequence[str]]) -> str:
    return "\n\n".join("\n".join([title, *lines]) for title, lines in titled.items() if lines)


def listed(choices: Sequence[str]) -> str:
    """Choices for a message."""
    others = len(choices) - MOST_LISTED
    shown = ", ".join(choices[:MOST_LISTED])
    return shown if others <= 0 else f"{shown} or {others} others (see --help-all)"


def _choice(group: str, choices: Sequence[str]) -> str:
    """A group with its choices, on as many lines as they take."""
    names = " | ".join(choices)
    return textwrap.fill(f"  {group}={names}", WIDTH, subsequent_indent="      ", break_on_hyphens=False)


def _within(line: str) -> str:
    """A line that sets a key, its remark going on below itself where it is long, or beginning there."""
    setting, mark, remark = line.partition(" # ")
    if len(line) <= WIDTH or not mark:
        return line
    begun = f"{setting} # " if len(setting) < WIDTH // 2 else f"{setting.rstrip()}\n{' ' * REMARKS} # "
    below = " " * (len(begun.rpartition("\n")[2]) - 2) + "# "
    wrapped = textwrap.wrap(remark, WIDTH - len(below), break_on_hyphens=False, break_long_words=False)
    return begun + f"\n{below}".join(wrapped)


def _sweeps(name: str) -> bool:
    """Whether a job takes what sweeps take."""
    return name == "sweep" or "sweep" in OmegaConf.select(_loaded(config_file(name)), "defaults", default=[])


def groups_of(name: str) -> list[str]:
    """The groups that a job chooses from."""
    groups = _named(config_file(name))
    if _sweeps(name):
        groups |= {"sweep", *_named(config_file("sweep"))}
        while new := {named for group in groups for file in _files_of_group(group) for named in _named(file)} - groups:
            groups |= new  # what the choices of a group choose from in their turn
    return sorted(groups)


def as_written(group: str, name: str) -> str:
    """How a job's group is chosen from: by its name, or for a role, where its files do not choose otherwise."""
    files = [file for one in groups_of(name) for file in _files_of_group(one)]
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


def keys_of_job(name: str, schema: Any) -> Iterator[Key]:
    """The keys of a job's schema, with the values of its file and of those that it stands on in place of defaults.

    What a file chooses is left out, as `cluster: auto`: its keys are in --config.
    """
    chosen = _choices_made(name)
    return (key for key in keys_of(schema, _values(name)) if key.path.partition(".")[0] not in chosen)


def _choices_made(name: str) -> set[str]:
    """The groups of which a job's file, or one that it stands on, chooses by default."""
    entries = OmegaConf.to_container(OmegaConf.select(_loaded(config_file(name)), "defaults"))
    assert isinstance(entries, list)
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    below = [_choices_made(entry) for entry in entries if isinstance(entry, str) and _is_file(entry)]
    return {str(group).split()[-1] for group, choice in pairs if choice not in (None, "???")}.union(*below)


def _values(name: str) -> dict[str, Any]:
    """What a job's file sets, and those that it stands on."""
    own = OmegaConf.to_container(_loaded(config_file(name)))
    assert isinstance(own, dict)
    below = [_values(entry) for entry in own.pop("defaults", ()) if isinstance(entry, str) and _is_file(entry)]
    values = OmegaConf.to_container(OmegaConf.merge(*below, own))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _is_file(entry: str) -> bool:
    return any((folder / f"{entry}.yaml").is_file() for folder in config_folders(None))


def _line(key: Key) -> str:
    """A line that sets a key, with its remark."""
    indent = "  " * (key.path.count(".") + 1)
    setting = f"{indent}{key.path.rpartition('.')[2]}: {key.value}".rstrip()
    return f"{setting:<{REMARKS}} # {key.meaning}" if key.meaning else setting


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
    held = HELD_BY.get(group, group)
    files = {file.stem for folder in config_folders(config_dir) for file in (folder / held).glob("*.yaml")}
    return sorted(files | set(kinds_of_others() if group == "metric" else ()))


def config_file(job: str) -> Path:
    """Return the file with a job's defaults: of the core, a plugin or another package."""
    return next(file for folder in config_folders(None) if (file := folder / f"{job}.yaml").is_file())


def _files_of_group(group: str) -> list[Path]:
    return [file for folder in config_folders(None) for file in (folder / group).glob("*.yaml")]


def config_folders(config_dir: str | None) -> list[Path]:
    """Return the folders with choices: our folder, those of other packages, and the user's."""
    return [CONF, *map(_folder_of, OTHERS), *([Path(config_dir).absolute()] if config_dir else [])]


def _folder_of(name: str) -> Path:
    """Return the folder of another package; raises ConfigError if it was not installed."""
    if not OTHERS[name].is_dir():
        raise ConfigError(
            f"{OTHERS.describe(name)}: {OTHERS[name]}: no such folder; add it to the package's data and reinstall"
        )
    return OTHERS[name]
