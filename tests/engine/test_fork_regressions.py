"""What a review of forks, replay and pruning found, each once and for all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.events import bodies as b
from limpet.stores.cipher import MasterKeys
from limpet.stores.memory import MemoryTables

done: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


async def test_a_resumed_fork_does_what_it_shares_as_its_own() -> None:  # noqa: C901 - some agents
    """Not under the other run's key, not without asking, and not by the other run's child."""
    broken = True

    @limpet.tool(effect="once", name="regress_refund")
    async def refund(n: int) -> int:
        if broken:
            raise limpet.Permanent("down")
        done.append(limpet.idempotency_key())
        return n

    @limpet.agent(name="regress_kid")
    async def kid(run: limpet.Run, n: int) -> int:
        return await run.step(refund, n)

    @limpet.agent(name="regress_mum")
    async def mum(run: limpet.Run, n: int) -> int:
        return await run.call(kid, n)

    @limpet.agent(name="regress_solo")
    async def solo(run: limpet.Run, n: int) -> int:
        return await run.step(refund, n)

    async with testing.app(kid, mum, solo) as app:
        for agent in (mum, solo):
            await app.start(agent, 1, id=agent.name)
        await app.settle()
        forks = [await app.fork(agent.name, at=2, id=f"{agent.name}-fork") for agent in (solo,)]
        seq = (await app.store.get(mum.name)).seq - 1
        forks.append(await app.fork(mum.name, seq=seq, id="mum-fork"))
        await app.settle()
        broken = False
        for fork in forks:
            await app.resume(fork.id)
        await app.settle()
        assert done == []
        assert len(await app.inbox()) == 2
        for request in await app.inbox():
            await app.approve(request, by="ann")
        await app.settle()
        assert len(done) == 2
        assert not any(key.startswith(("regress_solo:", "regress_mum.regress_kid-1")) for key in done)
        assert (await app.info("regress_mum.regress_kid-1")).status == "failed"
        await app.resume("regress_solo")
        await app.settle()
        assert len(set(done)) == 3


async def test_an_approval_that_was_used_is_not_used_again() -> None:
    """A step that failed, and is resumed, asks again."""
    broken = True

    @limpet.tool(effect="once", risk="money", name="regress_pay")
    async def pay() -> str:
        if broken:
            raise limpet.Permanent("down")
        done.append("paid")
        return "paid"

    @limpet.agent(name="regress_payer", approvals=limpet.Approvals("money", expires="1h"))
    async def payer(run: limpet.Run) -> str:
        return await run.step(pay)

    async with testing.app(payer) as app:
        handle = await app.start(payer, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        broken = False
        await app.advance("30d")
        await app.resume("r")
        await app.settle()
        assert done == []
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "paid"


async def test_what_could_not_be_read_is_not_stored() -> None:
    """A patch with wrong types is refused, by a fork and by a run."""

    @limpet.agent(name="regress_patches")
    async def patches(run: limpet.Run, what: int) -> str:
        wrong: list[dict[str, Any]] = [{"questions": [1]}, {"plan": "look"}, {"flags": 5}, {"facts": {1: 2}}]
        try:
            await run.patch(**wrong[what])
        except limpet.InvalidValue as error:
            return error.path
        return "taken"

    async with testing.app(patches) as app:
        names = ["questions", "plan", "flags", "facts"]
        assert [await app.run(patches, n, id=f"r{n}") for n in range(4)] == names
        for patch in ({"questions": [1]}, {"plan": [1]}, {"flags": [1]}, {"facts": {1: 2}}, {"plan": "look"}):
            with pytest.raises(limpet.InvalidValue):
                await app.fork("r0", at=1, patch=patch)
        with pytest.raises(limpet.InvalidArgument):
            await app.fork("r0", at="1")  # type: ignore[arg-type]
        assert len(await app.runs()) == 4


async def test_one_that_only_tries_takes_nothing_from_others() -> None:
    """Neither the id of a run that it starts, nor a run that it shares; nobody is told of what it asks."""
    told: list[str] = []

    @limpet.tool(effect="once", name="regress_ship")
    async def ship(n: int) -> int:
        done.append(n)
        return n

    @limpet.agent(name="regress_shipper")
    async def shipper(run: limpet.Run, n: int) -> int:
        await run.ask("ship?")
        return await run.step(ship, n)

    @limpet.agent(name="regress_starter")
    async def starter(run: limpet.Run) -> str:
        await run.step(ship, 0)
        first = await run.start(shipper, 1, id="first")
        await run.ask("go on?")
        await run.start(shipper, 2, id="second")
        await first.cancel("enough")
        return "done"

    async with testing.app(starter, shipper) as app:
        app._settings.channels = {"me": lambda request: told.append(request.run)}
        await app.crash()
        await app.start(starter, id="r")
        await app.settle()
        assert set(told) == {"r", "first"}
        fork = await app.fork("r", at=2, effects="stub")
        await app.settle()
        [request] = await app.inbox(run=fork.id)
        await app.approve(request, by="ann")
        await app.settle()
        assert (await app.info(fork.id)).status == "failed"  # it may not cancel what is not its own
        assert {each.id for each in await app.runs()} >= {f"{fork.id}.second"}
        assert set(told) == {"r", "first"}
        with pytest.raises(limpet.NotFound):
            await app.info("second")
        assert (await app.info("first")).status == "waiting"
        [request] = await app.inbox(run="r")
        await app.approve(request, by="ann")
        await app.settle()
        assert (await app.info("second")).status == "waiting"
        assert (await app.info("first")).status == "cancelled"
        again = await app.replay("r")
        assert again.how in ("raised", "returned")
        assert (await app.info("second")).status == "waiting"


async def test_what_a_fork_knows_wins_over_what_is_shared() -> None:
    """Whichever branch comes past the cut first, live and resumed: what the code sees is what the log says."""
    seen: list[int] = []

    @limpet.tool(effect="none", name="regress_look")
    async def look(n: int) -> int:
        return n

    @limpet.agent(name="regress_branches")
    async def branches(run: limpet.Run) -> int:
        async def one() -> None:
            async with run.scope("one"):
                await run.step(look, 1)
                await run.step(look, 2)

        async def two() -> None:
            async with run.scope("two"):
                await run.step(look, 3)
                await run.patch(facts={"total": 900})

        await asyncio.gather(two(), one())
        seen.append(run.state.facts["total"])
        await run.step(look, 9)
        await run.ask("go on?")
        return int(run.state.facts["total"])

    async with testing.app(branches) as app:
        await app.start(branches, id="r")
        await app.settle()
        last = max(each.body["number"] for each in await app.log("r") if each.kind == "step.started")
        seen.clear()
        for at in range(1, last + 1):
            fork = await app.fork("r", at=at, patch={"facts": {"total": 1200}})
            await app.settle()
            await app.crash()
            await app.settle()
            wanted = (await app.state(fork.id)).facts["total"]
            assert seen[-1] == wanted
            assert wanted == 1200 or at < last


async def test_an_unguarded_past_stays_on_the_old_side() -> None:
    """Also in a fork: what was done before the guard is not done again on the new side."""

    @limpet.tool(effect="once", name="regress_old")
    async def old() -> None:
        done.append("old")

    @limpet.tool(effect="once", name="regress_new")
    async def new() -> None:
        done.append("new")

    @limpet.tool(effect="none", name="regress_after")
    async def after() -> None: ...

    async def before(run: limpet.Run) -> None:
        await run.step(old)
        await run.step(after)

    async def guarded(run: limpet.Run) -> None:
        await run.step(new if run.version("mail") else old)
        await run.step(after)

    async with testing.app(limpet.agent(name="regress_guard")(before)) as app:
        await app.run(app.serves[0], id="r")
        app.deploy(limpet.agent(name="regress_guard")(guarded))
        await app.crash()
        fork = await app.fork("r", at=2, effects="live")
        await fork.result()
        assert done == ["old"]


async def test_numbers_agents_and_slots_of_forks() -> None:
    """They go on from the cut, also behind a rejected step; of its own version's code; exclusive without the code."""

    @limpet.tool(effect="once", risk="money", name="regress_risky")
    async def risky() -> None: ...

    @limpet.tool(effect="none", name="regress_read")
    async def read(n: int) -> int:
        return n

    @limpet.agent(name="regress_numbers", approvals=limpet.Approvals("money"), exclusive="session")
    async def numbers(run: limpet.Run, n: int) -> int:
        await run.step(read, 1)
        try:
            await run.step(risky)
        except limpet.Rejected:
            await run.step(read, 3)
        return n

    @limpet.agent(name="regress_numbers", version="2")
    async def words(run: limpet.Run, n: str) -> str:
        return n

    async with testing.app(numbers, words) as app:
        await app.start(numbers, 5, id="r", session="s")
        await app.settle()
        [request] = await app.inbox()
        await app.reject(request, by="ann", because="no")
        await app.settle()
        fork = await app.fork("r", at=3, input=6)
        assert await fork.result() == 6
        assert [each.body["number"] for each in await app.log(fork.id) if each.kind == "step.started"] == [1, 3]
        with pytest.raises(limpet.ContractError):
            await app.fork("r", at=3, input="many")
        assert await (await app.fork("r", at=1, version="2", input="many")).result() == "many"
        app.deploy()
        bare = await app.fork("r", at=3)
        assert (await app.store.get(bare.id)).exclusive == "session:s"
        same = await app.fork("r", at=3, id="again")
        await app.advance("1h")
        assert (await app.fork("r", at=3, id="again")).id == same.id


