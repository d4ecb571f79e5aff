"""A nightly run of several benchmarks has one lease, a comparison for each benchmark, one correction and one report."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plumbline.pipelines.store.lease import read_lease
from plumbline.pipelines.store.runs import list_run_ids
from plumbline.pipelines.sweeps.suite import plan_suite
from tests.bench_of import read_image_rows, read_prompt_rows, save_scores, write_rows
from tests.commands import FinishedJob, load_job_config, open_store_at, run
from tests.jobs.test_nightly_job import JumpingClock, use_clock
from tests.pipelines.nightly.test_outcome import serve

ROOT = Path(__file__).parent.parent.parent
N_PROMPTS = 8
HOLDER_SCRIPT = """
import sys
from plumbline.jobs import JOB
from plumbline.jobs.command import run_job

def hold(planned, *rest, **more):
    if planned.config.benchmark.name == "places":
        print("between two runs", flush=True)
        sys.stdin.readline()
    return run_sweep(planned, *rest, **more)

run_sweep, JOB.run_sweep = JOB.run_sweep, hold
sys.exit(run_job(JOB.COMMAND, JOB.main, sys.argv[1:]))
"""
"""Script for a job that waits after writing the run of its first benchmark and before that of its second."""


class Suite:
    """Two benchmarks with the same prompts, no skills, two generators each, and invented scores."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, open_store_at(folder / "store")
        self.quality = {(name, generator): 0.5 for name in ("numbers", "places") for generator in ("atlas", "flint")}
        for name, generator in self.quality:
            plain = [{key: prompt[key] for key in ("prompt_id", "text")} for prompt in read_prompt_rows(N_PROMPTS)]
            write_rows(folder / name / "prompts.parquet", plain)
            write_rows(folder / name / f"images/{generator}/0.parquet", read_image_rows("atlas", N_PROMPTS))
        self.seconds = 1_800_000_000

    @property
    def words(self) -> list[str]:
        words = ["sweep=suite", "benchmarks=[own,shapes]", "models=shapes", "metric=[clipscore]", "cluster=here"]
        for choice, name in (("own", "numbers"), ("shapes", "places")):
            of = f"benchmarks.{choice}"
            words += [f"{of}.name={name}", f"{of}.images={self.folder}/{name}/images"]
            words += [f"{of}.prompts={self.folder}/{name}/prompts.parquet"]
        return [*words, f"store={self.store.place.url}"]

    def make_worse(self, name: str) -> None:
        """Lower the scores of flint's images in a benchmark, and change the modification time of their file."""
        self.quality[name, "flint"] -= 0.1
        self.seconds += 1  # a file's modification time is its ETag
        os.utime(self.folder / name / "images/flint/0.parquet", (self.seconds, self.seconds))

    def score(self) -> None:
        for name, planned in plan_suite(load_job_config("sweep", *self.words)).sweeps.items():

            def score(generator: str, image: Mapping[str, Any], name: str = name) -> float:
                return self.quality[name, generator] + sum(image["prompt_id"].encode()) % 17 / 100

            save_scores(planned, score)

    def run(self, *words: str, job: str = "nightly") -> FinishedJob:
        return run(job, *self.words, *words)

    def list_suites(self) -> list[str]:
        return sorted(self.store.list_folders("suites"))

    def read_runs(self) -> dict[str, str]:
        """Return the id of each benchmark's run in the newest suite, keyed by the benchmark's name."""
        return dict((self.store.read_json(f"suites/{self.list_suites()[-1]}/suite.json") or {})["runs"])


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_nightly_job_over_two_benchmarks_sends_one_message_and_reports_only_changes(suite: Suite) -> None:
    """Flint gets worse on all 8 prompts of one benchmark.

    The probability that this happens by chance is 1 in 2^7, which is significant even after correction for two
    generators.
    """
    with serve([200] * 3) as hook:
        webhook = f"nightly.webhook={hook.url}"
        suite.score()
        first = suite.run(webhook)
        assert first.code == 0 and read_lease(suite.store, "nightly").is_free, first
        (told,) = hook.bodies
        (first_suite,), before = suite.list_suites(), suite.read_runs()
        assert told["suite_id"] == first_suite and told["runs"] == before and set(before) == {"numbers", "places"}
        assert [one["not_compared"] is None for one in told["benchmarks"]] == [False, False]
        assert suite.store.read_json(f"suites/{first_suite}/nightly.json") == told | {"webhook": "delivered"}
        assert f"suite {first_suite}: 2 benchmarks, 2 with a new run; nothing compared" in first.words
        assert "warning numbers and places share 8 prompts" in first.out

        suite.make_worse("places")
        suite.score()
        unread = suite.folder / "numbers/images/flint/0.parquet"
        state, content = unread.stat(), unread.read_bytes()
        unread.write_bytes(bytes(len(content)))  # unreadable, because no one should open it
        os.utime(unread, ns=(state.st_atime_ns, state.st_mtime_ns))
        second = suite.run(webhook)
        assert second.code == 3, second
        assert f"numbers: nothing changed since run {before['numbers']}" in second.out
        assert f"numbers, run {before['numbers']}: nothing new" in second.words
        [places] = hook.bodies[1]["benchmarks"]
        assert (places["benchmark"], places["compared_with"]) == ("places", before["places"])
        [worse] = places["regressions"]
        assert (worse["generator"], worse["p_value"], worse["p_holm"]) == ("flint", 1 / 128, 2 / 128)
        after = suite.read_runs()
        assert after == {"numbers": before["numbers"], "places": places["run_id"]} and len(suite.list_suites()) == 2
        assert suite.store.read_json(f"runs/{after['places']}/nightly.json") == places | {"webhook": "delivered"}

        nothing = suite.run(webhook)
        assert nothing.code == 0 and "0 cells to compute: everything is in the store" in nothing.out, nothing
        assert "model calls, about" not in nothing.out and "reported before: suite " in nothing.words
        assert len(suite.list_suites()) == len(hook.bodies) == 2
        unread.write_bytes(content)

        suite.make_worse("numbers")
        suite.make_worse("places")
        suite.score()
        third = suite.run(webhook, "nightly.json=true", "nightly.keep_runs.last=1")
        shown = json.loads(third.out)
        assert third.code == shown["exit_code"] == 3 and shown["new"] and shown["dropped"] == [before["places"]]
        falls = [worse for one in shown["benchmarks"] for worse in one["regressions"]]
        assert [(one["p_value"], one["p_holm"]) for one in falls] == [(1 / 128, 4 / 128)] * 2, (
            "corrected for four comparisons"
        )
        assert "flint by clipscore: " in third.err and "2 with a new run; 2 regressions" in third.err

        newest = suite.read_runs()["numbers"]
        outcome = suite.store.read_json(f"runs/{newest}/nightly.json")
        suite.store.remove_all([f"runs/{newest}/nightly.json"])  # as if the nightly run had died just before writing it
        again = suite.run(webhook)
        assert again.code == 0 and len(hook.bodies) == 3 and len(suite.list_suites()) == 3, again
        assert suite.store.read_json(f"runs/{newest}/nightly.json") == outcome


