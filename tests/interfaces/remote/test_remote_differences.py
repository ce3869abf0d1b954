"""Where a remote app could differ from one with a store: ids, options, large and lost replies, odd texts, timeouts."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import limpet
from limpet.remote.decode import problem_error
from limpet.remote.sse import messages_of
from tests.interfaces.http_and_mcp.clients import TOKEN
from tests.interfaces.remote.remote_servers import ALL, LosingProxy, served_app
from tests.interfaces.remote.test_remote_app import AGENTS, Parcel, ask, large, pack, raised, remote


class MyMissing(limpet.NotFound):
    """A user's own error."""


async def test_an_exact_id_is_found_among_many_like_it() -> None:
    """Also if more runs than a page mention it."""
    async with served_app(agents=[ask], worker=False) as (app, address), remote(address) as far:
        await app.start(ask, "x", id="order-1")
        for number in range(12):
            await app.start(ask, "x", id=f"other-{number}", goal="about order-1")
        await app.start(ask, "x", id="order-1b")
        assert await far.find("run", "order-1") == "order-1"
        assert (await raised(far.find("run", "order")))["code"] == "not_found"
        assert "other-1" in (await raised(far.find("run", "othre-1")))["hint"]


async def test_a_deciders_token_finds_requests_only() -> None:
    async with served_app(agents=AGENTS) as (app, address):
        made = await app.create_token("ann", roles=["approver"])
        async with remote(address, made.token) as far:
            assert (await raised(far.find("request", "zz")))["class"] is limpet.NotFound
            assert await far.find("conversation", "zz") == "zz"  # the operation itself refuses it


async def test_a_shortened_reply_is_read_in_smaller_pages_or_refused() -> None:
    """Nothing is cut silently."""
    async with served_app(agents=[ask]) as (app, address), remote(address) as far:
        for number in range(3):
            await app.say("c-1", f"{number}" * 1_500_000)
        assert [len(each.text) for each in await app.messages("c-1")] == [1_500_000] * 3
        page = await far.messages("c-1")
        assert [len(each.text) for each in page] == [1_500_000] * len(page)
        rest = await far.messages("c-1", cursor=page.next)
        assert len(page) + len(rest) == 3 or rest.next is not None
        await app.start(ask, "x", id="a-1", facts={f"f{number}": "x" * 7_000 for number in range(700)})
        told = await raised(far.state("a-1"))
        assert (told["class"], "shortened" in told["message"]) == (limpet.InvalidReply, True)


async def test_a_fork_replaces_results_by_number() -> None:
    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        await far.run(pack, Parcel("ann", 1), id="p-1")
        fork = await far.fork("p-1", seq=5, results={1: "heavy"}, id="p-2")
        assert (await app.step("p-2", 1)).result == "heavy"
        assert fork.id == "p-2"


async def test_a_deletion_whose_reply_is_lost_is_not_repeated() -> None:
    """The second reply would say that nothing was deleted."""
    async with served_app(agents=AGENTS) as (app, address):
        await app.run(pack, Parcel("ann", 1), id="p-1")
        made = await app.create_token("ann", roles=ALL)
        proxy = LosingProxy(int(address.rpartition(":")[2]))
        async with proxy.listening() as through, remote(through, made.token) as far:
            proxy.lose.add(b"POST /v1/prune")
            told = await raised(far.prune(older_than="0s", dry_run=False))
            assert (told["class"], "may have been done" in told["message"]) == (limpet.StoreUnavailable, True)
            assert [line for line in proxy.requests if b"prune" in line] == [b"POST /v1/prune HTTP/1.1"]


@pytest.mark.parametrize("after", ["1\n", " 1", "ü", "x" * 70_000])
async def test_a_wrong_cursor_is_refused(after: str) -> None:
    async with served_app(agents=AGENTS) as (_, address), remote(address) as far:
        await far.run(pack, Parcel("ann", 1), id="p-1")
        watched: Any = far.watch_run("p-1", after=after)
        assert (await raised(anext(watched)))["class"] is limpet.InvalidArgument


