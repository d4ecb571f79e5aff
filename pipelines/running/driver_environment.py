"""The driver's environment, passed to every process of a run: credentials, and files that the process must see."""

import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.models.service_config import ServiceModel
from plumbline.pipelines.base.storage import Place, convert_read_errors, list_cloud_variables
from plumbline.pipelines.running.errors import RunnerError
from plumbline.pipelines.running.progress import list_machines
from plumbline.pipelines.running.workload import Workload

HUB_VARIABLES = ("HF_TOKEN", "HF_ENDPOINT")
"""Variables that workers inherit from the driver, in addition to `AWS_*`, `GOOGLE_*`, `AZURE_*` and the models' API
keys.
"""


class VisibilityProbe(NamedTuple):
    """A file that must look the same on every machine as on the driver."""

    what: str
    """Description for error messages: the store, source or output that the file belongs to."""
    place: Place
    size: int
    etag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverEnvironment:
    """The driver's credentials, and files that show whether a process sees the same store and sources as the driver.

    The environment is passed as an argument through Ray's object store, because Ray writes a `runtime_env` into its log
    files.
    """

    variables: Mapping[str, str] = field(repr=False)
    probes: tuple[VisibilityProbe, ...]

    def apply(self) -> None:
        """Set the variables in this process; raise RunnerError if the process does not see the driver's files."""
        os.environ.update(self.variables)
        for probe in self.probes:
            problem = _find_problem(probe)
            if problem is not None:
                machine = ray.util.get_node_ip_address()
                raise RunnerError(f"the machine {machine} {problem}")


def _find_problem(probe: VisibilityProbe) -> str | None:
    """Return the problem with a probed file and its remedy, or None if this machine sees the same file as the driver.

    An unreadable file is reported as unreadable, not as a different file.
    """
    try:
        with convert_read_errors(probe.place, "file"):
            try:
                entry = probe.place.get_entry()
            except (FileNotFoundError, NotADirectoryError):
                difference = "nothing is there"
            else:
                if (entry.size, entry.etag) == (probe.size, probe.etag):
                    return None
                difference = "another file is there"
    except PlumblineError as error:
        return f"cannot check the {probe.what} ({error})"
    return (
        f"does not see the {probe.what} as the driver does ({probe.place}: {difference}); "
        "use a cloud address, or a folder that all machines of the cluster share"
    )


def open_sweep_environment(workload: Workload) -> AbstractContextManager[DriverEnvironment]:
    """Return a sweep's environment: its models' API keys, the Hugging Face hub's variables, and file probes.

    The probed files are a marker in the store and, for each plan and kind of shard, the first file with missing cells,
    if it has an ETag.
    """
    store = workload.store
    models = [model for item in workload.nodes for model in item.node.models.values()]
    keys = {model.config.key_variable for model in models if isinstance(model.config, ServiceModel)}
    shards = [
        work.shard
        for plan in workload.plans.values()
        for cells in plan.kinds
        for work in islice(plan.iterate_work(cells), 1)
    ]
    sources = [
        VisibilityProbe(f"source {shard.place}", shard.place, shard.size, shard.etag)
        for shard in shards
        if shard.etag  # folders have no ETag
    ]
    return open_driver_environment(f"store {store.place}", store.place, sources, {*keys, *HUB_VARIABLES})


@contextmanager
def open_driver_environment(
    what: str, folder: Place, sources: Collection[VisibilityProbe], names: Collection[str] = ()
) -> Iterator[DriverEnvironment]:
    """Yield a run's environment; until the context ends, keep a marker file in the folder that the run writes to.

    `what` describes the folder in error messages. `names` lists environment variables to pass in addition to the cloud
    credentials. Raise RunnerError if a machine does not see the driver's files.
    """
    marker = folder / f"markers/{uuid.uuid4().hex}"
    marker.write(marker.url.encode())
    try:
        named = {name: os.environ[name] for name in names if name in os.environ}
        probes = (probe_file(what, marker), *sources)
        environment = DriverEnvironment(variables=list_cloud_variables() | named, probes=probes)
        _check_machines(environment)
        yield environment
    finally:
        with suppress(OSError):
            marker.remove()


def probe_file(what: str, place: Place) -> VisibilityProbe:
    entry = place.get_entry()
    return VisibilityProbe(what, place, entry.size, entry.etag)


def _check_machines(environment: DriverEnvironment) -> None:
    """Apply the environment on every machine, if there are several; raise RunnerError if a machine cannot apply it.

    On machines that join later, workers apply the environment when they start.
    """
    machines = [machine["NodeID"] for machine in ray.nodes() if machine["Alive"] and machine["Resources"].get("CPU")]
    if len(machines) < 2:
        return
    task, argument = ray.remote(num_cpus=0)(_try_to_apply), ray.put(environment)
    on_each = [NodeAffinitySchedulingStrategy(machine, soft=False) for machine in machines]
    refusals = [task.options(scheduling_strategy=strategy).remote(argument) for strategy in on_each]
    for machine, refusal in zip(machines, refusals, strict=True):
        try:
            message = ray.get(refusal)
        except RayError:
            if machine in list_machines():
                raise
        else:
            if message is not None:
                raise RunnerError(message)


def _try_to_apply(environment: DriverEnvironment) -> str | None:
    try:
        environment.apply()
    except RunnerError as error:
        return str(error)
    return None