async def test_replay_after_the_end_and_before_a_deploy() -> None:  # noqa: C901 - some agents
    """What was told to a failed run later changes nothing; new waits and starts are named."""

    @limpet.agent(name="regress_late")
    async def late(run: limpet.Run, fails: bool) -> str:
        if fails:
            raise ValueError("no")
        await run.ask("go on?")
        return "late"

    @limpet.agent(name="regress_both")
    async def both(run: limpet.Run) -> None:
        async def one(fails: bool) -> None:
            async with run.scope(str(fails)):
                await run.call(late, fails)

        await asyncio.gather(one(False), one(True))

    async def plain(run: limpet.Run) -> str:
        return "done"

    async def waits(run: limpet.Run) -> str:
        await run.sleep("1d")
        return "done"

    async def starts(run: limpet.Run) -> str:
        await run.start(late, True)
        return "done"

    async with testing.app(both, late, limpet.agent(name="regress_plain")(plain)) as app:
        await app.start(both, id="r")
        await app.start("regress_plain", id="p")
        await app.settle()
        assert (await app.replay("r")).how == "raised"
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        assert (await app.replay("r")).how == "raised"
        for code, said in ((waits, "waits where the run ended"), (starts, "continues where the run ended")):
            app.deploy(limpet.agent(name="regress_plain")(code), late)
            [found] = [each async for each in app.replay_all(agent="regress_plain")]
            assert said in (found.problem or "")
        assert len(await app.runs()) == 4


