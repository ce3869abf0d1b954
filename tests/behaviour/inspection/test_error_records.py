"""Records of failures: every field of them, how each failure was handled, and steps that were refused."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.service.error_records import ErrorInfo, frame_lines
from limpet.stores.cipher import MasterKeys

TRIES: list[int] = []


@limpet.tool(effect="idempotent", name="records_pay", retry=limpet.Retry(3, first="1s"))
async def pay(order: str, cents: int) -> str:
    """Fail until the third attempt; with more than 900, always."""
    limpet.current().partial({"sent": cents // 2})
    TRIES.append(cents)
    if cents > 900 or len(TRIES) % 3:
        raise limpet.NotApplied(f"the bank is busy ({len(TRIES)})")
    return f"receipt-{order}"


@limpet.agent(name="records_payer")
async def payer(run: limpet.Run, cents: int) -> str:
    return await run.step(pay, "o-1", cents)


@limpet.agent(name="records_patient")
async def patient(run: limpet.Run, cents: int) -> str:
    try:
        return await run.step(pay, "o-1", cents)
    except limpet.StepFailed:
        await run.patch(facts={"paid": False})
        return "later"


@pytest.fixture(autouse=True)
def _no_tries() -> None:
    TRIES.clear()


async def handled(app: Any, run: str) -> list[str]:
    """Return how the failures of a run were handled, the oldest first."""
    return [each.handled for each in await app.errors(run=run)][::-1]


async def fail(app: Any, agent: Any, *given: Any, run: str) -> limpet.RunFailed:
    """Start a run that fails, and return its error."""
    handle = await app.start(agent, *given, id=run)
    with pytest.raises(limpet.RunFailed) as raised:
        await handle.result()
    return raised.value


async def test_a_failure_has_all_facts() -> None:
    """Time, run, agent, step, tool, input, output so far, exception, attempts, and how it was handled."""
    async with testing.app(patient) as app:
        await app.run(patient, 950, id="r")
        last, middle, first = await app.errors()
        assert [each.handled for each in (first, middle, last)] == ["retried", "retried", "caught"]
        assert [(each.attempt, each.attempts) for each in (first, middle, last)] == [(1, 3), (2, 3), (3, 3)]
        assert [each.message for each in (first, last)] == ["the bank is busy (1)", "the bank is busy (3)"]
        for each in (first, middle, last):
            assert (each.run, each.agent, each.step, each.name) == ("r", "records_patient", 1, "records_pay#1")
            assert (each.tool, each.input) == ("records_pay", {"order": "o-1", "cents": 950})
            assert (each.output, each.type) == ({"sent": 475}, "limpet.NotApplied")
            assert 'raise limpet.NotApplied(f"the bank is busy' in each.traceback
        assert first.time <= last.time
        assert (await app.show("r")).error is None


async def test_a_retried_step_that_succeeds_leaves_its_failures_retried() -> None:
    async with testing.app(payer) as app:
        assert await app.run(payer, 10, id="r") == "receipt-o-1"
        assert await handled(app, "r") == ["retried", "retried"]


async def test_the_report_has_the_same_record_as_the_list() -> None:
    """With the user's lines: where the agent called the tool, and where the tool raised."""
    async with testing.app(payer) as app:
        await fail(app, payer, 950, run="r")
        [error, *_] = await app.errors(run="r")
        assert (await app.show("r")).error == error
        assert error.handled == "failed the run"
        lines = [*frame_lines(error.traceback)]
        assert len(lines) == 4
        assert all(f"{Path(__file__)}:" in each for each in lines[::2])
        assert lines[0].endswith(" in payer")
        assert lines[1] == '  return await run.step(pay, "o-1", cents)'
        assert lines[2].endswith(" in pay")
        assert lines[3].startswith("  raise limpet.NotApplied(")


