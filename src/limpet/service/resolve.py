"""Find runs, requests, conversations and agents, by id or by a prefix of an id, and suggest similar ids."""

from collections.abc import AsyncIterator, Callable, Sequence
from difflib import get_close_matches
from typing import Any

from msgspec.structs import replace

from limpet.engine.execution.views import Request
from limpet.engine.run.conversation import CHAT
from limpet.errors import AlreadyAnswered, NotFound
from limpet.service.views import not_a_run, request_of
from limpet.stores import Place, RequestFilter, RequestRow, RunFilter, RunRow, ScoreCondition, ScoreFilter, Store
from limpet.stores.api.base import LARGEST_PAGE
from limpet.stores.search import row_matches, score_fits

__all__ = [
    "each_run",
    "each_updated",
    "find_conversation",
    "find_request",
    "find_run",
    "open_request",
    "owner_of",
    "run_of",
    "runs_in",
    "suggest",
    "suggest_agent",
    "unique_prefix",
    "updated_in",
]

MAX_SUGGESTIONS = 5
# Number of runs whose decided requests are searched.
NEWEST = 100


async def run_of(store: Store, id: str) -> RunRow:
    """Return the run with exactly this id. Raises InvalidArgument for a conversation."""
    row = await store.get(id)
    if row.type != "run":
        raise not_a_run(id)
    return row


async def each_run(
    store: Store, where: RunFilter, *, page: int = LARGEST_PAGE, before: int | None = None
) -> AsyncIterator[RunRow]:
    """Yield every run that matches, the newest first; `before` is the number of the last one that was seen."""
    while True:
        found = await store.runs(where, before=before, limit=page)
        for row in found.rows:
            yield row
        if (before := found.next) is None:
            return


async def each_updated(
    store: Store, where: RunFilter, *, page: int = LARGEST_PAGE, before: Place | None = None
) -> AsyncIterator[RunRow]:
    """Yield every run that matches, those with the newest last event first, from a place on."""
    while True:
        rows = await store.latest_runs(where, before=before, limit=page)
        for row in rows:
            yield row
        if len(rows) < page:
            return
        before = rows[-1].place


async def runs_in(
    store: Store, conversation: str, where: RunFilter, *, page: int = LARGEST_PAGE, before: int | None = None
) -> AsyncIterator[RunRow]:
    """Yield the runs of a conversation that match, the newest first: those started in it, and the run that owns it."""
    found = each_run(store, replace(where, conversation=conversation), page=page, before=before)
    owner = await _matching_owner(store, conversation, where)
    if owner is not None and before is not None and owner.number >= before:
        owner = None
    async for row in _with_owner(found, owner, lambda row: row.number):
        yield row


async def updated_in(
    store: Store, conversation: str, where: RunFilter, *, page: int = LARGEST_PAGE, before: Place | None = None
) -> AsyncIterator[RunRow]:
    """Yield the same runs, those with the newest last event first."""
    found = each_updated(store, replace(where, conversation=conversation), page=page, before=before)
    owner = await _matching_owner(store, conversation, where)
    if owner is not None and before is not None and owner.place >= before:
        owner = None
    async for row in _with_owner(found, owner, lambda row: row.place):
        yield row


async def _matching_owner(store: Store, conversation: str, where: RunFilter) -> RunRow | None:
    """Return the run whose own conversation this is, if it matches."""
    owner = await owner_of(store, conversation)
    if owner is None or not row_matches(owner, where):
        return None
    return owner if where.scored is None or await _is_scored(store, owner.id, where.scored) else None


async def _is_scored(store: Store, run: str, wanted: ScoreCondition) -> bool:
    found = await store.scores(ScoreFilter(run=run, name=wanted.name))
    return any(score_fits(each, wanted) for each in found)


async def _with_owner(
    rows: AsyncIterator[RunRow], owner: RunRow | None, place: Callable[[RunRow], Any]
) -> AsyncIterator[RunRow]:
    """Yield rows, with the run that owns their conversation in its place; the order is descending."""
    async for row in rows:
        if owner is not None and place(owner) > place(row):
            yield owner
            owner = None
        yield row
    if owner is not None:
        yield owner


async def owner_of(store: Store, conversation: str) -> RunRow | None:
    """Return the run whose own conversation this is, or None if it is not one of a single run."""
    id = conversation.removesuffix(CHAT)
    try:
        row = None if id == conversation else await store.get(id)
    except NotFound:
        return None
    return row if row is not None and row.type == "run" and row.conversation is None else None


