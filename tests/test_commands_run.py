"""The commands in README and docs run, page by page, if the files that they name exist (slow).

Each page starts with the files that the first sweep has written. REASONS_NOT_TO_RUN lists the commands that cannot
run here; tests/test_commands.py checks that they are valid.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from plumbline.jobs.table import JOBS
from tests import readers_files
from tests.s3 import S3Server, find_free_ports
from tests.test_commands import PAPERS_FILE, ROOT, name_page, read_commands_by_page, split_words

REFERENCE_FOLDER = Path(os.environ.get("REFERENCE_DATA", "none"))
REASONS_NOT_TO_RUN = {
    r"\.\.\.": "leaves out what every reader has of their own",
    r"models=released|cluster=gpu|num_gpus|model=clip_flant5_xl": "the released checkpoints, and mostly a GPU",
    r"^convert |seetrue|DSG|wording=|imagenhub|genai_arena|gedit|imgedit|qwen_image": "a release that is to be fetched",
    r"evalmuse|richhf": "a release that is to be fetched",
    r"models\.(ocr|vlm)=": "a released reader or judge",
    r"signs\.csv|longtext_bench|oneig_text|cvtg_2k|metric=\[text\]": "signs with the words that they want",
    r"tagging=llm|generation=llm|build/smollm2|data/mine": "a language model that follows instructions (make vllm)",
    r"^publish (?!sink=hub)": "a tracking service",
    r"image_model=images_api": "a service that draws",
    r"protocol=study|import_from": "what people answered",
    r"^check_rewards ": "a reward server that runs",
    r"meta-llama": "a language model of the hub",
    r"gs://|az://|hf://": "another cloud",
    r"\$IMAGES|candidate=tonight": "the files of a continuous integration",
    r"videoalign|hpsv3|mps|aesthetic|fga_blip2": "a converted reward",
    r"\.environment=": "packages from an index",
    r"reference=photos": "photographs, and the released CLIP",
    r"releases/winoground|images=TABLE": "the files of a release",
}
RELEASED_DATA_PATTERN = re.compile(r"REFERENCE_DATA|tifa160_human")
"""Pattern of commands that read the published files of benchmarks."""
PACK_COMMAND_PATTERN = re.compile(
    r"sweep=(shapes|gecko_ablation)|run=latest|store=(store|STORE)|/tmp/nights|protocol=shapes|scores=store/runs|"
    r"prompts=assets/|^report |^generate |output=store/|data/sure"
)
OWN_MODELS_COMMAND_PATTERN = re.compile(
    r"^(sweep|score|questions)\b(?!.*\b(models=|sweep=shapes|sweep=gecko_ablation))"
)
"""Pattern of commands that use the released models, and are run here with the embedded models instead."""
ENDLESS_COMMAND_PATTERN = re.compile(r"^(serve|view|rate(?!.*export_to))\b|--watch")
RUNNING_SERVICE_PATTERN = re.compile(r"http://127|no sweep is running")
"""Pattern of the output by which a long-running command reports that it is ready."""
PLACEHOLDERS = {"STORE": "store", "OUT": "data/out", "RATINGS": "ratings.csv", "TABLE": "scores.csv",
                "METRIC": "vqascore", "[a,b]": "[vqascore,clipscore]", "FOLDER": "judged", "PATH": "outputs",
                "CHECKPOINT": "tiny-sd"}  # fmt: skip
"""Values that replace the placeholders in the pages' commands, keyed by placeholder."""
SMALL_SETTINGS = {r"\bsteps=\d+": "steps=1", r"\bsize=\d+x\d+": "size=32x32", r"\bseeds=\d+": "seeds=1"}
"""Patterns of image settings, with the setting that replaces each, so that few cores can generate the images."""


def find_reason_not_to_run(page: str, command: str) -> str | None:
    """Return the reason why a page's command cannot run here, or None if it can."""
    if page == name_page(PAPERS_FILE) and not RELEASED_DATA_PATTERN.search(command):
        return "the papers' data and models; the page names a test of each command"
    if " " not in command:
        return "names a job"
    return next((reason for pattern, reason in REASONS_NOT_TO_RUN.items() if re.search(pattern, command)), None)


def is_about_pack(command: str) -> bool:
    return bool(PACK_COMMAND_PATTERN.search(command)) and "ratings.csv" not in command and "RATINGS" not in command


COMMANDS_BY_PAGE = {page: [command for command in commands if find_reason_not_to_run(page, command) is None]
                    for page, commands in read_commands_by_page().items()}  # fmt: skip


def test_most_commands_on_the_pages_are_run() -> None:
    pages = read_commands_by_page().items()
    commands = [one for page, told in pages if page != name_page(PAPERS_FILE) for one in told if " " in one]
    run = [command for commands in COMMANDS_BY_PAGE.values() for command in commands]
    assert len(run) > 75 and len(run) > 0.5 * len(commands)


