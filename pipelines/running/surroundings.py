"""What every process of a run gets from the driver's environment, and which of the driver's files it must see."""

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
from plumbline.pipelines.base.storage import (
    Place,
    cloud_variables,
    readable_errors,
)
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.running.errors import RunnerError
from plumbline.pipelines.running.progress import living_machines
from plumbline.pipelines.running.workload import Workload

VARIABLES = ("HF_TOKEN", "HF_ENDPOINT")
"""Variables that workers inherit from the driver, besides `AWS_*`, `GOOGLE_*`, `AZURE_*` and the models' API keys."""


class Landmark(NamedTuple):
    """A file that every machine must see as the driver does."""

    what: str
    """What it shows to be there, for a person."""
    place: Place
    size: int
    etag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The driver's credentials, and files that show whether a process sees the driver's store and sources.

    They travel as an argument through the object store, because Ray writes a `runtime_env` into its log files.
    """

    variables: Mapping[str, str] = field(repr=False)
    """The driver's environment variables."""
    landmarks: tuple[Landmark, ...]

    def apply_environment(self) -> None:
        """Sets the variables in this process; raises RunnerError if it sees another store or source."""
        os.environ.update(self.variables)
        for landmark in self.landmarks:
            problem = self._problem(landmark)
            if problem is not None:
                machine = ray.util.get_node_ip_address()
                raise RunnerError(f"the machine {machine} {problem}")

    def _problem(self, landmark: Landmark) -> str | None:
        """What is wrong with a landmark, with the remedy. An unreadable one is not taken for another file."""
        try:
            with readable_errors(landmark.place, "file"):
                seen = _look(landmark.place)
        except PlumblineError as error:
            return f"cannot look at the {landmark.what} ({error})"
        if seen == (landmark.size, landmark.etag):
            return None
        difference = "nothing is there" if seen is None else "another file is there"
        return (
            f"does not see the {landmark.what} as the driver does ({landmark.place}: {difference}); "
            "name an address in a cloud, or a folder that all machines of the cluster share"
        )


def _look(location: Place) -> tuple[int, str] | None:
    """The size and etag of a file; None where it is not there."""
    try:
        entry = location.entry()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return entry.size, entry.etag


def sweep_surroundings(store: Store, workload: Workload) -> AbstractContextManager[Surroundings]:
    """Of each plan its models' keys, one file of its prompts and one of its images, and the store."""
    models = [model for item in workload.nodes for model in item.node.models.values()]
    keys = {model.config.key_variable for model in models if isinstance(model.config, ServiceModel)}
    shards = [
        work.shard
        for plan in workload.plans.values()
        for cells in (plan.prompts, plan.images)
        for work in islice(plan.work(cells), 1)
    ]
    sources = [
        Landmark(f"source {shard.place}", shard.place, shard.size, shard.etag)
        for shard in shards
        if shard.etag  # which a folder has none of
    ]
    return surroundings(f"store {store.place}", store.place, sources, {*keys, *VARIABLES})


@contextmanager
def surroundings(
    what: str, folder: Place, sources: Collection[Landmark], names: Collection[str] = ()
) -> Iterator[Surroundings]:
    """The surroundings of a run, which keeps a marker in the folder that its processes write to.

    `names` are environment variables besides the clouds'. Raises RunnerError for a machine that does not see the
    driver's files.
    """
    marker = folder / f"markers/{uuid.uuid4().hex}"
    marker.write(marker.url.encode())
    try:
        named = {name: os.environ[name] for name in names if name in os.environ}
        given = Surroundings(variables=cloud_variables() | named, landmarks=(landmark(what, marker), *sources))
        _check_machines(given)
        yield given
    finally:
        with suppress(OSError):
            marker.remove()


def landmark(what: str, place: Place) -> Landmark:
    """A file as the driver sees it."""
    entry = place.entry()
    return Landmark(what, place, entry.size, entry.etag)


def _check_machines(given: Surroundings) -> None:
    """Looks from every machine, if there are several. One that joins later looks when its workers start."""
    machines = [machine["NodeID"] for machine in ray.nodes() if machine["Alive"] and machine["Resources"].get("CPU")]
    if len(machines) < 2:
        return
    look, argument = ray.remote(num_cpus=0)(_refusal), ray.put(given)
    places = [NodeAffinitySchedulingStrategy(machine, soft=False) for machine in machines]
    refusals = [look.options(scheduling_strategy=place).remote(argument) for place in places]
    for machine, refusal in zip(machines, refusals, strict=True):
        try:
            message = ray.get(refusal)
        except RayError:
            if machine in living_machines():
                raise
        else:
            if message is not None:
                raise RunnerError(message)


def _refusal(given: Surroundings) -> str | None:
    try:
        given.apply_environment()
    except RunnerError as error:
        return str(error)
    return None
