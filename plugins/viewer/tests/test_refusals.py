"""jobs.view rejects invalid configurations with a clear message."""

from collections.abc import Callable

import pytest

from tests.refusals import Refusals, list_refusals

REFUSED: Refusals = {
    "view": [
        ("store=ftp://127.0.0.1:1/x", "this storage is read-only; use a local folder, or an address that starts with s3://"),
        ("store=http://example.org", "this storage is read-only; use a local folder, or an address that starts with s3://"),
        ("store={store} host=0.0.0.0 token_variable=NO_SUCH_TOKEN", "NO_SUCH_TOKEN"),
        ("store={store} port=70000", "expected 0 to 65535"),
        ("store={store} hosts=[http://gpu-7]", "expected names without a scheme or port"),
        ("store={store} memory=10", "expected at least 100 megabytes"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("command", "said"), list_refusals(REFUSED))
def test_an_invalid_command_is_refused_in_one_line_and_writes_nothing(
    command: str, said: str, check_refusal: Callable[[str, str], None]
) -> None:
    check_refusal(command, said)
