"""Command line of every job: turns Hydra overrides into a typed configuration, and prints errors as one line."""

import argparse
import copy
import errno
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from plumbline.jobs import describe_system_error
from plumbline.jobs.config_safety import (
    check_files,
    limit_interpolations,
    mask_override_secrets,
    mask_secrets,
    resolve_values,
)
from plumbline.jobs.defaults import register_benchmark, register_defaults, register_metrics_and_models
from plumbline.jobs.help import (
    GROUP_FOLDERS,
    HELP_WIDTH,
    PACKAGE_FOLDER,
    describe_options,
    find_config_file,
    format_choices,
    list_choice_names,
    list_config_folders,
    list_dotted_keys,
    list_examples,
    list_groups,
    make_choice_key,
)
from plumbline.jobs.overrides import (
    UnknownKeyError,
    apply_override,
    chooses_benchmark,
    expand_key,
    load_functions,
    make_override,
    replace_functions,
)
from plumbline.jobs.table import JOBS, PLUGIN_CHOICES
from plumbline.operators.base.cores import count_cores
from plumbline.operators.base.errors import (
    DISTRIBUTION,
    ConfigError,
    PlumblineError,
    describe_missing_plugin,
    hide_secrets,
    replace_invisible,
    suggest,
)
from plumbline.operators.base.extensions import require_extra
from plumbline.operators.models.families import list_families_with_option
from plumbline.pipelines.plans.sweep_config import list_alternatives, read_config
from plumbline.pipelines.running.process import tune_process

READ_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError)
"""Errors that Hydra and its file readers raise for invalid files."""
RESOLVER_ERROR_PREFIX = "ConfigError raised while resolving interpolation: "
"""Prefix that Hydra adds to errors raised by our resolvers."""
UNKNOWN_CHOICE_PATTERN = re.compile(r"Could not (?:find|load) '(?P<group>[^'/]+)/(?P<name>[^']*)'")
UNKNOWN_GROUP_PATTERN = re.compile(r"Could not override '(?P<key>[^']+)'")
UNCHOSEN_GROUP_PATTERN = re.compile(r"You must specify '(?P<group>[^']+)'")
HYDRA_MANUAL_HINT = " See https://hydra.cc/docs/1.2/advanced/override_grammar/basic for details"
UNNAMED_BENCHMARK = "own"
"""Benchmark name for a user's own images if their path contains no name."""
TABLE_SUFFIX_PATTERN = re.compile(r"\.(parquet|arrow|csv|tsv|jsonl?|ndjson|txt|tar|tgz|tar\.(gz|bz2|xz))$")
BENCHMARKS_KEY = "benchmarks"
"""Configuration key for running several benchmarks at once."""
STOPPED_MESSAGE = "stopped; computed results are kept; run the same command to continue"
"""Line that is printed after a sweep has been stopped."""
Config = TypeVar("Config")


class Command(NamedTuple):
    """A job's command line."""

    name: str
    """The name of the job and of its file in conf/."""
    purpose: str
    schema: Any
    """A dataclass, or a union of dataclasses that are distinguished by `kind`."""
    short: Mapping[str, str] = {}
    """Short forms of keys: images=PATH for benchmark.images=PATH."""
    first: str | None = None
    """The key that may be omitted before its value: `sweep shapes` is short for `sweep sweep=shapes`."""
    otherwise: str | None = None
    """Argument that is added if the command line chooses no benchmark."""
    stopping: str = "stopping"
    """Line that is printed as soon as the job is interrupted; saving rows and shutting down Ray may take a while."""
    stopped: str = "stopped"
    """Line that is printed when the interrupted job has ended."""
    extra: str | None = None
    """The package extra that the job needs, if any."""
    suite: Any = None
    """The dataclass for several benchmarks at once; None if the job does not support them."""


class JobTerminated(KeyboardInterrupt):
    """Raised on SIGTERM from a scheduler, `ray job stop` or `kill`; handled like Ctrl-C."""


