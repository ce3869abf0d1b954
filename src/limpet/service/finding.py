"""Finding a run, a request or an agent by what somebody remembers of its name."""

from collections.abc import AsyncIterator
from difflib import get_close_matches

from limpet.engine.views import Request
from limpet.errors import AlreadyAnswered, NotFound
from limpet.service.views import request_of
from limpet.stores import RequestFilter, RunFilter, RunRow, Store

__all__ = ["find_conversation", "find_request", "find_run", "open_request", "suggest_agent"]

PAGE = 1000
SHOWN = 5


async def find_run(store: Store, given: str) -> RunRow:
    """The run of this id, or the only family whose ids begin so; NotFound has a note with those that may be meant."""
    try:
        row = await store.get(given)
        if row.type == "run":
            return row
    except NotFound:
        pass
    found = [row async for row in _containing(store, given) if row.id.startswith(given)]
    first = min(found, key=lambda row: len(row.id), default=None)
    if first is not None and all(row is first or row.id.startswith(f"{first.id}.") for row in found):
        return first  # the others are named after it: its forks, and the runs that it called
    raise _with(NotFound(what="run", id=given), [row.id for row in found] or await _near(store, given))


async def find_conversation(store: Store, given: str) -> str:
    """The id of this conversation, or of the only one whose id begins so; NotFound as for runs."""
    try:
        if (await store.get(given)).type == "conversation":
            return given
    except NotFound:
        pass
    known = [row.id for row in (await store.runs(RunFilter(type="conversation"), limit=PAGE)).rows]
    found = [id for id in known if id.startswith(given)]
    if len(found) == 1:
        return found[0]
    raise _with(NotFound(what="conversation", id=given), found or get_close_matches(given, known))


async def find_request(store: Store, given: str) -> str:
    """The id of this request, or of the only open one whose id begins so; NotFound as for runs."""
    if await store.requests(RequestFilter(status=None, id=given)):
        return given
    known = [row.id for row in await store.requests()]
    found = [id for id in known if id.startswith(given)]
    if len(found) == 1:
        return found[0]
    raise _with(NotFound(what="request", id=given), found or get_close_matches(given, known))


async def open_request(store: Store, given: str) -> Request:
    """A request that can still be decided, with all that it asks; raises what stands for one that was."""
    [row] = await store.requests(RequestFilter(status=None, id=await find_request(store, given)))
    if row.status not in ("open", "expired"):
        raise AlreadyAnswered(request=row.id, status=row.status, by=row.by or "the run itself")
    return await request_of(store, row)


async def suggest_agent(store: Store, error: NotFound) -> NotFound:
    """The same error, with the agents that may have been meant, or all that there are."""
    known = sorted({row.agent for row in await store.contracts()})
    return _with(error, get_close_matches(error.id, known) or known)


def _with(error: NotFound, near: list[str]) -> NotFound:
    if near:
        more = f" or {len(near) - SHOWN} more" if len(near) > SHOWN else ""
        error.add_note(f"Did you mean {', '.join(near[:SHOWN])}{more}?")
    return error


async def _containing(store: Store, text: str) -> AsyncIterator[RunRow]:
    before = None
    while True:
        page = await store.runs(RunFilter(text=text), before=before, limit=PAGE)
        for row in page.rows:
            yield row
        if (before := page.next) is None:
            return


async def _near(store: Store, given: str) -> list[str]:
    """Ids among the newest runs that are spelled alike."""
    return get_close_matches(given, [row.id for row in (await store.runs(limit=PAGE)).rows])
