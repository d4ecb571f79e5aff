"""The runs of a store."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from plumbline.jobs.display.console import EMPTY, warn
from plumbline.operators.summary import part_of
from plumbline.operators.words import plural
from plumbline.pipelines.cells.runs import Run


def show_runs(console: Console, runs: Sequence[Run]) -> None:
    """The runs with their coverage and their failures, newest last, and those that cannot be read with the reason.

    Each is a few lines, which a narrow terminal breaks between words.
    """
    if not runs:
        console.print("no runs yet; start one with: python -m jobs.sweep sweep=shapes")
        return
    for run in runs:
        name = f"[bold]{escape(run.run_id)}[/]{' (latest)' if run.latest else ''}"
        if run.manifest is None:
            console.print(f"{name}: damaged", soft_wrap=True)
            continue
        console.print(f"{name}: {escape(_run_outcome(run.manifest))}")
        for line in _run_lines(run.manifest):
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    for run in runs:
        if run.problem:
            warn(console, run.problem)


def _run_outcome(manifest: Mapping[str, Any]) -> str:
    """Of what a run is and how it ended; what an old manifest lacks is left out."""
    part, coverage = part_of(manifest), manifest.get("counts", {}).get("coverage")
    return ", ".join(
        [
            f"{manifest.get('benchmark', EMPTY)}{f' ({part})' if part else ''}",
            *([] if coverage is None else [f"coverage {coverage:.1%}"]),
            f"exit {manifest.get('exit_code', EMPTY)}",
        ]
    )


def _run_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What was noted of a run, what it scored, what it computed, and what failed."""
    counts, generators = manifest.get("counts", {}), len(manifest.get("generators", ()))
    if note := manifest.get("note"):
        yield f"note: {note}"
    metrics = ", ".join(manifest.get("metrics", ())) or EMPTY
    yield f"{plural(generators, 'generator')} by {metrics}"
    states = ("computed", "cached", "failed")
    yield "cells: " + ", ".join(f"{counts.get(f'cells_{state}', EMPTY)} {state}" for state in states)
    if errors := manifest.get("errors", {}):
        yield f"errors: {', '.join(f'{count} {kind}' for kind, count in errors.items())}"
