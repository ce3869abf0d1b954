"""Inspection: the state of a run at any point, the changes of a step, and where two runs diverged."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.journal import load
from limpet.policy.checkpoint import LONGEST_TAIL
from limpet.state import fold


@limpet.tool(effect="none", name="travel_look")
async def look(n: int) -> int:
    if n == 13:
        raise ValueError("unlucky")
    return n * 10


@limpet.agent(name="travel_agent", steps=12)
async def agent(run: limpet.Run, unlucky: int) -> int:
    await run.patch(goal="count", plan=["first", "rest"])
    async with run.scope("first"):
        await run.patch(facts={"found": await run.step(look, 1)})
    how = await run.decide("go on?", choose="yes", over=["yes", "no"], because="there is more")
    async with run.scope("rest"):
        for n in range(2, 13):
            found = await run.step(look, 13 if n == unlucky else n)
            await run.patch(facts={"found": found}, flags=["half"] if n == 6 else [])
    return len(how)


async def test_state_at_any_step_event_or_time_is_the_fold_of_the_log() -> None:
    async with testing.app(agent) as app:
        await app.start(agent, 0, id="r1")
        await app.settle()
        log = [event async for event in app.store.log("r1")]
        for number in range(1, 13):
            before, after = await app.state("r1", before=number), await app.state("r1", after=number)
            started = next(e.seq for e in log if e.kind == "step.started" and e.decode().number == number)  # type: ignore[union-attr]
            assert before.whole == fold(log[: started - 1])
            assert before.facts.get("found") == (None if number == 1 else (number - 1) * 10)
            assert (before.step, after.step) == (number - 1, number)
            assert (await app.state("r1", seq=after.seq)).whole == after.whole == fold(log[: after.seq])
        six = await app.state("r1", before=6)
        assert (six.goal, six.plan, six.next, six.position.text) == ("count", ["first", "rest"], "rest", "step 5 of 12")
        assert [(made.question, made.chosen) for made in six.decisions] == [("go on?", '"yes"')]
        assert (await app.state("r1")).whole == await load(app.store, "r1")
        now = datetime.fromtimestamp(log[-1].time / 1e6, tz=UTC)
        assert (await app.state("r1", at=now)).seq == len(log)
        nowhere: list[dict[str, Any]] = [{"before": 99}, {"after": 0}, {"at": 1}]
        for wrong in nowhere:
            with pytest.raises(limpet.NotFound):
                await app.state("r1", **wrong)
        with pytest.raises(limpet.NotFound) as missing:
            await app.diff("r1", step=99)
        assert missing.value.hint == "Pass a step from 1 to 12."
        with pytest.raises(limpet.NotFound, match=r"No event 'r1 until 1970-01-01 00:00:00 UTC'\. Pass a later time"):
            await app.state("r1", at=1)
        unclear: list[dict[str, Any]] = [{"before": 1, "after": 1}, {"at": now.replace(tzinfo=None)}]
        for wrong in unclear:
            with pytest.raises(limpet.InvalidValue):
                await app.state("r1", **wrong)


async def test_diff_shows_the_changes_from_one_step_to_the_next() -> None:
    """As data and as text."""
    async with testing.app(agent) as app:
        await app.start(agent, 0, id="r1")
        await app.settle()
        whole = await app.diff("r1", since=limpet.Point(before=6), until=limpet.Point(before=7))
        assert (whole.of("fact")["found"].before, whole.of("fact")["found"].after) == (50, 60)
        assert str(whole).splitlines() == [
            "step 6 called travel_look(n=6); result 60",
            "fact found is now 60, was 50, from step 6",
            "flag raised: half",
            "spent: 1 step, cost 0",
        ]
        assert await app.diff("r1", step=6) == whole
        assert await app.diff("r1", since="before:6", until="before:7") == whole
        assert [step.number for step in whole.steps] == [6]
        assert (await app.diff("r1", step=12)).of("fact")["found"].after == 120
        assert str(await app.diff("r1", since=limpet.Point(seq=3), until=limpet.Point(seq=3))) == "nothing changed"


async def test_compare_shows_where_two_runs_diverged() -> None:
    """The first different event, then steps, facts, and outcomes."""
    async with testing.app(agent) as app:
        await app.start(agent, 0, id="good")
        await app.start(agent, 6, id="bad")
        await app.settle()
        found = await app.compare("good", "bad")
        assert found.divergence is not None
        assert (found.divergence.one, found.divergence.other) == (
            "travel_look(n=6) → 60",
            "travel_look(n=13) ✗ ValueError: unlucky",
        )
        steps = [(each.before, each.after) for each in found.changes if each.part == "step"]
        assert steps[:2] == [
            ("travel_look(n=6) → 60", "travel_look(n=13) ✗ ValueError: unlucky"),
            ("travel_look(n=7) → 70", None),
        ]
        assert (found.of("fact")["found"].before, found.of("fact")["found"].after) == (120, 50)
        assert found.of("outcome")[""].before == "completed 3"
        first, second, *_ = str(found).splitlines()
        assert (first, second.startswith("step: travel_look(n=6) → 60 / ")) == (
            "the first 6 acts are the same, then:",
            True,
        )
        same = await app.compare("good", "good")
        assert (same.divergence, str(same)) == (None, "both runs did the same")


async def test_state_finds_a_step_that_started_late_after_an_approval() -> None:
    """Step numbers need not be in the order of the log."""
    import asyncio  # noqa: PLC0415

    @limpet.tool(effect="idempotent", risk="external_action")
    async def pay() -> str:
        return "paid"

    @limpet.agent(approvals=limpet.Approvals("external_action"))
    async def late(run: limpet.Run) -> None:
        async def others() -> None:
            async with run.scope("others"):
                for n in range(200):
                    await run.step(look, n + 20)

        await asyncio.gather(run.step(pay), others())

    async with testing.app(late) as app:
        await app.start(late, id="r1")
        await app.settle()
        await app.approve((await app.inbox())[0], by="ann")
        await app.settle()
        assert (await app.state("r1", before=1)).step == 201
        assert (await app.state("r1", before=150)).step == 149
        assert (await app.state("r1", after=150)).step == 150


class _CountedReads:
    """Counts reads of the log, and the events that they return."""

    def __init__(self, app: Any) -> None:
        self.events = self.reads = 0
        read = app.store.read

        async def counted(*args: Any, **how: Any) -> Any:
            found = await read(*args, **how)
            self.reads, self.events = self.reads + 1, self.events + len(found)
            return found

        app.store.read = counted


async def test_state_of_a_long_run_reads_few_events_from_a_snapshot(tmp_path: Path) -> None:
    """Without any snapshot, the state is the same."""

    @limpet.agent(name="travel_long")
    async def long(run: limpet.Run, count: int) -> int:
        for n in range(count):
            await run.step(look, n + 100)
            await run.patch(facts={"last": n})
        return count

    async with limpet.open(f"sqlite:///{tmp_path}/long.db", agents=[long]) as app:
        steps = 2000
        await app.run(long, steps, id="r")
        assert (await app.store.get("r")).seq > 3 * steps
        snapshots = await app.store.snapshots("r")
        assert 3 <= len(snapshots) <= 128
        counted, known = _CountedReads(app), {}
        for number in (1, 7, 500, 1234, 1999, 2000):
            counted.events = counted.reads = 0
            known[number] = (await app.state("r", before=number)).whole
            assert counted.events < 2 * LONGEST_TAIL
            assert counted.reads < 40
        await app.store.drop_snapshots("r", [seq for seq, _ in snapshots])
        for number, state in known.items():
            assert (await app.state("r", before=number)).whole == state
            assert (await app.state("r", before=number)).facts == ({"last": number - 2} if number > 1 else {})


async def test_diff_ignores_facts_that_only_changed_their_order() -> None:
    """A fact that is set again moves to the end."""

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
        found = str(await app.diff("r", step=1)).splitlines()
        assert [line for line in found if line.startswith("fact")] == ["fact a is now 3, was 1, from step 1"]
        fork = await app.fork("r", at=1, patch={"facts": {"a": 5}}, effects="stub")
        await app.settle()
        compared = await app.compare("r", fork.id)
        assert not any("fact b" in line or "flag" in line or "question" in line for line in compared.text.splitlines())


@limpet.tool(effect="idempotent", name="twelve_pay", retry=limpet.Retry(3, first="1s"))
async def pay(n: int) -> str:
    return f"R-{n}"


@limpet.agent(name="twelve_steps")
async def twelve(run: limpet.Run) -> str:
    """Pay twelve times, without a single patch."""
    for n in range(1, 13):
        await run.step(pay, n)
    return "paid"


async def test_a_run_without_patches_tells_what_each_step_did() -> None:
    """Before each step, the state shows all that was done; the diff of each step shows its call and its result."""
    async with testing.app(twelve) as app:
        app.stub(pay, *(f"R-{n}" for n in range(1, 6)), ConnectionError("busy"), "R-6", "R-7", ValueError("no"))
        with pytest.raises(limpet.RunFailed):
            await app.run(twelve, id="r")
        assert (await app.info("r")).position.step == 8
        for n in range(1, 9):
            before = await app.state("r", before=n)
            assert [step.result for step in before.steps] == [f"R-{k}" for k in range(n - 1, 0, -1)]
            assert (before.step, before.status, before.open_steps) == (n - 1, "running", ())
            said = str(await app.diff("r", step=n)).splitlines()[0]
            assert said.startswith(f"step {n} called twelve_pay(n={n}); ")
            assert f"key r:step_{n}:twelve_pay:" in said
            assert n == 8 or f"result 'R-{n}'" in said
        assert "2 attempts (ConnectionError: busy)" in str(await app.diff("r", step=6))
        last = await app.diff("r", step=8)
        assert "failed: ValueError: no" in last.text
        assert last.of("status")[""].after == "failed"
        after = await app.state("r", after=8)
        assert after.failure is not None
        assert (after.failure.message, after.failure_step) == ("no", 8)
        assert "step 6 called twelve_pay(n=6); 2 attempts" in str(after)


async def test_a_moment_shows_an_open_step_with_its_attempts() -> None:
    """While it waits for its next attempt: the errors so far, and when it is retried."""

    @limpet.tool(effect="none", name="moment_flaky", retry=limpet.Retry(9, first="1h"))
    async def flaky(n: int) -> int:
        raise ConnectionError(f"busy {n}")

    @limpet.agent(name="moment_retrying")
    async def retrying(run: limpet.Run) -> int:
        return await run.step(flaky, 1)

    async with limpet.open("memory://", agents=[retrying]) as app:
        await app.start(retrying, id="r")
        async for event in app.events("r", follow=True):
            if event.kind == "step.failed":
                break
        moment = await app.state("r")
        [step] = moment.open_steps
        assert (step.status, step.attempt_count, step.attempts[0].retry_at is not None) == ("retrying", 1, True)
        assert "open      step 1 called moment_flaky(n=1); failed: ConnectionError: busy 1, next attempt at " in str(
            moment
        )
        assert moment.steps == []


async def test_compare_of_two_model_runs_names_the_first_different_reply() -> None:
    """In words, without digests; what is equal is not listed."""

    @limpet.tool(effect="none", name="compare_price")
    async def price(article: str) -> int:
        return len(article)

    def writer(*replies: Any) -> limpet.Agent[str, str]:
        model = testing.ScriptedModel(*replies)
        return limpet.llm_agent("compare_writer", model=model, instructions="Write.", tools=[price])

    look, note = testing.calls("compare_price", article="tea"), testing.calls("note_fact", key="tone", value="warm")
    one, other = writer(look, note, "It costs 3."), writer(look, "I do not know.")
    async with testing.app(one) as app:
        await app.run(one, "price?", id="one")
        app.deploy(other)
        await app.crash()
        await app.run(other, "price?", id="other")
        found = await app.compare("one", "other")
        assert found.divergence is not None
        assert found.divergence.one == "model scripted → note_fact(key='tone', value='warm')"
        assert found.divergence.other == "model scripted → 'I do not know.'"
        assert [(each.before, each.after) for each in found.changes if each.part == "step"][-1][1] is None
        assert not re.search(r"[0-9a-f]{16}", found.text)
        assert "compare_price" not in found.text
        assert "fact tone: warm / —" in found.text
