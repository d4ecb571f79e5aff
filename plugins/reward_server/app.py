"""The HTTP application: tokens, size limits, wires, counters and the OpenAPI document."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.images.rows import FetchUri, fetch_image
from plumbline.operators.scoring.scorer_input import find_prompt_error
from plumbline.pipelines.web.http_guards import make_guards
from plumbline.pipelines.web.listening import has_token
from plumbline.plugins.reward_server.groups import find_group_problem
from plumbline.plugins.reward_server.known_pair import KnownPair
from plumbline.plugins.reward_server.service import RetryLater, Service
from plumbline.plugins.reward_server.wires.multipart import MULTIPART_MEDIA_TYPE
from plumbline.plugins.reward_server.wires.table import WIRES, find_wires
from plumbline.plugins.reward_server.wires.wire import (
    JSON_MEDIA_TYPE,
    REQUEST_PART_NAME,
    ImageAnswers,
    Reply,
    ScoreRequest,
    Served,
    Wire,
    make_json_reply,
)

LOG = logging.getLogger(__name__)
LATENCY_BUCKET_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


class PrometheusCounters:
    """Prometheus counters of a service. `Counters` documents the methods that the service calls."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._add_counter("requests", "Requests by wire and HTTP status", "wire", "status")
        self.answers = self._add_counter(
            "answers", "Images by metric, and whether scored, cached or null", "metric", "outcome"
        )
        self.deaths = self._add_counter("replica_deaths", "Batches whose replica died before it answered")
        self.seconds = self._add_histogram(
            "request_seconds", "Seconds from a request to its reply", LATENCY_BUCKET_SECONDS, "wire"
        )
        self.parts = self._add_histogram(
            "part_seconds", "Seconds per phase of a request", LATENCY_BUCKET_SECONDS, "part"
        )
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.batches = self._add_histogram("batch_images", "Images in a batch", sizes)

    def _add_counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"plumbline_{name}", text, labels, registry=self.registry)

    def _add_histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"plumbline_{name}", text, labels, buckets=buckets, registry=self.registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge, whose current value is computed whenever Prometheus requests the counters."""
        Gauge(f"plumbline_{name}", text, registry=self.registry).set_function(value)

    def count_batch(self, images: int) -> None:
        self.batches.observe(images)

    def count_answer(self, metric: str, outcome: str) -> None:
        self.answers.labels(metric, outcome).inc()

    def count_replica_death(self) -> None:
        self.deaths.inc()

    def add_seconds(self, part: str, seconds: float) -> None:
        self.parts.labels(part).observe(seconds)

    def time_part(self, part: str) -> AbstractContextManager[object]:
        """Return a context manager that adds the time spent inside the `with` block to the histogram of this part."""
        return self.parts.labels(part).time()

    def render(self) -> bytes:
        return generate_latest(self.registry)


REFUSAL_DESCRIPTIONS = {
    "400": "the body does not match the wire's form",
    "401": "the token is missing or wrong",
    "413": "the request has too many bytes or images",
    "429": "busy; retry after Retry-After seconds",
    "503": "no score yet; retry after Retry-After seconds",
}
PAGE_DESCRIPTIONS = {
    "/health": "State of the replicas.",
    "/rewards": "The names of the metrics; `orders`: 1 if higher is better, -1 if lower is, 0 if neither is; `needs`: "
    "inputs to send with each image: sources, questions, a prompt with words in quotes, or the prompt's other images "
    "(group).",
    "/metrics": "Counters for Prometheus.",
    "/openapi.json": "This document.",
}


def describe_api(served: Served) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the service."""
    paths: dict[str, Any] = {wire.path: {"post": _describe_post(find_wires(wire.path))} for wire in WIRES}
    for path, text in PAGE_DESCRIPTIONS.items():
        paths[path] = {"get": {"summary": text, "responses": {"200": {"description": "OK"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Plumbline rewards", "version": "1", "description": ", ".join(served.metrics)},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _describe_post(wires: Sequence[Wire]) -> dict[str, Any]:
    content = _describe_content([wire.form for wire in wires if wire.form is not None])
    part_names = [name for wire in wires for name in wire.parts]
    if part_names:
        files = {"type": "array", "items": {"type": "string", "format": "binary"}}
        fields = {REQUEST_PART_NAME: {"type": "object"}, **dict.fromkeys(part_names, files)}
        content[MULTIPART_MEDIA_TYPE] = {
            "schema": {"type": "object", "properties": fields, "required": [REQUEST_PART_NAME]}
        }
    replies = _describe_content([wire.reply_form for wire in wires if wire.form is not None])
    refusals = {status: {"description": text} for status, text in REFUSAL_DESCRIPTIONS.items()}
    return {
        "summary": " ".join(wire.purpose for wire in wires),
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "Scores", "content": replies}, **refusals},
    }


def _describe_content(forms: Sequence[Any]) -> dict[str, Any]:
    if not forms:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    schemas = [_inline_references(TypeAdapter(form).json_schema()) for form in forms]
    return {JSON_MEDIA_TYPE: {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}}


def _inline_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace each `$ref` in a schema with its definition. This works because no schema is recursive."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict) and "$ref" in value:
            return resolve(definitions[value["$ref"].rpartition("/")[2]])
        if isinstance(value, dict):
            return {key: resolve(inner) for key, inner in value.items()}
        return [resolve(inner) for inner in value] if isinstance(value, list) else value

    result: dict[str, Any] = resolve(schema)
    return result


MIN_BYTES_FOR_THREAD = 500_000
"""Minimum size in bytes of a request body that is parsed in a thread, so that other requests are served meanwhile."""
BODY_TIMEOUT = 120.0
"""Seconds allowed for receiving a request body."""
SAFE_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class RefusedRequest(PlumblineError):
    """Raised for a request that the service answers with an HTTP error, for example because the token is wrong."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _RequestState:
    wire: Wire
    """Wire of the request. Until the body is parsed, this is the last of the wires that share the path."""
    size: int = 0
    """Size in bytes of the request's body and of the videos that it names by path."""
    unfinished: Collection["asyncio.Future[ImageAnswers]"] = ()
    """Images that were still in the queue when the request was refused."""


class RequestHandler:
    """Handler for HTTP requests: checks the token and size, selects the wire, gets the scores and sends the reply.

    Replies to refused requests also have the format of the request's wire.
    """

    def __init__(
        self,
        service: Service,
        token: str | None,
        counts: PrometheusCounters,
        ready: Callable[[], Awaitable[int]],
        read_video: FetchUri,
        known_pair: KnownPair,
    ) -> None:
        """Create the handler for a service.

        `ready` returns the number of running replicas. `read_video` reads a video from a path or raises
        RefusedUriError.
        """
        self.service, self.token, self.counts, self.ready = service, token, counts, ready
        self.read_video = read_video
        self.known_pair = known_pair
        self.load = service.load
        self.bodies = 0
        """Total size in bytes of all requests that have not been answered or still have images in the queue."""
        self.warned_wires: set[str] = set()
        """Wires for which a warning about unused sources has already been logged."""

    async def answer_post(self, request: Request) -> Response:
        """Answer a POST request on any wire."""
        begun, wires = time.perf_counter(), find_wires(request.scope["path"])
        call = _RequestState(wires[-1])
        try:
            reply, retry_after = await self._answer_request(request, wires, call), self.service.estimate_wait()
        except RetryLater as error:
            reply, retry_after = call.wire.refuse(error.status, str(error)), error.retry_after
            call.unfinished = error.unfinished
        except PlumblineError as error:
            status = error.status if isinstance(error, RefusedRequest) else 400
            reply, retry_after = call.wire.refuse(status, str(error)), 1
        finally:
            asyncio.gather(*call.unfinished).add_done_callback(lambda _: self._release_body(call))
        self.counts.requests.labels(call.wire.name, reply.status).inc()
        self.counts.seconds.labels(call.wire.name).observe(time.perf_counter() - begun)
        return _make_response(reply, retry_after)

    async def _answer_request(self, request: Request, wires: Sequence[Wire], call: _RequestState) -> Reply:
        self._require_token(request)
        media = request.headers.get("content-type", JSON_MEDIA_TYPE)
        with self.counts.time_part("read"):
            body = await self._read_body(request, call)
        with self.counts.time_part("parse"):
            if len(body) >= MIN_BYTES_FOR_THREAD:
                images = await asyncio.to_thread(self._parse_body, wires, body, media, call)
            else:
                images = self._parse_body(wires, body, media, call)
            images = [
                image if image.path is None else await self._add_video(image, image.path, call) for image in images
            ]
        answers = await self.service.score(images)
        with self.counts.time_part("reply"):
            return call.wire.answer(images, answers, self.service.served)

    async def _add_video(self, image: ScoreRequest, path: str, call: _RequestState) -> ScoreRequest:
        """Add the video at the path to the request, or an error if the video cannot be read."""
        encoded = await asyncio.to_thread(fetch_image, path, self.read_video)
        if isinstance(encoded, RowError):
            return image._replace(error=encoded)
        self._count_bytes(len(encoded), call)
        return image._replace(images=(encoded,), path=None)

    def _require_token(self, request: Request) -> None:
        """Raise RefusedRequest unless the request has the token, as a bearer token or as the password in the URL."""
        if self.token is not None and not has_token(self.token, request.headers.get("authorization", "")):
            raise RefusedRequest(
                401,
                "expected the service's token; send it as Authorization: Bearer TOKEN, or in the URL http://x:TOKEN@host:port",
            )

    async def _read_body(self, request: Request, call: _RequestState) -> bytes:
        """Return the request's body; raise RefusedRequest as soon as it exceeds a size or time limit."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RefusedRequest(415, "expected a body without Content-Encoding; send it uncompressed")
        announced = request.headers.get("content-length", "0")
        if not announced.isdigit() or int(announced) > self.load.max_body:
            raise RefusedRequest(413, f"expected a body of at most {self.load.max_body} bytes; send fewer images")
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for chunk in request.stream():
                    self._count_bytes(len(chunk), call)
                    chunks.append(chunk)
        except TimeoutError as error:
            raise RefusedRequest(
                408, f"expected a body within {BODY_TIMEOUT:g} seconds; send fewer images at a time"
            ) from error
        except ClientDisconnect as error:
            raise RefusedRequest(400, "the client disconnected") from error
        return b"".join(chunks)

    def _count_bytes(self, size: int, call: _RequestState) -> None:
        call.size += size
        self.bodies += size
        if call.size > self.load.max_body:
            raise RefusedRequest(
                413, f"expected at most {self.load.max_body} bytes, including videos sent by path; send fewer images"
            )
        if self.bodies > self.load.max_bodies:
            raise RetryLater(429, "too many requests are waiting; retry later", self.service.estimate_wait())

    def _release_body(self, call: _RequestState) -> None:
        self.bodies -= call.size

    def _parse_body(self, wires: Sequence[Wire], body: bytes, media: str, call: _RequestState) -> list[ScoreRequest]:
        """Parse a request's body with the first wire that accepts it, and return a ScoreRequest for each image."""
        document = wires[0].parse(body, media)
        call.wire = next(wire for wire in wires if wire.accepts(document))
        images = call.wire.read(document, self.service.served)
        count = sum((len(image.images) or 1) + len(image.sources) for image in images)
        if count > self.load.max_request_images:
            raise RefusedRequest(
                413, f"expected at most {self.load.max_request_images} images in a request, found {count}; send fewer"
            )
        images = [_check_prompt(image) for image in images]
        problem = find_group_problem(images, self.service.served, self.load)
        if problem is not None:
            raise RefusedRequest(413, problem)
        size = sum(len(image.prompt) + sum(map(len, (*image.images, *image.sources))) for image in images)
        if size > self.load.max_body:  # a pickle may refer to the same bytes repeatedly
            raise RefusedRequest(
                413,
                f"expected images and prompts of at most {self.load.max_body} bytes in total, where repeated bytes are "
                f"counted each time, found {size}; send fewer images",
            )
        return [self._drop_unused_sources(image, call.wire.name) for image in images]

    def _drop_unused_sources(self, image: ScoreRequest, wire: str) -> ScoreRequest:
        """Remove the sources from a request if none of its metrics reads them, and log one warning per wire."""
        if not image.sources or self.service.served.select_metrics_needing("sources", image.metrics):
            return image
        if wire not in self.warned_wires:
            self.warned_wires.add(wire)
            LOG.warning(
                "requests in the format %s contain source images, but %s ignores them; serve a metric that reads them, "
                "such as source_ssim (plugins/edits/README.md)",
                wire,
                " and ".join(image.metrics),
            )
        return image._replace(sources=())

    async def show_health(self, request: Request) -> Response:
        """Return the state of the replicas; no token is required."""
        ready = await self.ready()
        rewards = {name: ["ready"] * ready for name in self.service.served.metrics}
        value: dict[str, object] = {"status": "ok" if ready else "starting", "replicas": ready, "rewards": rewards}
        value["known_pair"] = {name: scores._asdict() for name, scores in self.known_pair.items()}
        if self.service.sentinel is not None:
            value["sentinel"] = self.service.sentinel.moved
        return _make_response(make_json_reply(value, 200 if ready else 503), 1)

    async def list_rewards(self, request: Request) -> Response:
        """List the metrics. For each metric, state whether higher is better and which inputs it needs."""
        served = self.service.served
        orders = {name: served.find_direction(name) for name in served.metrics}
        page = {"rewards": list(orders), "orders": orders, "needs": {name: served.list_needs(name) for name in orders}}
        return self._answer_if_authorized(request, lambda: make_json_reply(page))

    async def show_metrics(self, request: Request) -> Response:
        return self._answer_if_authorized(request, lambda: Reply(200, self.counts.render(), CONTENT_TYPE_LATEST))

    async def show_openapi(self, request: Request) -> Response:
        return self._answer_if_authorized(request, lambda: make_json_reply(describe_api(self.service.served)))

    def _answer_if_authorized(self, request: Request, page: Callable[[], Reply]) -> Response:
        try:
            self._require_token(request)
        except RefusedRequest as error:
            return _make_response(make_json_reply({"error": str(error)}, error.status), 1)
        return _make_response(page(), 1)


def _check_prompt(image: ScoreRequest) -> ScoreRequest:
    empty = isinstance(image.prompt, str) and not image.prompt.strip()  # some metrics score an image without a prompt
    error = None if empty else find_prompt_error(image.prompt)
    return image if error is None else image._replace(prompt="", error=image.error or error)


def _make_response(reply: Reply, retry_after: int) -> Response:
    headers = dict(SAFE_HEADERS)
    if reply.status in (429, 503):
        headers["Retry-After"] = str(retry_after)
    if reply.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(reply.body, reply.status, headers, media_type=reply.media)


def make_app(handler: RequestHandler, names: Sequence[str]) -> Starlette:
    """Return the application with all wires and pages. It only answers requests whose host is one of `names`."""
    paths = dict.fromkeys(wire.path for wire in WIRES)
    pages = {
        "/health": handler.show_health,
        "/rewards": handler.list_rewards,
        "/metrics": handler.show_metrics,
        "/openapi.json": handler.show_openapi,
    }
    return Starlette(
        routes=[
            *(Route(path, handler.answer_post, methods=["POST"]) for path in paths),
            *(Route(path, page, methods=["GET"]) for path, page in pages.items()),
        ],
        middleware=make_guards(names),
    )
