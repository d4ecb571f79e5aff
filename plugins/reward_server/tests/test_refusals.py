"""jobs.serve rejects invalid configurations."""

from tests.commands import refusal


def test_a_service_without_metrics_names_some_to_choose() -> None:
    line = refusal("serve", code=64)
    assert line.startswith("error: config key 'metric' is required; choose one: metric=")
    assert "(see --help-all)" in line
