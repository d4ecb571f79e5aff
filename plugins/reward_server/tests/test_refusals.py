"""Invalid configurations of jobs.serve are refused with a message that says how to fix them."""

from tests.commands import run_refused


def test_serving_without_metrics_is_refused_with_an_example() -> None:
    line = run_refused("serve", code=64)
    assert line.startswith("error: config key 'metric' is required; choose one: metric=")
    assert "(see --help-all)" in line
