"""The files in jobs/deploy are valid for Kubernetes, KubeRay, the container build and cron."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from PIL import Image

from plumbline.pipelines.nightly.nightly_config import NightlyConfig
from plumbline.pipelines.running.placement import NodeResources, pools_fit
from tests.commands import load_job_config

ROOT = Path(__file__).parent.parent.parent
DEPLOY_FOLDER = ROOT / "jobs" / "deploy"
KUBERAY_FIELDS = yaml.safe_load((Path(__file__).parent / "kuberay.yaml").read_text())
CRDS_FOLDER = os.environ.get("KUBERAY_CRDS")
KUBERNETES_VERSION = "1.34"
MANIFEST_NAMES = ("rayjob.yaml", "raycronjob.yaml", "cronjob.yaml")
SECRET_TEXT_PATTERN = re.compile(r"(?i)(secret_access_key|token|password|session_token)\s*[:=]\s*\S")


def read_documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY_FOLDER / name).read_text()))


def read_rayjob() -> dict[str, Any]:
    (manifest,) = read_documents("rayjob.yaml")
    return manifest


def close_schema(schema: Any) -> Any:
    """Return a custom resource's schema, changed to reject fields that the API server would silently drop."""
    if isinstance(schema, list):
        return [close_schema(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: close_schema(inner) for name, inner in schema.items()}
    open_object = made.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in made
    if made.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    return (
        made if open_object or not isinstance(made.get("properties"), dict) else {**made, "additionalProperties": False}
    )


def read_schema(kind: str) -> dict[str, Any]:
    """Return the schema of a kind's `spec`: KubeRay's own if its files exist, otherwise our list of the fields."""
    if CRDS_FOLDER is None:
        return {"definitions": KUBERAY_FIELDS["definitions"], **KUBERAY_FIELDS[kind]}
    crd = yaml.safe_load((Path(CRDS_FOLDER) / f"ray.io_{kind.lower()}s.yaml").read_text())
    (version,) = (version for version in crd["spec"]["versions"] if version["name"] == "v1")
    schema: dict[str, Any] = close_schema(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return schema


def list_pod_templates(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    cluster = job["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["template"]


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raise ValidationError for fields that KubeRay or Kubernetes would refuse or drop.

    A Ray manifest with missing or unexpected top-level fields fails an assertion instead.
    """
    if manifest["apiVersion"] != "ray.io/v1":
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
        return
    assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.validate(manifest["spec"], read_schema(manifest["kind"]))
    job = manifest["spec"].get("jobTemplate", manifest["spec"])
    for template in list_pod_templates(job):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}, "template": template}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("name", MANIFEST_NAMES)
def test_the_cluster_accepts_every_manifest(name: str) -> None:
    for manifest in read_documents(name):
        check_manifest(manifest)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("schedule", "0 1 * * *"),
        ("backOffLimit", 1),
        ("ttlSecondsAfterFinished", "600"),
        ("rayClusterSpec.workerGroups", []),
        ("rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("rayClusterSpec.headGroupSpec.template.spec.terminationGraceSeconds", 60),
        ("rayClusterSpec.workerGroupSpecs.0.label", {}),
        ("rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.resource", {}),
    ],
)
def test_a_field_that_would_be_dropped_or_is_of_another_type_is_refused(place: str, value: object) -> None:
    manifest = read_rayjob()
    at: Any = manifest["spec"]
    *path, last = place.split(".")
    for name in path:
        at = at[int(name)] if name.isdigit() else at[name]
    at[last] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check_manifest(manifest)


def test_kuberays_schedule_starts_the_same_job() -> None:
    (scheduled,) = read_documents("raycronjob.yaml")
    assert scheduled["spec"]["jobTemplate"] == read_rayjob()["spec"]
    cron = read_documents("cronjob.yaml")[0]
    assert scheduled["spec"]["schedule"] == cron["spec"]["schedule"]


def test_the_rayjob_follows_rules_that_only_kuberays_code_contains() -> None:
    """The rules are in KubeRay's validation.go: a TTL needs a shutdown, and a queue needs suspendable jobs."""
    manifest = read_rayjob()
    spec = manifest["spec"]
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert spec["shutdownAfterJobFinishes"] and spec["ttlSecondsAfterFinished"] > 0
    assert "clusterSelector" not in spec and not spec.get("suspend")
    assert "enableInTreeAutoscaling" not in spec["rayClusterSpec"], "Kueue can only admit a cluster of fixed size"
    head, *workers = list_pod_templates(spec)
    (image,) = {container["image"] for pod in (head, *workers) for container in pod["spec"]["containers"]}
    assert image == "REGISTRY/plumbline:TAG"
    (ray,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cluster"]
    assert spec["rayClusterSpec"]["rayVersion"] in Requirement(ray).specifier


def test_no_file_contains_a_secret_and_only_the_head_gets_them() -> None:
    head, *workers = list_pod_templates(read_rayjob()["spec"])
    assert head["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "plumbline"}}]
    assert not [
        pod
        for pod in workers
        for container in pod["spec"]["containers"]
        if "env" in container or "envFrom" in container
    ]
    assert "runtimeEnvYAML" not in read_rayjob()["spec"], "Ray writes it into its log files"
    for path in DEPLOY_FOLDER.iterdir():
        assert not SECRET_TEXT_PATTERN.search(path.read_text()), path


def test_every_pod_is_without_privileges() -> None:
    pods = [
        *list_pod_templates(read_rayjob()["spec"]),
        read_documents("cronjob.yaml")[0]["spec"]["jobTemplate"]["spec"]["template"],
    ]
    for pod in pods:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 1000
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def split_command(command: str) -> tuple[str, list[str]]:
    """Return the name of the job that a shell command line runs with `python -m jobs.NAME`, and the job's arguments."""
    words = shlex.split(command.replace(";", " ; "), comments=True)
    words = words[words.index("-m") + 1 :]
    ends = [words.index(end) for end in (";", ">>") if end in words]
    job, *overrides = words[: min(ends)]
    return job.removeprefix("jobs."), overrides


def read_crontab_line() -> str:
    return (DEPLOY_FOLDER / "crontab").read_text().splitlines()[-1]


def read_entrypoint() -> str:
    return str(read_rayjob()["spec"]["entrypoint"])


def plan_night(overrides: Sequence[str]) -> NightlyConfig:
    return load_job_config("nightly", *overrides)


@pytest.mark.parametrize("line", [read_entrypoint(), read_crontab_line()], ids=["rayjob", "crontab"])
def test_the_arguments_of_a_night_are_valid(line: str) -> None:
    job, overrides = split_command(line)
    assert job == "nightly"
    config = plan_night(overrides)
    assert config.store == "s3://BUCKET/plumbline" and config.log.format == "json"


def test_the_arguments_of_the_weekly_collection_are_valid() -> None:
    job, overrides = split_command((DEPLOY_FOLDER / "crontab").read_text().splitlines()[-2])
    assert job == "gc"
    config = load_job_config(job, *overrides)
    assert config.delete and config.store == plan_night(split_command(read_crontab_line())[1]).store


def test_the_workers_have_the_resources_and_labels_that_the_pools_need() -> None:
    config = plan_night(split_command(read_entrypoint())[1])
    (group,) = read_rayjob()["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    resources = container["resources"]
    machine = NodeResources(
        cpus=float(resources["requests"]["cpu"]), gpus=float(resources["limits"]["nvidia.com/gpu"]),
        accelerators=frozenset({"H100"}), labels=group["labels"],
    )  # fmt: skip
    assert "H100" in group["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"]
    pools = [config.cluster.find_pool(name) for name in config.cluster.pools]
    assert all(machine.suits(pool) for pool in pools)
    assert all(pools_fit([pool] * pool.max_size, [machine]) for pool in pools), "every pool can grow to its full size"
    assert not all(NodeResources(cpus=64, gpus=8).suits(pool) for pool in pools), "another machine does not"


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (1, 1), (2, 0), (3, 3), (143, 143)])
def test_the_entrypoint_only_succeeds_for_a_run_within_its_budget(code: int, ended: int, tmp_path: Path) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert subprocess.run(["/bin/sh", "-c", read_entrypoint()], env={**os.environ, "PATH": path}).returncode == ended


def test_a_night_ends_cleanly_before_its_cluster_does() -> None:
    spec = read_rayjob()["spec"]
    deadline = plan_night(split_command(read_entrypoint())[1]).nightly.deadline
    assert deadline is not None and deadline < spec["activeDeadlineSeconds"] < 24 * 3600


def read_instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions in order, as (instruction, arguments)."""
    lines = [line for line in (DEPLOY_FOLDER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, said) for word, _, said in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def copy_context(arguments: str, folder: Path) -> None:
    """Do what a COPY instruction with these arguments does, but with a target relative to `folder`.

    Files that the container build ignores are not copied.
    """
    lines = (DEPLOY_FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    ignored = shutil.ignore_patterns(*(line.removeprefix("**/") for line in lines if line.startswith("**/")))
    *sources, target = arguments.split()
    assert lines[0] == "*" and set(sources) <= sent, "everything else is ignored by the build"
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / source, folder / target)


def build_image(root: Path, environment: dict[str, str]) -> tuple[list[str], Path, dict[str, str]]:
    """Carry out the Dockerfile's instructions below `root`, without installing Debian packages or creating users.

    `environment` is the base image's. Return the built image's command, working folder and environment.
    """
    folder, command, stages = root, list[str](), 0
    for word, said in read_instructions():
        if word == "FROM":
            stages += 1
        elif word in ("ARG", "ENV") and stages:  # an ARG before FROM only chooses the base image
            pairs = dict(item.split("=", 1) for item in shlex.split(said))
            environment |= {name: f"{root}{value}" if value.startswith("/") else value for name, value in pairs.items()}
        elif word == "WORKDIR":
            folder = root / said.removeprefix("/")
            folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            copy_context(said, folder)
        elif word == "RUN" and not said.startswith("apt-get "):
            subprocess.run(["/bin/sh", "-c", said], check=True, cwd=folder, env=environment)
        elif word == "CMD":
            command = json.loads(said)
        else:
            assert word in ("ARG", "USER", "RUN"), f"{word}: teach this test to carry it out"
    assert stages == 1
    return command, folder, environment


@pytest.mark.slow
def test_the_container_image_scores_images_and_plans_a_sweep(tmp_path: Path) -> None:
    """The test runs the Dockerfile's own commands; packages that pip would download are already installed."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/*/site-packages")
    (here,) = (path for path in sys.path if path.endswith("site-packages"))
    (site / "here.pth").write_text(here + "\n")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    offline = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}  # 0 means no isolation
    base = {**clean, **offline, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    command, home, environment = build_image(tmp_path / "image", base)

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "plumbline score" in run(*command)
    (home / "outputs").mkdir()
    for number, colour in enumerate(("red", "blue")):
        Image.effect_noise((64, 64), 80).save(home / f"outputs/{number}.png")
        (home / f"outputs/{number}.txt").write_text(f"a {colour} circle")
    printed = run("plumbline", "score", "images=outputs", "metric=[clipscore]", "models=shapes", "cluster=here")
    assert "scores: 1/1 cells" in printed and "0 failed rows" in printed and list(home.glob("store/runs/*/report.html"))
    assert "answers:vqa" in run("plumbline", "sweep", "sweep=shapes", "dry_run=true", "store=store")
    assert str(site) in run("python", "-c", "import plumbline; print(plumbline.__file__)")
    assert not (site / "tests").exists() and list(site.glob("*/py.typed"))


def test_the_container_image_installs_extras_and_a_python_that_the_project_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    arguments = dict(text.split("=", 1) for word, text in read_instructions() if word == "ARG")
    assert set(arguments["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    assert arguments["PYTHON"] in SpecifierSet(project["requires-python"])


def test_the_container_image_is_pinned_and_runs_without_root() -> None:
    said = read_instructions()
    (base,) = (text for word, text in said if word == "FROM")
    assert re.fullmatch(r"python:\$\{PYTHON\}-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert [text for word, text in said if word == "USER"][-1] == "1000"
    assert not [text for word, text in said if word in ("ADD", "ENV", "ARG") and re.search("KEY|SECRET|TOKEN", text)]