class WebhookHandler(BaseHTTPRequestHandler):
    """Webhook that receives the messages of nightly runs."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def environment(s3_server: S3Server) -> Iterator[Mapping[str, str]]:
    """Yield the environment of a reader with a bucket named `bucket` and a webhook for nightly messages."""
    readers_files.fill_bucket(s3_server.filesystem())
    with HTTPServer(("127.0.0.1", 0), WebhookHandler) as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        yield {**os.environ, **s3_server.environment(), "NIGHT_HOOK": f"http://127.0.0.1:{hook.server_port}/"}
        hook.shutdown()
    s3_server.filesystem().rm("bucket", recursive=True)


def run(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command as a reader would; return the problem, or an empty string if it succeeds."""
    here = re.sub(r"<run id>|\b(RUN|ID)\b", lambda found: find_first_run(folder), command)
    for place, name in PLACEHOLDERS.items():
        here = re.sub(rf"(?<=[= ]){re.escape(place)}(?![\w.])", name, here)
    for usual, tiny in SMALL_SETTINGS.items():
        here = re.sub(usual, tiny, here)
    here = here.replace("$REFERENCE_DATA", str(REFERENCE_FOLDER)).replace("=/shared", "=shared")
    job, *arguments = split_words(here.replace("/tmp/", f"{folder}/"))
    arguments += ["models=shapes"] * bool(OWN_MODELS_COMMAND_PATTERN.search(command))
    called = [sys.executable, "-m", f"jobs.{job}", *arguments]
    if ENDLESS_COMMAND_PATTERN.search(command):
        return run_until_stopped(called, folder, environment)
    ended = subprocess.run(called, cwd=folder, env=dict(environment), capture_output=True, text=True)
    undecided = (
        ended.returncode == 2 and "undecided" in ended.stdout + ended.stderr
    )  # a valid answer too, for a reader's few ratings
    stopped = ended.returncode == 7 and "the gate failed by good enough" in ended.stdout  # as the page says
    return (
        ""
        if ended.returncode == 0 or undecided or stopped
        else f"{ended.returncode}\n{ended.stdout[-500:]}{ended.stderr[-1500:]}"
    )


def find_first_run(folder: Path) -> str:
    return min(path.name for path in (folder / "store/runs").glob("2*"))


def run_until_stopped(called: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command that does not exit on its own, and stop it once it is ready; return the problem, if any."""
    if not any("--watch" in word for word in called):
        called = [word for word in called if not word.startswith("port=")] + [f"port={find_free_ports(1)[0]}"]
    process = subprocess.Popen(
        called, cwd=folder, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = ""
    while not RUNNING_SERVICE_PATTERN.search(said) and (line := process.stdout.readline()):
        said += line
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    return (
        "" if process.wait() == 143 and RUNNING_SERVICE_PATTERN.search(said) else f"{process.returncode}\n{said}{rest}"
    )


@pytest.fixture(scope="module")
def swept_folders(
    tmp_path_factory: pytest.TempPathFactory, environment: Mapping[str, str], s3_server: S3Server
) -> Mapping[bool, Path]:
    """Return two folders in which a sweep has run: of the embedded benchmark (True) and of a reader's images (False).

    The store with the reader's images is also copied to the bucket.
    """
    folders = {}
    sweeps = {
        True: "sweep sweep=shapes",
        False: "sweep sweep=own_images benchmark.prompts=data/prompts.parquet benchmark.images=data/images",
    }
    for pack, command in sweeps.items():
        folders[pack] = tmp_path_factory.mktemp("swept_folders")
        (folders[pack] / "assets").symlink_to(ROOT / "assets")
        readers_files.write_readers_files(folders[pack])
        if "generate" in JOBS:
            from plugins.generation.tests.pipelines import save_pipeline

            save_pipeline(folders[pack] / "tiny-sd")
        for file in REFERENCE_FOLDER.glob("tifa160/*.json"):
            (folders[pack] / file.name).symlink_to(file.resolve())
        problem = run(command, folders[pack], environment)
        assert not problem, problem
    s3_server.filesystem().put(f"{folders[False]}/store/", "bucket/plumbline/", recursive=True)
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, commands in COMMANDS_BY_PAGE.items() if commands])
def test_the_commands_of_a_page_run_one_after_the_other(
    page: str, swept_folders: Mapping[bool, Path], environment: Mapping[str, str], tmp_path: Path
) -> None:
    folders = {}
    for pack, folder in swept_folders.items():
        folders[pack] = shutil.copytree(folder, tmp_path / str(pack), symlinks=True)
    failed = []
    for command in COMMANDS_BY_PAGE[page]:
        if RELEASED_DATA_PATTERN.search(command) and not REFERENCE_FOLDER.is_dir():
            continue
        folder = folders[is_about_pack(command)]
        if command.startswith("ingest "):
            shutil.rmtree(folder / "data/own", ignore_errors=True)  # each command starts without it
        if problem := run(command, folder, environment):
            failed.append(f"{command}: {problem}")
        print("failed" if problem else "ran", command)
    assert not failed, "\n\n".join(failed)
