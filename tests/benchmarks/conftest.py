"""What several benchmarks need."""

from collections.abc import Iterator

import pytest
from s3fs import S3FileSystem  # type: ignore[import-untyped]

from plumbline.pipelines.base.filesystems import open_filesystem
from tests.faults.proxy import FaultProxy, faulty
from tests.s3 import S3Server


@pytest.fixture
def proxy(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Yield a proxy before the test's bucket that notes every request and byte, and answers as the server does."""
    proxy = FaultProxy(s3_server, seed=0, share=0.0)
    with faulty(proxy) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        open_filesystem.cache_clear()
        yield proxy
    S3FileSystem.clear_instance_cache()  # whose clients call the proxy
    open_filesystem.cache_clear()
