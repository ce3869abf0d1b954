"""Thousands of open requests: all are counted, listed and found, and a page costs only its own requests."""

import asyncio

import pytest

import limpet
from limpet import testing
from limpet.service.resolve import find_request
from limpet.service.views import request_of
from limpet.stores import RequestRow

MANY = 1_100


@limpet.agent(name="many_asker")
async def asker(run: limpet.Run, count: int) -> None:
    await asyncio.gather(*(run.ask(f"Question {place}?", name=f"q{place}") for place in range(count)))


async def test_requests_beyond_the_largest_page_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stats` counts them, `inbox` lists each once, and a prefix finds the last one."""
    async with testing.app(asker) as app:
        await app.start(asker, MANY, id="r")
        await app.settle()
        assert (await app.stats()).requests == MANY
        rows, briefs = await app.store.requests(), list[str]()

        async def counting(store: limpet.Store, row: RequestRow) -> limpet.Request:
            found = await request_of(store, row)
            briefs.append(found.id)
            return found

        monkeypatch.setattr("limpet.service.inbox.request_of", counting)
        page = await app.inbox(limit=1)
        assert (len(page), len(briefs)) == (1, 1)
        last = rows[-1]
        beyond = await app.inbox(limit=200, cursor=f"{last.opened}.{last.id}")
        assert (len(rows), len(beyond), beyond.next) == (1_000, MANY - 1_000, None)
        assert (await find_request(app.store, beyond[-1].id[:-1])).id.startswith(beyond[-1].id[:-1])
        assert len((await app.show("r")).requests) == 20
