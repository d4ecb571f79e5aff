"""A nightly run scores new images, reports regressions, excludes concurrent nightly runs, and cleans up."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from plumbline.jobs import nightly
from plumbline.jobs.nightly import NIGHTLY_LEASE_NAME
from plumbline.pipelines.base.exit_codes import (
    COMPLETE,
    DEADLINE_PASSED,
    LEASE_HELD,
    LEASE_LOST,
    OVER_BUDGET,
    REGRESSION,
    WITHIN_BUDGET,
)
from plumbline.pipelines.nightly import regressions
from plumbline.pipelines.nightly.deadline import NightStopped
from plumbline.pipelines.store.lease import Clock, Lease, LeaseHeld, read_lease, take_lease
from plumbline.pipelines.store.runs import commit_run, find_newest_run, has_report, list_run_ids, make_run_newest
from plumbline.pipelines.store.store import LATEST_FILE, Store
from tests.bench_of import Bench, read_image_rows, read_prompt_rows, save_scores, write_rows
from tests.commands import FinishedJob, run_for_output, run_refused
from tests.histories.damage import ROT_WAYS, damage_file

ROOT = Path(__file__).parent.parent.parent
METRIC_OPTION = "metric=[clipscore]"
N_PROMPTS = 24
HOLDER_SCRIPT = """
import sys
from plumbline.jobs.command import run_job
from plumbline.jobs.nightly import COMMAND, main
from plumbline.pipelines.nightly import regressions

def send(url, message):
    print("sending", flush=True)
    sys.stdin.readline()

regressions.post_json = send
sys.exit(run_job(COMMAND, main, sys.argv[1:]))
"""
"""Script for a nightly run that waits for input after publishing its run and before reporting it."""


class JumpingClock(Clock):
    """A clock that only advances during waits, which return immediately."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds


class FrozenClock(Clock):
    """A clock that never advances, so that no process is ever considered dead."""

    def now(self) -> float:
        return 0.0

    def pause(self, seconds: float) -> None:
        threading.Event().wait(0.2)


class Nights(Bench):
    """Nightly runs of two generators with invented scores, without models.

    The prompts have no skills, because each skill would add a chart to the trends of every run.
    """

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, "sweep=own_images", "models=shapes", METRIC_OPTION, store=url, count=N_PROMPTS)
        plain = [{key: prompt[key] for key in ("prompt_id", "text")} for prompt in read_prompt_rows(N_PROMPTS)]
        write_rows(self.folder / "prompts.parquet", plain)
        self.quality = {"atlas": 0.8, "flint": 0.5}
        self.seconds = 1_800_000_000

    def add(self, generator: str, quality: float) -> None:
        """Add a generator or replace its images; `quality` is the level of its invented scores."""
        path = self.write(generator, read_image_rows("atlas", N_PROMPTS))
        self.seconds += 1  # a file's modification time is its ETag
        os.utime(path, (self.seconds, self.seconds))
        self.quality[generator] = quality

    def score(self) -> None:

        def score(generator: str, image: Mapping[str, Any]) -> float:
            return self.quality[generator] + sum(image["prompt_id"].encode()) % 17 / 100

        save_scores(self.plan(), score)

    def run(self, *words: str, job: str = "nightly") -> FinishedJob:
        self.score()
        return super().run(*words, job=job)

    def read_outcome(self, run_id: str | None = None) -> dict[str, Any] | None:
        return self.store.read_json(f"runs/{run_id or find_newest_run(self.store)}/nightly.json")

    def read_latest_report(self) -> str:
        return self.store.read_text("latest/report.html") or ""

    def list_runs_in_trends(self) -> set[str]:
        return set(self.store.read_table("trends/small/trends.parquet", ["run_id"]).column("run_id").to_pylist())

    @contextmanager
    def start_process(self) -> Iterator[subprocess.Popen[str]]:
        """Yield the process of a nightly run that waits after publishing its run and before reporting it."""
        self.score()
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                HOLDER_SCRIPT,
                *self.list_arguments("nightly.webhook=http://127.0.0.1:9/x", "nightly.lease=10"),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        printed = []
        while (line := process.stdout.readline()) != "sending\n":
            assert line, "".join(printed)
            printed.append(line)
        yield process
        process.kill()
        process.communicate()


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path, str(tmp_path / "store"))


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.slow), "s3"])
def nights_on_disk_or_s3(request: pytest.FixtureRequest, tmp_path: Path) -> Nights:
    url = str(tmp_path / "store") if request.param == "folder" else request.getfixturevalue("bucket") + "/store"
    return Nights(tmp_path, url)