async def test_a_failure_outside_a_step_has_the_input_of_the_run() -> None:
    """An error that the code raises from a failed step is a failure of its own."""

    @limpet.agent(name="records_wrapper")
    async def wrapper(run: limpet.Run, cents: int) -> None:
        try:
            await run.step(pay, "o-1", cents)
        except limpet.StepFailed as error:
            raise RuntimeError("gave up") from error

    async with testing.app(wrapper) as app:
        await fail(app, wrapper, 950, run="r")
        last, step, *_ = await app.errors()
        assert (last.type, last.step, last.tool, last.input) == ("builtins.RuntimeError", None, "", 950)
        assert (last.handled, step.handled, step.attempt) == ("failed the run", "failed the run", 3)
        assert (await app.show("r")).error == last


@pytest.mark.parametrize(
    ("said", "expected"), [("retry", ["escalated"]), ("fail", ["escalated", "caught"]), ({"result": 7}, ["escalated"])]
)
async def test_an_escalated_failure_stays_escalated(said: Any, expected: list[str]) -> None:
    """Only if the person lets the step fail, the code gets the error."""

    @limpet.tool(effect="none", retry=1, name="records_look")
    async def look() -> int:
        raise AssertionError("stubbed")

    @limpet.agent(name="records_asker", escalate=limpet.Escalate(ValueError))
    async def agent(run: limpet.Run) -> None:
        with suppress(limpet.StepFailed):
            await run.step(look)

    async with testing.app(agent) as app:
        app.stub(look, ValueError("odd"), 5)
        handle = await app.start(agent, id="r")
        await app.settle()
        assert await handled(app, "r") == ["escalated"]
        await app.answer((await app.inbox())[0], said, by="ann")
        await handle.result()
        assert await handled(app, "r") == expected


async def test_a_failed_child_is_a_failure_of_the_child_and_of_a_caller_that_does_not_catch_it() -> None:
    """The caller's traceback has the lines of both."""

    @limpet.agent(name="records_caller")
    async def caller(run: limpet.Run, catches: bool) -> None:
        with suppress(*([limpet.AgentFailed] if catches else [])):
            await run.call(payer, 950)

    async with testing.app(payer, caller) as app:
        await app.run(caller, True, id="calm")
        assert {each.run for each in await app.errors()} == {"calm.records_payer-1"}
        assert (await app.errors())[0].handled == "failed the run"
        assert await app.errors(run="calm") == []
        await fail(app, caller, False, run="sad")
        [error] = await app.errors(run="sad")
        assert (error.type, error.handled, error.input) == ("limpet.AgentFailed", "failed the run", False)
        assert "limpet show sad.records_payer-1" in error.hint
        assert [each.split()[-1] for each in [*frame_lines(error.traceback)][::2]] == ["caller", "payer", "pay"]


async def test_a_fork_lists_the_failures_that_it_shares() -> None:
    """As its own; over all runs, they are listed once, with the run that they happened in."""

    @limpet.agent(name="records_forked")
    async def forked(run: limpet.Run, cents: int) -> str:
        with suppress(limpet.StepFailed):
            await run.step(pay, "first", 950)
        return await run.step(pay, "second", cents)

    async with testing.app(forked) as app:
        await fail(app, forked, 950, run="r")
        assert await handled(app, "r") == ["retried", "retried", "caught", "retried", "retried", "failed the run"]
        fork = await app.fork("r", at=2, effects="live", input=10)
        assert await fork.result() == "receipt-second"
        assert await handled(app, fork.id) == ["retried", "retried", "caught", "retried", "retried"]
        assert {each.run for each in await app.errors(run=fork.id)} == {fork.id}
        assert len([each for each in await app.errors(last=100) if each.name == "records_pay#1"]) == 3


async def test_a_failure_that_was_resumed_still_says_that_it_failed_the_run() -> None:
    """Also if the run fails again, or completes."""

    @limpet.tool(effect="none", retry=1, name="records_flaky")
    async def flaky() -> int:
        raise AssertionError("stubbed")

    @limpet.agent(name="records_resumed")
    async def agent(run: limpet.Run) -> int:
        return await run.step(flaky)

    async with testing.app(agent) as app:
        app.stub(flaky, ValueError("one"), ValueError("two"), 3)
        await fail(app, agent, run="r")
        handle = await app.resume("r")
        with pytest.raises(limpet.RunFailed, match="two"):
            await handle.result()
        assert [(each.message, each.handled) for each in await app.errors(run="r")] == [
            ("two", "failed the run"),
            ("one", "failed the run"),
        ]
        error = (await app.show("r")).error
        assert error is not None
        assert (error.message, error.attempt, error.attempts) == ("two", 2, 2)
        assert await (await app.resume("r")).result() == 3
        assert await handled(app, "r") == ["failed the run", "failed the run"]
        assert (await app.show("r")).error is None


