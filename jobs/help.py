"""Help and shell completion of a job: examples, choices from conf/, and keys with their defaults and meanings."""

import argparse
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from plumbline.jobs.defaults import REQUIRED_MARK, ConfigKey, list_foreign_kinds, list_keys
from plumbline.jobs.table import JOBS
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import Extensions

PACKAGE_FOLDER = Path(__file__).parent.parent
CONF_FOLDER = PACKAGE_FOLDER / "conf"
EXTENSION_FOLDERS = Extensions[Path]("conf", {}, Path)
"""Folders with choices in plugins and other packages."""
HELP_WIDTH = 100
"""Maximum number of characters per line."""
GROUP_FOLDERS = {"benchmarks": "benchmark"}
"""Folder of the choices of each group that allows several choices at once."""
MAX_FULL_HELP_LINES = 45
"""Maximum number of lines for which --help prints all choices and keys."""
MAX_CHOICES = 6
"""Maximum number of choices per group in a shortened help; fewer if they do not fit on a line."""
REMARK_COLUMN = 30
"""Column at which remarks start."""
MAX_LISTED_CHOICES = 8
"""Maximum number of choices that a message lists."""
EXAMPLE_PATTERN = re.compile(r"^# .*: (plumbline [a-z_]+\b.*)$", flags=re.MULTILINE)
"""Pattern of an example command in the first lines of a job's file in conf/."""


def list_examples(name: str) -> list[str]:
    """Return the example commands of a job."""
    return EXAMPLE_PATTERN.findall(find_config_file(name).read_text(encoding="utf-8"))


def describe_options(name: str, schema: Any, config_dir: str | None, *, whole: bool = True) -> str:
    """Return the groups with their choices, and the keys with their defaults and meanings.

    The choices include those in the user's folder `config_dir`. Unless `whole`, a long text is
    shortened to the first choices of each group and the names of the top-level keys.
    """
    groups = {make_choice_key(group, name): list_choice_names(group, config_dir) for group in list_groups(name)}
    groups = {key: choices for key, choices in groups.items() if choices}  # a group without its plugin has no choices
    keys = list(list_keys_of_job(name, schema))
    choices = [
        textwrap.fill(f"  {group}={' | '.join(each)}", HELP_WIDTH, subsequent_indent="      ", break_on_hyphens=False)
        for group, each in groups.items()
    ]
    text = _join_sections(
        {"choices:": choices, "keys, including those of the choices in --config:": [_explain_key(key) for key in keys]}
    )
    if whole or text.count("\n") < MAX_FULL_HELP_LINES:
        return text
    names = ", ".join(dict.fromkeys(key.path.partition(".")[0] for key in keys))
    return _join_sections(
        {
            "choices (--help-all lists all):": [_shorten_choices(group, each) for group, each in groups.items()],
            "keys (--help-all explains them):": textwrap.wrap(
                names, HELP_WIDTH, initial_indent="  ", subsequent_indent="  "
            ),
        }
    )


def _join_sections(sections: Mapping[str, Sequence[str]]) -> str:
    return "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items() if lines)


def _shorten_choices(group: str, choices: Sequence[str]) -> str:
    for count in range(min(MAX_CHOICES, len(choices)), 0, -1):
        line = f"  {group}={' | '.join(choices[:count])}{' | ...' if len(choices) > count else ''}"
        if len(line) <= HELP_WIDTH:
            break
    return line


def _explain_key(key: ConfigKey) -> str:
    indent = "  " * (key.path.count(".") + 1)
    setting = f"{indent}{key.path.rpartition('.')[2]}: {key.value}".rstrip()
    if not key.meaning:
        return setting
    line = f"{setting:<{REMARK_COLUMN}} # {key.meaning}"
    if len(line) <= HELP_WIDTH:
        return line
    if len(setting) < HELP_WIDTH // 2:
        start, column = f"{setting:<{REMARK_COLUMN}} # ", max(len(setting), REMARK_COLUMN) + 1
    else:
        start, column = f"{setting}\n{' ' * REMARK_COLUMN} # ", REMARK_COLUMN + 1
    below = " " * column + "# "
    wrapped = textwrap.wrap(key.meaning, HELP_WIDTH - len(below), break_on_hyphens=False, break_long_words=False)
    return start + f"\n{below}".join(wrapped)


def format_choices(choices: Sequence[str]) -> str:
    """Return text for a message that lists at most MAX_LISTED_CHOICES of the choices."""
    others = len(choices) - MAX_LISTED_CHOICES
    text = ", ".join(choices[:MAX_LISTED_CHOICES])
    return text if others <= 0 else f"{text} or {others} others (see --help-all)"


def list_groups(name: str) -> list[str]:
    """Return the groups of choices in conf/ that the job with this name can choose from, sorted."""
    groups = _read_groups(find_config_file(name))
    takes_sweep_keys = "sweep" in OmegaConf.select(_load_yaml(find_config_file(name)), "defaults", default=[])
    if name == "sweep" or takes_sweep_keys:
        groups |= {"sweep", *_read_groups(find_config_file("sweep"))}
        while (
            new := {named for group in groups for file in _list_group_files(group) for named in _read_groups(file)}
            - groups
        ):
            groups |= new  # groups that the choices of other groups choose from
    return sorted(groups)


