"""HTTP replies: results as JSON, and errors as problems (RFC 9457) with a status."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from limpet import errors as e
from limpet.service.json_values import error_json

__all__ = ["PROBLEM", "STATUS", "answered", "problem_of", "refused", "status_of"]

PROBLEM = "application/problem+json"
TYPE = "urn:limpet:error:"
"""Prefix of the type of a problem, before the code of the error."""
# HTTP status of each error, and of those that are derived from it. All others are conflicts with the state of a run or
# of the store. Only an unexpected error has 500.
STATUS: Mapping[type[e.LimpetError], int] = {
    e.NotAuthenticated: 401,
    e.InvalidLink: 403,
    e.LoginRefused: 403,
    e.NotAllowed: 403,
    e.NotPermitted: 403,
    e.WrongOrigin: 403,
    e.NotFound: 404,
    e.LimpetError: 409,
    e.Expired: 410,
    e.LinkExpired: 410,
    e.WrongHost: 421,
    e.InvalidValue: 422,
    e.InvalidAnswer: 422,
    e.InvalidAppend: 422,
    e.InvalidPatch: 422,
    e.ContractError: 422,
    e.DefinitionError: 422,
    e.Unsupported: 422,
    e.WrongUsage: 422,
    e.Unexpected: 500,
    e.TooManyRequests: 429,
    e.AuthUnavailable: 503,
    e.ExtraMissing: 503,
    e.NewerVersion: 503,
    e.NoStore: 503,
    e.QueryTimeout: 503,
    e.Retryable: 503,
    e.ServerBusy: 503,
    e.StaleServer: 503,
    e.StoreRefused: 503,
    e.StoreUnavailable: 503,
    e.EngineUnavailable: 503,
    e.WrongKeys: 503,
}


def answered(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a result as a JSON response."""
    return Response(msgspec.json.encode(answer), status, dict(headers or {}), "application/json")


def status_of(error: e.LimpetError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[each] for each in type(error).__mro__ if each in STATUS)


def problem_of(error: e.LimpetError, status: int | None = None) -> dict[str, Any]:
    """Return an error as a problem, with the same code, facts and hint as in every interface."""
    status, told = status or status_of(error), error_json(error)
    return {
        "type": f"{TYPE}{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": told["message"],
        "code": told["code"],
        "facts": told["facts"],
        "hint": told["hint"],
    }


def refused(error: e.LimpetError, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a response."""
    status = status or status_of(error)
    problem = problem_of(error, status)
    more = {"www-authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, e.TooManyRequests | e.ServerBusy):
        more["retry-after"] = str(error.seconds)
    return Response(msgspec.json.encode(problem, enc_hook=str), status, {**more, **(headers or {})}, PROBLEM)
