"""A function metric can run in its own Python environment; a failure there only affects the rows of this metric."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

import plumbline
from plugins.environments.tests.scorers import (
    BAD_SCORERS_CODE,
    N_PROMPTS,
    SCORER_CODE,
    TEXT_BY_PROMPT,
    choose,
    read_scores,
)
from plugins.environments.tests.wheels import write_wheel
from plumbline.jobs.command import get_command, load_values
from plumbline.jobs.overrides import expand_key
from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.environments import environments as environments_module
from plumbline.plugins.environments.environments import EnvironmentConfig, resolve_environment
from tests.bench_of import Bench, read_image_rows, read_run_tables, run_plan
from tests.commands import find_newest_run_folder, run_refused
from tests.environment import ROOT
from tests.faults.driving import wait_until

NOISY_CODE = """
import os, subprocess, sys
print("noise while loading")
os.write(1, b"x" * 100_000)

def noisy(image, prompt):
    print("noise" * 50_000)
    subprocess.run(["echo", "noise of a child"])
    return float(sum(image.convert("L").tobytes())) / image.width / image.height
"""
PLAN_AND_RUN_SCRIPT = """
import shutil, sys
from tests.bench_of import run_plan
from tests.commands import load_job_config
from plumbline.pipelines.sweeps.planning import plan_sweep

