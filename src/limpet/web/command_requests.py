"""HTTP requests: the body of a command, its idempotency key, and how long its caller waits."""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from starlette.requests import Request

from limpet.engine.execution.principal import Principal
from limpet.errors import InvalidArgument, LimpetError
from limpet.service.json_body import read_json

__all__ = ["EarlyReply", "body_of", "command_id_of", "waiting_time"]

# Largest body of a command, in bytes; larger data is passed by reference.
LARGEST = 4 * 1024 * 1024
# Longest time that a caller may wait for the end of a run, in seconds.
LONGEST = 60.0
_WAIT = re.compile(r"(?:^|[,;\s])wait=([0-9]{1,6}(?:\.[0-9]{1,3})?)(?:$|[,;\s])")


class EarlyReply(Exception):
    """Ends a request whose body cannot be read, with a status of its own."""

    def __init__(self, status: int, error: LimpetError) -> None:
        self.status, self.error = status, error


async def body_of(request: Request) -> dict[str, Any]:
    """Return the arguments in a body: an object as JSON, or nothing."""
    if request.query_params:
        name = next(iter(request.query_params))
        raise InvalidArgument(path=name, reason="is in the query", fix="Send the arguments of a command in its body.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST:
            reason = f"larger than {LARGEST // 1024**2} MiB"
            raise EarlyReply(413, InvalidArgument(path="body", reason=reason, fix="Pass large data as a URL or path."))
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        reason = f"has the content type {kind!r}"
        raise EarlyReply(415, InvalidArgument(path="body", reason=reason, fix="Send JSON, as application/json."))
    try:
        found = read_json(body, "body")
    except LimpetError as error:
        raise EarlyReply(400, error) from error
    if not isinstance(found, dict):
        raise InvalidArgument(path="body", reason="is not an object", fix="Send the arguments by name.")
    return found


def command_id_of(headers: Mapping[str, str], who: Principal, operation: str) -> str | None:
    """Return the id of a command with an idempotency key. The same key of another caller is another command."""
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        raise InvalidArgument(path="Idempotency-Key", reason="must have 1 to 255 visible ASCII characters")
    parts = (who.tenant, who.name, operation, key)
    digest = sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
    return f"key-{digest[:40]}"


def waiting_time(headers: Mapping[str, str]) -> float:
    """Return how many seconds a caller waits for the end of a run (`Prefer: wait=10`)."""
    found = _WAIT.search(headers.get("prefer", "").lower())
    return 0.0 if found is None else min(float(found[1]), LONGEST)
