"""A model hub on localhost that serves folders as repositories."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "1" * 40
"""The commit of every repository."""


@dataclass
class Hub:
    """A hub on a localhost port that serves folders as repositories with one commit each."""

    repositories: dict[str, Path]
    refusals: dict[str, int] = field(default_factory=dict)
    """HTTP status sent for each refused repository, keyed by the repository's name."""
    served: dict[str, int] = field(default_factory=dict)
    """Number of content bytes sent, by file name."""
    port: int = 0

    def files(self, repo: str) -> list[str]:
        folder = self.repositories[repo]
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of a process that uses this hub, with its cache below `home`."""
        online = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.port}", "HF_HOME": str(home), **online}


class HubHandler(BaseHTTPRequestHandler):
    """Handler of the few hub routes that are needed to find and download a model."""

    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo in self.hub.refusals:
            self.reply(self.hub.refusals[repo], {}, b"")
        elif repo not in self.hub.repositories:
            self.reply(404, {"X-Error-Code": "RepoNotFound"}, b"")
        elif parts[0] == "api" and "tree" in parts:
            folder = self.hub.repositories[repo]
            sizes = {name: (folder / name).stat().st_size for name in self.hub.files(repo)}
            entries = [{"type": "file", "path": name, "oid": name, "size": size} for name, size in sizes.items()]
            self.reply(200, {}, json.dumps(entries).encode())
        elif parts[0] == "api":
            files = [{"rfilename": name} for name in self.hub.files(repo)]
            self.reply(200, {}, json.dumps({"id": repo, "sha": COMMIT, "siblings": files}).encode())
        else:
            self.reply_with_file(self.hub.repositories[repo].joinpath(*parts[4:]))  # OWNER/NAME/resolve/COMMIT/PATH

    def reply_with_file(self, file: Path) -> None:
        if not file.is_file():
            self.reply(404, {"X-Error-Code": "EntryNotFound"}, b"")
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{file.name}-{len(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        status, wanted = 200, self.headers.get("Range")
        if wanted is not None:
            first, last = wanted.removeprefix("bytes=").split("-")
            headers["Content-Range"] = f"bytes {first}-{last or len(content) - 1}/{len(content)}"
            content, status = content[int(first) : int(last or len(content)) + 1], 206
        if self.command == "GET":
            self.hub.served[file.name] = self.hub.served.get(file.name, 0) + len(content)
        self.reply(status, headers, content)

    def reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def serve_hub(repositories: dict[str, Path]) -> Iterator[Hub]:
    """Serve folders by repository name until the context ends."""
    served = Hub(repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": served}))
    served.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()
