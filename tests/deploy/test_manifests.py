"""The files in jobs/deploy are valid for Kubernetes, KubeRay, the container build and cron."""

import os
import re
import shlex
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

from plumbline.pipelines.nightly.nightly_config import NightlyConfig
from plumbline.pipelines.running.placement import NodeResources, fits
from tests.commands import config_of

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "jobs" / "deploy"
KUBERAY_FIELDS = yaml.safe_load((Path(__file__).parent / "kuberay.yaml").read_text())
CRDS_FOLDER = os.environ.get("KUBERAY_CRDS")
KUBERNETES_VERSION = "1.34"
MANIFESTS = ("rayjob.yaml", "raycronjob.yaml", "cronjob.yaml")
SECRET_TEXT = re.compile(r"(?i)(secret_access_key|token|password|session_token)\s*[:=]\s*\S")


def read_documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def read_rayjob() -> dict[str, Any]:
    (manifest,) = read_documents("rayjob.yaml")
    return manifest


def close_schema(schema: Any) -> Any:
    """Close a custom resource's schema, so that it also refuses fields which the API server would drop."""
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
    """Raise ValidationError for fields that KubeRay or Kubernetes would refuse or drop."""
    if manifest["apiVersion"] != "ray.io/v1":
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
        return
    assert manifest.keys() == {"apiVersion", "kind", "metadata", "spec"}
    jsonschema.validate(manifest["spec"], read_schema(manifest["kind"]))
    job = manifest["spec"].get("jobTemplate", manifest["spec"])
    for template in list_pod_templates(job):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}, "template": template}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
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


def test_kuberays_further_rules_about_jobs_hold() -> None:
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
    for path in DEPLOY.iterdir():
        assert not SECRET_TEXT.search(path.read_text()), path


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
    """Return the job and the overrides in a shell command line."""
    words = shlex.split(command.replace(";", " ; "), comments=True)
    words = words[words.index("-m") + 1 :]
    ends = [words.index(end) for end in (";", ">>") if end in words]
    job, *overrides = words[: min(ends)]
    return job.removeprefix("jobs."), overrides


def read_crontab_line() -> str:
    return (DEPLOY / "crontab").read_text().splitlines()[-1]


def read_entrypoint() -> str:
    return str(read_rayjob()["spec"]["entrypoint"])


def plan_night(overrides: Sequence[str]) -> NightlyConfig:
    return config_of("nightly", *overrides)


@pytest.mark.parametrize("line", [read_entrypoint(), read_crontab_line()], ids=["rayjob", "crontab"])
def test_the_arguments_of_a_night_are_valid(line: str) -> None:
    job, overrides = split_command(line)
    assert job == "nightly"
    config = plan_night(overrides)
    assert config.store == "s3://BUCKET/plumbline" and config.log.format == "json"


def test_the_arguments_of_the_weekly_collection_are_valid() -> None:
    job, overrides = split_command((DEPLOY / "crontab").read_text().splitlines()[-2])
    assert job == "gc"
    config = config_of(job, *overrides)
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
    assert all(fits([pool] * pool.max_size, [machine]) for pool in pools), "every pool can grow to its full size"
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
    """Return the Dockerfile's instructions with their arguments."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, said) for word, _, said in (line.partition(" ") for line in joined.splitlines() if line.strip())]


@pytest.mark.slow
def test_the_container_image_has_the_files_of_a_sweep_in_their_places(tmp_path: Path) -> None:
    """The test runs the image's own steps in a clean folder; packages that pip would download are already installed."""
    app, venv = tmp_path / "app", tmp_path / "venv"
    app.mkdir()
    ignored = {line.removeprefix("!") for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()}
    for word, said in read_instructions():
        if word == "COPY":
            *sources, target = said.split()
            assert set(sources) <= ignored, "everything else is ignored by the build"
            for source in sources:
                subprocess.run(["cp", "-r", ROOT / source, app / target], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/*/site-packages")
    (here,) = (path for path in sys.path if path.endswith("site-packages"))
    (site / "here.pth").write_text(here + "\n")
    (install,) = (said for word, said in read_instructions() if word == "RUN" and "pip install" in said)
    command = install.replace("python", f"{venv}/bin/python", 1).replace("${EXTRAS}", "cluster,api")
    offline = f"{command} --no-deps --no-build-isolation --quiet"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(["/bin/sh", "-c", offline], check=True, cwd=app, env=clean)
    done = subprocess.run(
        [f"{venv}/bin/plumbline", "sweep", "sweep=shapes", "dry_run=true", "store=store"],
        cwd=tmp_path, env=clean, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answers:vqa" in done.stdout
    assert not (site / "tests").exists() and list(site.glob("*/py.typed"))


def test_the_container_image_is_pinned_and_runs_without_root() -> None:
    said = read_instructions()
    (base,) = (text for word, text in said if word == "FROM")
    assert re.fullmatch(r"python:\$\{PYTHON\}-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert [text for word, text in said if word == "USER"][-1] == "1000"
    assert not [text for word, text in said if word in ("ADD", "ENV", "ARG") and re.search("KEY|SECRET|TOKEN", text)]
