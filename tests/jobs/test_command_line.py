"""The command line and the configuration keys are stable: changing them would break someone's nightly run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from plumbline.jobs.command import get_command, load_values, run_job
from plumbline.jobs.help import describe_options, list_choice_names, list_dotted_keys, list_examples, list_keys_of_job
from plumbline.jobs.status import COMMAND as status_command
from plumbline.jobs.sweep import COMMAND, main
from plumbline.jobs.table import JOBS
from plumbline.operators.models.families import FAMILIES
from plumbline.pipelines.plans.sweep_config import StatusConfig, SweepConfig, read_config
from plumbline.pipelines.sources.question_packs import PACKS
from tests.commands import load_job_config, open_store_at, run, run_for_output, run_refused
from tests.files import write_files
from tests.operators.tiny import draw_image

ROOT = Path(__file__).parent.parent.parent

MODEL_ROLES = ("vqa", "clip", "llm", "nli", "matcher")
OWN_BENCHMARK_OPTIONS = ("benchmark.prompts=p", "benchmark.images=i")


def read_example(name: str) -> list[str]:
    *_, last = list_examples(name)
    return shlex.split(last.removeprefix(f"plumbline {name}"))


def list_options(config: Any, path: str = "") -> Iterator[str]:
    """Yield the fields of a configuration, including nested configurations, as keys."""
    inner = {field.name: getattr(config, field.name) for field in fields(config)} if is_dataclass(config) else config
    if isinstance(inner, Mapping):
        for name, value in inner.items():
            yield f"{path}{name}"
            yield from list_options(value, f"{path}{name}.")


@pytest.mark.parametrize("name", JOBS)
def test_every_option_of_a_job_is_a_key_of_its_configuration(name: str) -> None:
    """Each option can be set with KEY=VALUE, without a +."""
    config = parse_words(name, *read_example(name))
    written = set(list_dotted_keys(yaml.safe_load(run_for_output(name, *read_example(name), "--config"))))
    assert {key for key in set(list_options(config)) - written if not key.startswith("taxonomy.")} == set()


def test_one_word_runs_a_shipped_vllm_model_on_transformers() -> None:
    values = load_values(
        get_command("sweep"),
        [
            "sweep=own_images",
            "benchmark.prompts=x",
            "benchmark.images=x",
            "model@models.vqa=qwen2_5_vl_7b",
            "models.vqa.engine=transformers",
        ],
    )
    assert read_config(values, SweepConfig).models["vqa"].engine == "transformers"


@cache
def list_keys_of_own_images() -> set[str]:
    return set(list_dotted_keys(load_values(get_command("sweep"), ["sweep=own_images", *OWN_BENCHMARK_OPTIONS])))


@pytest.mark.parametrize("benchmark", list_choice_names("benchmark", None))
def test_every_ready_made_benchmark_has_the_same_keys_and_fits_any_sweep(benchmark: str) -> None:
    given = ["benchmark.prompts=s3://b/prompts.json", "benchmark.images=s3://b/images"]
    given += ["benchmark.questions=s3://b/questions.json"] if benchmark in PACKS else []
    values = load_values(get_command("sweep"), ["sweep=own_images", f"benchmark={benchmark}", *given])
    assert set(list_dotted_keys(values)) == list_keys_of_own_images()
    assert read_config(values, SweepConfig).benchmark.columns.prompt == "prompt"


def test_only_models_that_resize_images_have_the_key_max_pixels() -> None:
    given = [
        "sweep=own_images",
        "benchmark.prompts=p",
        "benchmark.images=i",
        "models.vqa.max_pixels=262144",
        "--config",
    ]
    assert (
        yaml.safe_load(run_for_output("sweep", "model@models.vqa=qwen2_5_vl_7b", *given))["models"]["vqa"]["max_pixels"]
        == 262144
    )
    assert "'models.vqa.max_pixels': an option of vlm, not of this model" in run_refused("sweep", *given, code=64)


def test_models_are_chosen_together_or_one_by_one() -> None:
    given = ["sweep=own_images", *OWN_BENCHMARK_OPTIONS]
    tiny = load_values(get_command("sweep"), [*given, "models=shapes"])["models"]
    assert [Path(model["checkpoint"]).name for model in tiny.values()] == [
        "clip-flant5-shapes", "clip-shapes", "question-writer-shapes", "nli-shapes", "clip-shapes",
        "pair-judge-shapes", *(["PP-OCRv6_small"] if "rapidocr" in FAMILIES else []),
    ]  # fmt: skip
    one = load_values(get_command("sweep"), [*given, "model@models.vqa=clip_flant5_xxl"])["models"]
    assert [one[role]["checkpoint"] for role in MODEL_ROLES] == [
        "zhiqiulin/clip-flant5-xxl", "openai/clip-vit-base-patch32", "Qwen/Qwen2.5-7B-Instruct",
        "google/t5_xxl_true_nli_mixture", "sentence-transformers/all-MiniLM-L6-v2"
    ]  # fmt: skip


def test_a_hosted_model_can_write_the_questions() -> None:
    given = ["sweep=shapes", "model@models.llm=api", "models.llm.checkpoint=some-model", "models.llm.endpoint=null"]
    assert load_job_config("sweep", *given).models["llm"].family == "openai"


@pytest.mark.parametrize("protocol", list_choice_names("protocol", None))
def test_every_ready_made_protocol_is_valid(protocol: str) -> None:
    path = "test_captions.json" if protocol == "pick_a_pic_clean" else "p"
    assert load_job_config("metaeval", f"protocol={protocol}", f"protocol.path={path}").protocol.path == path


@pytest.mark.parametrize("adaptive", list_choice_names("adaptive", None))
def test_every_ready_made_adaptive_setting_is_valid(adaptive: str) -> None:
    config = load_job_config("sweep", "sweep=shapes", f"adaptive={adaptive}")
    assert config.adaptive is not None


SWEEPS_AND_CLUSTERS = [
    *(("own_images", cluster) for cluster in list_choice_names("cluster", None)),
    ("shapes", "auto"),
    ("gecko_ablation", "auto"),
]
"""Pairs of a sweep and a cluster: one sweep with every cluster, and the other sweeps with one cluster each."""


@pytest.mark.parametrize(("sweep", "cluster"), SWEEPS_AND_CLUSTERS)
def test_every_ready_made_sweep_and_cluster_is_valid_with_every_metric(sweep: str, cluster: str) -> None:
    metrics = list_choice_names("metric", None)
    everything = f"metric=[{','.join(metrics)}]"
    asked = ["benchmark.questions=s3://b/questions.csv", "benchmark.question_pack=dsg_1k"]
    asked += ["benchmark.columns.source=source"]
    asked += ["benchmark.columns.source_caption=was", "benchmark.columns.target_caption=wanted"]
    own = OWN_BENCHMARK_OPTIONS if sweep == "own_images" else ()
    config = load_job_config(
        "sweep", f"sweep={sweep}", *own, everything, *asked, "models=released", f"cluster={cluster}"
    )
    assert set(metrics) - set(config.metrics) == {"vqascore_templates"}, "a choice of several metrics"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["storre=x"], "unknown config key 'storre'; did you mean store or storage?"),
        (["models.llm.engine_options={max_model_len: 1}"], "to add it, write +models.llm.engine_options.NAME=VALUE"),
        (["benchmark.generator=[a]"], "unknown config key 'benchmark.generator'; did you mean benchmark.generators"),
        (
            ["benchmark.generators=flux"],
            "'benchmark.generators': expected a list, got 'flux'; write benchmark.generators=[flux]",
        ),
        (["limits=4"], "config key 'limits': expected keys of its own, got 4; write limits.NAME=VALUE"),
        (["limit=few"], "config key 'benchmark.limit': expected a whole number, got 'few'"),
        (["model=api"], "config key 'model': a model is chosen for a role; write model@models.ROLE=NAME"),
        (["model@models.mine=api"], "to add it, write +model@models.mine=NAME"),
        (["shard_rows=many"], "config key 'shard_rows': expected a whole number, got 'many'"),
        (["metrics.vqascore.reduction=mode"], "expected 'mean', 'product' or 'first', got 'mode'"),
        (["cluster.pools.answers.num_gpus=1.5"], "expected a fraction below 1 or a whole number, got 1.5"),
        (["limits.max_seconds=nan"], "config key 'limits.max_seconds': expected a finite number, got nan"),
        (["cluster.wait_seconds=nan"], "config key 'cluster.wait_seconds': expected a finite number, got nan"),
        (["max_failed=7"], "max_failed: expected a fraction between 0 and 1, got 7"),
        (["cluster=gpu9"], "cluster=gpu9: no such choice; did you mean gpu8 or gpu1?"),
        (["metric=[clipscor]"], "metric=clipscor: no such choice; did you mean clipscore"),
        (["+models.other={family: clip}"], "config key 'models.other.checkpoint' is required and not set"),
        (["+models.clip.chekpoint=x"], "unknown config key 'models.clip.chekpoint'; did you mean checkpoint"),
        (
            ["metrics.gecko.nli=vqa"],
            "gecko.nli: gecko needs a nli model, but the model for role 'vqa' is a clip_flant5",
        ),
        (["metrics.gecko.threshold=7"], "gecko threshold: expected a fraction between 0 and 1, got 7.0"),
        (["metrics.dsg.writer=nobody"], "metrics.dsg.writer: no model has the role 'nobody'"),
        (
            ["metric=[pickscore]"],
            "no model has the role 'pickscore'; the sweep's roles are vqa, clip, llm, nli, matcher",
        ),
        (["metric=[pickscore]"], "add it with +model@models.pickscore=NAME"),
        (["model@models.pickscore=pickscore"], "to add it, write +model@models.pickscore=NAME"),
        (["metrics.tifa.filtr=x"], "unknown config key 'metrics.tifa.filtr'; did you mean metrics.tifa.filter"),
        (
            ["models.vqa.engine=vllm"],
            "config key 'models.vqa.engine': an option of causal_lm and vlm, not of this model; remove it",
        ),
        (
            ["+models.vqa.engine=vllm"],
            "engine: this option belongs to causal_lm and vlm; remove it from this clip_flant5 model",
        ),
        (["sweep=own_images"], "config key 'benchmark.images' is required; set it"),
        (["~benchmark.nothing"], "config key 'benchmark.nothing' cannot be removed: the key does not exist"),
        (["store@other=a"], "store@other=a: 'store' is not a group of choices; remove @other"),
        (["benchmark.columns.imge=x"], "unknown config key 'benchmark.columns.imge'; did you mean"),
        (["benchmark.columns.extra=[score]"], "benchmark.columns.extra: the scores already have a column 'score'"),
        (["benchmark.generators={a: b}"], "expected either images, or generators as {name: path}, got images="),
        (["benchmark.images=null"], "expected either images, or generators as {name: path}, got images=None"),
        (["--nope"], "--nope: no such option; keys have no dashes"),
        (["store=caf\udce9"], ""),
        (["--config-dir=/nowhere"], "no such folder"),
        (["images=[a"], "'benchmark.images=[a' cannot be read: expected KEY=VALUE, with every bracket"),
        (["dry_run=maybe"], "'dry_run': expected true or false, got 'maybe'"),
        (["limit=1.5"], "'benchmark.limit': expected a whole number, got 1.5"),
        (["limit=1,2"], "'benchmark.limit': expected a whole number, got [1, 2]"),
        (["+store=x"], "'store' exists already; write store=VALUE, without the +"),
        (["report", "--run", "latest"], "--run: no such option; keys have no dashes, as in run=VALUE"),
        (["metaeval"], "'protocol' is required; choose one: protocol="),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_refused_in_one_line_with_the_remedy_and_without_hydras_own_message(
    words: list[str], complaint: str
) -> None:
    given = words if words[0] in JOBS else ["sweep", "sweep=shapes", "dry_run=true", *words]
    line = run_refused(*given, code=64)
    assert line.startswith("error: ") and complaint in line
    assert not any(foreign in line.casefold() for foreign in ("hydra", "override", "input should", "eof", "multirun"))


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("benchmark.images=/nowhere", "benchmark.images /nowhere: not found"),
        ("store=s3://bucket/x", "s3://: no credentials found; set AWS_ACCESS_KEY_ID"),
        ("models.vqa.checkpoint=/nowhere", "model '/nowhere': expected a folder or a hub id"),
        ("benchmark.columns.image=pix", "column(s) pix, found image_id"),
        ("benchmark.columns.image=pix", "or correct benchmark.columns.image"),
        ("benchmark.prompt_columns.text=caption", "or correct benchmark.prompt_columns.text"),
        ("benchmark.columns.extra=[seed]", "benchmark.columns.extra: no images table has a column 'seed'; found"),
        ("benchmark.prompts=null", "column(s) prompt, found image_id"),
        ("store=s3://", ""),
    ],
)
def test_a_command_line_that_names_something_missing_has_another_exit_code(word: str, complaint: str) -> None:
    line = run_refused("sweep", "sweep=shapes", "dry_run=true", word, code=1)
    assert line.startswith("error: ") and complaint in line


def parse_words(job: str, *words: str) -> Any:
    given: list[Any] = []
    assert run_job(get_command(job), lambda config: given.append(config) or 0, words) == 0
    return given[0]


SWEEP_COMMANDS = (
    "sweep shapes", "score outputs", "nightly shapes", "diagnose shapes", "serve models=shapes",
    "metaeval tifa160 protocol.path=p",
)  # fmt: skip
"""Commands that take metrics; some of them are jobs of plugins."""
SWEEP_WORDS = ["metric=vqascore", "metrics=vqascore", "metric=[vqascore]", "metrics=[vqascore]"]


@pytest.mark.parametrize("word", SWEEP_WORDS)
@pytest.mark.parametrize("job", [words for words in SWEEP_COMMANDS if words.split()[0] in JOBS])
def test_metric_and_metrics_are_the_same_key_of_every_job(job: str, word: str) -> None:
    assert list(parse_words(*job.split(), word).metrics) == ["vqascore"]


def test_metrics_are_understood_without_brackets_and_with_their_own_options() -> None:
    assert list(parse_words("sweep", "metrics=clipscore,gecko").metrics) == ["clipscore", "gecko"]
    assert parse_words("rewards", "format=pairs", "output=o", "reward={dsg: 2}").reward.weights == {"dsg": 2}
    assert parse_words("rewards", "format=pairs", "output=o", "reward=dsg").reward.single_metric == "dsg"
    assert parse_words("sweep", "metrics={vqascore: {reduction: product}}").metrics["vqascore"].reduction == "product"


def test_a_word_without_a_key_is_the_jobs_main_input() -> None:
    assert parse_words("sweep").benchmark.name == parse_words("sweep", "shapes").benchmark.name == "shapes"
    assert parse_words("sweep", "limit=3", "--dry-run").benchmark.name == "shapes"
    assert parse_words("score", "outputs").benchmark.images == "outputs"
    assert parse_words("report", "20260101-000000").run == "20260101-000000"
    assert parse_words("gc", "s3://bucket/store").store == "s3://bucket/store"
    assert "'outputs': expected KEY=VALUE, such as" in run_refused("ingest", "outputs", code=64)
    unsaid = run_refused("sweep", *OWN_BENCHMARK_OPTIONS, code=64)
    assert "'sweep' is required; choose one: sweep=gecko_ablation, sweep=own_images" in unsaid


@pytest.mark.parametrize("flag", ["dry-run", "dry_run", "verbose", "retry-failed"])
def test_a_boolean_key_may_be_written_as_a_flag(flag: str) -> None:
    for words in ([f"--{flag}", "shapes", "limit=3"], ["shapes", f"--{flag}", "limit=3"]):
        config = parse_words("sweep", *words)
        assert getattr(config, flag.replace("-", "_")) is True and config.benchmark.limit == 3
    assert parse_words("gc", "--delete").delete is True


@pytest.mark.parametrize(
    "path", ["out (1)/a=b.png", "ümlaut/漢字.csv", "it's here", "~/images", "s3://b/i?x=1", "C:\\images\\", "#1;!a"]
)
def test_every_path_is_read_literally(path: str) -> None:
    assert parse_words("score", f"images={path}").benchmark.images == path
    assert parse_words("status", f"store={path}").store == path


# Imports of a command

SLOW_LIBRARIES = {"torch", "transformers", "ray", "scipy.stats", "evalica", "huggingface_hub"}
"""Libraries that take a second or more to import, so that help, status and report must not import them."""


@pytest.mark.parametrize(
    "job, others", [("status", {"pandas", "scipy", "jinja2", "vl_convert", "httpx"}), ("report", set())]
)
def test_help_does_not_import_slow_libraries(job: str, others: set[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", f"jobs.{job}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "plumbline.jobs.command" in imported and not imported & (SLOW_LIBRARIES | others)


# Limits of the machine


def run_status(*, store: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs.status", f"store={store}"]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options)


def assert_one_line_error(done: subprocess.CompletedProcess[str], remedy: str) -> None:
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and remedy in line


def test_output_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    open_store_at(tmp_path).check()
    with Path("/dev/full").open("w") as full:
        assert_one_line_error(run_status(store=tmp_path, stdout=full), "the disk is full: free some space")
    reading, writing = os.pipe()
    os.close(reading)
    assert_one_line_error(run_status(store=tmp_path, stdout=writing), "the program that read the output has ended")
    os.close(writing)


@pytest.mark.parametrize("megabytes", [1023, 700, 340, 260])
def test_too_little_address_space_is_refused_before_libraries_are_loaded(tmp_path: Path, megabytes: int) -> None:
    """Below about 350 MB, libraries hang or crash at sizes that depend on the interpreter and the machine."""
    command = [sys.executable, "-X", "importtime", "-m", "jobs.status", f"store={tmp_path}"]
    limit = f"ulimit -v {megabytes << 10}; exec {shlex.join(command)}"
    done = subprocess.run(["/bin/sh", "-c", limit], capture_output=True, text=True, cwd=ROOT)
    imports = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    done.stderr = "\n".join(line for line in done.stderr.splitlines() if line not in imports)
    assert_one_line_error(done, "raise the limit (ulimit -v)")
    assert not any("numpy" in line or "pyarrow" in line for line in imports)


def test_memory_that_runs_out_later_is_reported_in_one_line() -> None:
    program = "import jobs; jobs.prepare_process(); bytearray(1 << 62)"  # larger than any address space
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert_one_line_error(done, "memory ran out: raise its limit (ulimit -v)")


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("too deep"), OSError(40, "Too many levels")], ids=repr)
def test_an_error_of_the_machine_is_reported_in_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(config: StatusConfig) -> int:
        raise error

    assert run_job(status_command, fail, []) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {type(error).__name__}")


def test_a_users_config_folder_adds_choices(tmp_path: Path) -> None:
    mine = "# @package _global_\ndefaults:\n  - /sweep/shapes\n  - _self_\nmax_failed: 0.5\n"
    write_files(tmp_path, {"sweep/mine.yaml": mine})
    assert parse_words("sweep", "sweep=mine", f"--config-dir={tmp_path}").max_failed == 0.5
    assert "no such folder" in run_refused("sweep", "sweep=mine", "--config-dir=/nowhere", code=64)
    assert "sweep=gecko_ablation | mine | own_images" in describe_options("sweep", SweepConfig, str(tmp_path))


BROKEN_YAML_FILES = {
    "tab": b"name: x\n\tprompts: y\n", "unclosed": b"name: [1, 2\n", "quote": b'name: "x\n', "colon": b"name: a: b\n",
    "binary": b"\xff\xfe\x00", "zero": b"name: \x00\n", "tag": b"name: !!python/object/apply:os.system ['true']\n",
    "twice": b"name: a\nname: b\n", "anchor": b"name: *missing\n", "circle": b"a: &x [*x]\n", "brace": b"name: ${\n",
    "aliases": b"a-1: &a-1 1\n" + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b"*a%d," % (n - 1) * 2) for n in range(40)),
    "long": b"name: " + b"x" * 1_000_000 + b"\n",
    "documents": b"a: 1\n---\nb: 2\n", "no key": b"~: 1\n",
    "number": b"name: " + b"9" * 5000 + b"\n", "table": b"? [a, b]\n: 1\n", "utf-16": "name: x\n".encode("utf-16"),
}  # fmt: skip


@pytest.mark.parametrize("content", BROKEN_YAML_FILES.values(), ids=BROKEN_YAML_FILES)
@pytest.mark.parametrize("group", ["benchmark", "sweep"])
def test_a_users_file_that_is_not_yaml_is_refused_in_one_line(group: str, content: bytes, tmp_path: Path) -> None:
    file = write_files(tmp_path, {f"{group}/mine.yaml": content}) / group / "mine.yaml"
    given = ["sweep=mine"] if group == "sweep" else ["sweep=shapes", "benchmark=mine"]
    line = run_refused("sweep", *given, "dry_run=true", f"--config-dir={tmp_path}", code=64)
    assert line.startswith(f"error: {file}: expected YAML") and line.endswith("; correct the file") and len(line) < 500


DOUBLING_VALUES = {
    "text": "${cluster.%s}${cluster.%s}",
    "select": "${oc.select:cluster.%s}${oc.select:cluster.%s}",
    "named by others": "${cluster.${oc.decode:%s}}${cluster.%s}",
    "list": "[ '${cluster.%s}', '${cluster.%s}' ]",
    "mapping": "{x: '${cluster.%s}', y: '${cluster.%s}'}",
    "name": "${name_of:${cluster.%s}}${name_of:${cluster.%s}}",
}
"""Configuration values that contain two references to the same other value `%s`, keyed by kind of reference."""


def assert_refused_for_its_length(folder: Path, values: Mapping[str, str]) -> None:
    write_files(folder, {"cluster/mine.yaml": "".join(f"{name}: {value}\n" for name, value in values.items())})
    line = run_refused("status", "+cluster=mine", f"--config-dir={folder}", code=64)
    assert line.startswith("error: config key 'cluster.a") and line.endswith(f"found more; correct {folder}")
    assert "expected interpolations that insert at most" in line and len(line) < 400


@pytest.mark.parametrize("value", DOUBLING_VALUES.values(), ids=DOUBLING_VALUES)
def test_values_that_double_in_each_of_30_steps_are_refused_at_once(value: str, tmp_path: Path) -> None:
    """Step n contains step n - 1 twice. The file starts with the last step, so that no step is resolved in advance."""
    steps = {f"a{n}": value.replace("%s", f"a{n - 1}") for n in range(30, 0, -1)}
    assert_refused_for_its_length(tmp_path, {**steps, "a0": "1"})


def test_a_long_text_that_one_value_repeats_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    assert_refused_for_its_length(tmp_path, {"a": "x" * 400_000, "b": "${cluster.a}" * 10_000})


def test_a_users_configuration_may_name_a_value_a_thousand_times(tmp_path: Path) -> None:
    write_files(tmp_path, {"cluster/mine.yaml": "a: x\n" + "".join(f"b{n}: ${{cluster.a}}/{n}\n" for n in range(1000))})
    shown = yaml.safe_load(run_for_output("status", "+cluster=mine", f"--config-dir={tmp_path}", "--config"))
    assert [shown["cluster"][f"b{n}"] for n in range(1000)] == [f"x/{n}" for n in range(1000)]


def test_help_texts_are_only_read_for_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help texts come from all files in conf/; reading them takes longer than everything else on the command line."""

    def fail_if_called(*_: object, whole: bool) -> str:
        raise AssertionError("help texts were read although nobody asked for help")

    monkeypatch.setattr("plumbline.jobs.command.describe_options", fail_if_called)
    assert run_job(COMMAND, lambda config: 0, ["sweep=shapes"]) == 0
    with pytest.raises(AssertionError, match="help texts were read"):
        run_job(COMMAND, main, ["--help"])


