"""Disks and three clouds can contain a store and behave the same; other kinds of storage can only be read."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from hashlib import sha1
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.filesystems import open_filesystem
from plumbline.pipelines.base.storage import Place, StorageConfig, WriteError, convert_read_errors, list_cloud_variables
from plumbline.pipelines.store.store import Store
from tests.azure import AzureServer, run_azure
from tests.bench_of import list_arguments, plan_bench, write_benchmark
from tests.commands import run
from tests.faults.proxy import FAULTS, FaultProxy, run_proxy
from tests.gcs import GcsServer, run_gcs

ODD_NAMES = ["*", "[x]", "a b", "é", "#?", "a%20b", "a+b", "<&\"'>", "deep/*/c"]
BUCKET = "bucket"


@pytest.fixture(scope="module")
def gcs_server() -> Iterator[GcsServer]:
    with run_gcs() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def azure_server() -> Iterator[AzureServer]:
    with run_azure() as server:
        server.make_bucket(BUCKET)
        yield server


AZURE_PARAMETER = pytest.param("az", marks=pytest.mark.elsewhere)


def make_address(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a cloud's environment variables; return the address of a prefix that only this test uses."""
    server = request.getfixturevalue({"gs": "gcs_server", "az": "azure_server"}[name])
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    open_filesystem.cache_clear()
    request.addfinalizer(open_filesystem.cache_clear)
    return f"{name}://{BUCKET}/{request.node.originalname}"


@pytest.fixture(params=["gs", AZURE_PARAMETER])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a prefix in a cloud; the test runs once with Google's and once with Azure's."""
    return make_address(request.param, request, monkeypatch)


@pytest.fixture(params=["folder", "s3", "gs", AZURE_PARAMETER])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return an unused folder, or an unused prefix in an object store; the test runs once with each kind of storage."""
    if request.param == "folder":
        return StorageConfig().locate(str(tmp_path / "some/prefix"))
    if request.param == "s3":
        return StorageConfig().locate(f"{request.getfixturevalue('bucket')}/some/prefix")
    return StorageConfig().locate(make_address(request.param, request, monkeypatch))


def test_the_first_of_several_writers_wins_and_a_repeated_write_is_recognised(anywhere: Place) -> None:
    place = anywhere / "cells/a"
    wins: list[int] = []
    start = threading.Barrier(6)

    def write(number: int) -> None:
        start.wait()
        if place.create(str(number).encode()):
            wins.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number).encode() for number in wins] == [place.read()]
    assert not place.create(b"late") and place.read() != b"late"
    if not place.is_local:
        assert place.create(place.read()), "our own attempt whose answer was lost"
    Store(anywhere).check()
    Store(anywhere).check()


def test_files_of_any_name_are_listed_replaced_copied_and_removed(anywhere: Place) -> None:
    for name in ODD_NAMES:
        (anywhere / name).write(name.encode())
    found = dict(anywhere.files())
    assert sorted(found) == sorted(ODD_NAMES) and all((anywhere / name).read() == name.encode() for name in found)
    assert all(entry.type == "file" and entry.size == len(name.encode()) for name, entry in found.items())
    assert all(entry.etag and entry.modified > 1.7e9 for entry in found.values())
    assert found == {name: (anywhere / name).get_entry() for name in found} and found["*"] == anywhere.list()["*"]
    assert {name: entry.type for name, entry in anywhere.list().items()}["deep"] == "directory"
    assert [path for path, _ in (anywhere / "a b").files()] == [""] and not list((anywhere / "none").files())

    (anywhere / "*").write(b"replaced")
    assert (anywhere / "*").get_entry().etag != found["*"].etag
    (anywhere / "a b").copy_to(anywhere / "copy")
    assert (anywhere / "copy").read() == b"a b"
    anywhere.remove_below(["*", "nothing", "[x]"])
    assert sorted(path for path, _ in anywhere.files()) == sorted({*ODD_NAMES, "copy"} - {"*", "[x]"})
    assert anywhere.is_folder() and not (anywhere / "*").exists() and (anywhere / "é").is_file()
    anywhere.remove_folder()
    assert not list(anywhere.files())


