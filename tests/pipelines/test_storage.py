"""S3 storage works with busy servers, bad networks and servers other than AWS.

Temporary failures are retried, and servers that would corrupt a store are refused.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.planning import PlannedSweep
from tests.bench_of import plan_bench, write_benchmark
from tests.faults.proxy import FaultProxy, run_proxy
from tests.s3 import S3Server


@pytest.mark.parametrize("given", [False, True])
def test_every_call_to_a_busy_server_is_retried(given: bool, bucket: str, s3_server: S3Server) -> None:
    """The response is 429, with an error name in its body, or without one for a HEAD request."""
    with run_proxy(FaultProxy(s3_server, 0, share=1.0, faults=["429"], once=True)) as endpoint:
        keys = {"key": s3_server.key, "secret": s3_server.secret} if given else {}
        place = StorageConfig(endpoint_url=endpoint, **keys).locate(bucket)
        assert (place / "cells/a").create(b"ours")
        assert (place / "cells/a").exists() and not (place / "cells/b").exists()
        assert (place / "cells/a").read() == b"ours"
        assert list((place / "cells").list()) == ["a"]
        (place / "cells/a").remove()


def list_planned_cells(planned: PlannedSweep) -> set[str]:
    return {cell.path for cell in planned.plan.missing}


def test_downloads_that_are_garbled_once_do_not_change_the_plan(
    tmp_path: Path, bucket: str, s3_server: S3Server
) -> None:
    """All objects of the benchmark and the store are covered: objects with a checksum, and tables without one."""
    write_benchmark(tmp_path)
    place = StorageConfig().locate(bucket)
    for file in ("prompts.parquet", "images/atlas/00000.parquet", "images/flint/00000.parquet"):
        (place / file).write((tmp_path / file).read_bytes())
    expected = list_planned_cells(plan_bench(bucket, f"{bucket}/store"))
    proxy = FaultProxy(s3_server, 0, share=1.0, faults=["garbled"], once=True)
    with run_proxy(proxy) as endpoint:
        planned = plan_bench(bucket, f"{bucket}/store", f"storage.endpoint_url={endpoint}")
    assert list_planned_cells(planned) == expected
    assert not planned.sources.broken and sum(".parquet" in request for request in proxy.requests) > 6


class UnconditionalServer(BaseHTTPRequestHandler):
    """An S3 server that accepts every write and ignores preconditions."""

    protocol_version = "HTTP/1.1"  # a client waits for 100 Continue

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def unconditional_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), UnconditionalServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_bucket_that_ignores_conditions_is_refused_before_anything_is_planned(
    tmp_path: Path, unconditional_server: str
) -> None:
    write_benchmark(tmp_path)
    server = (f"storage.endpoint_url={unconditional_server}", "storage.key=a", "storage.secret=b")
    with pytest.raises(ConfigError, match=r"s3://bucket/store: the S3 server ignores If-None-Match, .* SeaweedFS"):
        plan_bench(tmp_path, "s3://bucket/store", *server)


def test_a_bucket_that_respects_conditions_is_marked_once_and_checked_by_one_call(
    bucket: str, s3_server: S3Server
) -> None:
    proxy = FaultProxy(s3_server, 0, share=0.0)
    with run_proxy(proxy) as endpoint:
        store = Store(StorageConfig(endpoint_url=endpoint).locate(bucket))
        store.check()
        assert sum(request.startswith("PUT ") for request in proxy.requests) == 2, "one is written and one is refused"
        store.check()
        assert sum(request.startswith("PUT ") for request in proxy.requests) == 3, "the first write is refused"