async def test_a_fork_is_replayed_as_itself_in_its_shared_part() -> None:
    """With its own input and results."""
    seen: list[tuple[int, int]] = []

    @limpet.tool(effect="none", name="regress_base")
    async def base(n: int) -> int:
        return n

    @limpet.agent(name="regress_itself")
    async def itself(run: limpet.Run, n: int) -> int:
        first = await run.step(base, 1)
        await run.step(base, 2)
        seen.append((n, first))
        return first + await run.step(base, 3)

    async with testing.app(itself) as app:
        await app.run(itself, 0, id="r")
        fork = await app.fork("r", at=3, input=50, results={1: 100})
        await fork.result()
        seen.clear()
        await app.replay(fork.id, to=2)
        assert seen == [(50, 100)]
        found = await app.compare("r", fork.id)
        assert "(edited)" in found.steps[1].after


async def test_what_leaves_an_encrypted_store_is_whole(tmp_path: Path) -> None:
    """It is plain text, sealed anew; it goes into plain and encrypted stores, and can be checked by itself."""

    @limpet.tool(effect="none", name="regress_big")
    async def big() -> str:
        return "x" * 20_000

    @limpet.agent(name="regress_secret")
    async def secret(run: limpet.Run) -> int:
        return len(await run.step(big))

    path = tmp_path / "f.zip"
    store = limpet.open_store(f"sqlite:///{tmp_path}/a.db", keys=MasterKeys(lambda: bytes(32)))
    async with limpet.open(agents=[secret]).replace(store=store) as app:
        await app.run(secret, id="r")
        fork = await app.fork("r", at=2)
        await fork.result()
        await app.export(fork.id, path)
        pruned = await app.prune(older_than=0, dry_run=False, archive=tmp_path / "old")
        assert sorted(pruned.runs) == ["r", "r.1"]
    for keys in (None, MasterKeys(lambda: bytes(32)), MasterKeys(lambda: b"k" * 32)):
        target = limpet.open_store(f"sqlite:///{tmp_path}/{id(keys)}.db", keys=keys)
        async with limpet.open(agents=[secret], worker=False).replace(store=target) as other:
            handle = await other.load(path)
            assert await handle.result() == 20_000
            assert (await other.verify()).runs == 2
            assert (await other.replay(handle.id)).value == 20_000
            assert (await other.load(path)).id == handle.id


