"""Help of a job: an example, its choices from the files of conf/, and its keys with defaults and meanings."""

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
"""Folders of choices in plugins and other packages."""
WIDTH = 110
"""Characters of a line."""
GROUP_FOLDERS = {"benchmarks": "benchmark"}
"""Folder of each group that allows several choices at once."""
MAX_LINES = 45
"""Maximum lines of choices and keys that --help prints completely."""
FIRST_CHOICES = 6
"""Choices of each group that a shortened help prints."""
REMARK_COLUMN = 30
"""First column of a line's remark."""
MAX_LISTED = 8
"""Choices that a message lists."""
EXAMPLE = re.compile(r"^# .*: (plumbline [a-z_]+\b.*)$", flags=re.MULTILINE)
"""The example in the first line of a job's file in conf/."""


def describe(name: str, schema: Any, config_dir: str | None, *, whole: bool = True) -> str:
    """Return an example, the groups with their choices, and the keys with their defaults and meanings.

    The choices include those in the user's folder `config_dir`. If the text is long and not `whole`, it has only the
    first choices and the names of the keys.
    """
    text = _describe_all(name, schema, config_dir)
    if whole or text.count("\n") < MAX_LINES:
        return text
    groups = _choices_by_key(name, config_dir)
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
    choices = [_choice(key, each) for key, each in _choices_by_key(name, config_dir).items()]
    keys = [_wrap_remark(_line(key)) for key in keys_of_job(name, schema)]
    return _titled(
        {"example:": _example(name), "choices:": choices, "keys, with those of the choices in --config:": keys}
    )


def _choices_by_key(name: str, config_dir: str | None) -> dict[str, list[str]]:
    """Return a job's choices by the key of their group; a group has none if its plugin is missing."""
    groups = {choice_key(group, name): choices_of(group, config_dir) for group in groups_of(name)}
    return {key: choices for key, choices in groups.items() if choices}


def _example(name: str) -> list[str]:
    return [f"  {line}" for line in EXAMPLE.findall(config_file(name).read_text(encoding="utf-8"))[:1]]


def _titled(titled: Mapping[str, Sequence[str]]) -> str:
    return "\n\n".join("\n".join([title, *lines]) for title, lines in titled.items() if lines)


def list_choices(choices: Sequence[str]) -> str:
    """Return choices for a message, at most MAX_LISTED of them."""
    others = len(choices) - MAX_LISTED
    text = ", ".join(choices[:MAX_LISTED])
    return text if others <= 0 else f"{text} or {others} others (see --help-all)"


def _choice(group: str, choices: Sequence[str]) -> str:
    """Return a group with its choices, wrapped to lines."""
    names = " | ".join(choices)
    return textwrap.fill(f"  {group}={names}", WIDTH, subsequent_indent="      ", break_on_hyphens=False)


def _wrap_remark(line: str) -> str:
    """Return a line that sets a key, with a long remark wrapped to further lines in its column."""
    setting, mark, remark = line.partition(" # ")
    if len(line) <= WIDTH or not mark:
        return line
    begun = f"{setting} # " if len(setting) < WIDTH // 2 else f"{setting.rstrip()}\n{' ' * REMARK_COLUMN} # "
    below = " " * (len(begun.rpartition("\n")[2]) - 2) + "# "
    wrapped = textwrap.wrap(remark, WIDTH - len(below), break_on_hyphens=False, break_long_words=False)
    return begun + f"\n{below}".join(wrapped)


def _takes_sweep_keys(name: str) -> bool:
    """Return True if a job accepts the keys of sweeps."""
    return name == "sweep" or "sweep" in OmegaConf.select(_loaded(config_file(name)), "defaults", default=[])


def groups_of(name: str) -> list[str]:
    """Return the groups that a job chooses from."""
    groups = _groups_in(config_file(name))
    if _takes_sweep_keys(name):
        groups |= {"sweep", *_groups_in(config_file("sweep"))}
        while (
            new := {named for group in groups for file in _files_of_group(group) for named in _groups_in(file)} - groups
        ):
            groups |= new  # groups that the choices of other groups choose from
    return sorted(groups)


