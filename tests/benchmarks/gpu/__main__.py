"""Run `python -m tests.benchmarks.gpu`: print a table with the measurements of each model, and write it as JSON."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.apart import measure_in_process
from tests.benchmarks.gpu.rows import MeasuredModel, WorkAmounts, format_table
from tests.benchmarks.gpu.shapes import FAMILY_BY_MODEL


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models; return 0 if every model was measured, and 1 otherwise."""
    told = _parse(arguments)
    given = {"images": told.images, "peer_pairs": told.peer_pairs, "repeats": told.repeats, "shards": told.shards}
    amounts = WorkAmounts(**{name: value for name, value in given.items() if value is not None})
    rows: list[MeasuredModel] = []
    ends = time.monotonic() + 60 * told.minutes
    with run_storage() as server:
        for name in told.models:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(measure_in_process(name, told.shapes, amounts, server, ends - time.monotonic()))
            if told.json:  # after each model, so that results survive if the machine is taken away
                told.json.write_text(json.dumps([row.record() for row in rows], indent=2) + "\n")
    print(format_table(rows))
    return int(any(row.error for row in rows))


@contextmanager
def run_storage() -> Iterator[Any]:
    """Yield a local S3Server, or the error if the server or its client is not available."""
    with ExitStack() as stack:
        try:
            from tests.s3 import run_server

            server: Any = stack.enter_context(run_server())
        except (ImportError, FileNotFoundError, RuntimeError) as error:
            server = error
        yield server


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(FAMILY_BY_MODEL), default=list(FAMILY_BY_MODEL))
    parser.add_argument("--shapes", choices=("full", "tiny"), help="default: full with a CUDA device, else tiny")
    for name in ("images", "peer-pairs", "repeats", "shards"):
        parser.add_argument(f"--{name}", type=int, help="see WorkAmounts in tests/benchmarks/gpu/rows.py")
    parser.add_argument("--minutes", type=float, default=15, help="limit for all models together")
    parser.add_argument("--json", type=Path, help="JSON file for the measurements")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
