"""Publishing to a model's repository writes the card and evaluation results to files, and sends them on request."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from tests.commands import run_for_output, run_refused
from tests.operators.report.made import MadeRun, make_run

BENCHMARK_NAME = "<b>a/b|\n"
CARD_TEXT = "---\nlicense: mit\n---\n# My model\n\nIts story.\n"
OTHER_RESULTS = "# ours, by hand\n- dataset: {id: acme/other, task_id: default}\n  value: 3\n"
GENERATION_SETTINGS = {"atlas": {"cfg": {"4": 9, "7.5": 3}, "steps": {"30": 12}}}
SWEEP_COMMAND = "plumbline sweep sweep=shapes 'note=two\nlines'"
MODELS_CONFIG = {
    "config": {
        "metrics": {
            "gecko": {"kind": "gecko"},
            "clipscore": {
                "kind": "image_statistic",
                "statistic": "edge_density",
            },  # does not rank, despite its name
        },
        "models": {"vqa": {"family": "clip_flant5", "checkpoint": "/home/me/flant5"}},
    },
    "models": {"answers:vqa": {"family": "clip_flant5", "parts": {"checkpoint": "0123456789abcdef"}}},
}


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return make_run(
        tmp_path,
        generators=["atlas", "drift"],
        score=lambda generator, metric, prompt: None if generator == "drift" else 0.5 + (prompt % 3 != 0) / 2,
        benchmark=BENCHMARK_NAME, settings=GENERATION_SETTINGS, command=SWEEP_COMMAND,
        ended="2026-11-26T09:00:00+00:00", versions={"plumbline-t2i": "0.1.0"}, **MODELS_CONFIG,
    )  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model/.eval_results").mkdir(parents=True)
    (tmp_path / "model/README.md").write_text(CARD_TEXT)
    (tmp_path / "model/.eval_results/theirs.yaml").write_text(OTHER_RESULTS)
    return tmp_path / "model"


def make_options(run: MadeRun, model: Path, *words: str) -> list[str]:
    return ["sink=hub", f"store={run.store.place.url}", "hub.generator=atlas", f"hub.folder={model}", *words]


def read_files(model: Path) -> dict[str, str]:
    return {str(path.relative_to(model)): path.read_text() for path in sorted(model.rglob("*")) if path.is_file()}


def change_manifest(run: MadeRun, facts: dict[str, Any]) -> None:
    path = f"runs/{run.run_id}/manifest.json"
    run.store.write_json(path, (run.store.read_json(path) or {}) | facts)


TASK_OPTIONS = ("hub.dataset=acme/bench", "hub.tasks={gecko: default, gecko/counting: counting}")


def test_publishing_writes_the_card_and_results_once_and_keeps_other_text(run: MadeRun, model: Path) -> None:
    assert f"published: {model}" in run_for_output("publish", *make_options(run, model, *TASK_OPTIONS))
    first = read_files(model)
    assert first[".eval_results/theirs.yaml"] == OTHER_RESULTS and first["README.md"].startswith(
        f"{CARD_TEXT}\n<!-- begin "
    )
    section = first["README.md"].removeprefix(CARD_TEXT)
    assert "## Scores on \\<b\\>a/b\\| \n" in section and "<b>" not in section
    (gecko,) = (line for line in section.splitlines() if line.startswith("| gecko | 0.833 | "))
    assert re.search(r" \| 12 \| 100.0% \| clip\\_flant5 flant5 \(0123456789ab\) \| [0-9a-f]{12} \|$", gecko)
    assert "/home/me" not in section
    assert "Generated with cfg 4 (75%) and 7.5 (25%), steps 30." in section
    assert "    plumbline sweep sweep=shapes 'note=two\n    lines'\n<!-- end " in section
    whole, counting = parse_eval_result_entries(yaml.safe_load(first[".eval_results/plumbline.yaml"]))
    assert (whole.dataset_id, whole.task_id, whole.value) == ("acme/bench", "default", 0.833333)
    assert (counting.task_id, counting.value, whole.date) == ("counting", 0.833333, "2026-11-26T09:00:00+00:00")
    for fact in ("95% interval 0.", "coverage 100.0% of 12 images", "cfg 4 (75%)", f"run {run.run_id}", "clip_flant5"):
        assert fact in (whole.notes or "")

    (model / "README.md").write_text(first["README.md"] + "\nA last word.\n")
    run_for_output("publish", *make_options(run, model, *TASK_OPTIONS))
    assert read_files(model) == first | {"README.md": first["README.md"] + "\nA last word.\n"}
    change_manifest(run, {"benchmark": "another"})
    run_for_output("publish", *make_options(run, model, "hub.dataset=acme/second"))
    both = read_files(model)
    assert both["README.md"].startswith(first["README.md"]) and both["README.md"].count("## Scores on ") == 2
    entries = parse_eval_result_entries(yaml.safe_load(both[".eval_results/plumbline.yaml"]))
    assert [(entry.dataset_id, entry.task_id) for entry in entries[2:]] == [("acme/second", "gecko")]


def test_other_peoples_entries_are_kept_and_unsuitable_runs_are_refused(run: MadeRun, model: Path) -> None:
    theirs = model / ".eval_results/theirs.yaml"
    theirs.write_text(OTHER_RESULTS.replace("acme/other", "acme/bench"))
    before = read_files(model)
    assert "theirs.yaml already has an entry for task 'default' of acme/bench; choose another" in run_refused(
        "publish", *make_options(run, model, *TASK_OPTIONS), code=1
    )
    theirs.write_text("- no: entry\n")
    assert "theirs.yaml: expected a YAML list of evaluation results" in run_refused(
        "publish", *make_options(run, model, *TASK_OPTIONS)
    )
    theirs.write_text(before[".eval_results/theirs.yaml"])
    assert "no score 'geko' for atlas; did you mean gecko" in run_refused(
        "publish", *make_options(run, model, TASK_OPTIONS[0], "hub.tasks={geko: default}")
    )
    assert "'drift' has no score in run" in run_refused("publish", *make_options(run, model, "hub.generator=drift"))
    assert "expected hub.generator=NAME" in run_refused("publish", f"store={run.store.place.url}", "sink=hub")
    change_manifest(run, {"limited": {"prompts": 12, "of_prompts": 80, "images": 12, "of_images": 80}})
    assert "expected a result for the whole benchmark, but it scored 12 of 80" in run_refused(
        "publish", *make_options(run, model, *TASK_OPTIONS)
    )
    assert read_files(model) == before
    run_for_output("publish", *make_options(run, model))
    assert "A trial on 12 of 80 prompts; not a result of the whole benchmark." in read_files(model)["README.md"]


class FakeHub(BaseHTTPRequestHandler):
    """Fake Hub with the routes for opening and updating a pull request. A branch is a dictionary of files."""

    branches: dict[str, dict[str, str]]
    requests: list[dict[str, Any]]
    commits: list[dict[str, Any]]

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "whoami-v2"]:
            assert self.headers["Authorization"] == "Bearer hf_secret"
            self.answer({"name": "me", "type": "user"})
        elif parts[-1] == "discussions":
            assert parse_qs(urlsplit(self.path).query)["author"] == ["me"]
            self.answer({"count": len(self.requests), "start": 0, "discussions": self.requests})
        elif "tree" in parts:
            files = self.branches[parts[5]]
            self.answer([{"type": "file", "path": path, "oid": "0" * 40, "size": len(files[path])} for path in files])
        else:
            content = self.branches[parts[3]]["/".join(parts[4:])].encode()
            self.answer(content, {"ETag": f'"{hash(content)}"', "X-Repo-Commit": f"{len(self.commits):040x}"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = urlsplit(self.path)
        branch = unquote(asked.path.rpartition("/")[2])
        if "preupload" in asked.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]})
        elif asked.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        else:
            self.commit(branch, [json.loads(line) for line in body.splitlines()], "create_pr" in asked.query)

    def commit(self, branch: str, lines: list[dict[str, Any]], opens: bool) -> None:
        new = f"refs/pr/{len(self.requests) + 1}" if opens else branch
        files = {line["value"]["path"]: base64.b64decode(line["value"]["content"]).decode() for line in lines[1:]}
        self.branches[new] = self.branches[branch] | files
        self.commits.append({"branch": new, "files": sorted(files)})
        place = f"http://{self.headers['Host']}/acme/model"
        answer = {"commitOid": "1" * 40, "commitUrl": f"{place}/commit/{'1' * 40}"}
        if opens:
            number = len(self.requests) + 1
            self.requests.append(
                {"title": lines[0]["value"]["summary"], "num": number, "author": {"name": "me"}, "status": "open",
                 "createdAt": "2026-11-26T09:00:00.000Z", "isPullRequest": True,
                 "repo": {"name": "acme/model", "type": "model"}}
            )  # fmt: skip
            answer["pullRequestUrl"] = f"{place}/discussions/{number}"
        self.answer(answer)

    def answer(self, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        for name, value in ((headers or {}) | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


PUBLISH_SCRIPT = """
import sys
from plumbline.jobs.command import run_job
from plumbline.plugins.exports.jobs.publish import COMMAND, main
for more in ([], [], ["hub.dataset=acme/bench"]):
    assert run_job(COMMAND, main, [*sys.argv[1:], *more]) == 0