async def find_run(store: Store, given: str) -> RunRow:
    """Return the run with this id or unique prefix. Otherwise raise NotFound, with a note that suggests ids.

    A prefix is unique if all matches are one run and runs named after it: its forks, and the runs that it called.
    """
    try:
        row = await store.get(given)
        if row.type == "run":
            return row
    except NotFound:
        pass
    found = [row async for row in each_run(store, RunFilter(text=given)) if row.id.startswith(given)]
    if (first := unique_prefix([row.id for row in found])) is not None:
        return next(row for row in found if row.id == first)
    fix = "Pass more of the id: several runs begin with this." if found else ""
    known = [row.id for row in found] or await _similar_runs(store, given)
    raise suggest(NotFound(what="run", id=given, fix=fix), known)


def unique_prefix(ids: Sequence[str]) -> str | None:
    """Return the id that a prefix of all these ids stands for: the shortest one, if the others are named after it."""
    first = min(ids, key=len, default=None)
    return first if all(id == first or id.startswith(f"{first}.") for id in ids) else None


async def find_conversation(store: Store, given: str) -> str:
    """Return the id of the conversation with this id or unique prefix. Otherwise raise NotFound with suggestions."""
    try:
        if (await store.get(given)).type == "conversation":
            return given
    except NotFound:
        if await owner_of(store, given) is not None:
            return given  # The run has said nothing yet.
    known = [row.id for row in (await store.runs(RunFilter(type="conversation"), limit=LARGEST_PAGE)).rows]
    found = [id for id in known if id.startswith(given)]
    if len(found) == 1:
        return found[0]
    raise suggest(NotFound(what="conversation", id=given), found or get_close_matches(given, known))


async def find_request(store: Store, given: str) -> RequestRow:
    """Return the request with this id or unique prefix: an open one, or a decided one of the newest runs."""
    for row in await store.requests(RequestFilter(status=None, id=given)):
        return row
    known = {row.id: row async for row in _open_requests(store)}
    found = [id for id in known if id.startswith(given)]
    if not found:
        decided = await _newest_requests(store)
        known, found = known | decided, [id for id in decided if id.startswith(given)]
    if len(found) == 1:
        return known[found[0]]
    raise suggest(NotFound(what="request", id=given), found or get_close_matches(given, known))


async def _open_requests(store: Store) -> AsyncIterator[RequestRow]:
    """Yield every open request, the oldest first."""
    after = None
    while rows := await store.requests(RequestFilter(after=after)):
        for row in rows:
            yield row
        after = rows[-1].opened, rows[-1].id


async def open_request(store: Store, id: str) -> Request:
    """Return a request that can still be decided. Raises AlreadyAnswered if it was decided or withdrawn."""
    rows = await store.requests(RequestFilter(status=None, id=id))
    if not rows:
        raise NotFound(what="request", id=id)
    if rows[0].status not in ("open", "expired"):
        raise AlreadyAnswered(request=id, status=rows[0].status, by=rows[0].by or "the run itself")
    return await request_of(store, rows[0])


async def suggest_agent(store: Store, error: NotFound) -> NotFound:
    """Add a note with similar agent names to an error, or with all names if none is similar."""
    known = sorted({row.agent for row in await store.contracts()})
    return suggest(error, get_close_matches(error.id, known) or known)


def suggest(error: NotFound, known: list[str]) -> NotFound:
    """Add a note that suggests ids to an error, and return it."""
    if known:
        more = f" or {len(known) - MAX_SUGGESTIONS} more" if len(known) > MAX_SUGGESTIONS else ""
        error.add_note(f"Did you mean {', '.join(known[:MAX_SUGGESTIONS])}{more}?")
    return error


async def _newest_requests(store: Store) -> dict[str, RequestRow]:
    """Return all requests of the newest runs by id, including decided ones."""
    runs = [row.id for row in (await store.runs(limit=NEWEST)).rows]
    return {row.id: row for run in runs for row in await store.requests(RequestFilter(status=None, run=run))}


async def _similar_runs(store: Store, given: str) -> list[str]:
    """Return similar ids among the newest runs."""
    return get_close_matches(given, [row.id for row in (await store.runs(limit=LARGEST_PAGE)).rows])
