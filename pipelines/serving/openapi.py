"""The service as an OpenAPI document, made of the table of wires."""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from plumbline.operators.wires.table import WIRES, wires_of
from plumbline.operators.wires.wire import JSON, Served, Wire

REFUSALS = {
    "400": "the body is not of the wire's form",
    "401": "no token, or another",
    "413": "more bytes or images than a request may have",
    "429": "busy; ask again after Retry-After seconds",
    "503": "no score now; ask again after Retry-After seconds",
}
PAGES = {
    "/health": "Whether a replica is ready.",
    "/rewards": "The names of the metrics.",
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
    replies = [_schema(wire.reply_form) for wire in wires if wire.form is not None]
    refusals = {status: {"description": text} for status, text in REFUSALS.items()}
    return {
        "summary": " ".join(wire.purpose for wire in wires),
        "requestBody": {"required": True, "content": _content(bodies)},
        "responses": {"200": {"description": "Scores", "content": _content(replies)}, **refusals},
    }


def _content(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not schemas:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}}}


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
