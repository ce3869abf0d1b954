"""Replay: today's code is run against a log, without a single call to external systems."""

import asyncio
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from zipfile import ZipFile

import httpx
import pytest

import limpet
from limpet import sync, testing
from limpet.engine.definitions.agents import Agent
from limpet.service.bundles import verify_bundle
from limpet.stores.cipher import MasterKeys
from limpet.testing.app import TestApp


class CountingService:
    """An HTTP service that counts its calls."""

    def __init__(self) -> None:
        outside = self
        self.calls = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outside.calls += 1
                self.send_response(500 if self.path == "/broken" else 200)
                self.end_headers()
                self.wfile.write(b"7")

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def outside() -> Any:
    """A running service."""
    found = CountingService()
    yield found
    found.close()


def twelve(outside: CountingService) -> Agent[int, int]:
    """Return an agent with twelve steps, of which one fails."""

    @limpet.tool(effect="idempotent", name="replaying_get", retry=limpet.Retry(3))
    def get(path: str) -> int:
        return int(httpx.get(outside.url + path).raise_for_status().text)

    @get.compensate
    def undo(result: int | None, path: str) -> None:
        httpx.get(f"{outside.url}/undo")

    @limpet.agent(name="replaying_twelve", steps=12)
    async def agent(run: limpet.Run, broken: int) -> int:
        for n in range(1, 13):
            found = await run.step(get, "/broken" if n == broken else f"/{n}")
            await run.patch(facts={f"n{n}": found})
        return len(run.state.facts)

    return agent


async def test_a_failed_step_is_reproduced_from_a_bundle_on_another_store(
    outside: CountingService, tmp_path: Path
) -> None:
    """Replay reports the state before the step, its changes and the same error, without any call."""
    agent = twelve(outside)
    async with testing.app(agent) as app:
        handle = await app.start(agent, 6, id="r")
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        await app.export("r", tmp_path / "r.zip")
    made = outside.calls
    async with limpet.open(f"sqlite:///{tmp_path}/else.db", agents=[agent], worker=False) as other:
        loaded = await other.load(tmp_path / "r.zip")
        assert sorted((await other.state(loaded.id, before=6)).facts) == ["n1", "n2", "n3", "n4", "n5"]
        assert "step 6 called replaying_get(path='/broken'); 3 attempts" in str(await other.diff(loaded.id, step=6))
        again = await other.replay(loaded.id, to=6)
        assert again.error is not None
        assert (again.error.tool, again.error.number, again.error.attempts) == ("replaying_get", 6, 3)
        assert again.error.was(httpx.HTTPStatusError)
        assert again.how == "raised"
        assert isinstance(again.raised, limpet.StepFailed)
        assert sorted(again.state.facts) == ["n1", "n2", "n3", "n4", "n5"]
        assert (await other.replay(loaded.id)).error is not None
        earlier = await other.replay(loaded.id, to=4)
        assert (earlier.error, earlier.how, len(earlier.state.facts)) == (None, "reached", 4)
        events = await other.log(loaded.id)
    assert outside.calls == made
    assert [each.kind for each in events][-1] == "run.failed"


async def test_replay_reports_a_failed_step_that_the_code_caught() -> None:
    """The code continues after the error."""

    @limpet.tool(effect="none", name="replaying_fails")
    async def fails() -> None:
        raise ValueError("no")

    @limpet.agent(name="replaying_catches")
    async def catches(run: limpet.Run) -> str:
        try:
            await run.step(fails)
        except limpet.StepFailed:
            await run.patch(flags=["failed"])
        return "done"

    async with testing.app(catches) as app:
        await app.run(catches, id="r")
        found = await app.replay("r", to=1)
        assert found.error is not None
        assert found.error.was(ValueError)
        assert (found.how, found.value, found.state.risk_flags) == ("returned", "done", ["failed"])
        whole = await app.replay("r")
        assert (whole.how, whole.value) == ("returned", "done")