async def test_odd_ids_and_names_are_refused_or_sent() -> None:
    """As an app with a store does."""
    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        await far.start(ask, "x", id="a-1")
        for each in (app, far):
            start: Any = each.start
            assert (await raised(each.signal("a-1", "go", 1, command_id=" a")))["class"] is limpet.InvalidArgument
            assert (await raised(each.messages("slack/1")))["class"] is limpet.InvalidArgument
            assert (await raised(start(pack, Parcel("x", 1), foo=1)))["class"] is limpet.InvalidArgument
            assert (await raised(start(pack, Parcel("x", 1), foo=None)))["class"] is limpet.InvalidArgument
            await each.signal("a-1", "a/b", 1)
            await each.pause("a-1", by="")
            assert await each.runs(since=datetime(1, 1, 1, tzinfo=UTC))
        assert (await raised(far.info("x" * 70_000)))["class"] is limpet.InvalidArgument
        assert (await raised(far.signal("a-1", "..", 1)))["class"] is limpet.InvalidArgument
        assert [each.body["signal"] for each in await app.log("a-1") if each.kind == "signal.received"] == ["a/b"] * 2


async def test_the_same_start_is_the_same_run_from_both() -> None:
    """However a duration or a budget is written."""
    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        options: list[dict[str, Any]] = [
            {"budget": limpet.Budget(max_steps=3)},
            {"deadline": timedelta(hours=1)},
            {"deadline": 3600},
            {"deadline": "1h"},
        ]
        for number, how in enumerate(options):
            await app.start(ask, "x", id=f"a-{number}", **how)
            assert (await far.start(ask, "x", id=f"a-{number}", **how)).id == f"a-{number}"


async def test_a_result_that_is_there_needs_no_time() -> None:
    async with served_app(agents=AGENTS) as (_, address), remote(address) as far:
        await far.run(pack, Parcel("ann", 1), id="p-1")
        assert (await (await far.get("p-1", pack)).result(timeout=0)).cents == 2
        with pytest.raises(limpet.NotDone) as caught:
            await (await far.start(ask, "x")).result(timeout=0, quiet=True)
        assert caught.value.status in ("pending", "running", "waiting")


async def test_a_run_that_fails_and_is_resumed_has_its_last_result() -> None:
    """And one that was extended after its end has that end."""
    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        handle = await far.start(large, 1, id="l-1", budget={"max_steps": 1})
        await handle.result()
        assert (await far.get("l-1")).id == "l-1"
        failed = await far.start("remote_fail", "x", id="f-1", budget={"max_steps": 1})
        assert (await raised(failed.result()))["code"] == "run_failed"
        await app.extend("f-1", budget={"max_steps": 5})
        assert (await raised(failed.result()))["code"] == "run_failed"
        await far.resume("f-1")
        assert (await raised(failed.result()))["code"] == "run_failed"
        assert [each.kind for each in await app.log("f-1")].count("run.failed") == 2


async def test_closing_ends_what_waits() -> None:
    """With the error of an app that is not open."""
    async with served_app(agents=AGENTS) as (app, address):
        far = await limpet.open(address, token=TOKEN)
        waiting = asyncio.ensure_future((await far.start(ask, "x")).result(quiet=True))
        while not app._feed._viewers:
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        await far.close()
        assert (await raised(waiting))["class"] is limpet.StoreUnavailable
        await far.open()
        await far.open()
        assert await far.runs()
        await far.close()


async def test_a_users_error_does_not_replace_ours() -> None:
    text = b'{"code":"not_found","detail":"","facts":{"what":"run","id":"x"},"hint":""}'
    assert type(problem_error(text)) is limpet.NotFound
    assert issubclass(MyMissing, limpet.NotFound)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
async def test_messages_are_read_whatever_the_chunks(size: int) -> None:
    """Cut in the middle of a character or of the empty line."""
    data = "größe\u2028".encode() * 50
    text = (
        b"id: 7\n\n: \n\n" + b"".join(b"id: %d\ndata: %s\n\n" % (number, data) for number in range(3)) + b"event: end\n"
    )

    async def chunks() -> Any:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    found = [each async for each in messages_of(chunks())]
    assert [(each.id, each.data) for each in found] == [("7", b""), *((str(number), data) for number in range(3))]