def test_a_large_file_is_read_in_parts_or_completely_or_as_a_stream(anywhere: Place, tmp_path: Path) -> None:
    data = os.urandom(17 * 2**20)  # object stores write this in two parts
    place = anywhere / "large"
    with place.open_draft() as draft:
        draft.write_bytes(data)
    assert place.read() == data and place.read(5) == data[:5] and place.get_entry().size == len(data)
    with place.open() as stream:
        stream.seek(-5, os.SEEK_END)
        assert stream.read() == data[-5:]
        stream.seek(2**20)
        assert stream.read(7) == data[2**20 :][:7] and stream.tell() == 2**20 + 7
    (anywhere / "empty").write(b"")
    assert (anywhere / "empty").read() == b"" == (anywhere / "empty").read(3)
    (tmp_path / "draft").write_bytes(b"draft")
    assert (anywhere / "put").move_draft(tmp_path / "draft", replace=False)
    (tmp_path / "other").write_bytes(b"other")
    assert not (anywhere / "put").move_draft(tmp_path / "other", replace=False)
    assert (anywhere / "put").read() == b"draft"


def test_missing_files_are_reported_as_missing(anywhere: Place) -> None:
    with pytest.raises(FileNotFoundError):
        (anywhere / "nothing").read()
    missing = "nothing: not found; check the path" + ("$" if anywhere.is_local else " and its bucket$")
    with pytest.raises(ConfigError, match=missing), convert_read_errors(anywhere / "nothing", "file"):
        (anywhere / "nothing").get_entry()
    if not anywhere.is_local:
        elsewhere = anywhere.storage.locate(f"{anywhere.url.partition('://')[0]}://no-such-bucket/x")
        with pytest.raises(ConfigError, match="not found; check the path and its bucket"):
            Store(elsewhere).check()
        with pytest.raises(WriteError, match=r"no-such-bucket/x/note: cannot be written"):
            (elsewhere / "note").write(b"")


@pytest.mark.slow
def test_an_interrupted_sweep_continues_in_a_cloud(cloud: str, tmp_path: Path) -> None:
    place = StorageConfig().locate(cloud)
    for file, _ in StorageConfig().locate(str(write_benchmark(tmp_path / "bench", ("atlas",), count=8))).files():
        (place / file).write((tmp_path / "bench" / file).read_bytes())
    given = list_arguments(cloud, f"{cloud}/store", "metric=[edge_density]")
    ended = run("sweep", *given)
    assert ended.code == 0, ended
    cells = {path: entry for path, entry in (place / "store").files() if path.startswith("scores/")}
    lost = sorted(cells)[0]
    (place / "store" / lost).remove()
    missing = plan_bench(cloud, f"{cloud}/store", "metric=[edge_density]").plan.missing
    assert [cell.path for cell in missing] == [lost]
    assert run("sweep", *given).code == 0
    again = {path: entry for path, entry in (place / "store").files() if path.startswith("scores/")}
    assert again.keys() == cells.keys() and all(again[path] == cells[path] for path in cells if path != lost)


