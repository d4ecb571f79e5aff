"""The service over HTTP: who may ask, how much and on which wire, its OpenAPI document; scores come from a Service."""

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
from plumbline.pipelines.web.http_guards import guards
from plumbline.pipelines.web.listening import has_token
from plumbline.plugins.reward_server.known_pair import KnownPair
from plumbline.plugins.reward_server.service import ImageAnswers, Service, Unanswered
from plumbline.plugins.reward_server.wires.multipart import MULTIPART
from plumbline.plugins.reward_server.wires.table import WIRES, wires_of
from plumbline.plugins.reward_server.wires.wire import JSON, REQUEST_PART, Reply, ScoreRequest, Served, Wire, as_json

LOG = logging.getLogger(__name__)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


class Counts:
    """Counters of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by wire and HTTP status", "wire", "status")
        self.answers = self._counter(
            "answers", "Images by metric, and whether scored, cached or null", "metric", "outcome"
        )
        self.deaths = self._counter("replica_deaths", "Batches whose replica died before it answered")
        self.seconds = self._histogram("request_seconds", "Seconds from a request to its reply", SECONDS, "wire")
        self.parts = self._histogram("part_seconds", "Seconds of each part of a request", SECONDS, "part")
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.batches = self._histogram("batch_images", "Images of a batch", sizes)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"plumbline_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"plumbline_{name}", text, labels, buckets=buckets, registry=self.registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A number that is looked up whenever it is asked for."""
        Gauge(f"plumbline_{name}", text, registry=self.registry).set_function(value)

    def sent(self, images: int) -> None:
        self.batches.observe(images)

    def answered(self, metric: str, outcome: str) -> None:
        self.answers.labels(metric, outcome).inc()

    def died(self) -> None:
        self.deaths.inc()

    def took(self, part: str, seconds: float) -> None:
        self.parts.labels(part).observe(seconds)

    def timing(self, part: str) -> AbstractContextManager[object]:
        """Counts the seconds until it is left as this part's."""
        return self.parts.labels(part).time()

    def page(self) -> bytes:
        """All of it as text."""
        return generate_latest(self.registry)


REFUSALS = {
    "400": "the body is not of the wire's form",
    "401": "no token, or another",
    "413": "more bytes or images than a request may have",
    "429": "busy; ask again after Retry-After seconds",
    "503": "no score now; ask again after Retry-After seconds",
}
PAGES = {
    "/health": "Whether a replica is ready.",
    "/rewards": "The names of the metrics; `orders`: 1 where higher is better, -1 where lower is, 0 where neither is; "
    "`needs`: what has to come with an image, sources, questions or a prompt with words in quotes.",
    "/metrics": "Counters for Prometheus.",
    "/openapi.json": "This document.",
}


def describe(served: Served) -> dict[str, Any]:
    """The document, of OpenAPI 3.1."""
    paths: dict[str, Any] = {path: {"post": _posted(wires_of(path))} for path in dict.fromkeys(w.path for w in WIRES)}
    paths |= {
        path: {"get": {"summary": text, "responses": {"200": {"description": "OK"}}}} for path, text in PAGES.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Plumbline rewards", "version": "1", "description": ", ".join(served.metrics)},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _posted(wires: Sequence[Wire]) -> dict[str, Any]:
    bodies = [_schema(wire.form) for wire in wires if wire.form is not None]
    parts = [name for wire in wires for name in wire.parts]
    replies = [_schema(wire.reply_form) for wire in wires if wire.form is not None]
    refusals = {status: {"description": text} for status, text in REFUSALS.items()}
    return {
        "summary": " ".join(wire.purpose for wire in wires),
        "requestBody": {"required": True, "content": {**_content(bodies), **_multipart(parts)}},
        "responses": {"200": {"description": "Scores", "content": _content(replies)}, **refusals},
    }


def _content(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not schemas:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}}}


def _multipart(names: Sequence[str]) -> dict[str, Any]:
    """A body with the rest of the form in one part of JSON, and bytes in parts of these names."""
    files = {"type": "array", "items": {"type": "string", "format": "binary"}}
    fields = {REQUEST_PART: {"type": "object"}, **dict.fromkeys(names, files)}
    schema = {"type": "object", "properties": fields, "required": [REQUEST_PART]}
    return {MULTIPART: {"schema": schema}} if names else {}


