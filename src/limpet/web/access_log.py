"""The access log: one line for each request, without its data. Arguments, tokens and bodies are not logged."""

import logging
from typing import Any

from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limpet.clock import Clock
from limpet.redaction import hide_secrets

__all__ = ["AccessLog", "note"]

log = logging.getLogger("limpet.access")
NOTES = "limpet.notes"
# Longest path that is logged.
LONGEST = 200


def note(scope: Scope, **facts: str) -> None:
    """Add facts about a request to its line: the operation, the caller, the code of an error."""
    scope.setdefault(NOTES, {}).update({name: value for name, value in facts.items() if value})


class AccessLog:
    """Logs the requests to an application."""

    def __init__(self, inside: ASGIApp, clock: Clock) -> None:
        self._inside, self._clock = inside, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log it when it is answered."""
        if scope["type"] != "http" or not log.isEnabledFor(logging.INFO):
            await self._inside(scope, receive, send)
            return
        reply = _Reply(send)
        began = self._clock.ticks()
        try:
            await self._inside(scope, receive, reply.send)
        finally:
            _write(scope, reply, (self._clock.ticks() - began) / 1000)


class _Reply:
    """Counts the bytes of a reply, and keeps its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status, self.bytes = 0, 0

    async def send(self, message: Message) -> None:
        """Send a part of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.bytes += len(message.get("body", b""))
        await self._send(message)


def _write(scope: Scope, reply: _Reply, milliseconds: float) -> None:
    query = scope.get("query_string", b"")
    facts: dict[str, Any] = {
        "address": scope["client"][0] if scope.get("client") else "",
        "method": _plain(scope["method"]),
        "path": _plain(scope["path"]),
        "parameters": sorted({_plain(each) for each in QueryParams(query)}) if query else [],
        "status": reply.status,
        "bytes": reply.bytes,
        "milliseconds": round(milliseconds, 1),
        **scope.get(NOTES, {}),
    }
    who, code = facts.get("who", "-"), facts.get("code", "")
    said = f"{facts['address']} {who} {facts['method']} {facts['path']} {reply.status}{f' {code}' if code else ''}"
    log.info("%s %.1f ms", said, milliseconds, extra={"request": facts})


def _plain(text: str) -> str:
    """Return text for a line of the log: redacted, of limited length, and without control characters."""
    hidden = hide_secrets(text)[:LONGEST]
    return hidden if hidden.isprintable() else "".join(each if each.isprintable() else "?" for each in hidden)