async def test_a_run_that_cannot_be_read_is_set_aside() -> None:
    """Nobody claims it again and again; others go on."""

    @limpet.agent(name="regress_unreadable")
    async def unreadable(run: limpet.Run) -> str:
        await run.ask("go on?")
        return "done"

    async with testing.app(unreadable) as app:
        for run in ("bad", "good"):
            await app.start(unreadable, id=run)
        await app.settle()
        tables = app.store._backend._tables  # type: ignore[attr-defined]
        assert isinstance(tables, MemoryTables)
        log = tables.log[tables.streams["bad"].number]
        event = log[1]
        log[1] = type(event)(**{**{f: getattr(event, f) for f in event.__struct_fields__}, "kind": "run.invented"})
        for request in await app.inbox(run="good"):
            await app.approve(request, by="ann")
        await app.store.send_commands("bad", b.CancelRequested(command="c", reason="enough"), actor="ann")
        await app.crash()
        await app.settle()
        assert (await app.store.get("bad")).waits == ("operator:unreadable",)
        assert (await app.info("good")).status == "completed"
        with pytest.raises(limpet.Tampered):
            await app.verify()


async def test_a_no_stands_in_a_fork_that_only_tries() -> None:
    """What a person refused before the cut is refused in the fork too, though nobody is asked there."""

    @limpet.tool(effect="once", risk="external_action", name="regress_pay")
    async def pay(n: int) -> int:
        done.append(n)
        return n

    @limpet.tool(effect="once", name="regress_tell")
    async def tell(text: str) -> str:
        done.append(text)
        return text

    @limpet.agent(name="regress_teller", approvals=limpet.Approvals("external_action"))
    async def teller(run: limpet.Run) -> str:
        try:
            await run.step(pay, 1)
        except limpet.Rejected as no:
            return await run.step(tell, f"no: {no.because}")
        return "paid"

    async with testing.app(teller) as app:
        await app.start(teller, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.reject(request, by="ann", because="too much")
        await app.settle()
        for effects in ("stub", "live"):
            fork = await app.fork("r", at=2, effects=effects)
            await app.settle()
            assert await fork.result() == "no: too much"
    assert done == ["no: too much"] * 2


async def test_what_only_moved_is_not_a_difference() -> None:
    """A fact that is said anew stands at the end, and those behind it are as they were."""

    @limpet.tool(effect="none", name="regress_look")
    async def look() -> int:
        return 1

    @limpet.agent(name="regress_facts")
    async def facts(run: limpet.Run) -> None:
        await run.patch(facts={"a": 1, "b": 2}, questions=["x", "y"], flags=["f", "g"])
        await run.step(look)
        await run.patch(facts={"a": 3})

    async with testing.app(facts) as app:
        await app.run(facts, id="r")
        assert str(await app.diff("r", step=1)).splitlines() == ["fact a = 3 (was 1)"]
        fork = await app.fork("r", at=1, patch={"facts": {"a": 5}}, effects="stub")
        await app.settle()
        compared = await app.compare("r", fork.id)
        assert not any("fact b" in line or "flag" in line or "question" in line for line in compared.lines)


async def test_a_fork_of_a_first_step_knows_what_was_said_before_it() -> None:
    """And not the reply that came of it, though no time has passed between the two."""
    agent = limpet.llm_agent("regress_talk", model=testing.ScriptedModel(lambda _: "hi"), instructions="Talk.")
    async with testing.app(agent) as app:
        await app.run(agent, "hello", id="r", conversation="c")
        await app.fork("r", at=1, id="f", effects="stub", model="live")
        await app.settle()
        assert [each.text for each in await app.messages("f.chat")][:1] == ["hello"]
        [first] = [each for each in await app.log("f") if each.kind == "step.started"][:1]
        assert first.body["args"]["json"]["reference"]["ranges"] == [[2, 2]]


async def test_the_steps_of_a_fork_in_turns_go_on_counting() -> None:
    """Though the code does not come to those of earlier turns again."""

    @limpet.tool(effect="none", name="regress_count")
    async def count(n: int) -> int:
        return n

    @limpet.agent(name="regress_turns")
    async def counts(run: limpet.Run) -> int:
        async for turn in run.turns(max=4):
            await run.step(count, turn.number)
        return 4

    async with testing.app(counts) as app:
        await app.run(counts, id="r")
        fork = await app.fork("r", at=3)
        await app.settle()
        assert await fork.result() == 4
        log = await app.log(fork.id)
        assert [each.body["number"] for each in log if each.kind == "step.started"] == [1, 2, 3, 4]
        assert [each.body["step"] for each in log if each.kind == "run.forked"] == [2]
        assert (await app.state(fork.id, before=2)).step == 1
