"""A chat endpoint on the loopback, for the family that asks one."""

from collections.abc import Iterator

import pytest

from tests.operators.models.endpoint import KEY, VARIABLE, Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(VARIABLE, KEY)
    started = Server()
    yield started
    started.close()
