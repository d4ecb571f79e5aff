"""Runs a reward service. Ray Serve runs the replicas, and this process serves HTTP."""

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from plumbline.operators.base.errors import ConfigError, SourceError, format_install_remedy
from plumbline.operators.metrics.metric import Metric, PackedMetric, TextInImageMetric
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.operators.rewards.combination import REWARD_NAME, Reward
from plumbline.operators.scoring.scorer import compares_images
from plumbline.operators.stages.graph import check_image_inputs, list_source_metrics, make_nodes
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.plans.costs import try_services
from plumbline.pipelines.plans.plan import Node, make_metric_recipes
from plumbline.pipelines.rewards.baseline_scores import BaselineScores, read_baseline
from plumbline.pipelines.sources.question_packs import check_choices, digest_pack, read_pack
from plumbline.pipelines.sources.question_packs.pack import QuestionPack
from plumbline.pipelines.sources.uris import UriReader
from plumbline.pipelines.store.cells import digest
from plumbline.pipelines.store.store import open_store
from plumbline.pipelines.web.listening import (
    format_server_url,
    list_allowed_hosts,
    open_listening_socket,
    run_app,
    take_token,
)
from plumbline.plugins.reward_server.known_pair import KnownPair, score_known_pair
from plumbline.plugins.reward_server.question_store import QuestionStore
from plumbline.plugins.reward_server.sentinel import Sentinel
from plumbline.plugins.reward_server.serve_config import ServeConfig
from plumbline.plugins.reward_server.service import Counters, ReplicaDied, Service
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, Need, ScoreRequest, Served

LOG = logging.getLogger(__name__)

HEALTH_CHECK_INTERVAL_SECONDS = 1.0
"""Seconds between Ray Serve's health checks of a replica."""

NORMAL_PRIORITY_VARIABLES = {"RAY_worker_niceness": "0"}
"""Environment that gives replicas normal priority. By default, Ray's workers yield to all other processes (niceness
15), even to clients that are waiting for them.
"""


def find_nodes(config: ServeConfig) -> list[Node]:
    """Return the nodes that compute the metrics; raise ModelError if a model cannot be found."""
    metrics: dict[str, Metric] = {
        name: metric.complete_options(lambda role: find_vqa_profile(config.models[role]))
        for name, metric in config.metrics.items()
    }
    nodes = make_nodes(metrics)
    check_image_inputs(nodes, config.models, config.clips)
    on_gpu = config.num_gpus > 0
    return [
        Node(
            name=node.name,
            stage=node.stage.name,
            models={key: resolve_model(config.models[role], on_gpu=on_gpu) for key, role in node.roles.items()},
            metrics=node.metrics,
        )
        for node in nodes
    ]


def find_served_metrics(config: ServeConfig, nodes: Sequence[Node], pack: QuestionPack | None = None) -> Served:
    """Return the served metrics and the reward.

    The metrics have the same digests as scores of a sweep with the same metrics and models. Raises ConfigError if the
    baseline cannot be used.
    """
    resolved = {name: metric for node in nodes for name, metric in node.metrics.items()}
    metrics = {name: resolved[name] for name in config.metrics}
    questions = "" if pack is None else digest_pack(pack)
    digests = {
        name: make_metric_recipes(name, metric, nodes, config.clips, questions)["scores"].digest
        for name, metric in metrics.items()
    }
    lower_is_better = frozenset(name for name, metric in metrics.items() if metric.prefers_lower)
    unranked = frozenset(name for name, metric in metrics.items() if not metric.ranks)
    promptless = frozenset(name for name, metric in metrics.items() if not metric.reads_prompt)
    needs = _find_needs(config, metrics)
    if config.reward is None or config.reward.single_metric is not None:
        reward_name, watched = config.find_reward(), config.sentinel
        return Served(digests, reward_name, lower_is_better, unranked, needs, None, watched, promptless)
    recipes = {name: digests[name] for name in config.reward.weights}
    baseline = _read_baseline(config, recipes, recipes) if config.reward.unit != "score" else None
    scales = {} if baseline is None else baseline.compute_scales(config.reward.unit)
    reward = Reward(config.reward, lower_is_better, scales)
    digests |= {REWARD_NAME: digest({"parts": recipes, **reward.describe()})}
    return Served(digests, REWARD_NAME, lower_is_better, unranked, needs, reward, config.sentinel, promptless)


