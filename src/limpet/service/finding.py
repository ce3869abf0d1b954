"""Finding a run by what somebody remembers of its id."""

from collections.abc import AsyncIterator
from difflib import get_close_matches

from limpet.errors import NotFound
from limpet.stores import RunFilter, RunRow, Store

__all__ = ["find_run"]

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
    error = NotFound(what="run", id=given)
    if near := [row.id for row in found] or await _near(store, given):
        more = f" or {len(near) - SHOWN} more" if len(near) > SHOWN else ""
        error.add_note(f"Did you mean {', '.join(near[:SHOWN])}{more}?")
    raise error


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
