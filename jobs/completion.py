"""Shell completion of `plumbline`: names of jobs, then a job's keys and the choices of its groups."""

import argparse
from collections.abc import Iterable

import argcomplete

from plumbline.jobs.help import choices_of, groups_of, keys_of_job


def complete(jobs: Iterable[str]) -> None:
    """Reply to a shell that asks for completions and exit; return if no shell asks."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("job").completer = lambda **_: jobs  # type: ignore[attr-defined]
    parser.add_argument("words", nargs="*").completer = _complete_word  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _complete_word(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return keys with an equals sign, or the choices of a group whose name is complete."""
    groups = groups_of(parsed_args.job)
    group, equals, _chosen = prefix.partition("=")
    if equals:
        return [f"{group}={choice}" for choice in choices_of(group, None)] if group in groups else []
    from plumbline.jobs.command import command_of  # slow: imports the job, which choices do not need

    keys = [key.path for key in keys_of_job(parsed_args.job, command_of(parsed_args.job).schema)]
    return [f"{key}=" for key in (*groups, *keys)]
