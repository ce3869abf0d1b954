"""Forks: a new run that continues from any step of another run, with overrides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import limpet
from limpet import testing
from limpet.clock import Clock
from limpet.engine.definitions.agents import Agent
from limpet.events import verify
from limpet.stores import Backend
from limpet.stores.memory import MemoryBackend
from limpet.stores.postgres import PostgresBackend
from limpet.stores.sqlite import SqliteBackend
from limpet.testing.app import TestApp, TestSettings

STORES = ("memory", "sqlite", "postgres")
sent: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


@limpet.tool(effect="none", name="fork_look")
async def look(n: int) -> int:
    return n * 10


@limpet.tool(effect="once", name="fork_send")
async def send(n: int) -> str:
    sent.append(("send", n))
    return f"sent {n}"


@limpet.agent(name="fork_thirty", version="1", accepts=["2"])
async def thirty(run: limpet.Run, by: int) -> int:
    total = 0
    for n in range(1, 31):
        if n % 5 == 0:
            await run.step(send, n * by)
        else:
            total += await run.step(look, n * by)
            await run.patch(facts={"total": total})
    return int(run.state.facts["total"])


class File(SqliteBackend):
    """SQLite without other processes."""

    capabilities = replace(SqliteBackend.capabilities, processes=False)


class Server(PostgresBackend):
    """PostgreSQL without other processes."""

    capabilities = replace(PostgresBackend.capabilities, processes=False)


@asynccontextmanager
async def opened(store: str, request: pytest.FixtureRequest, *agents: Agent[Any, Any]) -> AsyncIterator[TestApp]:
    """Open a test app on any kind of store."""
    where = request.getfixturevalue("postgres_schema") if store == "postgres" else None
    path: Path = request.getfixturevalue("tmp_path")

    def backend(clock: Clock) -> Backend:
        match store:
            case "memory":
                return MemoryBackend(clock)
            case "sqlite":
                return File(str(path / "forks.db"), clock)
            case _:
                return Server(str(where), clock)

    async with TestApp(TestSettings(backend), agents) as app:
        yield app


async def _stored(app: TestApp) -> list[tuple[str, int]]:
    """Return run and sequence of every stored event."""
    found, place = [], ""
    while True:
        page = await app.store.feed(place)
        found += [(event.run, event.seq) for event in page.events]
        if not page.events:
            return found
        place = page.next


async def _approve_all(app: TestApp, run: str, most: int = 100) -> int:
    """Approve the requests of a run one after the other, and return their number."""
    for asked in range(most):
        await app.settle()
        requests = await app.inbox(run=run)
        if not requests:
            return asked
        await app.approve(requests[0], by="ann")
    raise AssertionError(run)


@pytest.mark.parametrize("store", STORES)
async def test_a_fork_at_any_step_shares_the_prefix_and_stores_only_its_own_events(
    store: str, request: pytest.FixtureRequest, full: bool
) -> None:
    """No effect happens without approval. Without --full, databases fork at every fourth step and after the last."""
    places = [*range(1, 31, 1 if full or store == "memory" else 4), 31]
    async with opened(store, request, thirty) as app:
        await app.run(thirty, 1, id="r")
        parent = [event async for event in app.store.log("r")]
        did = list(sent)
        for number in places:
            stored = await _stored(app)
            plain = await app.fork("r", at=number)
            other = await app.fork("r", at=number, patch={"facts": {"total": 7}}, results={1: 1} if number > 1 else {})
            await app.settle()
            for fork in (plain, other):
                log = [event async for event in app.store.log(fork.id)]
                cut = next(place for place, event in enumerate(log) if event.run == fork.id)
                assert log[:cut] == parent[:cut]
                assert all(event.run == fork.id for event in log[cut:])
                assert log[cut].kind == "run.forked"
                assert verify(log).hash == (await app.store.get(fork.id)).hash
                assert await app.store.check_rows(fork.id) == []
                own = {(event.run, event.seq) for event in log[cut:]}
                assert own <= set(await _stored(app)) - set(stored)
            grown = {run for run, _ in set(await _stored(app)) - set(stored)}
            assert grown == {plain.id, other.id}
            assert sent == did
            asks = [each.number for each in await _asked(app, plain.id)]
            assert asks == ([(number + 4) // 5 * 5] if number <= 30 else [])
        assert [event async for event in app.store.log("r")] == parent
        last = await app.get(f"r.{2 * len(places) - 1}", thirty)
        assert await last.result() == sum(n * 10 for n in range(1, 31) if n % 5)


def _why(request: limpet.Request) -> str:
    """Return the reason that a request gives."""
    assert request.context is not None
    return request.context.why


async def _asked(app: TestApp, run: str) -> list[Any]:
    return [app.store.decode(event) async for event in app.store.log(run) if event.kind == "request.opened"]


async def test_an_approved_fork_runs_each_effect_once_under_its_own_key() -> None:
    async with testing.app(thirty) as app:
        result = await app.run(thirty, 1, id="r")
        keys = [each.body["key"] for each in await app.log("r") if each.kind == "step.started" and each.body.get("key")]
        fork = await app.fork("r", at=11)
        assert await _approve_all(app, fork.id) == 4
        assert await fork.result() == result
        assert sent[6:] == [("send", n) for n in (15, 20, 25, 30)]
        own = [each for each in await app.log(fork.id) if each.run == fork.id and each.kind == "step.started"]
        mine = [each.body["key"] for each in own if each.body.get("key")]
        assert not set(mine) & set(keys)
        assert [each.body["number"] for each in own] == list(range(11, 31))
        assert (await app.compare("r", fork.id)).of("step") == {}


async def test_a_request_of_a_fork_gives_the_fork_as_its_reason() -> None:
    """Not the risk of the tool, which has none."""

    @limpet.agent(name="fork_says_why")
    async def sender(run: limpet.Run) -> str:
        return await run.step(send, 1)

    async with testing.app(sender) as app:
        await app.run(sender, id="r")
        await app.fork("r", at=1)
        await app.settle()
        [request] = await app.inbox()
        assert _why(request) == "A fork asks before each effect, and the run is a fork of r."


async def test_stubbed_effects_do_not_run_and_live_effects_need_no_approval() -> None:
    """The log marks stubbed steps."""
    async with testing.app(thirty) as app:
        await app.run(thirty, 1, id="r")
        made_up = await app.fork("r", at=6, effects="stub", input=2)
        await made_up.result()
        assert len(sent) == 6
        own = [each for each in await app.log(made_up.id) if each.run == made_up.id and each.kind == "step.started"]
        assert {each.body.get("stubbed", False) for each in own} == {True}
        reading = await app.fork("r", at=6, effects="stub", reads="live", input=2)
        await reading.result()
        assert len(sent) == 6
        own = [each for each in await app.log(reading.id) if each.run == reading.id and each.kind == "step.started"]
        assert [each.body.get("stubbed", False) for each in own] == [n % 5 == 0 for n in range(6, 31)]
        live = await app.fork("r", at=6, effects="live", input=2)
        await live.result()
        assert sent[6:] == [("send", 2 * n) for n in (10, 15, 20, 25, 30)]
        flags = (await app.state(live.id)).risk_flags
        assert "fork_look#1 has other arguments than before the fork" in flags
        assert (await app.info(live.id)).fork_of == "r"


async def test_a_stub_returns_the_original_result_or_a_generated_one() -> None:
    """The original result is found by step identity; a generated one has the declared type."""

    @limpet.tool(effect="once", name="fork_receipt")
    async def receipt(n: int) -> dict[str, int]:
        return {"n": n}

    @limpet.tool(effect="once", name="fork_number")
    async def number() -> int:
        raise limpet.Permanent("not today")

    @limpet.agent(name="fork_maker")
    async def maker(run: limpet.Run) -> list[Any]:
        first = await run.step(receipt, 1)
        return [first, await run.step(number)]

    async with testing.app(maker) as app:
        handle = await app.start(maker, id="r")
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        fork = await app.fork("r", at=1, effects="stub")
        assert await fork.result() == [{"n": 1}, 0]


async def test_the_patch_of_a_fork_applies_from_the_fork_point_on() -> None:
    """After the last shared event and before the first new one, also when the fork is resumed."""
    seen: list[tuple[str, Any]] = []

    @limpet.agent(name="fork_seer")
    async def seer(run: limpet.Run) -> str:
        await run.step(look, 1)
        await run.patch(facts={"total": 900})
        seen.append(("after the patch", run.state.facts["total"]))
        await run.step(look, run.state.facts["total"])
        seen.append(("after step 2", run.state.facts["total"]))
        await run.patch(goal="done")
        await run.ask("go on?")
        seen.append(("at the end", run.state.facts["total"]))
        return run.state.goal

    async with testing.app(seer) as app:
        await app.start(seer, id="r")
        await app.settle()
        seen.clear()
        fork = await app.fork("r", at=2, patch={"facts": {"total": 1200}})
        await app.settle()
        assert seen == [("after the patch", 1200), ("after step 2", 1200)]
        await app.crash()
        [request] = await app.inbox(run=fork.id)
        await app.approve(request, by="ann")
        assert await fork.result() == "done"
        assert {value for _, value in seen} == {1200}
        assert (await app.state(fork.id)).facts["total"] == 1200
        assert (await app.state("r")).facts["total"] == 900
        early = await app.fork("r", at=1, patch={"facts": {"total": 5}, "goal": "else", "plan": ["a", "b"]})
        await app.settle()
        assert (await app.state(early.id, before=1)).facts == {"total": 5}
        assert (await app.info(early.id)).goal == "done"


async def test_a_fork_inside_turns_starts_at_its_turn_with_its_patch() -> None:
    """It can be resumed at a later turn. Results of ended turns cannot be edited."""

    @limpet.agent(name="fork_turner")
    async def turner(run: limpet.Run) -> int:
        async for turn in run.turns(max=6):
            sum_ = run.state.facts.get("sum", 0)
            found = await run.step(look, turn.number)
            await run.patch(facts={"sum": sum_ + found})
            if turn.number == 5:
                await run.ask("go on?")
        return int(run.state.facts["sum"])

    async with testing.app(turner) as app:
        await app.start(turner, id="r")
        await app.settle()
        for number, reason in (
            (2, "its turn has ended"),
            (4, "not a settled step before the fork point"),
            (0, "not a settled step"),
        ):
            with pytest.raises(limpet.InvalidArgument, match=reason):
                await app.fork("r", at=4, results={number: 7})
        fork = await app.fork("r", at=3, patch={"facts": {"sum": 1000}})
        await app.settle()
        await app.crash()
        [request] = await app.inbox(run=fork.id)
        await app.approve(request, by="ann")
        assert await fork.result() == 1000 + 10 * (3 + 4 + 5 + 6)
        [request] = await app.inbox(run="r")
        await app.approve(request, by="ann")
        assert await (await app.get("r", turner)).result() == 210


async def test_edited_results_replace_recorded_ones_in_the_shared_prefix() -> None:
    """Also of a failed step. Recorded effects that the changed code path leaves out do not stop the fork."""

    @limpet.tool(effect="none", name="fork_find")
    async def find(what: str) -> str | None:
        if what == "broken":
            raise limpet.Permanent("broken")
        return None

    @limpet.agent(name="fork_finder")
    async def finder(run: limpet.Run) -> str:
        found = await run.step(find, "order")
        if found is None:
            await run.step(send, 1)
        try:
            more = await run.step(find, "broken")
        except limpet.StepFailed:
            more = "failed"
        await run.step(look, 2)
        return f"{found} {more}"

    async with testing.app(finder) as app:
        assert await app.run(finder, id="r") == "None failed"
        fork = await app.fork("r", at=4, results={1: "order 7", 3: "mended"})
        assert await fork.result() == "order 7 mended"
        assert sent == [("send", 1)]
        for wrong in ({4: "not shared"}, {9: "none"}, {3: 5}):
            with pytest.raises(limpet.InvalidValue, match="results"):
                await app.fork("r", at=4, results=wrong)


async def test_steps_in_flight_at_the_fork_point_are_repeated() -> None:
    """Both concurrent steps are run again, with the numbers after the fork point."""

    @limpet.agent(name="fork_both")
    async def both(run: limpet.Run) -> list[str]:
        await run.step(look, 1)
        return list(await asyncio.gather(run.step(send, 2), run.step(send, 3)))

    async with testing.app(both) as app:
        await app.run(both, id="r")
        fork = await app.fork("r", at=3)
        await app.settle()
        assert {each.args["n"] for each in await app.inbox(run=fork.id)} == {2, 3}
        assert await _approve_all(app, fork.id) == 2
        assert await fork.result() == ["sent 2", "sent 3"]
        started = [each.body["number"] for each in await app.log(fork.id) if each.kind == "step.started"]
        assert started == [1, *([2] if len(started) > 3 else []), 2, 3]


async def test_a_fork_does_not_inherit_approvals() -> None:
    """Used, unused or standing: in a fork, the effect needs a new approval."""

    @limpet.tool(effect="once", risk="money", name="fork_pay")
    async def pay(cents: int) -> str:
        sent.append(("pay", cents))
        return "paid"

    @limpet.agent(name="fork_payer", approvals=limpet.Approvals("money", to="finance"))
    async def payer(run: limpet.Run) -> str:
        await run.patch(facts={"cents": 900})
        await run.step(pay, run.state.facts["cents"])
        return str(await run.step(pay, run.state.facts["cents"]))

    async with testing.app(payer) as app:
        await app.start(payer, id="r")
        await app.settle()
        [shown] = await app.inbox()
        fork = await app.fork("r", at=1, patch={"facts": {"cents": 1}}, effects="live")
        await app.settle()
        [mine] = await app.inbox(run=fork.id)
        assert (mine.args, shown.args, mine.to) == ({"cents": 1}, {"cents": 900}, ("finance",))
        assert _why(shown) == "fork_pay has the risk 'money', which needs approval before it runs."
        why = "fork_pay has the risk 'money', and the run is a fork of r: it needs approval before it runs."
        assert _why(mine) == why
        await app.approve(shown, by="ann", standing=True)
        await app.settle()
        assert sent == [("pay", 900), ("pay", 900)]
        assert [each.id for each in await app.inbox(run=fork.id)] == [mine.id]
        with pytest.raises(limpet.AlreadyAnswered) as stands:
            await app.approve(shown, by="bob")
        assert stands.value.by == "ann"
        late = await app.fork("r", at=2, effects="live")
        await app.settle()
        assert len(await app.inbox(run=late.id)) == 1
        await app.approve(mine, by="ann")
        await app.settle()
        assert sent == [("pay", 900), ("pay", 900), ("pay", 1)]


async def test_an_answer_applies_only_to_the_run_that_asked() -> None:
    """Neither to its forks nor to the run that it was forked from."""

    @limpet.agent(name="fork_asker")
    async def asker(run: limpet.Run) -> str:
        await run.step(look, 1)
        first = await run.ask("first?", options=["a", "b"])
        await run.step(look, 2)
        return f"{first}{await run.ask('second?', options=['c', 'd'])}"

    async with testing.app(asker) as app:
        parent = await app.start(asker, id="r")
        await app.settle()
        [first] = await app.inbox()
        fork = await app.fork("r", at=2)
        await app.settle()
        [mine] = await app.inbox(run=fork.id)
        await app.answer(mine, "b", by="bob")
        await app.settle()
        assert [each.question for each in await app.inbox(run="r")] == ["first?"]
        assert [each.question for each in await app.inbox(run=fork.id)] == ["second?"]
        await app.answer(first, "a", by="ann")
        with pytest.raises(limpet.AlreadyAnswered) as stands:
            await app.answer(first, "b", by="eve")
        assert (stands.value.by, stands.value.status) == ("ann", "answered")
        await app.settle()
        for at, question in ((1, "first?"), (2, "second?"), (3, "second?")):
            late = await app.fork("r", at=at)
            await app.settle()
            assert [each.question for each in await app.inbox(run=late.id)] == [question]
        again = await app.fork("r", seq=next(each.seq for each in await app.log("r") if each.kind == "request.opened"))
        await app.settle()
        assert [each.question for each in await app.inbox(run=again.id)] == ["first?"]
        for run, answer in ((fork, "c"), (parent, "d")):
            [request] = await app.inbox(run=run.id)
            await app.answer(request, answer, by="ann")
        assert (await fork.result(), await parent.result()) == ("bc", "ad")


async def test_signals_not_yet_received_are_shared_with_a_fork() -> None:
    """They were sent before the fork point, and both runs receive them after it."""

    @limpet.agent(name="fork_receiver")
    async def receiver(run: limpet.Run) -> list[int]:
        first = await run.receive("n", int)
        await run.step(look, first)
        return [first, await run.receive("n", int)]

    async with testing.app(receiver) as app:
        parent = await app.start(receiver, id="r")
        await app.signal("r", "n", 1)
        await app.signal("r", "n", 2)
        assert await parent.result() == [1, 2]
        fork = await app.fork("r", at=1)
        assert await fork.result() == [1, 2]


async def test_a_fork_compensates_only_its_own_steps() -> None:
    """A fork that asks before effects also asks before compensations. Stubbed steps are not compensated."""

    @limpet.tool(effect="once", name="fork_book")
    async def book(n: int) -> int:
        sent.append(("book", n))
        return n

    @book.compensate
    async def unbook(result: int | None, n: int) -> None:
        sent.append(("unbook", n))

    @limpet.agent(name="fork_booker")
    async def booker(run: limpet.Run, fails: bool) -> str:
        await run.step(book, 1)
        await run.step(book, 2)
        if await run.ask("fail?"):
            raise ValueError("no")
        return "done"

    async with testing.app(booker) as app:
        await app.start(booker, False, id="r")
        await app.settle()
        [request] = await app.inbox(run="r")
        await app.reject(request, by="ann", because="go on")
        await app.settle()
        sent.clear()
        fork = await app.fork("r", at=2, effects="live")
        await app.settle()
        [request] = await app.inbox(run=fork.id)
        await app.approve(request, by="ann")
        with pytest.raises(limpet.RunFailed):
            await fork.result()
        assert sent == [("book", 2), ("unbook", 2)]
        sent.clear()
        asking = await app.fork("r", at=2)
        await app.settle()
        for _ in range(2):
            [request] = await app.inbox(run=asking.id)
            await app.approve(request, by="ann")
            await app.settle()
        [request] = await app.inbox(run=asking.id)
        assert (request.kind, request.options, sent) == ("compensation", ("undo", "skip"), [("book", 2)])
        await app.answer(request, "undo", by="ann")
        with pytest.raises(limpet.RunFailed):
            await asking.result()
        assert sent == [("book", 2), ("unbook", 2)]
        made_up = await app.fork("r", at=1, effects="stub")
        await app.settle()
        [request] = await app.inbox(run=made_up.id)
        await app.approve(request, by="ann")
        with pytest.raises(limpet.RunFailed):
            await made_up.result()
        assert len(sent) == 2


async def test_children_of_a_fork_ask_before_effects_too() -> None:
    """Children have the fork's mode. A call that had not returned at the fork point is made again; the original child
    is left alone.
    """

    @limpet.agent(name="fork_callee")
    async def callee(run: limpet.Run, n: int) -> str:
        if n == 2:
            await run.ask("wait?")
        return str(await run.step(send, n))

    @limpet.agent(name="fork_caller")
    async def caller(run: limpet.Run) -> list[str]:
        first = await run.call(callee, 1)
        await run.step(look, 1)
        return [first, await run.call(callee, 2)]

    async with testing.app(caller, callee) as app:
        await app.start(caller, id="r")
        await app.settle()
        assert sent == [("send", 1)]
        fork = await app.fork("r", at=1)
        await app.settle()
        [request] = [each for each in await app.inbox() if each.run.startswith(fork.id)]
        assert request.run == f"{fork.id}.fork_callee-2"
        await app.approve(request, by="ann")
        await app.settle()
        [request] = await app.inbox(run=request.run)
        assert (request.kind, request.tool, sent) == ("approval", "fork_send", [("send", 1)])
        assert _why(request) == "A fork asks before each effect, and the run was called by a fork."
        await app.approve(request, by="ann")
        assert await fork.result() == ["sent 1", "sent 2"]
        assert (await app.info("r.fork_callee-2")).status == "waiting"
        made_up = await app.fork("r", at=1, effects="stub")
        await app.settle()
        [request] = [each for each in await app.inbox() if each.run.startswith(made_up.id)]
        await app.approve(request, by="ann")
        assert await made_up.result() == ["sent 1", ""]
        await app.cancel(made_up.id, reason="enough") if (await made_up.info()).status != "completed" else None
        assert (await app.info("r.fork_callee-2")).status == "waiting"


async def test_a_fork_of_a_child_does_not_notify_the_parent() -> None:
    """The parent waits for its child, not for the child's forks."""

    @limpet.agent(name="fork_child")
    async def child(run: limpet.Run) -> str:
        await run.step(look, 1)
        return "fork" if await run.ask("fork?") else "child"

    @limpet.agent(name="fork_parent")
    async def parent(run: limpet.Run) -> str:
        return await run.call(child, None)

    async with testing.app(parent, child) as app:
        handle = await app.start(parent, id="p")
        await app.settle()
        fork = await app.fork("p.fork_child-1", at=2)
        await app.settle()
        [request] = await app.inbox(run=fork.id)
        await app.approve(request, by="ann")
        assert await fork.result() == "fork"
        assert (await handle.info()).status == "waiting"
        [request] = await app.inbox()
        await app.reject(request, by="ann", because="no")
        assert await handle.result() == "child"


