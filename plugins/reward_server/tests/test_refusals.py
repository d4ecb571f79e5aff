"""Invalid configurations of jobs.serve are refused with a message that says how to fix them."""

from tests.commands import refusal


def test_without_metrics_the_error_lists_some_to_choose_from() -> None:
    line = refusal("serve", code=64)
    assert line.startswith("error: config key 'metric' is required; choose one: metric=")
    assert "(see --help-all)" in line