def test_writes_and_listings_in_a_cloud_are_complete_over_an_unreliable_network(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Calls fail, are reset, get half a response, or succeed without a response."""
    proxy = FaultProxy(gcs_server, seed=1, share=0.3)
    request.addfinalizer(open_filesystem.cache_clear)
    with run_proxy(proxy) as url:
        for variable, value in {**gcs_server.environment(), "GOOGLE_BASE_URL": url}.items():
            monkeypatch.setenv(variable, value)
        open_filesystem.cache_clear()
        place = StorageConfig().locate(f"gs://{BUCKET}/behind-faults")
        names = [f"{number:02}" for number in range(20)]
        assert all((place / "cells" / name).create(name.encode()) for name in names)
        assert not any((place / "cells" / name).create(b"late") for name in names)
        for _ in range(10):
            assert sorted(path for path, _ in place.files()) == [f"cells/{name}" for name in names]
            assert sorted((place / "cells").list()) == names
        assert [(place / "cells" / name).read() for name in names] == [name.encode() for name in names]
    assert proxy.counts.keys() == {"none", *FAULTS}


def test_refused_credentials_are_reported_with_the_remedy_and_never_shown(
    cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "GOOGLE_BEARER_TOKEN" if cloud.startswith("gs") else "AZURE_STORAGE_ACCOUNT_KEY"
    monkeypatch.setenv(name, "b2Ygb2xk")
    open_filesystem.cache_clear()
    store = Store(StorageConfig().locate(cloud))
    denied = r"access denied \(.*(401 Unauthorized|403 Forbidden).*; check the credentials' rights, or renew them"
    with pytest.raises(ConfigError, match=denied) as refusal:
        store.list_files("notes")
    assert "b2Ygb2xk" not in str(refusal.value) and refusal.value.__cause__.__cause__ is None
    with pytest.raises(ConfigError, match=denied):
        store.exists("note")
    with pytest.raises(WriteError, match=r"note: cannot be written \(.*40[13].*\); check the credentials' rights"):
        store.write_text("note", "text")


def test_missing_settings_are_reported_before_anything_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=r"az://: .*; set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY"):
        StorageConfig(region="of-this-test").locate("az://container/store")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(ConfigError, match=r"gs://: .*; set GOOGLE_APPLICATION_CREDENTIALS, sign in by `gcloud auth"):
        StorageConfig(region="of-this-test").locate("gs://bucket/store")


def test_workers_inherit_the_variables_of_every_cloud_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_KEY"}
    for name in (*names, "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "of this test")
    assert {name for name, value in list_cloud_variables().items() if value == "of this test"} == names


def test_a_cloud_whose_library_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "plumbline.pipelines.base.filesystems.clouds", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"gs:// needs obstore; install the extra 'clouds' of"):
        StorageConfig(region="without-obstore").locate("gs://bucket/store")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("gcs://bucket/a", "gcs://: not a supported scheme; write gs:// instead"),
        ("abfss://container@account/a", "abfss://: not a supported scheme; write az:// instead"),
        ("az://", "az://: expected az://BUCKET/PREFIX, got no bucket"),
        ("https://", "https://: expected https://HOST/PATH, got no host"),
        ("gs://key@bucket/a", "gs://: expected an address without credentials; put them into the variables"),
        ("https://host/a.png?sig=secret", "https://host: expected an address without a query, which may contain"),
        (
            "hdfsx://host/a",
            "hdfsx://host: Protocol not known: hdfsx; use a local path, or an address that starts with s3://",
        ),
        ("gs:/bucket/a", "gs:/bucket/a: expected a local path or a URL, found a single slash; write gs://"),
    ],
)
def test_an_invalid_address_is_refused_with_the_reason(address: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        StorageConfig().locate(address)
    assert str(refusal.value).startswith(message) and "secret" not in str(refusal.value)


class QuietFileServer(SimpleHTTPRequestHandler):
    """A server for the files of a folder, without support for range requests."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


def test_read_only_storage_may_contain_prompts_and_images_but_no_store(tmp_path: Path) -> None:
    bench = write_benchmark(tmp_path / "bench", ("atlas",), count=4)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFileServer, directory=str(bench))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        planned = plan_bench(url, tmp_path / "store", "metric=[edge_density]")
        ours = plan_bench(bench, tmp_path / "store", "metric=[edge_density]")
        assert len(planned.plan.missing) == len(ours.plan.missing) > 0
        assert (StorageConfig().locate(f"{url}/prompts.parquet")).read(4) == b"PAR1"
        refused = r"this storage is read-only; use a local folder, or an address that starts with s3://, gs:// or az://"
        with pytest.raises(ConfigError, match=rf"store: {url}/store: {refused}"):
            plan_bench(bench, f"{url}/store")
        with pytest.raises(ConfigError, match=refused):
            StorageConfig().locate(f"{url}/note").write(b"")
        server.shutdown()


