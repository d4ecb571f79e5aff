"""The command `plumbline`: `plumbline sweep ...` is `python -m jobs.sweep ...`."""

import ast
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from plumbline.jobs import prepare_process
from plumbline.jobs.table import JOBS, describe_missing_job, list_jobs
from plumbline.operators.base.errors import DISTRIBUTION

USAGE_TEXT = """usage: plumbline JOB [key=value ...]
       plumbline JOB --help explains a job

  plumbline sweep                    scores the embedded benchmark
  plumbline score images=outputs     scores a folder of images with their prompts
  plumbline view                     shows the store in a web browser
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job named by the first argument with the remaining arguments; return 64 if the job does not exist."""
    if "_ARGCOMPLETE" in os.environ:
        from plumbline.jobs.help import answer_completion  # only needed for completion

        answer_completion(list_jobs())
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        names = list_jobs()
        width = max(map(len, names))
        print("\n".join([USAGE_TEXT, *(f"  {name:<{width}}  {_read_purpose(name)}" for name in names)]))
        return 0
    if words[0] == "--version":
        print(f"plumbline {version(DISTRIBUTION)}")
        return 0
    name, *rest = words
    prepare_process()
    if name not in JOBS:
        print(f"error: {describe_missing_job(name)}", file=sys.stderr)
        return os.EX_USAGE
    sys.argv = [name, *rest]
    runpy.run_module(JOBS.declared[name].module, run_name="__main__", alter_sys=True)
    return 0


def _read_purpose(name: str) -> str:
    """Return the first line of the job's docstring without importing the job."""
    spec = find_spec(JOBS.declared[name].module)
    if spec is None or spec.origin is None:
        return ""
    text = Path(spec.origin).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
