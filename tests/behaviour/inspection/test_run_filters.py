"""The filters of the list of runs."""

import pytest

import limpet
from limpet import testing


@limpet.agent(name="filters_child")
async def child(run: limpet.Run) -> None: ...


@limpet.agent(name="filters_agent")
async def agent(run: limpet.Run, fails: bool) -> None:
    await run.call(child, None)
    if fails:
        raise limpet.Permanent("no")


async def ids(app: limpet.App, **given: object) -> list[str]:
    """Return the ids of the runs that match, the newest first."""
    return [run.id for run in await app.runs(**given)]  # type: ignore[arg-type]


async def test_every_filter_of_the_store_is_offered() -> None:
    """Several statuses, labels, parent, origin, text, and the time of creation."""
    async with testing.app(agent, child) as app:
        await app.run(agent, False, id="a", user="ann", labels={"team": "sales", "env": "prod"}, goal="settle it")
        await app.advance("1h")
        between = (await app.info("a")).created
        with pytest.raises(limpet.RunFailed):
            await app.run(agent, True, id="b", labels={"team": "sales"})
        await app.advance("1h")
        await (await app.fork("a", seq=1, id="c")).result()
        assert await ids(app, status="failed") == ["b"]
        assert await ids(app, status=["failed", "completed"], agent="filters_agent") == ["c", "b", "a"]
        assert await ids(app, labels={"team": "sales", "env": "prod"}) == ["c", "a"]
        assert await ids(app, labels=["team=sales"], status="failed") == ["b"]
        assert await ids(app, parent="b") == ["b.filters_child-1"]
        assert await ids(app, fork_of="a") == ["c"]
        assert await ids(app, text="SETTLE") == ["c", "a"]
        assert await ids(app, agent="filters_agent", since="90m") == ["c", "b"]
        assert await ids(app, agent="filters_agent", until="90m") == ["a"]
        assert await ids(app, agent="filters_agent", since=between) == ["c", "b", "a"]
        assert await ids(app, agent="filters_agent", until=between.isoformat()) == []
        assert await ids(app, status=[]) == await ids(app)


async def test_runs_are_sorted_by_their_last_event() -> None:
    """Page by page, also those of a conversation."""

    @limpet.agent(name="filters_waiter")
    async def waiter(run: limpet.Run) -> None:
        await run.receive("go", str)

    async with testing.app(waiter) as app:
        for name in ("a", "b", "c"):
            await app.start(waiter, id=name)
            await app.advance("1s")
        await app.pause("a")
        await app.settle()
        assert await ids(app) == ["c", "b", "a"]
        assert await ids(app, sort="updated") == ["a", "c", "b"]
        first = await app.runs(sort="updated", last=2)
        assert await ids(app, sort="updated", cursor=first.next) == ["b"]
        talk = first[0].conversation
        assert await ids(app, sort="updated", conversation=talk) == ["a"]
        with pytest.raises(limpet.InvalidArgument, match="cursor"):
            await app.runs(sort="updated", cursor="7.x")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"status": "odd"}, "unknown status 'odd'"),
        ({"status": ["failed", "odd"]}, "unknown status 'odd'"),
        ({"labels": ["team"]}, "'team' is not NAME=VALUE"),
        ({"labels": ["a=1", "a=2"]}, "no run has two labels 'a'"),
        ({"since": "2026-13-01"}, "not a time"),
        ({"since": "soon"}, "soon"),
    ],
)
async def test_an_invalid_filter_is_refused(given: dict[str, object], reason: str) -> None:
    """It would match no run."""
    async with limpet.open("memory:") as app:
        with pytest.raises(limpet.InvalidValue, match=reason):
            await app.runs(**given)  # type: ignore[arg-type]


async def test_the_run_of_its_own_conversation_is_filtered_too() -> None:
    """It is found by its id, not by the store's filter."""
    async with testing.app(agent, child) as app:
        await app.run(agent, False, id="a", labels={"team": "sales"})
        await app.advance("1m")
        talk = (await app.info("a")).conversation
        assert await ids(app, conversation=talk, labels=["team=sales"]) == ["a"]
        assert await ids(app, conversation=talk, labels=["team=legal"]) == []
        assert await ids(app, conversation=talk, text="filters") == ["a"]
        assert await ids(app, conversation=talk, since="1h", until="0s") == ["a"]
        assert await ids(app, conversation=talk, parent="b") == []
