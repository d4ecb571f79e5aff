"""What a person or a scheduler runs: thin mains that parse a config, call one pipeline, print and exit."""

import errno
import os
import resource
import sys
from gc import set_threshold  # `gc` is a job here
from types import TracebackType

KEPT = "what was computed is kept, run the same command to go on"
REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EPIPE: "whoever read the output has stopped",
    errno.ENOMEM: "memory ran out: raise its limit (ulimit -v) or free some",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
}
OUT_OF_MEMORY = ("cannot allocate memory", "failed to map segment", "can't start new thread")


def refusal(error: BaseException) -> str:
    """What the machine refused, in one line with the remedy."""
    code = errno.ENOMEM if _lacks_memory(error) else error.errno if isinstance(error, OSError) else None
    said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    return f"error: {said}; {REMEDIES.get(code or 0, 'act on the message')}; {KEPT}"


def _lacks_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(said in str(error).casefold() for said in OUT_OF_MEMORY)


def _in_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tells an error that a person can act on in a line, also before a job's own imports are done; any other is shown
    whole.
    """
    if _lacks_memory(error):
        print(refusal(error), file=sys.stderr, flush=True)
        os._exit(1)  # a library that is half imported may crash where Python cleans up
    elif any(ancestor.__name__ == "PlumblineError" for ancestor in kind.__mro__):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _in_one_line
if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads take memory, and where there is none they wait
# imports make many objects that stay; looking at them again and again takes a tenth of a short job
set_threshold(50_000)