async def test_an_invalid_fork_is_refused_and_stores_nothing() -> None:
    async with testing.app(thirty) as app:
        await app.run(thirty, 1, id="r")
        before = await _stored(app)
        wrong: list[tuple[type[limpet.LimpetError], dict[str, Any]]] = [
            (limpet.InvalidArgument, {"at": 0}),
            (limpet.InvalidArgument, {}),
            (limpet.InvalidArgument, {"at": 2, "seq": 2}),
            (limpet.InvalidArgument, {"seq": 999}),
            (limpet.NotFound, {"at": 33}),
            (limpet.InvalidValue, {"at": 2, "patch": {"fact": {"a": 1}}}),
            (limpet.InvalidValue, {"at": 2, "patch": {"facts": [1]}}),
            (limpet.InvalidValue, {"at": 2, "patch": {"facts": {"a": float("nan")}}}),
            (limpet.InvalidPatch, {"at": 2, "patch": {"answered": {"what?": "never asked"}}}),
            (limpet.InvalidValue, {"at": 2, "results": {2: 1}}),
            (limpet.InvalidValue, {"at": 2, "effects": "dry"}),
            (limpet.ContractError, {"at": 2, "input": "many"}),
            (limpet.InvalidArgument, {"at": 2, "id": "a b"}),
        ]
        for error, asked in wrong:
            with pytest.raises(error):
                await app.fork("r", **asked)
        with pytest.raises(limpet.NotFound):
            await app.fork("nobody", at=1)
        assert await _stored(app) == before