async def test_replay_calls_only_tools_that_are_allowed_by_name() -> None:
    """The log does not change."""
    called: list[str] = []

    @limpet.tool(effect="none", name="replaying_first")
    async def first() -> int:
        called.append("first")
        return 1

    @limpet.tool(effect="once", name="replaying_second")
    async def second(n: int) -> int:
        called.append("second")
        return n + 1

    @limpet.agent(name="replaying_allows")
    async def allows(run: limpet.Run) -> int:
        return await run.step(second, await run.step(first))

    async with testing.app(allows) as app:
        await app.run(allows, id="r")
        called.clear()
        before = [event async for event in app.store.log("r")]
        found = await app.replay("r", to=1)
        assert isinstance(found.raised, limpet.NotRecorded)
        assert (found.how, found.raised.tool, called) == ("reached", "replaying_second", [])
        assert str(found) == "r matches its log up to step 1"
        allowed = await app.replay("r", to=1, allow=["replaying_second"])
        assert (allowed.how, allowed.value, called) == ("returned", 2, ["second"])
        assert [event async for event in app.store.log("r")] == before


async def test_a_waiting_run_is_replayed_up_to_its_wait() -> None:
    """Replay opens no request and starts no child."""

    @limpet.agent(name="replaying_child")
    async def child(run: limpet.Run) -> str:
        return "child"

    @limpet.agent(name="replaying_waits")
    async def waits(run: limpet.Run) -> list[Any]:
        found: list[Any] = [await run.call(child, None), await run.ask("go on?"), run.uuid()]
        await run.sleep("1d")
        found.append(await run.receive("more", int))
        found.append(await run.ask("again?"))
        return found

    async with testing.app(waits, child) as app:
        await app.start(waits, id="r")
        await app.settle()
        assert (await app.replay("r")).how == "waits"
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        assert (await app.replay("r")).how == "waits"
        await app.advance("1d")
        await app.signal("r", "more", 5)
        await app.settle()
        found = await app.replay("r")
        assert (found.how, found.error) == ("waits", None)
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        result = await (await app.get("r")).result()
        assert (await app.replay("r")).value == result
        assert len(await app.runs()) == 2


async def test_failed_cancelled_and_large_runs_are_replayed_without_calls() -> None:
    """Compensations are not repeated."""
    calls: list[str] = []

    @limpet.tool(effect="once", name="replaying_does")
    async def does(what: str) -> str:
        calls.append("does")
        return what

    @does.compensate
    async def undoes(result: str | None, what: str) -> None:
        calls.append("undoes")

    fails = True

    @limpet.agent(name="replaying_many")
    async def many(run: limpet.Run, text: str) -> int:
        done = await run.step(does, text)
        if fails and len(text) < 10:
            raise ValueError("too short")
        if text.startswith("wait"):
            await run.ask("go on?")
        return len(done)

    async with testing.app(many) as app:
        for run, text in (("short", "x"), ("long", "y" * 50_000), ("cancelled", "wait" * 10)):
            await app.start(many, text, id=run)
        await app.settle()
        await app.cancel("cancelled", reason="enough")
        await app.settle()
        assert calls.count("undoes") == 2
        calls.clear()
        short = await app.replay("short")
        assert (short.how, type(short.raised)) == ("raised", ValueError)
        assert (await app.replay("long")).value == 50_000
        assert (await app.replay("cancelled")).how == "waits"
        assert [str(each) async for each in app.replay_all()] == [
            "cancelled: ok",
            "long: ok",
            "short: ok",
        ]
        assert calls == []
        fails = False
        assert [each.problem async for each in app.replay_all(agent="replaying_many", last=1)] == [None]
        [short_] = [each async for each in app.replay_all() if each.run == "short"]
        assert short_.problem is None  # a resume would continue after the failure


