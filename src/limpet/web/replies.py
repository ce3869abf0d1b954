"""HTTP replies: results and errors as JSON with a status code."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from limpet.errors import (
    AuthUnavailable,
    InvalidValue,
    LimpetError,
    NoStore,
    NotAuthenticated,
    NotFound,
    QueryTimeout,
    Retryable,
    StoreUnavailable,
    Tampered,
    WrongHost,
    WrongOrigin,
)
from limpet.service.json_values import error_json

__all__ = ["answered", "refused"]

# HTTP status of each error class; 500 for all others.
STATUS: Mapping[type[LimpetError], int] = {
    NotAuthenticated: 401,
    WrongOrigin: 403,
    NotFound: 404,
    Tampered: 409,
    WrongHost: 421,
    InvalidValue: 422,
    AuthUnavailable: 503,
    NoStore: 503,
    QueryTimeout: 503,
    Retryable: 503,
    StoreUnavailable: 503,
}


def answered(answer: Any) -> Response:
    """Return a result as a JSON response."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


def refused(error: LimpetError, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a JSON response, with the same fields as in every interface."""
    if status is None:
        status = next((STATUS[each] for each in type(error).__mro__ if each in STATUS), 500)
    told = msgspec.json.encode(error_json(error), enc_hook=str)
    asks = {"www-authenticate": "Bearer"} if status == 401 else {}
    return Response(told, status, {**asks, **(headers or {})}, "application/json")