def make_choice_key(group: str, name: str) -> str:
    """Return the key that chooses from a group: the group's name or, for models with a role, `model@models.ROLE`."""
    files = [file for other in list_groups(name) for file in _list_group_files(other)]
    used = [key for file in files for key in _list_group_keys(file) if key.partition("@")[0] == group]
    sections = {key.partition("@")[2].rpartition(".")[0] for key in used}
    return f"{group}@{sections.pop()}.ROLE" if len(sections) == 1 and all(sections) else group


@cache
def _load_yaml(file: Path) -> DictConfig | ListConfig:
    return OmegaConf.load(file)


def _read_groups(file: Path) -> set[str]:
    return {key.partition("@")[0] for key in _list_group_keys(file)}


def _list_group_keys(file: Path) -> list[str]:
    """Return the groups in a file's defaults list, followed by `@KEY` if the choice is stored under another key."""
    entries = OmegaConf.select(_load_yaml(file), "defaults", default=[])
    keys = (str(key) for entry in entries if not isinstance(entry, str) for key in entry)
    return [key.split()[-1].lstrip("/") for key in keys]


def list_keys_of_job(name: str, schema: Any) -> Iterator[ConfigKey]:
    """Yield the keys of a job's schema with the values set by its file and the files that it includes.

    Keys whose default is a choice from a group, such as `cluster: auto`, are left out; --config shows them.
    """
    chosen, values = _read_defaults(name)
    return (key for key in list_keys(schema, values) if key.path.partition(".")[0] not in chosen)


def _read_defaults(name: str) -> tuple[set[str], dict[str, Any]]:
    """Return the groups with a default choice, and the values set by a job's file and the files that it includes."""
    own = OmegaConf.to_container(_load_yaml(find_config_file(name)))
    assert isinstance(own, dict)
    chosen, included = set[str](), list[dict[str, Any]]()
    for entry in own.pop("defaults", ()):
        if isinstance(entry, dict):
            chosen |= {str(group).split()[-1] for group, choice in entry.items() if choice not in (None, REQUIRED_MARK)}
        elif any((folder / f"{entry}.yaml").is_file() for folder in list_config_folders(None)):
            inner_chosen, inner = _read_defaults(entry)
            chosen |= inner_chosen
            included.append(inner)
    values = OmegaConf.to_container(OmegaConf.merge(*included, own))
    assert isinstance(values, dict)
    return chosen, {str(key): value for key, value in values.items()}


def list_dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys of nested mappings."""
    keys = []
    for key, value in values.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += list_dotted_keys(value, f"{prefix}{key}.")
    return keys


def list_choice_names(group: str, config_dir: str | None) -> list[str]:
    """Return the names of the choices for a group, in Plumbline, in other packages and in the user's folder."""
    subfolder = GROUP_FOLDERS.get(group, group)
    files = {file.stem for folder in list_config_folders(config_dir) for file in (folder / subfolder).glob("*.yaml")}
    return sorted(files | set(list_foreign_kinds() if group == "metric" else ()))


def find_config_file(job: str) -> Path:
    """Return the file with a job's defaults, from the core, a plugin or another package."""
    return next(file for folder in list_config_folders(None) if (file := folder / f"{job}.yaml").is_file())


def _list_group_files(group: str) -> list[Path]:
    return [file for folder in list_config_folders(None) for file in (folder / group).glob("*.yaml")]


def list_config_folders(config_dir: str | None) -> list[Path]:
    """Return the folders with choices: Plumbline's folders, folders in other packages, and the user's folder.

    Raise ConfigError if the folder of another package was not installed.
    """
    for name in EXTENSION_FOLDERS:
        if not EXTENSION_FOLDERS[name].is_dir():
            problem = f"{EXTENSION_FOLDERS[name]}: no such folder; add it to the package's data and reinstall"
            raise ConfigError(f"{EXTENSION_FOLDERS.describe(name)}: {problem}")
    return [
        CONF_FOLDER,
        *(EXTENSION_FOLDERS[name] for name in EXTENSION_FOLDERS),
        *([Path(config_dir).absolute()] if config_dir else []),
    ]


def answer_completion(jobs: Iterable[str]) -> None:
    """Answer a shell's request for completions and exit; do nothing if there is no such request."""
    import argcomplete  # only needed for completion

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("job").completer = lambda **_: jobs  # type: ignore[attr-defined]
    parser.add_argument("words", nargs="*").completer = _complete_word  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _complete_word(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    groups = list_groups(parsed_args.job)
    group, equals, _chosen = prefix.partition("=")
    if equals:
        return [f"{group}={choice}" for choice in list_choice_names(group, None)] if group in groups else []
    schema = JOBS[parsed_args.job].COMMAND.schema  # slow: imports the job, which choices do not need
    return [f"{key}=" for key in (*groups, *(key.path for key in list_keys_of_job(parsed_args.job, schema)))]