@pytest.mark.parametrize("job", ["nightly", pytest.param("sweep", marks=pytest.mark.slow)])
def test_a_suite_that_is_killed_between_two_runs_continues_with_the_second(
    job: str, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.score()
    lines = [sys.executable, "-c", HOLDER_SCRIPT.replace("JOB", job), *suite.words]
    with subprocess.Popen(lines, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line == "between two runs\n" for line in process.stdout)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    (left,) = list_run_ids(suite.store)
    assert suite.list_suites() == []
    use_clock(JumpingClock, monkeypatch)
    ended = suite.run(job=job)
    assert ended.code == 0 and f"numbers: nothing changed since run {left}" in ended.out, ended
    assert (
        len(suite.list_suites()) == 1 and suite.read_runs()["numbers"] == left and len(list_run_ids(suite.store)) == 2
    )
    if job == "nightly":
        [suite_id] = suite.list_suites()
        told = suite.store.read_json(f"suites/{suite_id}/nightly.json") or {}
        assert [one["benchmark"] for one in told["benchmarks"]] == ["numbers", "places"], (
            "neither run had been reported"
        )


def test_a_dry_run_of_a_night_over_several_benchmarks_shows_the_plan_and_starts_nothing(suite: Suite) -> None:
    shutil.rmtree(suite.folder / "places/images/flint")
    ended = suite.run("dry_run=true")
    assert ended.code == 0 and "numbers: 8 prompts x 2 generators = 16 images" in ended.out
    assert "places: 8 prompts x 1 generators = 8 images" in ended.out and not suite.store.list_folders("runs")