async def test_replay_all_reports_runs_that_new_code_would_break() -> None:  # noqa: C901 - one edit after the other

    @limpet.tool(effect="once", name="replaying_act")
    async def act(what: str) -> str:
        return what

    async def first(run: limpet.Run, what: str) -> str:
        await run.step(act, what)
        if what == "waits":
            await run.ask("go on?")
        return what

    async def adds(run: limpet.Run, what: str) -> str:
        await run.step(act.options(name="before"), "before")
        return await first(run, what)

    async def shouts(run: limpet.Run, what: str) -> str:
        return (await first(run, what)).upper()

    async def more(run: limpet.Run, what: str) -> str:
        done = await first(run, what)
        await run.step(act, "more")
        return done

    async def breaks(run: limpet.Run, what: str) -> str:
        await first(run, what)
        raise RuntimeError("oh")

    async def takes(run: limpet.Run, what: int) -> str:
        return str(what)

    async with testing.app(limpet.agent(name="replaying_deploy")(first)) as app:
        for what in ("done", "waits"):
            await app.start(app.serves[0], what, id=what)
        await app.settle()

        async def problems(code: Any, **how: Any) -> dict[str, str | None]:
            app.deploy(limpet.agent(name="replaying_deploy")(code))
            return {each.run: each.problem async for each in app.replay_all(**how)}

        assert await problems(first) == {"done": None, "waits": None}
        diverged = await problems(adds)
        assert all("before#1" in (problem or "") for problem in diverged.values())
        assert await problems(shouts) == {"done": "returns a different result", "waits": None}
        assert "continues where the run ended" in ((await problems(more))["done"] or "")
        assert await problems(breaks) == {"done": "fails with RuntimeError: oh", "waits": None}
        refused = await problems(takes, status=("waiting",))
        assert list(refused) == ["waits"]
        assert "input" in (refused["waits"] or "")
        app.deploy()
        with pytest.raises(limpet.InvalidArgument, match="agents"):
            await app.replay("done")


def test_replay_works_for_blocking_agents_and_encrypted_stores(tmp_path: Path) -> None:

    @limpet.tool(effect="once", name="replaying_block")
    def block(n: int) -> str:
        return "x" * n

    @limpet.agent(name="replaying_blocks")
    def blocks(run: sync.Run, n: int) -> int:
        found = len(run.step(block, n))
        if n > 20_000:
            raise ValueError("too much")
        return found

    async def go() -> None:
        store = limpet.open_store(f"sqlite:///{tmp_path}/secret.db", keys=MasterKeys(lambda: bytes(32)))
        app = limpet.open(agents=[blocks]).replace(store=store)
        async with app:
            assert await app.run(blocks, 20_000, id="r") == 20_000
            with pytest.raises(limpet.RunFailed):
                await app.run(blocks, 20_001, id="bad")
            seen: list[int] = []
            found = await app.replay("r", on_step=seen.append)
            assert (found.value, seen) == (20_000, [1])
            assert isinstance((await app.replay("bad")).raised, ValueError)
            fork = await app.fork("r", at=2)
            assert await fork.result() == 20_000
            assert (await app.replay(fork.id)).value == 20_000

    asyncio.run(go())


async def test_forks_are_replayed_and_exported_with_their_shared_prefix(tmp_path: Path) -> None:
    """A fork's bundle contains the runs that it was forked from."""
    outside: list[int] = []

    @limpet.tool(effect="once", name="replaying_once")
    async def once(n: int) -> int:
        outside.append(n)
        return n

    @limpet.agent(name="replaying_forked")
    async def forked(run: limpet.Run, big: str) -> int:
        return sum([await run.step(once, n) for n in range(1, 5)]) + len(run.state.facts)

    async with testing.app(forked) as app:
        await app.run(forked, "x" * 20_000, id="r")
        first = await app.fork("r", at=3, effects="live", patch={"facts": {"a": 1}}, results={1: 100})
        assert await first.result() == 110
        second = await app.fork(first.id, at=2, effects="stub")
        result = await second.result()
        third = await app.fork(first.id, at=4, effects="live", patch={"facts": {"b": 2}})
        assert await third.result() == 111
        outside.clear()
        for run, value in ((first, 110), (second, result), (third, 111)):
            assert (await app.replay(run.id)).value == value
            assert (await app.replay(run.id, to=1)).how == "reached"
            await app.export(run.id, tmp_path / f"{run.id}.zip")
        heads = {run.id: (await app.store.get(run.id)).hash for run in (first, second, third)}
    assert outside == []
    assert await testing.still_replays(forked, bundles=str(tmp_path)) == []
    async with testing.app(forked) as other:
        assert isinstance(other, TestApp)
        for path in (third.id, second.id):
            await other.load(tmp_path / f"{path}.zip")
            assert (await other.store.get(path)).hash == heads[path]
        assert len(await other.runs()) == 4
        assert (await other.verify()).runs == 4
        assert (await other.load(tmp_path / f"{first.id}.zip")).id == first.id  # it was loaded with the third
        assert len(await other.runs()) == 4


