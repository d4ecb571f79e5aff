"""Fixtures for several benchmarks."""

from collections.abc import Iterator

import pytest
from s3fs import S3FileSystem  # type: ignore[import-untyped]

from plumbline.pipelines.base.filesystems import open_filesystem
from tests.faults.proxy import FaultProxy, run_proxy
from tests.s3 import S3Server


@pytest.fixture
def proxy(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Yield a proxy in front of the test's bucket that records every request and byte, and forwards the responses."""
    proxy = FaultProxy(s3_server, seed=0, share=0.0)
    with run_proxy(proxy) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        open_filesystem.cache_clear()
        yield proxy
    S3FileSystem.clear_instance_cache()  # the clients of this server call the proxy
    open_filesystem.cache_clear()
