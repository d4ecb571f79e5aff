"""Table of all jobs in the core, the plugins and other packages."""

from collections.abc import Mapping
from types import ModuleType

from plumbline.operators.base.errors import ConfigError, describe_missing_plugin, suggest
from plumbline.operators.base.extensions import Extensions

JOB_ORDER = (
    "sweep", "score", "generate", "evaluate", "ingest", "questions", "status", "view", "report", "trends", "kinds",
    "diagnose", "distance", "bridge", "build_benchmark", "leaks", "metaeval", "reproduce", "rehearse", "labels", "rate",
    "accumulate", "captions", "nightly", "gate", "gc", "export", "publish", "rewards", "serve", "check_rewards",
    "train", "convert", "prove",
)  # fmt: skip
"""Our jobs, in the order that a new user would need them."""
PLUGIN_JOBS: Mapping[str, str] = {
    "kinds": "diagnosis",
    "diagnose": "diagnosis",
    "distance": "distances",
    "bridge": "gates",
    "gate": "gates",
    "labels": "rating",
    "rehearse": "rating",
    "build_benchmark": "benchmark_builder",
    "leaks": "benchmark_builder",
    "export": "exports",
    "publish": "exports",
    "evaluate": "checkpoint_evaluation",
    "generate": "generation",
    "rate": "rating",
    "convert": "reward_models",
    "prove": "proof",
    "serve": "reward_server",
    "check_rewards": "reward_server",
    "train": "training",
    "view": "viewer",
}
"""Plugin that provides each job, known even if the plugin is not installed; all other jobs are in the core."""
PLUGIN_CHOICES: Mapping[str, str] = {"image_model": "generation"}
"""Plugin that provides the choices for a group of the core's jobs, known even if the plugin is not installed."""
JOBS = Extensions[ModuleType](
    "jobs", {name: f"plumbline.jobs.{name}" for name in JOB_ORDER if name not in PLUGIN_JOBS}, ModuleType
)
"""Installed jobs; a job is a module with a COMMAND and a function `main`."""


def list_jobs() -> list[str]:
    """Return the names of the installed jobs, ours first."""
    return [*(name for name in JOB_ORDER if name in JOBS), *(name for name in JOBS if name not in JOB_ORDER)]


def find_job(name: str) -> ModuleType:
    """Return a job that is called by another job; raise ConfigError if its plugin is missing."""
    if name not in JOBS:
        raise ConfigError(describe_missing_job(name))
    return JOBS[name]


def describe_missing_job(name: str) -> str:
    """Return a message that says whether a job is not installed or does not exist, and what to do."""
    if name in PLUGIN_JOBS:
        return describe_missing_plugin(f"{name}: a job", PLUGIN_JOBS[name])
    return f"{name}: no job of that name; {suggest(name, list_jobs())} (plumbline --help lists them)"