async def test_a_bundle_is_verified_without_a_store(tmp_path: Path) -> None:
    """A change in a log, in the shared prefix or in a blob is found."""

    @limpet.tool(effect="none", name="replaying_big")
    async def big() -> str:
        return "x" * 20_000

    @limpet.agent(name="replaying_file")
    async def agent(run: limpet.Run) -> int:
        return len(await run.step(big))

    async with testing.app(agent) as app:
        await app.run(agent, id="r")
        fork = await app.fork("r", at=2)
        await fork.result()
        await app.export(fork.id, tmp_path / "f.zip")
    found = await verify_bundle(tmp_path / "f.zip")
    assert found.runs == 2
    for name, old, new in (
        ("log.jsonl", b'"step.completed"', b'"step.complete_"'),
        ("origins/r.jsonl", b'"actor":"w-', b'"actor":"x-'),
        ("blobs/", b"xxxx", b"yxxx"),
    ):
        path = tmp_path / "changed.zip"
        with ZipFile(tmp_path / "f.zip") as before, ZipFile(path, "w") as after:
            for entry in before.namelist():
                data = before.read(entry)
                after.writestr(entry, data.replace(old, new, 1) if entry.startswith(name) else data)
        with pytest.raises(limpet.LimpetError):
            await verify_bundle(path)


async def test_replay_to_a_step_stops_at_a_new_step_before_it() -> None:
    """A new read does not diverge, but the requested step is not reached."""
    is_new: list[bool] = []

    @limpet.tool(effect="none", name="replaying_look")
    async def look(n: int) -> int:
        return n

    @limpet.agent(name="replaying_looks")
    async def looks(run: limpet.Run) -> int:
        if is_new:
            await run.step(look.options(name="other"), 0)
        return await run.step(look, 1)

    async with testing.app(looks) as app:
        await app.run(looks, id="r")
        is_new.append(True)
        found = await app.replay("r", to=1)
        assert str(found).startswith("r reached the end of its log: replaying_look")


async def test_replay_ignores_events_after_the_end_and_reports_new_waits_and_starts() -> None:  # noqa: C901 - some agents
    """A child's result that arrives after the run failed changes nothing."""

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


async def test_a_fork_is_replayed_with_its_own_input_and_results() -> None:
    """Also in the prefix that it shares with the original run."""
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
        assert any("(edited)" in (each.after or "") for each in found.changes if each.part == "step")


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_replay_parks_after_the_code_cancels_a_wait_and_makes_no_further_call(has_begun: bool) -> None:
    """The cancelled wait is the last thing that happens before only other waits are left.

    Branches that had begun before a result begin before it on replay, whether or not the code waits for that.
    """

    @limpet.agent(name="replay_canceller")
    async def agent(run: limpet.Run) -> str:
        async def ask() -> None:
            async with run.scope("ask"):
                await run.ask("Which?")

        async def sleep() -> None:
            async with run.scope("sleep"):
                await run.sleep("1h")

        asking, sleeping = asyncio.create_task(ask()), asyncio.create_task(sleep())
        if has_begun:
            await asyncio.sleep(0)  # noqa: TID251 - both begin
        await run.receive("stop", str)
        asking.cancel()
        await asyncio.wait({asking, sleeping})
        return "done"

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        await app.settle()
        await app.signal("r", "stop", "now")
        await app.settle()
        async with asyncio.timeout(20):
            assert (await app.replay("r")).how == "waits"
        await app.advance("2h")
        assert await handle.result() == "done"
        assert (await app.replay("r")).value == "done"