async def test_a_failure_is_not_caught_before_the_code_continues() -> None:
    reached, goes_on = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="once", name="records_once")
    async def once() -> None:
        raise limpet.NotApplied("no")

    @limpet.agent(name="records_slow")
    async def slow(run: limpet.Run) -> None:
        with suppress(limpet.StepFailed):
            await run.step(once)
        reached.set()
        await goes_on.wait()

    async with limpet.open("memory:", agents=[slow]) as app:
        handle = await app.start(slow, id="r")
        await reached.wait()
        assert await handled(app, "r") == ["failed the step"]
        goes_on.set()
        await handle.result()
        assert await handled(app, "r") == ["caught"]


async def test_a_compensation_that_fails_finally_leaves_its_step_done() -> None:
    @limpet.tool(effect="once", name="records_book")
    async def book(room: int) -> str:
        return f"room {room}"

    @book.compensate
    async def unbook(result: str | None, room: int) -> None:
        raise ConnectionError("hotel closed")

    @limpet.agent(name="records_traveller")
    async def traveller(run: limpet.Run) -> None:
        await run.step(book, 7)
        raise ValueError("no flight")

    async with testing.app(traveller) as app:
        handle = await app.start(traveller, id="r")
        await app.advance("30d")
        for request in await app.inbox():
            await app.answer(request, "skip", by="ann")
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        undone = [each for each in await app.errors(run="r") if each.name == "undo 1"]
        assert undone
        assert {(each.tool, str(each.input), each.type) for each in undone} == {
            ("records_book", "{'room': 7}", "builtins.ConnectionError")
        }
        assert undone[0].attempt == undone[0].attempts == len(undone)


# Steps that were refused before they started


@limpet.external(ttl="5m", name="records_price")
async def price() -> int:
    return 100


@limpet.tool(effect="once", name="records_sell", fresh=[price], risk="pay")
async def sell(at: int) -> str:
    return f"sold at {at}"


def seller(catches: bool, **more: Any) -> limpet.Agent[None, str]:
    """Return an agent that sells, perhaps with data that is missing."""

    @limpet.agent(name="records_seller", **more)
    async def agent(run: limpet.Run) -> str:
        if more.get("approvals"):
            await run.read(price)
        try:
            return await run.step(sell, 100)
        except limpet.LimpetError as error:
            if not catches:
                raise
            return error.code

    return agent


async def decide(app: Any, how: str) -> None:
    """Decide a request by a person, or let it expire."""
    await app.settle()
    if how == "reject":
        await app.reject((await app.inbox())[0], by="ann", because="too cheap")
    elif how == "expire":
        await app.advance("2h")


REFUSED = [
    ("stale", "", {}),
    ("budget_exceeded", "", {"budget": limpet.Budget(max_steps=0)}),
    ("rejected", "reject", {"approvals": limpet.Approvals("pay")}),
    ("expired", "expire", {"approvals": limpet.Approvals("pay", expires="1h")}),
]


@pytest.mark.parametrize("catches", [True, False])
@pytest.mark.parametrize(("code", "how", "more"), REFUSED)
async def test_a_step_that_was_refused_is_a_failure_and_a_call(
    catches: bool, code: str, how: str, more: dict[str, Any]
) -> None:
    """With its tool and arguments, although it never started."""
    agent = seller(catches, **more)
    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        await decide(app, how)
        if catches:
            assert await handle.result() == code
        else:
            with pytest.raises(limpet.RunFailed):
                await handle.result()
        [error] = await app.errors(run="r")
        assert error.handled == ("caught" if catches else "failed the run")
        assert (error.tool, error.input, error.name) == ("records_sell", {"at": 100}, "records_sell#1")
        assert (error.attempt, error.attempts) == (None, 0)
        assert error.hint
        number = 2 if "approvals" in more else 1
        [call] = await app.tool_calls("records_sell", where=["at=100"], run="r")
        assert (call.step.status, call.step.number, call.step.attempt_count) == ("refused", number, 0)
        assert error.step == number
        assert call.step.error is not None
        assert call.step.error.type == error.type
        assert await app.tool_calls("records_sell", where=["at>100"]) == []
        assert await app.tool_calls("records_price", run="r") == [] or "approvals" in more
        report = await app.show("r")
        assert report.error == (None if catches else error)