def choice_key(group: str, name: str) -> str:
    """Return the key that chooses from a job's group: its name, with `@models.ROLE` if it is chosen per role."""
    files = [file for other in groups_of(name) for file in _files_of_group(other)]
    used = [key for file in files for key in _chosen(file) if key.partition("@")[0] == group]
    places = {key.partition("@")[2].rpartition(".")[0] for key in used}
    return f"{group}@{places.pop()}.ROLE" if len(places) == 1 and all(places) else group


@cache
def _loaded(file: Path) -> DictConfig | ListConfig:
    """Load a file of conf/ once."""
    return OmegaConf.load(file)


def _groups_in(file: Path) -> set[str]:
    """Return the groups that a file of conf/ chooses from."""
    return {key.partition("@")[0] for key in _chosen(file)}


def _chosen(file: Path) -> list[str]:
    """Return the groups in a file's defaults list, with `@KEY` if the choice goes to another key."""
    entries = OmegaConf.select(_loaded(file), "defaults", default=[])
    keys = (str(key) for entry in entries if not isinstance(entry, str) for key in entry)
    return [key.split()[-1].lstrip("/") for key in keys]


def keys_of_job(name: str, schema: Any) -> Iterator[Key]:
    """Return the keys of a job's schema with the values of its file and of the files that it includes.

    Keys that a file chooses from a group, as `cluster: auto`, are left out; --config shows them.
    """
    chosen = _choices_made(name)
    return (key for key in keys_of(schema, _values(name)) if key.path.partition(".")[0] not in chosen)


def _choices_made(name: str) -> set[str]:
    """Return the groups that have a default choice in a job's file or in a file that it includes."""
    entries = OmegaConf.to_container(OmegaConf.select(_loaded(config_file(name)), "defaults"))
    assert isinstance(entries, list)
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    below = [_choices_made(entry) for entry in entries if isinstance(entry, str) and _is_file(entry)]
    return {str(group).split()[-1] for group, choice in pairs if choice not in (None, "???")}.union(*below)


def _values(name: str) -> dict[str, Any]:
    """Return the values that a job's file and the files that it includes set."""
    own = OmegaConf.to_container(_loaded(config_file(name)))
    assert isinstance(own, dict)
    below = [_values(entry) for entry in own.pop("defaults", ()) if isinstance(entry, str) and _is_file(entry)]
    values = OmegaConf.to_container(OmegaConf.merge(*below, own))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _is_file(entry: str) -> bool:
    return any((folder / f"{entry}.yaml").is_file() for folder in config_folders(None))


def _line(key: Key) -> str:
    """Return a line that sets a key, with its meaning as remark."""
    indent = "  " * (key.path.count(".") + 1)
    setting = f"{indent}{key.path.rpartition('.')[2]}: {key.value}".rstrip()
    return f"{setting:<{REMARK_COLUMN}} # {key.meaning}" if key.meaning else setting


def dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys of nested mappings."""
    keys = []
    for key, value in values.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys


def choices_of(group: str, config_dir: str | None) -> list[str]:
    """Return the names of a group's choices: ours, those of other packages, and the user's own."""
    subfolder = GROUP_FOLDERS.get(group, group)
    files = {file.stem for folder in config_folders(config_dir) for file in (folder / subfolder).glob("*.yaml")}
    return sorted(files | set(kinds_of_others() if group == "metric" else ()))


def config_file(job: str) -> Path:
    """Return the file with a job's defaults, from the core, a plugin or another package."""
    return next(file for folder in config_folders(None) if (file := folder / f"{job}.yaml").is_file())


def _files_of_group(group: str) -> list[Path]:
    return [file for folder in config_folders(None) for file in (folder / group).glob("*.yaml")]


def config_folders(config_dir: str | None) -> list[Path]:
    """Return the folders with choices: our folder, those of other packages, and the user's."""
    return [CONF, *map(_folder_of, OTHERS), *([Path(config_dir).absolute()] if config_dir else [])]


def _folder_of(name: str) -> Path:
    """Return the folder of another package; raise ConfigError if it was not installed."""
    if not OTHERS[name].is_dir():
        raise ConfigError(
            f"{OTHERS.describe(name)}: {OTHERS[name]}: no such folder; add it to the package's data and reinstall"
        )
    return OTHERS[name]
