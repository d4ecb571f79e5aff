"""A long training run can be evaluated often: neither a step's memory nor its time grows with the number of steps."""

import pytest

from tests.benchmarks.size import choose_size, expect, read_output

MAX_MEMORY_RATIO = 1.05
MAX_TIME_RATIO = 1.5
"""Maximum time per step in the last quarter of the steps, relative to the second quarter.

The time may grow a little, because the page with all steps is written anew at each step.
"""


def test_memory_and_time_do_not_grow_with_the_number_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    n_steps = choose_size(200, 4)
    found = {int(step): values for step, values in read_output("evaluation_steps", str(n_steps)).items()}
    (_, memory, *_, last_memory), (_, seconds, *_, last_seconds) = zip(*found.values(), strict=True)
    with capsys.disabled():
        print()
        for step, (megabytes, per_step) in found.items():
            print(f"step {step} of a training run: {megabytes:.0f} MB, {per_step * 1000:.0f} ms of CPU per step")
        print(
            f"the last quarter of the steps takes {last_memory / memory:.3f} times the memory of the second "
            f"(target: below {MAX_MEMORY_RATIO}), and {last_seconds / seconds:.2f} times its CPU time per step "
            f"(target: below {MAX_TIME_RATIO})"
        )
    expect(last_memory / memory < MAX_MEMORY_RATIO and last_seconds / seconds < MAX_TIME_RATIO)