def _find_needs(config: ServeConfig, metrics: Mapping[str, Metric]) -> dict[Need, frozenset[str]]:
    """Return the metrics that need each input. A combined reward needs all inputs of its parts."""
    reward = config.reward
    needs: dict[Need, Collection[str]] = {
        "sources": list_source_metrics(metrics),
        "questions": [name for name, metric in metrics.items() if isinstance(metric, PackedMetric)],
        "words": [name for name, metric in metrics.items() if isinstance(metric, TextInImageMetric)],
        "group": [name for name, metric in metrics.items() if compares_images(metric)],
    }
    return {
        need: frozenset([*names, *([reward.name] if reward and reward.weights.keys() & {*names} else [])])
        for need, names in needs.items()
    }


def read_served_pack(config: ServeConfig) -> QuestionPack | None:
    """Read the configured question pack and log its problems; return None if no pack is configured.

    Raises ConfigError if the pack cannot be read or a metric cannot use its questions.
    """
    file = config.pack.find_pack_file(config.storage)
    if file is None:
        return None
    try:
        pack = read_pack(file, "served")
    except SourceError as error:
        raise ConfigError(f"{file.key}: {error}") from error
    check_choices(config.metrics, pack.choices, file.place.url)
    for problem in pack.problems:
        LOG.warning("%s", problem)
    return pack


def open_question_store(config: ServeConfig, nodes: Sequence[Node]) -> QuestionStore | None:
    """Open the store for questions that a language model writes; return None if no metric needs such questions."""
    recipes = {
        name: make_metric_recipes(name, metric, nodes, config.clips)["questions"]
        for node in nodes
        if node.stage == "questions" and node.models
        for name, metric in node.metrics.items()
    }
    if not recipes:
        return None
    store = open_store(config)
    store.check()
    return QuestionStore(store, recipes)


def serve(config: ServeConfig, ready: Callable[[str, KnownPair], None]) -> None:
    """Start the service, call `ready` with its address and the known images' scores, and serve until it is stopped.

    Raises ConfigError or ModelError before anything starts, and OSError if the port is in use.
    """
    from plumbline.pipelines.running.session import open_ray_session  # imports Ray, which may not be installed

    token, nodes = take_token(config.host, config.token_variable), find_nodes(config)
    pack = read_served_pack(config)
    served = find_served_metrics(config, nodes, pack)
    try_services(nodes)
    sentinel = make_sentinel(config, served)
    with (
        open_listening_socket(config.host, config.port) as listener,
        open_ray_session(ClusterConfig(address=config.address, pools={})),
        run_replicas(config, pack, open_question_store(config, nodes)) as handle,
    ):
        _serve_requests(config, token, served, sentinel, listener, handle, ready)


@contextmanager
def run_replicas(
    config: ServeConfig, pack: QuestionPack | None = None, written: QuestionStore | None = None
) -> Iterator[Any]:
    """Yield Ray Serve's handle for replicas that have loaded their models; Ray Serve's own HTTP proxy stays off."""
    try:
        from ray import serve as ray_serve
    except ImportError as error:
        raise ConfigError(f"Ray Serve is not installed; {format_install_remedy('serve')}") from error
    from plumbline.plugins.reward_server.replica import BATCHES_PER_REPLICA, Replica

    deployment = ray_serve.deployment(Replica).options(
        name="replica",
        num_replicas=config.replicas,
        ray_actor_options={
            "num_cpus": config.num_cpus,
            "num_gpus": config.num_gpus,
            "runtime_env": {"env_vars": NORMAL_PRIORITY_VARIABLES},
        },
        max_ongoing_requests=BATCHES_PER_REPLICA,
        max_constructor_retry_count=2,
        health_check_period_s=HEALTH_CHECK_INTERVAL_SECONDS,
        graceful_shutdown_timeout_s=5,
        graceful_shutdown_wait_loop_s=0.1,
        logging_config={"enable_access_log": False, "log_level": "ERROR"},
    )
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    name = f"plumbline-{uuid.uuid4().hex[:8]}"
    ray_serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    bound = deployment.bind(
        config.make_scorer_config(), config.make_pool_config(), None if pack is None else pack.questions, written
    )
    try:
        yield ray_serve.run(bound, name=name, route_prefix=None)
    finally:
        ray_serve.delete(name)