def _schema(form: Any) -> dict[str, Any]:
    return _inline(TypeAdapter(form).json_schema())


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with what it refers to in its place; no form holds itself."""
    parts = schema.pop("$defs", {})

    def resolved(value: Any) -> Any:
        if isinstance(value, dict) and "$ref" in value:
            return resolved(parts[value["$ref"].rpartition("/")[2]])
        if isinstance(value, dict):
            return {key: resolved(inner) for key, inner in value.items()}
        return [resolved(inner) for inner in value] if isinstance(value, list) else value

    result: dict[str, Any] = resolved(schema)
    return result


LARGE = 500_000
"""Bytes of a body from which on it is read beside the loop that serves others."""
BODY_TIMEOUT = 120.0
"""Seconds that a body may take to arrive."""
SAFE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class RefusedRequest(PlumblineError):
    """A request that is not read on; with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Call:
    """A request that is looked at."""

    wire: Wire
    """The one that it is on, as far as is known."""
    held: int = 0
    """Bytes of its body, and of the videos that it names."""
    unfinished: Collection["asyncio.Future[ImageAnswers]"] = ()
    """What it left in the queue."""


class Gate:
    """Handles requests: token, size, wire, scores, reply. Each refusal is in the words of the wire that was asked."""

    def __init__(
        self,
        service: Service,
        token: str | None,
        counts: Counts,
        ready: Callable[[], Awaitable[int]],
        read_video: FetchUri,
        known_pair: KnownPair,
    ) -> None:
        """`read_video` gives the bytes at a path that a request names, or raises RefusedUri."""
        self.service, self.token, self.counts, self.ready = service, token, counts, ready
        self.read_video = read_video
        self.known_pair = known_pair
        self.load = service.load
        self.bodies = 0
        """Bytes of the requests that are not answered yet, or whose images still wait."""
        self.ignoring: set[str] = set()
        """The wires that brought sources which nobody looked at."""

    async def post(self, request: Request) -> Response:
        """Any wire's request."""
        begun, wires = time.perf_counter(), wires_of(request.scope["path"])
        call = _Call(wires[-1])
        try:
            reply, pause = await self._answer(request, wires, call), self.service.pause()
        except Unanswered as error:
            reply, pause = call.wire.refuse(error.status, str(error)), error.retry_after
            call.unfinished = error.unfinished
        except PlumblineError as error:
            reply, pause = call.wire.refuse(error.status if isinstance(error, RefusedRequest) else 400, str(error)), 1
        finally:
            asyncio.gather(*call.unfinished).add_done_callback(lambda _: self._release(call))
        self.counts.requests.labels(call.wire.name, reply.status).inc()
        self.counts.seconds.labels(call.wire.name).observe(time.perf_counter() - begun)
        return _response(reply, pause)

    async def _answer(self, request: Request, wires: Sequence[Wire], call: _Call) -> Reply:
        self._require_token(request)
        media = request.headers.get("content-type", JSON)
        with self.counts.timing("read"):
            body = await self._body(request, call)
        with self.counts.timing("parse"):
            if len(body) >= LARGE:
                asked = await asyncio.to_thread(self._read, wires, body, media, call)
            else:
                asked = self._read(wires, body, media, call)
            asked = [one if one.path is None else await self._fetched(one, one.path, call) for one in asked]
        answers = await self.service.score(asked)
        with self.counts.timing("reply"):
            return call.wire.answer(asked, answers, self.service.served)

    async def _fetched(self, asked: ScoreRequest, path: str, call: _Call) -> ScoreRequest:
        """The request with the bytes of the video that it names, or why there are none."""
        encoded = await asyncio.to_thread(fetch_image, path, self.read_video)
        if isinstance(encoded, RowError):
            return asked._replace(error=encoded)
        self._hold(len(encoded), call)
        return asked._replace(images=(encoded,), path=None)

    def _require_token(self, request: Request) -> None:
        """Raises Refused unless the request has the token, as a bearer or as the password of an address."""
        if self.token is not None and not has_token(self.token, request.headers.get("authorization", "")):
            raise RefusedRequest(
                401, "expected the service's token: Authorization: Bearer, or http://x:TOKEN@host:port"
            )

    async def _body(self, request: Request, call: _Call) -> bytes:
        """The body, of which no more is taken than is allowed."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RefusedRequest(415, "expected a body without Content-Encoding")
        announced = request.headers.get("content-length", "0")
        if not announced.isdigit() or int(announced) > self.load.max_body:
            raise RefusedRequest(
                413, f"expected a body of at most {self.load.max_body} bytes; send fewer images a request"
            )
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for chunk in request.stream():
                    self._hold(len(chunk), call)
                    chunks.append(chunk)
        except TimeoutError as error:
            raise RefusedRequest(408, f"expected a body within {BODY_TIMEOUT:g} seconds") from error
        except ClientDisconnect as error:
            raise RefusedRequest(400, "the client left") from error
        return b"".join(chunks)

    def _hold(self, size: int, call: _Call) -> None:
        call.held += size
        self.bodies += size
        if call.held > self.load.max_body:
            raise RefusedRequest(
                413,
                f"expected at most {self.load.max_body} bytes with the videos that it names; send fewer a request",
            )
        if self.bodies > self.load.max_bodies:
            raise Unanswered(429, "too many requests are held; ask again later", self.service.pause())

    def _release(self, call: _Call) -> None:
        self.bodies -= call.held

    def _read(self, wires: Sequence[Wire], body: bytes, media: str, call: _Call) -> list[ScoreRequest]:
        """What a body asks, by the wire that takes it."""
        document = wires[0].parse(body, media)
        call.wire = next(wire for wire in wires if wire.takes(document))
        asked = call.wire.read(document, self.service.served)
        images = sum((len(one.images) or 1) + len(one.sources) for one in asked)
        if images > self.load.max_request_images:
            raise RefusedRequest(
                413, f"expected at most {self.load.max_request_images} images, found {images}; send fewer"
            )
        asked = [_check_prompt(one) for one in asked]
        size = sum(len(one.prompt) + sum(map(len, (*one.images, *one.sources))) for one in asked)
        if size > self.load.max_body:  # a pickle may name the same bytes again and again
            raise RefusedRequest(
                413, f"expected images and prompts of at most {self.load.max_body} bytes, counted each time; send fewer"
            )
        return [self._without_unused(one, call.wire.name) for one in asked]

    def _without_unused(self, asked: ScoreRequest, wire: str) -> ScoreRequest:
        """The request without sources that none of its metrics looks at; the log says so once for each wire."""
        if not asked.sources or self.service.served.needing("sources", asked.metrics):
            return asked
        if wire not in self.ignoring:
            self.ignoring.add(wire)
            LOG.warning(
                "requests of the wire %s bring sources of edits, and %s does not look at them; serve a metric that "
                "does, such as source_ssim (docs/edits.md)",
                wire,
                " and ".join(asked.metrics),
            )
        return asked._replace(sources=())

    async def health(self, request: Request) -> Response:
        """Whether a replica is ready; needs no token."""
        ready = await self.ready()
        rewards = {name: ["ready"] * ready for name in self.service.served.metrics}
        value: dict[str, object] = {"status": "ok" if ready else "starting", "replicas": ready, "rewards": rewards}
        value["known_pair"] = {name: scores._asdict() for name, scores in self.known_pair.items()}
        if self.service.sentinel is not None:
            value["sentinel"] = self.service.sentinel.moved
        return _response(as_json(value, 200 if ready else 503), 1)

    async def rewards(self, request: Request) -> Response:
        """The names of the metrics, and of each whether a higher score is better (1), a lower one (-1) or neither, and
        what it has no score without.
        """
        served = self.service.served
        orders = {name: served.order_of(name) for name in served.metrics}
        page = {"rewards": list(orders), "orders": orders, "needs": {name: served.needs_of(name) for name in orders}}
        return self._with_token(request, lambda: as_json(page))

    async def metrics(self, request: Request) -> Response:
        """The counters, for Prometheus."""
        return self._with_token(request, lambda: Reply(200, self.counts.page(), CONTENT_TYPE_LATEST))

    async def openapi(self, request: Request) -> Response:
        """What the service answers, for machines."""
        return self._with_token(request, lambda: as_json(describe(self.service.served)))

    def _with_token(self, request: Request, page: Callable[[], Reply]) -> Response:
        try:
            self._require_token(request)
        except RefusedRequest as error:
            return _response(as_json({"error": str(error)}, error.status), 1)
        return _response(page(), 1)


def _check_prompt(asked: ScoreRequest) -> ScoreRequest:
    """Return the request, with the reason why nothing can be asked if its prompt cannot be used."""
    empty = isinstance(asked.prompt, str) and not asked.prompt.strip()  # some metrics score an image without a prompt
    error = None if empty else find_prompt_error(asked.prompt)
    return asked if error is None else asked._replace(prompt="", error=asked.error or error)


def _response(reply: Reply, pause: int) -> Response:
    headers = dict(SAFE)
    if reply.status in (429, 503):
        headers["Retry-After"] = str(pause)
    if reply.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(reply.body, reply.status, headers, media_type=reply.media)


def make_app(gate: Gate, names: Sequence[str]) -> Starlette:
    """Every wire's path, and the pages about the service, for who asks by one of its names."""
    paths = dict.fromkeys(wire.path for wire in WIRES)
    pages = {"/health": gate.health, "/rewards": gate.rewards, "/metrics": gate.metrics, "/openapi.json": gate.openapi}
    return Starlette(
        routes=[
            *(Route(path, gate.post, methods=["POST"]) for path in paths),
            *(Route(path, page, methods=["GET"]) for path, page in pages.items()),
        ],
        middleware=guards(names),
    )
