"""Several servers serve one study to many raters; killing a server loses no answer, and no answer is stored twice."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
import requests

from plumbline.pipelines.base.storage import StorageConfig
from plumbline.plugins.rating.study_files import list_versions, read_answers
from tests.commands import run_refused
from tests.operators.report.made import encode_png
from tests.s3 import SECRET_KEY

ROOT = Path(__file__).parents[3]
ADDRESS_PATTERN = re.compile(r"http://127\.0\.0\.1:\d+")
RATER_NAMES = ("ann", "bob", "Zoë Müller", "李雷")
PROMPTS = ("a red star", "two blue cups", "a cat on a mat")


class Server(NamedTuple):
    url: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def run_server(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobs.rate", "port=0", *words], stdout=stream, stderr=stream, cwd=ROOT
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> Server:
    waiting = Event()
    while (address := ADDRESS_PATTERN.search(log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        waiting.wait(0.05)
    return Server(address[0], process, log)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taken") / "outputs"
    for place, generator in enumerate(("atlas", "borealis")):
        (folder / generator).mkdir(parents=True)
        for number, prompt in enumerate(PROMPTS):
            (folder / generator / f"{number}.png").write_bytes(encode_png(number + 10 * place))
            (folder / generator / f"{number}.txt").write_text(prompt)
    return folder


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.slow), "s3"])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "study") if request.param == "folder" else f"{request.getfixturevalue('bucket')}/study"


class Rater(NamedTuple):
    """A rater who answers all tasks through both servers in turn, and retries if a server is down."""

    name: str
    servers: tuple[Server, Server]
    half: Event
    """Set once half of the rater's tasks are answered."""

    def rate(self) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        with requests.Session() as session:
            while tasks := self._ask(session, "get", "/tasks", params={"rater": self.name, "count": 2}).json():
                for task in tasks:
                    self._answer(session, task, kept)
                if len(kept) >= 6:
                    self.half.set()
        return kept

    def _answer(self, session: requests.Session, task: dict[str, Any], kept: dict[str, Any]) -> None:
        answer = "tie" if task["template"] == "vote" else 1 + len(kept) % 5
        body = {name: task[name] for name in ("task_id", "repeat", "version")}
        body |= {"revision": 0, "rater": self.name, "answer": answer, "note": "", "seconds": 1.0}
        for _ in range(2):  # a page that does not know whether its answer arrived sends it again, to either server
            reply = self._ask(session, "post", "/answers", json=body)
            assert reply.status_code in (200, 201), reply.text
        kept[task["task_id"]] = answer

    def _ask(self, session: requests.Session, method: str, path: str, **request: Any) -> requests.Response:
        for server in self.servers if len(self.name) % 2 else self.servers[::-1]:
            try:
                return session.request(method, server.url + path, timeout=300, **request)
            except requests.RequestException:
                continue
        raise AssertionError("no server responded")


def test_killing_one_of_two_servers_neither_loses_nor_duplicates_an_answer(
    images: Path, study: str, tmp_path: Path
) -> None:
    words = (f"images={images}", f"study={study}", f"store={tmp_path}/store", "templates=[likert,vote]")
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    with ExitStack() as stack:
        first, second = (
            wait_until_ready(stack.enter_context(run_server(*words, "raters=9", "repeats=0", log=log)), log)
            for log in logs
        )
        half = Event()
        with ThreadPoolExecutor(len(RATER_NAMES)) as pool:
            rating = [pool.submit(Rater(name, (first, second), half).rate) for name in RATER_NAMES]
            half.wait(300)
            first.process.send_signal(signal.SIGKILL)
            kept = {name: one.result() for name, one in zip(RATER_NAMES, rating, strict=True)}
    place = StorageConfig().locate(study)
    answers = read_answers(place)
    assert {(one.rater, one.task_id): one.answer for one in answers} == {
        (name, task): answer for name, own in kept.items() for task, answer in own.items()
    }
    assert len(answers) == len(RATER_NAMES) * (6 + 3) and list_versions(place) == [1]
    files = [name for name, _ in (place / "answers").files() if not name.rpartition("/")[2].startswith(".")]
    assert len(files) == len(answers), "an answer that is sent twice is stored once"
    assert not any(SECRET_KEY in log.read_text() for log in logs)
    assert not any(SECRET_KEY.encode() in (place / name).read() for name, _ in place.files())


def test_a_study_without_possible_tasks_is_refused_in_one_line(images: Path, tmp_path: Path) -> None:
    asked = (f"images={images}", f"study={tmp_path}/study", f"store={tmp_path}/store")
    assert "templates: expected one of likert, genai_bench" in run_refused("rate", *asked, "templates=[gut]")
    message = run_refused("rate", *asked, "templates=[questions]")
    assert "templates: questions need a metric from a run" in message
    (tmp_path / "empty").mkdir()
    assert "expected image files" in run_refused("rate", f"images={tmp_path}/empty", *asked[1:])
    assert "set a token in the environment variable" in run_refused("rate", *asked, "host=0.0.0.0")
    assert not (tmp_path / "study/study.1.json").exists()