def _serve_requests(
    config: ServeConfig,
    token: str | None,
    served: Served,
    sentinel: Sentinel | None,
    listener: socket.socket,
    handle: Any,
    ready: Callable[[str, KnownPair], None],
) -> None:
    from plumbline.plugins.reward_server.app import BODY_TIMEOUT, PrometheusCounters, RequestHandler, make_app

    known_pair = asyncio.run(score_known_pair(make_replica_caller(handle, PrometheusCounters()), served))
    ready(format_server_url(config.host, listener), known_pair)
    counts = PrometheusCounters()
    service = Service(make_replica_caller(handle, counts), served, config, counts, sentinel)
    if sentinel is not None:
        counts.watch(
            "sentinel", "Watched metrics that changed while the reward did not fall", lambda: len(sentinel.moved)
        )
    counts.watch("waiting_images", "Images that are waiting for a replica", service.count_waiting)
    counts.watch("cached_scores", "Scores in the cache", lambda: len(service.cache))
    count_ready = partial(asyncio.to_thread, _count_running_replicas, handle)
    handler = RequestHandler(service, token, counts, count_ready, make_video_reader(config).read, known_pair)
    app = make_app(handler, list_allowed_hosts(config.host, config.hosts))
    run_app(app, listener, patience=BODY_TIMEOUT + config.deadline)


def make_video_reader(config: ServeConfig) -> UriReader:
    """Return a reader for videos that requests name by path. It only reads the configured `video_folders`."""
    return UriReader(
        roots=config.video_folders,
        storage=config.storage,
        max_bytes=config.limits.max_bytes,
        roots_name="the folders that may be read",
        option="video_folders",
    )


def make_sentinel(config: ServeConfig, served: Served) -> Sentinel | None:
    """Return the configured sentinel, or None; raise ConfigError if its baseline cannot be used."""
    reward = config.find_reward()
    if not config.sentinel or reward is None:
        return None
    names = [reward, *config.sentinel]
    metrics = {name: config.metrics[name] for name in names if name in config.metrics}
    baseline = _read_baseline(config, served.find_metrics_to_compute(names), served.metrics)
    means = None if baseline is None else baseline.add_reward(served.combination).compute_prompt_means(names)
    return Sentinel(reward, metrics, config.sentinel_images, means)


def _read_baseline(config: ServeConfig, metrics: Collection[str], recipes: Mapping[str, str]) -> BaselineScores | None:
    if config.baseline is None:
        return None
    used = {name: recipes[name] for name in metrics}
    return read_baseline(open_store(config), config.baseline, config.baseline_generator, used)


def make_replica_caller(handle: Any, watch: Counters) -> Callable[[Sequence[ScoreRequest], Sequence[str]], Any]:
    """Return a function that scores a batch on one of the replicas. If none is alive, the function waits."""
    from ray.exceptions import RayActorError

    async def score(requests: Sequence[ScoreRequest], metrics: Sequence[str]) -> list[dict[str, MetricAnswer]]:
        begun = time.perf_counter()
        try:
            answers, seconds = await handle.score.remote(list(requests), tuple(metrics))
        except RayActorError as error:
            raise ReplicaDied from error
        watch.add_seconds("send", time.perf_counter() - begun - sum(seconds.values()))
        for part, spent in seconds.items():
            watch.add_seconds(part, spent)
        return list(answers)

    return score


def _count_running_replicas(handle: Any) -> int:
    from ray import serve as ray_serve

    application = ray_serve.status().applications.get(handle.app_name)
    if application is None:
        return 0
    return sum(states.replica_states.get("RUNNING", 0) for states in application.deployments.values())