async def test_a_fork_may_have_another_version_and_a_chosen_id() -> None:
    """Generated ids are numbered; a chosen id is used once."""
    async with testing.app(thirty) as app:
        await app.run(thirty, 1, id="r")
        fork = await app.fork("r", at=30, version="2", id="try")
        assert (await fork.info()).version == "2"
        again = await app.fork("r", at=30, version="2", id="try")
        assert again.id == "try"
        with pytest.raises(limpet.IdConflict):
            await app.fork("r", at=29, id="try")
        await app.start(thirty, 1, id="r.2")
        assert (await app.fork("r", at=3)).id == "r.3"
        assert (await app.fork("r.3", at=2)).id == "r.3.1"
        waits = await app.fork("r", at=30, version="9")
        assert (await waits.info()).waits_text == "worker:fork_thirty 9"


async def test_a_fork_of_a_failed_run_continues_past_the_failure() -> None:
    """The original run stays failed, and its age does not count against the fork's deadline."""
    broken = True

    @limpet.tool(effect="idempotent", name="fork_flaky")
    async def flaky(n: int) -> int:
        if broken:
            raise limpet.Permanent("down")
        return n

    @limpet.agent(name="fork_failing", deadline="1h")
    async def failing(run: limpet.Run) -> int:
        await run.step(look, 1)
        return await run.step(flaky, 2)

    async with testing.app(failing) as app:
        parent = await app.start(failing, id="r")
        with pytest.raises(limpet.RunFailed):
            await parent.result()
        await app.advance("2h")
        broken = False
        fork = await app.fork("r", at=2)
        assert await _approve_all(app, fork.id) == 1
        assert await fork.result() == 2
        assert (await parent.info()).status == "failed"
        report = (await app.state(fork.id)).whole
        assert (report.spent.steps, report.position.step, report.error) == (2, 2, None)
        assert report.fork is not None
        assert report.spent.wall_us < 3600 * 10**6


