"""One request as a record: what was asked, and how it was decided."""

from datetime import datetime
from typing import Any

from limpet.engine.execution.views import Request
from limpet.errors import NotFound
from limpet.redaction import hide_secrets
from limpet.service.steps import whole_value
from limpet.service.views import request_of
from limpet.state.log_view import LogView
from limpet.stores import RequestFilter, Store
from limpet.stores.rows import RequestRow, RequestStatus
from limpet.times import to_datetime_or_none
from limpet.view import View

__all__ = ["RequestDecision", "RequestRecord", "read_decision", "request_record"]


class RequestDecision(View, frozen=True, kw_only=True):
    """A request, in short, and how it was decided."""

    request: str
    """Request id."""
    kind: str
    """Purpose: `ask`, `approval`, `unknown`, `budget`, `compensation` or `escalation`."""
    question: str
    """The question, for people."""
    status: RequestStatus
    """`open`, or how it ended. An approval that a step has used is `used`."""
    decided: datetime | None
    """When it was decided, expired or was withdrawn."""
    by: str
    """The person or service who decided; empty if the request is open, has expired or was withdrawn."""
    via: str
    """The interface through which it was decided."""
    because: str
    """Reason of a rejection."""
    answer: Any
    """The answer to a question. A large one is `{"blob": …, "bytes": …}`."""
    edited: Any
    """Arguments that the person edited."""


class RequestRecord(Request, frozen=True, kw_only=True):
    """A request with its context, and its decision if it has one."""

    decision: RequestDecision
    """How it was decided."""


async def request_record(store: Store, id: str) -> RequestRecord:
    """Return a request, open or decided. Raises NotFound."""
    row = await _row(store, id)
    if row is None:
        raise NotFound(what="request", id=id)
    asked, decision = await request_of(store, row), await read_decision(store, row.run, row.id, row.seq)
    return RequestRecord(**{name: getattr(asked, name) for name in asked.__struct_fields__}, decision=decision)


async def read_decision(store: Store, run: str, request: str, seq: int) -> RequestDecision:
    """Return how a request was decided that event `seq` opened. The log is read no further than the decision."""
    row, view = await _row(store, request), LogView()
    async for event in store.log(run, after=seq - 1):
        view.add(event, store.decode(event))
        if view.requests[request].status != "open":
            break
    found = view.requests[request]
    return RequestDecision(
        request=request,
        kind=found.kind,
        question=hide_secrets(found.question),
        status=found.status if row is None else row.status,
        decided=to_datetime_or_none(found.decided),
        by=found.by,
        via=found.via,
        because=hide_secrets(found.because),
        answer=await whole_value(store, found.answer),
        edited=await whole_value(store, found.edited),
    )


async def _row(store: Store, request: str) -> RequestRow | None:
    """Return the row of a request; a fork has none for the requests of its origin."""
    return next(iter(await store.requests(RequestFilter(status=None, id=request))), None)