def use_clock(clock: type[Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("now", "pause"):
        monkeypatch.setattr(Clock, name, getattr(clock, name))
    monkeypatch.setattr(Clock, "time", 0.0, raising=False)


def test_nights_report_a_first_run_then_nothing_then_a_new_and_a_worse_generator(nights_on_disk_or_s3: Nights) -> None:
    nights = nights_on_disk_or_s3
    assert nights.run().code == 0
    (first,) = list_run_ids(nights.store)
    outcome = nights.read_outcome()
    assert outcome is not None and outcome["compared_with"] is None
    assert outcome["not_compared"] == "it is the first run of this store"
    assert nights.read_latest_report() == nights.store.read_text(f"runs/{first}/report.html") != ""

    shown = nights.run("nightly.json=true")
    assert shown.code == 0 and list_run_ids(nights.store) == [first]
    assert f"nothing new since run {first}: {nights.store.place.url}/runs/{first}/report.html" in shown.err
    assert json.loads(shown.out) == outcome | {"new": False, "exit_code": 0, "dropped": []}

    nights.add("golem", 0.9)
    nights.add("flint", 0.4)
    ended = nights.run()
    assert ended.code == 3
    second = find_newest_run(nights.store)
    outcome = nights.read_outcome()
    assert outcome is not None and list_run_ids(nights.store) == [first, second]
    assert outcome["compared_with"] == first and outcome["exit_code"] == 3 and outcome["improvements"] == []
    worst = outcome["regressions"][0]
    assert {one["generator"] for one in outcome["regressions"]} == {"flint"}
    assert (worst["metric"], worst["skill"], worst["prompts"]) == ("clipscore", "overall", N_PROMPTS)
    assert worst["difference"] == pytest.approx(-0.1) and worst["p_value"] < worst["p_holm"] < 0.05
    assert "Only in this run: generator golem." in outcome["sentences"]
    printed = ended.words
    moved = f"{worst['before']:.3f} to {worst['after']:.3f} (-0.100 on {N_PROMPTS} prompts, p < 0.001)"
    assert f"worse flint by clipscore: {moved}" in printed
    assert f"since {first}" in printed and "exit code 3" in printed
    url = nights.store.place.url
    assert nights.read_latest_report() == nights.store.read_text(f"runs/{second}/report.html")
    assert f"latest report: {url}/latest/report.html" in printed
    assert outcome["trends"] == f"{url}/trends/small/trends.html" and f"trends: {outcome['trends']}" in printed
    assert nights.list_runs_in_trends() == {first, second} and nights.store.exists("trends/small/trends.html")
    assert nights.run().code == 0, "the regression has already been reported"
    assert read_lease(nights.store, NIGHTLY_LEASE_NAME).is_free


def test_a_small_change_is_not_a_regression(nights: Nights) -> None:
    nights.run()
    nights.add("flint", 0.49)
    assert nights.run("nightly.smallest_change=0.05").code == 0
    outcome = nights.read_outcome()
    assert outcome is not None and outcome["regressions"] == [] and "flint is worse" in " ".join(outcome["sentences"])


def test_a_rewritten_report_of_a_night_keeps_the_changes_on_both_pages(nights: Nights) -> None:
    nights.run()
    first = find_newest_run(nights.store)
    nights.add("flint", 0.4)
    assert nights.run().code == 3

    def find_changes_on_pages() -> set[bool]:
        own = nights.store.read_text(f"runs/{find_newest_run(nights.store)}/report.html") or ""
        return {f"Changes since run {first}," in page for page in (own, nights.read_latest_report())}

    report = ("report", f"store={nights.store.place.url}", "run=latest")
    for words, changed in (((), True), (("compare=none",), False), ((), False)):
        run_for_output(*report, *words)
        assert find_changes_on_pages() == {changed}


def test_a_night_reports_the_change_although_another_sweep_published_it_first(nights: Nights) -> None:
    nights.run()
    first = find_newest_run(nights.store)
    nights.add("flint", 0.4)
    assert nights.run(job="sweep").code == 0
    nights.add("golem", 0.9)
    assert nights.run().code == 3
    outcome = nights.read_outcome()
    assert outcome is not None and outcome["compared_with"] == first


def test_a_night_reports_a_sweeps_unreported_run_even_if_nothing_is_new(nights: Nights) -> None:
    nights.run()
    nights.add("flint", 0.4)
    assert nights.run(job="sweep").code == 0
    swept = find_newest_run(nights.store)
    assert nights.run().code == 3
    assert find_newest_run(nights.store) == swept and nights.read_outcome() is not None
    assert nights.run().code == 0


@pytest.mark.slow
def test_nights_of_two_benchmarks_share_a_store_and_are_compared_with_their_own_runs(nights: Nights) -> None:
    nights.run()
    first = find_newest_run(nights.store)
    assert nights.run("benchmark.name=other").code == 0
    other = nights.read_outcome()
    assert other is not None
    assert other["not_compared"] == f"{first} cannot be compared with it (its benchmark is 'small')"
    assert nights.run().code == 0 and nights.run("benchmark.name=other").code == 0
    assert len(list_run_ids(nights.store)) == 2, "each job finds its own run and nothing new"
    nights.add("flint", 0.4)
    assert nights.run().code == 3


def test_a_run_may_be_compared_with_a_named_run(nights: Nights) -> None:
    nights.run()
    first = find_newest_run(nights.store)
    nights.add("flint", 0.6)
    assert nights.run().code == 0
    nights.add("flint", 0.5)
    assert nights.run(f"nightly.compare={first}").code == 0


def test_a_night_with_mostly_missing_scores_fails_like_a_sweep_and_is_never_a_baseline(nights: Nights) -> None:
    nights.run()
    first = find_newest_run(nights.store)
    nights.add("flint", 0.4)
    (nights.folder / "images/atlas/00000.parquet").write_bytes(b"PAR1")
    ended = nights.run()
    assert ended.code == 1 and re.search(r"exit code 1: \d+ of \d+ rows .* have no score, above max_failed", ended.out)
    nights.add("atlas", 0.8)
    assert nights.run().code == 3
    outcome = nights.read_outcome()
    assert outcome is not None and outcome["compared_with"] == first


class RivalNight:
    """Another nightly run, which takes the lease and publishes a run just before the nth renewal of our lease."""

    ID = "2099-01-01"

    def __init__(self, nights: Nights, at: int) -> None:
        self.nights, self.at = nights, at
        self.looks = 0
        self.renew = Lease.renew

    def interfere(self, lease: Lease) -> None:
        self.looks += 1
        if self.looks == self.at:
            store, before = self.nights.store, list_run_ids(self.nights.store)[0]
            take_lease(store, NIGHTLY_LEASE_NAME, "rival", clock=JumpingClock())
            store.write_text(f"runs/{self.ID}/report.html", "the rival's")
            commit_run(store, self.ID, store.read_json(f"runs/{before}/manifest.json") or {})
            make_run_newest(store, self.ID)
        self.renew(lease)


@pytest.mark.parametrize(
    "at, published",
    [(1, False), (2, True), (3, True), (4, True), (5, True), (6, True), (7, True)],
    ids=["manifest", "after manifest", "report", "name", "after name", "trends", "outcome"],
)
def test_a_night_that_lost_its_lease_overwrites_nothing_of_the_other_night(
    at: int, published: bool, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.run()
    first = find_newest_run(nights.store)
    nights.add("flint", 0.4)
    rival = RivalNight(nights, at)
    monkeypatch.setattr(Lease, "renew", lambda lease: rival.interfere(lease))
    ended = nights.run()
    assert ended.code == 5 and "did not renew its lease in time, and rival on" in ended.out
    ours = set(list_run_ids(nights.store)) - {first, RivalNight.ID}
    assert len(ours) == published and find_newest_run(nights.store) == RivalNight.ID
    assert all(nights.read_outcome(run_id) is None for run_id in ours)
    assert nights.read_latest_report() == "the rival's"
    if at < 7:
        assert nights.list_runs_in_trends() == {first}
    assert not read_lease(nights.store, NIGHTLY_LEASE_NAME).is_free, "the rival still has the lease"


def test_a_concurrent_night_is_refused_and_the_night_after_a_killed_one_reports_its_run(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = Nights(tmp_path, f"{bucket}/store")
    nights.run()
    first = find_newest_run(nights.store)
    nights.add("flint", 0.4)
    with nights.start_process() as process:
        use_clock(FrozenClock, monkeypatch)
        ended = nights.run()
        assert ended.code == 4 and f"process {process.pid})" in ended.out
    assert process.returncode == -signal.SIGKILL
    killed = find_newest_run(nights.store)
    assert killed != first and nights.read_outcome() is None
    use_clock(JumpingClock, monkeypatch)
    ended = nights.run()
    assert ended.code == 3, "nothing is new, but that run was never reported"
    assert find_newest_run(nights.store) == killed and nights.read_outcome() is not None
    assert "for a sign of life" in ended.out


@pytest.mark.slow
def test_a_suspended_night_that_resumes_does_not_change_the_other_nights_work(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.run()
    nights.add("flint", 0.4)
    with nights.start_process() as process:
        os.kill(process.pid, signal.SIGSTOP)
        use_clock(JumpingClock, monkeypatch)
        assert nights.run("nightly.smallest_change=1").code == 0
        outcome = nights.read_outcome()
        os.kill(process.pid, signal.SIGCONT)
        printed, _ = process.communicate("\n")
    assert process.returncode == 5 and "took its place" in printed
    assert outcome is not None and nights.read_outcome() == outcome


@pytest.mark.parametrize("name", [LATEST_FILE, "report.html"])
def test_a_night_that_died_between_manifest_and_report_is_reported_and_not_repeated(
    name: str, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(store: Store, path: str, text: str) -> None:
        if path.endswith(name):
            raise KeyboardInterrupt
        write_text(store, path, text)

    nights.run()
    first = find_newest_run(nights.store)
    nights.add("flint", 0.4)
    write_text = Store.write_text
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write_text", write)
        assert nights.run().code == 130
    (left,) = {*list_run_ids(nights.store)} - {first}
    assert nights.run().code == 3, "nothing is new, but that run was never reported"
    outcome = nights.read_outcome(left)
    assert list_run_ids(nights.store) == [first, left] and find_newest_run(nights.store) == left
    assert outcome is not None and outcome["compared_with"] == first
    assert nights.read_latest_report() == nights.store.read_text(f"runs/{left}/report.html") != ""


@pytest.mark.parametrize("way", ROT_WAYS)
def test_a_night_replaces_damaged_files_even_if_their_size_and_time_are_unchanged(way: str, nights: Nights) -> None:
    """A damaged page is only rewritten, whereas a damaged part of a run's scores causes a new run."""
    nights.run()
    (first,) = list_run_ids(nights.store)
    folder, chance = Path(nights.store.place.url) / "runs", Random(way)
    assert damage_file(folder / first / "report.html", way, chance)
    shown = nights.run()
    assert shown.code == 0 and f"nothing new since run {first}" in shown.out
    assert "the page was damaged, and is written again" in shown.words and has_report(nights.store, first)
    assert damage_file(chance.choice(sorted((folder / first).glob("scores.parquet/*"))), way, chance)
    assert nights.run().code == 0
    second = find_newest_run(nights.store)
    outcome = nights.read_outcome(second)
    assert second != first and outcome is not None and outcome["compared_with"] == first, (
        "the first run was not repaired"
    )
    assert not outcome["regressions"] and f"nothing new since run {second}" in nights.run().out


def test_a_failed_webhook_is_a_warning_that_does_not_show_its_address(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Mapping[str, Any]] = []

    def send(url: str, message: Mapping[str, Any]) -> str | None:
        sent.append(message)
        return "hooks.example: HTTP 503" if len(sent) == 1 else None

    monkeypatch.setattr(regressions, "post_json", send)
    monkeypatch.setenv("HOOK", "https://hooks.example/hush-hush")
    failed = nights.run("nightly.webhook=${oc.env:HOOK}")
    outcome = nights.read_outcome()
    assert outcome is not None and outcome["webhook"] == "hooks.example: HTTP 503"
    assert failed.code == 0 and "warning nightly.webhook: hooks.example: HTTP 503; the outcome is in" in failed.out
    nights.add("flint", 0.4)
    ended = nights.run("nightly.webhook=https://hooks.example/hush-hush")
    assert ended.code == 3
    outcome = nights.read_outcome()
    assert outcome is not None and outcome["webhook"] == "delivered"
    assert sent[1] == {**outcome, "webhook": None}
    kept = [path for path in Path(nights.store.place.url).rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert not kept and "hush" not in failed.out + ended.out
    assert "hush" not in run_refused("nightly", *nights.list_arguments("nightly.webhook=hush-hush"), code=64)
    shown = run_for_output("nightly", *nights.list_arguments("nightly.webhook=http://x/hush-hush"), "--config")
    assert "hush" not in shown and "webhook: '***'" in shown


def test_expired_runs_are_removed_after_the_night_has_reported(
    nights: Nights,
) -> None:
    nights.run()
    first = find_newest_run(nights.store)
    manifest = nights.store.read_json(f"runs/{first}/manifest.json") or {}
    for day, benchmark in ((1, "small"), (2, "small"), (3, "other")):
        old = manifest | {"began": f"2020-01-0{day}T02:00:00+00:00", "benchmark": benchmark}
        nights.store.write_json(f"runs/2020-01-0{day}/manifest.json", old)
    nights.add("flint", 0.4)
    shown = nights.run("nightly.keep_runs.last=1", "nightly.json=true")
    outcome = json.loads(shown.out)
    assert shown.code == 3 and outcome["compared_with"] == first
    assert outcome["dropped"] == ["2020-01-01", "2020-01-02"]
    assert "runs dropped by nightly.keep_runs: 2020-01-01, 2020-01-02" in shown.err
    assert list_run_ids(nights.store) == ["2020-01-03", first, outcome["run_id"]], (
        "the run that it was compared with is kept"
    )
    assert read_lease(nights.store, NIGHTLY_LEASE_NAME).is_free


@pytest.mark.parametrize("error", [LeaseHeld("gc is at work"), NightStopped("the deadline is over", DEADLINE_PASSED)])
def test_failing_to_remove_runs_changes_neither_the_run_nor_the_exit_code(
    error: BaseException, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(nightly, "remove_unkept_runs", refuse)
    code, printed, _ = nights.run("nightly.keep_runs.daily=1")
    assert code == 0 and nights.read_outcome() is not None
    assert (
        f"warning nightly.keep_runs: {error}; the next night drops the remaining runs" in printed
        and "exit code 0" in printed
    )


def test_a_night_past_its_deadline_has_its_own_exit_code_and_the_next_night_continues(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 3600
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # simulate the end of the hour
        signal.pause()

    monkeypatch.setattr(regressions, "_make_outcome", never)
    ended = nights.run("nightly.deadline=3600")
    assert ended.code == 6 and "nightly.deadline: 3600 seconds have passed; all computed cells are kept" in ended.out
    assert read_lease(nights.store, NIGHTLY_LEASE_NAME).is_free
    monkeypatch.undo()
    assert nights.run().code == 0 and len(list_run_ids(nights.store)) == 1 and nights.read_outcome() is not None


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs/nightly.md").read_text()
    codes = (COMPLETE, OVER_BUDGET, WITHIN_BUDGET, REGRESSION, LEASE_HELD, LEASE_LOST, DEADLINE_PASSED, os.EX_USAGE)
    assert all(f"\n| {code} | " in page for code in codes) and len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    "override, remedy",
    [
        ("nightly.lease=1", "at least 10 seconds"),
        ("nightly.wait=-1", "0 or more"),
        ("nightly.deadline=0", "a positive number of seconds or null"),
        ("nightly.smallest_change=-0.1", "0 or more"),
        ("nightly.webhook=ftp://x", "http:// or https://"),
        ("nightly.checkpoints=step", "(?P<family>...) and (?P<step>[0-9]+)"),
        ("nightly.weight=1", "did you mean nightly.wait"),
    ],
)
def test_an_impossible_option_is_refused_by_name(override: str, remedy: str, nights: Nights) -> None:
    line = run_refused("nightly", *nights.list_arguments(override), code=64)
    assert override.partition("=")[0] in line and remedy in line
