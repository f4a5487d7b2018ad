"""The OpenAPI document, made from the table of routes and the types' own schemas."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dsec.apiserver.routes import ROUTES, Route

__all__ = ["document"]

_ERROR = {
    "description": "The error, in its wire form (see dsec.errors)",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "fault", "retryable"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "fault": {"enum": ["caller", "command", "sandbox", "node", "platform"]},
                "retryable": {"type": "boolean"},
                "retry_after_s": {"type": ["number", "null"]},
                "sandbox_id": {"type": ["string", "null"]},
                "phase": {"type": ["string", "null"]},
                "remedy": {"type": ["string", "null"]},
                "details": {"type": "object"},
            },
        }
    },
}


def document(version: str) -> dict[str, Any]:
    """The whole document."""
    kinds = [kind for route in ROUTES for kind in (route.request, route.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    found = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        request = next(found) if route.request is not None else None
        answer = next(found) if route.answer is not None else None
        path = route.path.replace("...}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, request, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dsec", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR_SCHEMA},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, request: dict[str, Any] | None, answer: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [
            {"name": name.removesuffix("..."), "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{([a-z_.]+)\}", route.path)
        ]
        + [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query],
        "responses": {"200": _answer(route, answer), "default": _ERROR},
    }
    operation["security"] = [] if route.public else [{"token": [route.scope]}]
    if route.everywhere:
        operation["x-dsec-every-project"] = True
    if route.upgrades:
        operation["x-dsec-upgrade"] = True
    body = _body(route, request)
    if body:
        operation["requestBody"] = {"content": body}
    return operation


def _body(route: Route, request: dict[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if request is not None:
        content["application/json"] = {"schema": request}
    if route.streams and route.method in ("PUT", "POST") and (request is None or "format" in route.query):
        content["application/octet-stream"] = {}
    return content


def _answer(route: Route, answer: dict[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        return {"description": route.summary, "content": {"application/octet-stream": {}}}
    if route.wrapped is not None:
        answer = {"type": "object", "properties": {route.wrapped: {"type": "array", "items": answer}}}
    lines = route.path.startswith("/v1/images/") and route.method == "POST"
    kind = "application/x-ndjson" if lines else "application/json"
    return {"description": route.summary, "content": {kind: {"schema": answer}}}