async def test_a_stubbed_fork_calls_no_external_system() -> None:
    """A read returns the recorded result for the same arguments, otherwise a generated value that is marked as such."""
    called: list[str] = []

    @limpet.tool(effect="none", name="fork_balance")
    async def balance(account: str) -> dict[str, int]:
        called.append(account)
        return {"cents": len(called)}

    @limpet.external(ttl="1h", name="fork_rate")
    async def rate(currency: str) -> int:
        called.append(currency)
        return 7

    @limpet.agent(name="fork_reader")
    async def reader(run: limpet.Run, account: str) -> list[Any]:
        first = await run.step(balance, "a")
        second = await run.step(balance, account)
        return [first, second, await run.read(rate, "eur"), await run.call(helper, account)]

    @limpet.agent(name="fork_helper")
    async def helper(run: limpet.Run, account: str) -> dict[str, int]:
        return await run.step(balance, account)

    async with testing.app(reader, helper) as app:
        assert await app.run(reader, "b", id="r") == [{"cents": 1}, {"cents": 2}, 7, {"cents": 4}]
        before = list(called)
        same = await app.fork("r", at=1, effects="stub")
        assert await same.result() == [{"cents": 1}, {"cents": 2}, 7, {}]
        other = await app.fork("r", at=2, effects="stub", input="c")
        assert await other.result() == [{"cents": 1}, {}, 7, {}]
        assert called == before
        own = [each.body for each in await app.log(other.id) if each.run == other.id and each.kind == "step.started"]
        assert [(each["tool"], each.get("made_up", False)) for each in own] == [
            ("fork_balance", True),
            ("fork_rate", False),
        ]
        second = await app.fork(other.id, at=2, effects="stub")
        assert await second.result() == [{"cents": 1}, {}, 7, {}]
        [made_up] = [
            each.body
            for each in await app.log(second.id)
            if each.run == second.id and each.kind == "step.started" and each.body["tool"] == "fork_balance"
        ]
        assert made_up["made_up"], "still marked as in the fork before"
        live = await app.fork("r", at=2, effects="stub", reads="live", input="c")
        assert await live.result() == [{"cents": 1}, {"cents": 5}, 7, {"cents": 7}]
        with pytest.raises(limpet.InvalidArgument, match="effects='stub'"):
            await app.fork("r", at=2, reads="live")


async def test_a_stubbed_fork_is_parked_before_a_model_call() -> None:
    """Its flag names the option `model='live'`."""
    model = testing.ScriptedModel(lambda _: "hi")
    agent = limpet.llm_agent("fork_talker", model=model, instructions="Talk.")
    async with testing.app(agent) as app:
        await app.run(agent, "hello", id="r")
        asked = len(model.prompts)
        fork = await app.fork("r", at=1, effects="stub")
        await app.settle()
        assert (await fork.info()).waits_text == "operator:model"
        [flag] = [each.body for each in await app.log(fork.id) if each.kind == "risk.flagged"]
        assert "model='live'" in flag["detail"]
        await app.crash()
        await app.resume(fork.id)
        await app.settle()
        assert (await fork.info()).waits_text == "operator:model"
        assert len(model.prompts) == asked
        live = await app.fork("r", at=1, effects="stub", model="live")
        assert await live.result() == "hi"
        assert len(model.prompts) == asked + 1