async def test_a_budget_that_a_person_does_not_extend_is_a_failure() -> None:
    @limpet.agent(name="records_poor", budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def poor(run: limpet.Run) -> None:
        for _ in range(2):
            await run.step(pay, "o-1", 1)

    async with testing.app(poor) as app:
        app.stub(pay, "paid")
        handle = await app.start(poor, id="r")
        await decide(app, "reject")
        with pytest.raises(limpet.RunFailed) as raised:
            await handle.result()
        [error] = await app.errors(run="r")
        assert (error.type, error.step, error.handled) == ("limpet.BudgetExceeded", 2, "failed the run")
        assert raised.value.hint == error.hint
        assert "`limpet resume r`" in error.hint


# Reading


async def test_failures_of_one_run_are_read_in_pages() -> None:
    async with testing.app(patient) as app:
        for run in ("a", "b"):
            await app.run(patient, 950, id=run)
        first = await app.errors(run="a", last=2)
        assert first.next is not None
        rest = await app.errors(run="a", last=2, cursor=first.next)
        assert [each.attempt for each in (*first, *rest)] == [3, 2, 1]
        assert rest.next is None
        assert {each.run for each in (*first, *rest)} == {"a"}
        assert await app.errors(run="a", agent="records_payer") == []
        with pytest.raises(limpet.NotFound):
            await app.errors(run="nowhere")
        with pytest.raises(limpet.InvalidArgument):
            await app.errors(run="a", cursor="x")


async def test_large_inputs_are_shown_by_size() -> None:
    @limpet.tool(effect="none", retry=1, name="records_large")
    async def large(text: str) -> None:
        raise ValueError("too large")

    @limpet.agent(name="records_writer")
    async def writer(run: limpet.Run) -> None:
        with suppress(limpet.StepFailed):
            await run.step(large, "x" * 100_000)

    async with testing.app(writer) as app:
        await app.run(writer, id="r")
        [error] = await app.errors()
        assert error.input["bytes"] > 100_000


async def test_an_encrypted_store_shows_the_same_record(tmp_path: Path) -> None:
    """And its file has neither the message nor the traceback."""

    @limpet.agent(name="records_secretive")
    async def secretive(run: limpet.Run) -> None:
        raise ValueError("walrus")

    store = limpet.open_store(f"sqlite:///{tmp_path}/a.db", keys=MasterKeys(lambda: bytes(32)))
    async with limpet.open(agents=[secretive]).replace(store=store) as app:
        await fail(app, secretive, run="r")
        [error] = await app.errors(run="r")
        assert error.message == "walrus"
        assert 'raise ValueError("walrus")' in [line.strip() for line in frame_lines(error.traceback)]
        assert (await app.show("r")).error == error
    assert not any(b"walrus" in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())


async def test_secrets_are_removed_from_tracebacks() -> None:
    """From the record, the exception that is raised, and its note."""
    password = limpet.Secret("walrus-and-carpenter")

    @limpet.tool(effect="none", retry=1, name="records_login")
    async def login() -> None:
        raise PermissionError(f"wrong password {password.reveal()}")

    @limpet.agent(name="records_user")
    async def user(run: limpet.Run) -> None:
        await run.step(login)

    async with testing.app(user) as app:
        error = await fail(app, user, run="r")
        [record] = await app.errors(run="r")
        assert isinstance(record, ErrorInfo)
        shown = f"{record} {error} {error.traceback} {error.__cause__} {getattr(error.__cause__, '__notes__', '')}"
        assert "walrus" not in shown
        assert record.message == "wrong password [secret]"