class UsageError(ConfigError):
    """Raised if the command line or the configuration is invalid."""


class _Parser(argparse.ArgumentParser):
    describe: Callable[[bool], tuple[str, str]]
    """Function that returns the description and the end of the help text; its argument selects the complete help. The
    function is slow, so only --help calls it.
    """
    whole = False

    def format_help(self) -> str:
        self.description, self.epilog = self.describe(self.whole)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


class _HelpAll(argparse.Action):
    """Argument action that prints the complete help; --help may print a short form."""

    def __call__(self, parser: argparse.ArgumentParser, *others: object) -> NoReturn:
        assert isinstance(parser, _Parser)
        parser.whole = True
        parser.print_help()
        parser.exit()


def run_job(command: Command, job: Callable[[Any], int], argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the job in this process, and return its exit code; print errors as one line.

    The exit code is 64 for an invalid command line and 1 for any other error. An interrupted job returns 130 (Ctrl-C)
    or 143 (SIGTERM), and keeps the results that it has committed.
    """

    def stop(number: int, frame: object) -> None:
        with suppress(RuntimeError):  # if the signal interrupted a print
            _print_to_stderr(command.stopping, 0)
        raise JobTerminated if number == signal.SIGTERM else KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # a shell lets background jobs ignore it
        signal.signal(signal.SIGINT, stop)
    tune_process(None)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot print a character shows its number
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _delay_signals():
            values, config = _read_configuration(command, argv)
        if config is None:
            print(OmegaConf.to_yaml(OmegaConf.create(mask_secrets(values))), end="")
            code = 0
        else:
            _require_extra_packages(command)
            code = job(config)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _print_to_stderr(f"error: {error}", os.EX_USAGE)
    except PlumblineError as error:
        return _print_to_stderr(f"error: {error}", 1)
    except (OSError, MemoryError, RecursionError) as error:
        return _print_to_stderr(describe_system_error(error), 1)
    except KeyboardInterrupt as ended:
        code = 143 if isinstance(ended, JobTerminated) else 130
        return _print_to_stderr(command.stopped, code)


def _read_configuration(command: Command, argv: Sequence[str] | None) -> tuple[dict[str, Any], Any]:
    """Return the configuration as plain values and as an instance of the job's schema.

    The instance is None if the configuration is only to be printed. Raise UsageError if the command line or the
    configuration is invalid.
    """
    try:
        parser = _make_parser(command, argv)
        arguments, unknown = parser.parse_known_intermixed_args(argv)  # options and overrides in any order
        if unknown:
            key = unknown[0].lstrip("-").partition("=")[0].replace("-", "_")
            parser.error(f"{unknown[0]}: no such option; keys have no dashes, as in {key}=VALUE")
        overrides = [expand_key(word, command.short, command.first) for word in arguments.overrides]
        overrides += [f"{key}=true" for key in _list_flags(command) if getattr(arguments, key)]
        if command.otherwise is not None and not chooses_benchmark(overrides, str(command.first)):
            overrides.append(command.otherwise)
        values = load_values(command, overrides, arguments.config_dir)
        if arguments.config:
            return values, None
        loaded = load_functions(values)
        if "command" in values:  # runs keep their command line, without secrets
            words = [str(word) for word in (sys.argv[1:] if argv is None else argv)]
            hidden = (mask_override_secrets(word, words) for word in words)
            loaded["command"] = shlex.join(["python", "-m", f"jobs.{command.name}", *hidden])
        return values, read_config(loaded, choose_schema(command, values))
    except ConfigError as error:
        raise UsageError(str(error)) from error


def choose_schema(command: Command, values: Mapping[str, Any]) -> Any:
    """Return the schema that fits the values: the job's schema for a single benchmark, or its schema for several."""
    known = {each.name for schema in list_alternatives(command.schema) for each in fields(schema)}
    if BENCHMARKS_KEY not in values or BENCHMARKS_KEY in known:
        return command.schema
    if command.suite is None:
        raise ConfigError(
            f"{BENCHMARKS_KEY}: jobs.{command.name} takes a single benchmark, but the sweep has several: "
            f"{', '.join(values[BENCHMARKS_KEY])}; choose a sweep with a single benchmark"
        )
    return command.suite


@contextmanager
def _delay_signals() -> Iterator[None]:
    """Delay signals until the context ends, because Hydra's file readers would report an interruption as an error."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda signum, frame: received.append(signum))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _print_to_stderr(line: str, code: int) -> int:
    """Print a line to stderr unless it is empty, and return the code; ignore errors if the line cannot be written."""
    with suppress(OSError, ValueError):
        if line:
            print(replace_invisible(hide_secrets(" ".join(line.split()))), file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = io.StringIO()  # otherwise the interpreter would try again at exit
    return code


def _make_parser(command: Command, argv: Sequence[str] | None) -> _Parser:
    folder = _Parser(add_help=False, allow_abbrev=False)
    folder.add_argument("--config-dir", metavar="DIR", help="a folder with config groups of your own")
    parser = _Parser(
        prog=f"plumbline {command.name}",
        usage="%(prog)s [options] [key=value ...]",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=HELP_WIDTH),
        parents=[folder],
        allow_abbrev=False,
    )

    def describe_job(whole: bool) -> tuple[str, str]:
        examples = list_examples(command.name)
        lines = ["example:" if len(examples) == 1 else "examples:", *(f"  {example}" for example in examples), ""]
        lines.append(command.purpose)
        try:
            _require_extra_packages(command)
        except ConfigError as error:  # packages of the job are not installed
            lines.append(str(error))
        config_dir = folder.parse_known_args(argv)[0].config_dir
        return "\n".join(lines), describe_options(command.name, command.schema, config_dir, whole=whole)

    parser.describe = describe_job
    alone = "" if command.first is None else f"; a value without a key sets {command.first}"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=f"keys and choices, see below{alone}")
    for key in _list_flags(command):
        option, spelled_as_key = f"--{key.replace('_', '-')}", f"--{key}"
        parser.add_argument(option, dest=key, action="store_true", help=f"short for {key}=true")
        if spelled_as_key != option:
            parser.add_argument(spelled_as_key, dest=key, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every choice and key, and exit")
    parser.add_argument("--config", action="store_true", help="print the whole configuration, and exit")
    parser.add_argument("--version", action="version", version=f"plumbline {version(DISTRIBUTION)}")
    return parser


def _require_extra_packages(command: Command) -> None:
    if command.extra is not None:
        require_extra(command.extra, f"jobs.{command.name}")


def _list_flags(command: Command) -> list[str]:
    """Return the boolean keys, which can also be given as --KEY."""
    return [
        field.name for schema in list_alternatives(command.schema) for field in fields(schema) if field.type is bool
    ]


def get_command(job: str) -> Command:
    """Return the command line of a job."""
    command: Command = JOBS[job].COMMAND
    return command


def load_values(command: Command, overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Return the composed configuration as plain values; raise a one-line ConfigError if Hydra rejects it."""
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such folder; correct the path")
    if config_dir:
        check_files(config_dir)
    for override in overrides:
        try:
            override.encode()
        except UnicodeEncodeError as error:  # invalid bytes of arguments are surrogates
            raise ConfigError(f"{override!r}: expected UTF-8; check the encoding of the command line") from error
    _register_resolvers()
    register_metrics_and_models()
    overrides = replace_functions(overrides)
    register_defaults(command.schema)
    if command.suite is not None:
        register_defaults(command.suite)
    for name in list_choice_names(BENCHMARKS_KEY, config_dir):
        register_benchmark(name)
    try:
        with limit_interpolations(config_dir):
            composed = _compose_config(command.name, overrides, config_dir)
            missing = OmegaConf.missing_keys(composed)
            values = resolve_values(composed)
    except ConfigError as error:
        raise ConfigError(mask_override_secrets(str(error), overrides)) from error
    except UnknownKeyError as error:
        problem = _explain_unknown_key(str(error), command, overrides, config_dir)
        raise ConfigError(mask_override_secrets(problem, overrides)) from error
    except (*READ_ERRORS, AssertionError) as error:
        problem = _find_broken_file(config_dir) or _explain_error(error, command, overrides, config_dir)
        raise ConfigError(mask_override_secrets(problem, overrides)) from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # Hydra looks for a file with the name of a choice
            raise
        name = Path(str(error.filename)).name.removesuffix(".yaml")
        problem = f"{name[:40]}...: no such choice, its name has {len(name)} characters; correct it (see --help-all)"
        raise ConfigError(mask_override_secrets(problem, overrides)) from error
    if missing:
        raise ConfigError(f"config key {min(missing)!r} is required; set it, as in {min(missing)}=VALUE")
    return values


def _register_resolvers() -> None:
    """Register the resolvers of our configuration files.

    `${assets:path}` is a path in the embedded benchmark, `${cpus:2}` is half of this machine's CPUs,
    `${reference_data:}` is the folder in the environment variable REFERENCE_DATA, and `${name_of:images}` is the name
    of the folder or file given by the key `images` in the same section.
    """
    OmegaConf.register_new_resolver("name_of", _get_name_from_path, replace=True)
    OmegaConf.register_new_resolver("assets", lambda path="": str(PACKAGE_FOLDER / "assets" / path), replace=True)
    OmegaConf.register_new_resolver("reference_data", lambda: os.environ.get("REFERENCE_DATA", ""), replace=True)
    OmegaConf.register_new_resolver("cpus", lambda shares: max(1, count_cores() // shares), replace=True)


def _get_name_from_path(key: str, *, _parent_: DictConfig) -> str:
    """Return the stem of the path that `key` is set to, or UNNAMED_BENCHMARK if `key` is not set."""
    path = "" if OmegaConf.is_missing(_parent_, key) else str(_parent_.get(key) or "")
    last = (path if "://" in path else os.path.abspath(path)).rstrip("/").rpartition("/")[2]  # noqa: PTH100
    return (TABLE_SUFFIX_PATTERN.sub("", last).lstrip("._") if path else "") or UNNAMED_BENCHMARK


def _compose_config(name: str, overrides: Sequence[str], config_dir: str | None) -> DictConfig:
    """Return a job's configuration: apply the overrides that choose files, then the overrides that set keys."""
    folders = list_config_folders(config_dir)
    parsed = OverridesParser.create().parse_overrides([make_override(word) for word in overrides])
    choices = [str(word.input_line) for word in parsed if _affects_composition(word, folders)]
    for word in parsed:
        if word.key_or_group in PLUGIN_CHOICES and isinstance(word.value(), str) and word.input_line not in choices:
            choice = f"{word.input_line}: a choice"
            raise ConfigError(describe_missing_plugin(choice, PLUGIN_CHOICES[word.key_or_group]))
    composed = copy.deepcopy(_compose_choices(name, tuple(choices), tuple(folders)))
    for word in parsed:
        if word.input_line not in choices:
            apply_override(composed, word)
    return composed


def _affects_composition(word: Override, folders: Sequence[Path]) -> bool:
    """Return True if the override has to be passed to Hydra: it chooses a file, or belongs to Hydra's own syntax."""
    if word.is_hydra_override() or word.is_sweep_override():
        return True
    group = GROUP_FOLDERS.get(word.key_or_group, word.key_or_group)
    return not isinstance(word.value(), dict) and any((folder / group).is_dir() for folder in folders)


@lru_cache(maxsize=64)
def _compose_choices(name: str, choices: tuple[str, ...], folders: tuple[Path, ...]) -> DictConfig:
    """Compose a job's file and the files that it chooses; cached, because composing is much slower than copying."""
    first = find_config_file(name).parent  # Hydra looks for the job's own file only in the first folder
    others = [f"file://{folder}" for folder in folders if folder != first]
    search = [f"hydra.searchpath=[{','.join(others)}]"] if others else []
    with initialize_config_dir(str(first), version_base="1.3", job_name=name):
        return compose(name, overrides=[*choices, *search])


def _find_broken_file(config_dir: str | None) -> str | None:
    for file in sorted(Path(config_dir).rglob("*.yaml")) if config_dir else ():
        try:
            OmegaConf.load(file)
        except READ_ERRORS as error:
            reason = " ".join(str(error).split("\n    ")[0].replace(f'in "{file}", ', "at ").split())
            return f"{file}: expected YAML of keys and values ({reason[:200]}); correct the file"
    return None


def _explain_error(error: Exception, command: Command, overrides: Sequence[str], config_dir: str | None) -> str:
    if isinstance(error, AssertionError):  # Hydra raises it for an override such as `+=`
        return f"expected overrides as key=value, got {' '.join(overrides)}"
    text = str(error).split("Config search path", 1)[0]
    if text.startswith(RESOLVER_ERROR_PREFIX):
        return text.removeprefix(RESOLVER_ERROR_PREFIX).splitlines()[0]
    unknown = UNKNOWN_CHOICE_PATTERN.search(text)
    if unknown is not None:
        known, choice = list_choice_names(unknown["group"], config_dir), f"{unknown['group']}={unknown['name']}"
        if not known and unknown["group"] in PLUGIN_CHOICES:
            return describe_missing_plugin(f"{choice}: a choice", PLUGIN_CHOICES[unknown["group"]])
        return f"{choice}: no such choice; {suggest(unknown['name'], known)} (see --help-all)"
    unchosen = UNCHOSEN_GROUP_PATTERN.search(text)
    if unchosen is not None:
        group = unchosen["group"]
        choices = list_choice_names(group, config_dir)
        if group == BENCHMARKS_KEY:
            return f"config key {group!r} is required; choose some: {group}=[NAME,...] of {format_choices(choices)}"
        return (
            f"config key {group!r} is required; choose one: {format_choices([f'{group}={name}' for name in choices])}"
        )
    group_key = UNKNOWN_GROUP_PATTERN.search(text)
    if group_key is not None:
        return _explain_unknown_key(group_key["key"], command, overrides, config_dir)
    return " ".join(text.split()).removesuffix(HYDRA_MANUAL_HINT)


def _explain_unknown_key(key: str, command: Command, overrides: Sequence[str], config_dir: str | None) -> str:
    if "@" in key:
        return f"config key {key} is not set, so it cannot be replaced; to add it, write +{key}=NAME"
    name = command.name
    if key in list_groups(name) and make_choice_key(key, name) != key:
        return f"config key {key!r}: a {key} is chosen for a role; write {make_choice_key(key, name)}=NAME"
    known_keys = _list_known_keys(name, overrides, config_dir)
    if key in known_keys:
        return f"config key {key!r}: the entry does not exist yet; to add it, write +{key}.NAME=VALUE"
    model, _, option = key.rpartition(".")
    if model.startswith("models.") and model in known_keys and (families := list_families_with_option(option)):
        return (
            f"config key {key!r}: an option of {' and '.join(families)}, not of this model; remove it, or if "
            f"{model}.family is set too, write +{key}=VALUE"
        )
    return f"unknown config key {key!r}; {suggest(key, {*known_keys, *command.short})}"


def _list_known_keys(name: str, overrides: Sequence[str], config_dir: str | None) -> list[str]:
    folders = list_config_folders(config_dir)
    chosen = [text for text in overrides if any((folder / text.partition("=")[0]).is_dir() for folder in folders)]
    try:
        values = OmegaConf.to_container(_compose_config(name, chosen, config_dir))
    except (HydraException, OmegaConfBaseException, ConfigError, UnknownKeyError):
        return []
    assert isinstance(values, dict)
    return list_dotted_keys(values)