folder, *words = sys.argv[1:]
planned = plan_sweep(load_job_config("sweep", *words))
shutil.rmtree(folder)
print(run_plan(planned).folder)
"""
"""Script that plans a sweep, deletes the environments, and runs the sweep."""


def test_two_scorers_with_conflicting_packages_score_the_same_images(environments: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tinyscorer import rate\n\ndef old(image, prompt): return rate(image, prompt)\n"
    )
    metric = f"metric=[{tmp_path}/mine.py:old,tinyscorer:rate,edge_density]"
    words = (choose("old", environments, "tinyscorer<2"), choose("rate", environments, "tinyscorer==2.0"))
    bench = Bench(tmp_path, metric, *words, generators=["atlas", "flint"], count=N_PROMPTS)
    assert bench.run().code == 0
    scores = read_scores(bench)
    for name, version in (("old", 1), ("rate", 2)):
        rows = scores[scores["metric"] == name]
        assert len(rows) == 2 * N_PROMPTS
        assert [row.score for row in rows.itertuples()] == [
            version + len(TEXT_BY_PROMPT[row.prompt_id]) / 1000 for row in rows.itertuples()
        ]
    assert scores.query("metric == 'edge_density'")["score"].notna().all()
    recorded = json.loads((find_newest_run_folder(bench.store.place.url) / "manifest.json").read_text())["config"][
        "metrics"
    ]
    assert {"tinyscorer==1.0"} < set(recorded["old"]["code"]["packages"])
    assert not bench.plan().plan.missing


def test_scores_are_recomputed_for_other_package_versions_but_not_for_another_requirement(
    environments: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, "metric=[tinyscorer:rate]", generators=["atlas"], count=N_PROMPTS)
    assert bench.run(choose("rate", environments, "tinyscorer==1.0")).code == 0
    assert not bench.plan(choose("rate", environments, "tinyscorer<2", timeout=50)).plan.missing
    planned = bench.plan(choose("rate", environments, "tinyscorer>1"))
    assert {cell.recipe.stage for cell in planned.plan.missing} == {"function_values", "scores"}


def test_output_of_packages_does_not_affect_scores_and_images_arrive_unchanged(
    environments: Path, tmp_path: Path
) -> None:
    (tmp_path / "noise.py").write_text(NOISY_CODE)
    (tmp_path / "quiet.py").write_text(NOISY_CODE.replace("noisy", "quiet").replace("print(", "str("))
    metric = f"metric=[{tmp_path}/noise.py:noisy,{tmp_path}/quiet.py:quiet]"
    bench = Bench(tmp_path, metric, choose("noisy", environments, "tinyscorer"), generators=["atlas"], count=N_PROMPTS)
    assert bench.run().code == 0
    wide = read_scores(bench).pivot_table(index="image_id", columns="metric", values="score")
    assert len(wide) == N_PROMPTS and (wide["noisy"] == wide["quiet"]).all() and wide["noisy"].nunique() > 1


def test_only_the_rows_on_which_a_worker_dies_have_no_score(environments: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD_SCORERS_CODE)
    names = ("dies", "always", "talks", "floods")
    metric = f"metric=[{','.join(f'{tmp_path}/bad.py:{name}' for name in names)},edge_density]"
    words = [choose(name, environments, "tinyscorer") for name in names]
    bench = Bench(tmp_path, metric, *words, generators=["atlas", "flint"], count=N_PROMPTS)
    assert bench.run("max_failed=1").code == 2
    scores = read_scores(bench)
    for row in scores.query("metric == 'dies'").itertuples():
        unlucky = len(TEXT_BY_PROMPT[row.prompt_id]) % 3 == 0
        assert pd.isna(row.score) if unlucky else row.score == len(TEXT_BY_PROMPT[row.prompt_id])
        assert (row.error and row.error["kind"]) == ("worker_died" if unlucky else None)
        assert not unlucky or (row.error["retryable"] and "SIGKILL" in row.error["message"])
        assert not unlucky or "out of luck" in row.error["message"]
    for name, said in (("always", "exit code 3"), ("talks", "something other"), ("floods", "something other")):
        errors = scores[scores["metric"] == name]["error"]
        assert {error["kind"] for error in errors} == {"worker_died"}
        messages = [error["message"] for error in errors]
        assert len(messages) == 2 * N_PROMPTS and all(
            said in one or "no further process is started" in one for one in messages
        )
        assert any(said in one for one in messages) and any("no further process is started" in one for one in messages)
    assert scores.query("metric == 'edge_density'")["score"].notna().all()


def test_errors_are_reported_in_the_same_way_with_and_without_an_environment(
    environments: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text(BAD_SCORERS_CODE)
    words = (f"metric=[{tmp_path}/bad.py:batched]", choose("batched", environments, "tinyscorer"))
    bench = Bench(tmp_path, *words, generators=["atlas"], count=N_PROMPTS)
    assert bench.run("max_failed=1").code == 2
    line = BAD_SCORERS_CODE.splitlines().index('        raise KeyError("three")') + 1
    for row in read_scores(bench).itertuples():
        length = len(TEXT_BY_PROMPT[row.prompt_id])
        kind = "function_failed" if length % 3 == 0 else "unusable_value" if length % 4 < 2 or length > 50 else None
        assert (row.error and row.error["kind"]) == kind
        assert kind or row.score == length
        assert kind != "function_failed" or row.error["message"].endswith(
            f"KeyError: 'three' at line {line}; correct the function"
        )
    assert json.loads((find_newest_run_folder(bench.store.place.url) / "manifest.json").read_text())[
        "lower_is_better"
    ] == ["batched"]


def test_a_process_that_lost_its_gpu_is_replaced(environments: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD_SCORERS_CODE)
    words = (f"metric=[{tmp_path}/bad.py:loses]", choose("loses", environments, "tinyscorer"))
    bench = Bench(tmp_path, *words, generators=["atlas"], count=N_PROMPTS)
    assert bench.run("max_failed=1").code == 2
    for row in read_scores(bench).itertuples():
        length = len(TEXT_BY_PROMPT[row.prompt_id])
        assert pd.isna(row.score) if length % 3 == 0 else row.score == length
        assert (row.error and row.error["kind"]) == ("function_failed" if length % 3 == 0 else None)


def test_a_function_that_hangs_is_ended_at_the_time_limit(environments: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD_SCORERS_CODE)
    words = (f"metric=[{tmp_path}/bad.py:hangs]", choose("hangs", environments, "tinyscorer", timeout=0.5))
    bench = Bench(tmp_path, *words, generators=["atlas"], count=2)
    assert bench.run("max_failed=1").code == 2
    errors = read_scores(bench)["error"]
    assert all(error["kind"] == "worker_died" and "more than 0.5 seconds" in error["message"] for error in errors)


def test_processes_that_make_an_environment_at_the_same_time_share_it(tmp_path: Path) -> None:
    environment = resolve_environment(EnvironmentConfig(packages=("newer",), folder=str(tmp_path)))
    assert {"newer==1.0", "tinyscorer==2.0"} < set(environment.pins)
    made: list[Path] = []
    makers = [threading.Thread(target=lambda: made.append(environment.ensure_python())) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(made) == 4 and len(set(made)) == 1 and made[0].exists()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_resolved_packages_are_kept_until_their_folder_is_deleted(index: Path, tmp_path: Path) -> None:
    config = EnvironmentConfig(packages=("growing",), folder=str(tmp_path / "environments"))
    write_wheel(index, "growing", "1.0", "")
    first = resolve_environment(config)
    write_wheel(index, "growing", "1.1", "")
    assert resolve_environment(config) == first and "growing==1.0" in first.pins


def test_a_new_environment_is_announced_with_its_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    python = resolve_environment(EnvironmentConfig(packages=("tinyscorer",), folder=str(tmp_path))).ensure_python()
    said = rf"created an environment of 2 packages in \d+ seconds; it uses \d+ MB in {python.parents[1]}"
    assert [re.fullmatch(said, line) is not None for line in caplog.messages] == [True]


def test_a_package_index_that_does_not_answer_is_reported_until_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(environments_module, "SECONDS_BETWEEN_NOTICES", 0.2)
    monkeypatch.delenv("UV_NO_INDEX")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:secret@127.0.0.1:{silent.getsockname()[1]}/simple")
        config = EnvironmentConfig(packages=("unknown",), folder=str(tmp_path), install_timeout=0.5)
        with pytest.raises(ConfigError, match="resolving unknown, pillow took more than"):
            resolve_environment(config)
    assert caplog.messages == [
        f"still resolving unknown, pillow, after {seconds} seconds" for seconds in ("0.2", "0.4")
    ]


def test_if_an_environment_cannot_be_made_only_the_rows_of_its_metric_have_no_score(
    index: Path, tmp_path: Path
) -> None:
    """After the sweep is planned, the environment's interpreter and the package's only wheel are deleted."""
    write_wheel(index, "fleeting", "1.0", SCORER_CODE.format(value=1))
    folder = tmp_path / "environments"
    words = ("metric=[fleeting:rate,edge_density]", choose("rate", folder, "fleeting"))
    bench = Bench(tmp_path, *words, generators=["atlas"], count=N_PROMPTS)
    planned = bench.plan()
    for path in (*folder.glob("*/bin/python"), index / "fleeting-1.0-py3-none-any.whl"):
        path.unlink()
    scores = read_run_tables(run_plan(planned))["scores"]
    failed, others = scores.query("metric == 'rate'"), scores.query("metric == 'edge_density'")
    assert {error["kind"] for error in failed["error"]} == {"environment_failed"} and len(failed) == N_PROMPTS
    assert all(error["retryable"] for error in failed["error"]) and others["score"].notna().all()


@pytest.mark.slow
def test_workers_on_ray_make_the_environment_and_run_the_function_in_it(tmp_path: Path) -> None:
    """The sweep starts its own Ray cluster, whose workers find the package index in their environment variables."""
    (tmp_path / "bad.py").write_text(BAD_SCORERS_CODE)
    folder = tmp_path / "environments"
    names = {"rate": "tinyscorer:rate", "dies": f"{tmp_path}/bad.py:dies"}
    words = (f"metric=[{','.join(names.values())}]", *(choose(name, folder, "tinyscorer==1.0") for name in names))
    bench = Bench(tmp_path, *words, generators=["atlas"], count=N_PROMPTS)
    command = [sys.executable, "-c", PLAN_AND_RUN_SCRIPT, str(folder), *bench.list_arguments("cluster=local")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert len([*folder.glob("*/bin/python")]) == 1
    for row in pd.read_parquet(f"{done.stdout.split()[-1]}/scores.parquet").itertuples():
        length = len(TEXT_BY_PROMPT[row.prompt_id])
        dead = row.metric == "dies" and length % 3 == 0
        assert pd.isna(row.score) if dead else row.score == (length if row.metric == "dies" else 1 + length / 1000)
        assert (row.error and row.error["kind"]) == ("worker_died" if dead else None)


def test_a_scorer_in_python_runs_a_function_in_its_environment(environments: Path, tmp_path: Path) -> None:
    (tmp_path / "two words.py").write_text(
        "import tinyscorer\n\ndef old(image, prompt): return tinyscorer.rate(image, '')\n"
    )
    image = read_image_rows("atlas", 1)[0]["image"]

    def score(*packages: str) -> list[float]:
        option = choose("old", environments, *packages)
        named = [f"{tmp_path}/two words.py:old", "entropy"]
        scored = plumbline.score(image, "any", named, models="shapes", options=option)
        return list(scored.query("metric == 'old'")["score"])

    assert score("tinyscorer<2") == [1.0] and score("tinyscorer>1") == [2.0]
    (tmp_path / "two words.py").write_text("def old(image, prompt): return 3\n")
    assert score("tinyscorer>1") == [3.0], "the file was edited"
    option = choose("rate", environments, "tinyscorer<2")
    assert list(plumbline.score(image, "", "tinyscorer:rate", models="shapes", options=[option])["score"].isna()) == [
        True
    ]


def test_no_worker_keeps_running_after_the_program_ends(environments: Path, tmp_path: Path) -> None:
    file = tmp_path / "pid.py"
    file.write_text("import os\n\ndef pid(image, prompt):\n    return os.getpid()\n")
    scorer = plumbline.open_scorer("models=shapes", choose("pid", environments, "tinyscorer"), metrics=f"{file}:pid")
    scores = scorer.score([read_image_rows("atlas", 1)[0]["image"]], ["any"])
    worker = int(scores["score"][0])
    assert worker != os.getpid()
    os.kill(worker, 0)
    del scorer
    assert wait_until(lambda: not is_running(worker)), "a thread may hold the scorer for a moment"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_command_in_the_readme_has_a_valid_configuration() -> None:
    text = re.sub(r" *\\\n *", " ", (ROOT / "plugins/environments/README.md").read_text())
    commands = [shlex.split(line) for line in re.findall(r"^    plumbline (.*)$", text, re.MULTILINE)]
    for job, *words in commands:
        command = get_command(job)
        assert load_values(command, [expand_key(word, command.short, command.first) for word in words])["metrics"]
    assert len(commands) == 3


REFUSED_ENVIRONMENTS = [
    ('{{packages: ["tinyscorer==9"]}}', "there is no version of tinyscorer==9"),
    ('{{packages: ["newer", "tinyscorer==1.0"]}}', "newer depend on tinyscorer==2.0"),
    ('{{packages: ["absent-package"]}}', "absent-package was not found"),
    ('{{packages: ["--index-url=https://host"]}}', "expected packages such as"),
    ('{{packages: ["./folder"]}}', "expected packages such as"),
    ('{{packages: ["x @ git+https://me:secret@host/x"]}}', "expected packages such as"),
    ('{{packages: ["tinyscorer"], python: 3.10}}', 'expected a version in quotes, such as "3.11", got 3.1'),
    ('{{packages: ["tinyscorer"], python: "2.7"}}', "expected a version in quotes"),
    ('{{packages: tinyscorer}}', "expected a list"),
    ('{{packages: []}}', "expected 1 to 100 packages"),
    ('{{packges: ["tinyscorer"]}}', "packages.* is required"),
    ('{{packages: ["tinyscorer"], timeout: 0}}', "positive number of seconds"),
    ("tinyscorer", "expected keys of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "said"), REFUSED_ENVIRONMENTS)
def test_an_invalid_environment_is_refused_in_one_line_before_any_work(
    environment: str, said: str, tmp_path: Path
) -> None:
    given = environment.format()
    if given.startswith("{"):
        given = f"{given[:-1]}, folder: {tmp_path}/environments}}"
    words = (f"images={tmp_path}", f"store={tmp_path}/store", "models=shapes", "metric=tinyscorer:rate")
    line = run_refused("score", *words, f"metrics.rate.environment={given}", code=64)
    assert re.search(said, line) and line.startswith("error: metrics.rate: ") and "secret" not in line, line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("tinyscorer:raet", "metric tinyscorer: no function 'raet'; did you mean rate?"),
        ("tinyscorer:three", "expected a function three(image, prompt), found three(a, b, c)"),
        ("tinyscorer.absent:rate", "No module named 'tinyscorer.absent'"),
        ("{folder}/ends.py:rate", "ended its process (exit code 5) while being loaded"),
        ("{folder}/declares.py:rate", "expected better to be one of higher, lower, neither, got 'best'"),
    ],
)
def test_a_package_without_the_function_is_refused_before_any_work(
    function: str, said: str, environments: Path, tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text("import os\nos._exit(5)\n")
    (tmp_path / "declares.py").write_text(
        "import plumbline\n\n@plumbline.metric(better='best')\ndef rate(image, prompt): ...\n"
    )
    name = function.partition(":")[2]
    words = (f"images={tmp_path}", f"store={tmp_path}/store", "models=shapes", f"metric={function}")
    line = run_refused(
        "score", *(word.format(folder=tmp_path) for word in words), choose(name, environments, "tinyscorer")
    )
    assert said in line and not (tmp_path / "store").exists()