"""


def test_a_pull_request_is_opened_once_and_then_updated(run: MadeRun, model: Path, tmp_path: Path) -> None:
    """Publishing runs in a separate process, because huggingface_hub reads its settings when it is imported."""
    theirs = {
        "README.md": "# Another text\n",
        ".eval_results/theirs.yaml": OTHER_RESULTS,
        "model.safetensors": "weights",
    }
    state: dict[str, Any] = {"branches": {"main": theirs}, "requests": [], "commits": []}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (FakeHub,), state)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": "hf_secret"}
        environment = (
            os.environ | endpoint | {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        )
        words = make_options(run, model, "hub.upload=acme/model")
        ended = subprocess.run(
            [sys.executable, "-c", PUBLISH_SCRIPT, *words], env=environment, text=True, capture_output=True
        )
        server.shutdown()
    assert ended.returncode == 0, ended.stderr
    opened, again, results = (line for line in ended.stdout.splitlines() if line.startswith("published: "))
    assert opened == f"published: {endpoint['HF_ENDPOINT']}/acme/model/discussions/1" and ", unchanged" in again
    assert "commit/111" in results
    assert state["branches"]["main"] == theirs, "a pull request changes nothing before it is merged"
    assert state["commits"] == [
        {"branch": "refs/pr/1", "files": ["README.md"]},
        {"branch": "refs/pr/1", "files": [".eval_results/plumbline.yaml"]},
    ]
    (request,), sent = state["requests"], state["branches"]["refs/pr/1"]
    assert request["title"] == "Scores on <b>a/b| by Plumbline"
    section = read_files(model)["README.md"].removeprefix(CARD_TEXT)
    assert sent["README.md"] == f"# Another text\n{section}" and sent[".eval_results/theirs.yaml"] == OTHER_RESULTS
    sent_entry = parse_eval_result_entries(yaml.safe_load(sent[".eval_results/plumbline.yaml"]))[0]
    assert isinstance(sent_entry, EvalResultEntry) and sent_entry.task_id == "gecko"
