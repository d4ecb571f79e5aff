"""Commands: each job parses a configuration, calls a pipeline, prints the result and exits."""

import errno
import os
import resource
import sys
from gc import set_threshold  # `gc` is a job here
from itertools import pairwise
from pathlib import Path
from types import TracebackType

__path__ += [str(folder) for folder in sorted(Path(__file__).parents[1].glob("plugins/*/jobs"))]  # python -m jobs.NAME
RESUME_HINT = "computed results are kept; run the same command to continue"
REMEDIES_BY_ERRNO = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EPIPE: "the program that read the output has ended",
    errno.ENOMEM: "memory ran out: raise its limit (ulimit -v) or free some",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}
MIN_ADDRESS_SPACE = 1 << 30
"""Bytes of address space that a command needs to start. With less, libraries hang or crash while loading."""
OUT_OF_MEMORY_MESSAGES = ("cannot allocate memory", "failed to map segment", "can't start new thread")


def describe_system_error(error: BaseException) -> str:
    """Describe an operating system error or an out-of-memory error in one line, with a remedy."""
    code = errno.ENOMEM if _lacks_memory(error) else error.errno if isinstance(error, OSError) else None
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    return f"error: {text}; {REMEDIES_BY_ERRNO.get(code or 0, 'act on the message')}; {RESUME_HINT}"


def _lacks_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(phrase in str(error).casefold() for phrase in OUT_OF_MEMORY_MESSAGES)


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a PlumblineError as one line, even if a job's imports raise it; print other errors with a traceback."""
    if _lacks_memory(error):
        print(describe_system_error(error), file=sys.stderr, flush=True)
        os._exit(1)  # a half-imported library may crash when Python cleans up
    elif any(ancestor.__name__ == "PlumblineError" for ancestor in kind.__mro__):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


def prepare_process() -> None:
    """Set up a process that only runs a job; programs that import Plumbline must not call this.

    Exit with a one-line message if the limit on address space is too low for loading a command's libraries.
    """
    sys.excepthook = _print_error
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        if limit < MIN_ADDRESS_SPACE:
            allowed, needed = (f"{size >> 20:,} MB" for size in (limit, MIN_ADDRESS_SPACE))
            found = f"this process may use {allowed} of address space, and a command needs {needed}"
            sys.exit(f"error: {found}: raise the limit (ulimit -v)")
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each of numpy's threads reserves address space
    # imports create many permanent objects; scanning them again and again would take a tenth of a short job
    set_threshold(50_000, 100)


if sys.argv[:1] == ["-m"]:  # Python sets this while it looks for the module of `python -m jobs.NAME`
    module = next((after for before, after in pairwise(sys.orig_argv) if before == "-m"), "")
    if f"{module}.".startswith(f"{__name__}."):
        prepare_process()