def test_help_names_the_choices() -> None:
    text = run("sweep", "--help-all").words
    for group, written in (("sweep", "sweep"), ("model", "model@models.ROLE"), ("metric", "metric")):
        assert f"{written}={' | '.join(list_choice_names(group, None))}" in text


@pytest.mark.parametrize("name", JOBS)
def test_help_starts_with_an_example_and_has_no_long_line(name: str) -> None:
    shown = run_for_output(name, "--help")
    assert max(map(len, run_for_output(name, "--help-all").splitlines())) <= 120
    assert len(shown.splitlines()) <= 75 and "--help-all" in shown
    assert re.match(rf"usage: .*\n\nexamples?:\n  plumbline {name}", shown)


def test_the_help_of_score_starts_with_three_examples_and_fits_two_screens() -> None:
    lines = run_for_output("score", "--help").splitlines()
    assert len(lines) <= 48 and max(map(len, lines)) <= 100
    assert all(line.startswith("  plumbline score images=") for line in lines[3:6])


def test_every_job_prints_the_version() -> None:
    assert run_for_output("sweep", "--version") == f"plumbline {version('plumbline-t2i')}\n"


@pytest.mark.parametrize("name", JOBS)
def test_help_lists_and_explains_every_key_of_a_job(name: str) -> None:
    schema = get_command(name).schema
    told = describe_options(name, schema, None).partition("keys, including")[2]
    for key in list_keys_of_job(name, schema):
        last = key.path.rpartition(".")[2]
        assert f"  {last}: {key.value}".rstrip() in told
        assert key.meaning or key.path.startswith(("protocols.", "cluster.pools.")), key.path


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_console_that_cannot_show_a_character_shows_its_escape_code(encoding: str, tmp_path: Path) -> None:
    folder = tmp_path / "images/日本"
    folder.mkdir(parents=True)
    for number in range(2):
        draw_image(number).save(folder / f"{number}.png")
    (folder / "prompts.txt").write_text("a red circle\n猫\n", "utf-8")
    words = [f"images={tmp_path}/images", "metric=[edge_density]", "cluster=here", f"store={tmp_path}/store"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "jobs.score", *words], capture_output=True, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr.decode(encoding)
    assert r"\u65e5\u672c" in done.stdout.decode(encoding) and "Traceback" not in done.stderr.decode(encoding)


def test_a_model_family_that_needs_a_newer_transformers_says_so_when_it_is_chosen(tmp_path: Path) -> None:
    installed = tmp_path / "site/transformers-5.6.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.6.0\n")
    environment = os.environ | {"PYTHONPATH": f"{installed.parent}{os.pathsep}{ROOT}"}
    words = ["sweep=shapes", "metric=[vqascore]", "dry_run=true", f"store={tmp_path}/store"]
    command = [sys.executable, "-m", "jobs.sweep", *words]
    refused = subprocess.run(
        [*command, "model@models.vqa=llava_1_5_7b"], env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert refused.stderr == (
        "error: family vlm needs transformers 5.16 or later, found 5.6.0; "
        "upgrade it: pip install 'transformers>=5.16'\n"
    )
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
