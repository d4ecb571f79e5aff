"""python -m tests.benchmarks.gpu: one table of what is measured of each model, and the same as JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.gpu.apart import measure_apart
from tests.benchmarks.gpu.rows import Amounts, Measured, table
from tests.benchmarks.gpu.shapes import FAMILIES


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every model was measured, 1 where one was not."""
    told = _parsed(arguments)
    given = {"images": told.images, "peer_pairs": told.peer_pairs, "repeats": told.repeats, "shards": told.shards}
    amounts = Amounts(**{name: value for name, value in given.items() if value is not None})
    rows: list[Measured] = []
    for name in told.models:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure_apart(name, told.shapes, amounts))
        if told.json:  # after each, so that a machine that is taken away leaves what there is
            told.json.write_text(json.dumps([row.record() for row in rows], indent=2) + "\n")
    print(table(rows))
    return int(any(row.error for row in rows))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--shapes", choices=("full", "tiny"), help="full where there is a CUDA device, else tiny")
    for name in ("images", "peer-pairs", "repeats", "shards"):
        parser.add_argument(f"--{name}", type=int, help="see Amounts in tests/benchmarks/gpu/rows.py")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