HUB_SCRIPT = """
import sys
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sources.sources import open_sources
place = StorageConfig().locate("hf://datasets/acme/bench@main")
files = dict(place.files())
assert {path: (place / path).get_entry() for path in files} == files, files
assert all(entry.etag and entry.type == "file" for entry in files.values()), files
print(*sorted(files))
print((place / "prompts.parquet").read(4), [name for name, entry in place.list().items() if entry.type == "directory"])
benchmark = BenchmarkConfig(name="bench", prompts=f"{place}/prompts.parquet", images=f"{place}/images")
sources = open_sources(benchmark, StorageConfig(), shard_size=ShardSize(4), cache=ImageFileCache(None, benchmark))
print(sum(shard.rows for shard in sources.prompts_of), sources.broken)
try:
    StorageConfig().locate("hf://datasets/acme/bench/store", writable=True)
except ConfigError as error:
    print(error)
"""


class Hub(QuietFileServer):
    """A Hugging Face server with one dataset, for clients that send the token."""

    folder: Path

    def do_GET(self) -> None:
        path = unquote(self.path).partition("?")[0]
        if self.headers.get("authorization") != "Bearer hf_secret":
            self._send_json(None, 401)
        elif path.startswith("/api/datasets/acme/bench/revision/"):
            self._send_json({"id": "acme/bench", "sha": "1" * 40, "siblings": [], "tags": [], "private": True})
        elif path.startswith("/api/datasets/acme/bench/tree/main"):
            below = self.folder / path.removeprefix("/api/datasets/acme/bench/tree/main").lstrip("/")
            found = (
                below.rglob("*") if "recursive=True" in self.path or "recursive=true" in self.path else below.glob("*")
            )
            self._send_json([self._describe_file(file) for file in sorted(found)])
        else:
            file = self.folder / path.removeprefix("/datasets/acme/bench/resolve/main/")
            first, _, last = self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
            data = file.read_bytes()[int(first) : int(last or file.stat().st_size) + 1]
            self._send(data, 206 if "range" in self.headers else 200)

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
        self._send_json([self._describe_file(self.folder / path) for path in asked if (self.folder / path).exists()])

    def _describe_file(self, file: Path) -> dict[str, Any]:
        path = str(file.relative_to(self.folder))
        if file.is_dir():
            return {"type": "directory", "path": path, "oid": "0" * 40}
        return {"type": "file", "path": path, "size": file.stat().st_size, "oid": sha1(file.read_bytes()).hexdigest()}

    def _send_json(self, content: Any, status: int = 200) -> None:
        self._send(json.dumps(content).encode(), status)

    def _send(self, data: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_a_hubs_dataset_is_read_with_the_token_and_cannot_contain_a_store(tmp_path: Path) -> None:
    """The test runs in a separate process, because huggingface_hub reads its settings at import."""
    hub = type("Hub", (Hub,), {"folder": write_benchmark(tmp_path / "bench", ("atlas",), count=8)})
    with ThreadingHTTPServer(("127.0.0.1", 0), hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_TOKEN": "hf_secret"}
        environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), **endpoint}
        ended = subprocess.run([sys.executable, "-c", HUB_SCRIPT], env=environment, text=True, capture_output=True)
        server.shutdown()
    assert ended.stdout.splitlines() == [
        "images/atlas/00000.parquet prompts.parquet",
        "b'PAR1' ['images']",
        "8 []",
        "hf://datasets/acme/bench/store: this storage is read-only; use a local folder, or an address that starts with "
        "s3://, gs:// or az://",
    ], ended.stderr
