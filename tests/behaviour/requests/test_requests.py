"""Requests: their context, who may decide, standing approvals, and notifications."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.errors import ConnectionLost
from limpet.events import bodies as b
from limpet.service.webhooks import is_genuine
from limpet.stores import Extend


@limpet.tool(effect="idempotent", risk="external_action", name="desk_refund")
async def refund(order: str, cents: int = 100) -> str:
    return f"{order}: {cents}"


@limpet.tool(effect="none", retry=1, name="desk_look")
async def look(order: str) -> dict[str, Any]:
    if order == "gone":
        raise LookupError("no such order")
    return {"order": order, "text": "x" * 1000}


APPROVALS = limpet.Approvals("external_action", to=["finance"], expires="2d", escalate=["boss"])


@limpet.agent(name="people_support", approvals=APPROVALS, budget=limpet.Budget(max_steps=20))
async def support(run: limpet.Run, order: str) -> str:
    await run.patch(goal=f"settle {order}", facts={"customer": "ann"}, flags=["angry"])
    await run.step(look, order)
    with suppress(limpet.StepFailed):
        await run.step(look, "gone")
    await run.decide("refund?", choose="full", over=["none", "full"], because="arrived broken", confidence=0.9)
    try:
        first = await run.step(refund, order)
    except limpet.Rejected as no:
        return f"no: {no.because}"
    return first + " and " + await run.step(refund, order, 7)


async def test_a_request_shows_the_context_of_the_decision() -> None:
    """The input, past steps and errors, the reason, and the effect of each choice."""
    async with testing.app(support) as app:
        await app.start(support, "o-1", id="r1")
        await app.settle()
        [request] = await app.inbox()
        assert (request.tool, request.args, request.to) == ("desk_refund", {"order": "o-1"}, ("finance",))
        shown = request.context
        assert shown is not None
        assert (shown.agent, shown.input, shown.goal) == ("people_support", '"o-1"', "settle o-1")
        assert [(step.number, step.tool, step.status) for step in shown.steps] == [
            (1, "desk_look", "completed"),
            (2, "desk_look", "failed"),
        ]
        assert shown.steps[0].result.endswith("characters)")
        assert "LookupError: no such order" in shown.errors[0]
        assert [(made.chosen, made.because) for made in shown.decisions] == [('"full"', "arrived broken")]
        assert (shown.flags, shown.spent["steps"]) == (("angry",), 2)
        assert [(fact.key, fact.value) for fact in shown.facts] == [("customer", '"ann"')]
        assert "external_action" in shown.why
        assert [choice.answer for choice in shown.choices] == ["approve", "approve with other arguments", "reject"]
        assert shown.if_unanswered == "The request then goes to boss."


async def test_the_context_of_a_request_shows_only_the_newest_steps() -> None:
    """It counts the steps that are left out."""

    @limpet.tool(effect="none", retry=1)
    async def count(n: int) -> int:
        return n

    @limpet.agent()
    async def long(run: limpet.Run) -> bool:
        for n in range(400):
            await run.step(count, n)
        return await run.ask("enough?")

    async with testing.app(long) as app:
        await app.start(long)
        await app.settle()
        [request] = await app.inbox()
        assert request.context is not None
        assert [step.number for step in request.context.steps] == list(range(381, 401))
        assert request.context.earlier_steps == 380


async def test_a_standing_approval_can_be_revoked() -> None:
    """It covers one tool for the rest of the run. After a revocation, the next call opens a request."""

    @limpet.agent(approvals=APPROVALS)
    async def thrice(run: limpet.Run) -> list[str]:
        done = [await run.step(refund, "a"), await run.step(refund, "b")]
        await run.ask("third?")
        return [*done, await run.step(refund, "c")]

    async with testing.app(thrice) as app:
        handle = await app.start(thrice, id="r1")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann", standing=True)
        await app.settle()
        [ask] = await app.inbox()
        assert ask.question == "third?"
        with pytest.raises(limpet.InvalidAnswer):
            await app.approve(ask, by="ann", standing=True)
        [grant] = await app.grants("r1")
        assert (grant.by, grant.tool) == ("ann", "desk_refund")
        await app.revoke("r1", grant.grant, by="bob", because="enough")
        with pytest.raises(limpet.NotFound):
            await app.revoke("r1", grant.grant, by="bob")
        await app.approve(ask, by="ann")
        await app.settle()
        [again] = await app.inbox()
        assert again.args == {"order": "c"}
        await app.approve(again, by="ann")
        assert await handle.result() == ["a: 100", "b: 100", "c: 100"]
        kinds = [event.kind for event in await app.log("r1")]
        assert kinds[kinds.index("request.answered") + 1] == "grant.given"
        assert kinds.count("grant.revoked") == 1


async def test_answer_by_an_unassigned_person_is_refused() -> None:
    """Checked where the members of groups are configured."""
    async with testing.app(support) as app:
        app._settings.people = {"finance": ["ann", "bob"], "boss": ["eve"]}
        handle = await app.start(support, "o-1")
        await app.settle()
        [request] = await app.inbox(to="ann")
        assert await app.inbox(to="eve") == []
        for by in ("eve", "nobody", "boss", ""):
            with pytest.raises(limpet.NotAllowed) as refused:
                await app.approve(request, by=by)
            assert refused.value.to == ("finance",)
        await app.advance("2d")
        with pytest.raises(limpet.NotAllowed):
            await app.reject(request, by="ann", because="too late for me")
        [request] = await app.inbox(to="eve")
        await app.reject(request, by="eve", because="no")
        assert await handle.result() == "no: no"


async def test_the_inbox_is_filtered_by_person_age_and_risk() -> None:
    """The oldest request comes first."""

    @limpet.agent()
    async def asker(run: limpet.Run, to: str) -> bool:
        return await run.ask("well?", to=to)

    async with testing.app(asker, support) as app:
        await app.start(asker, "anyone", id="r1")
        await app.start(asker, "bob", id="r2")
        await app.advance("1h")
        await app.start(support, "o-1", id="r3")
        await app.settle()

        async def found(**how: Any) -> list[str]:
            return [request.run for request in await app.inbox(**how)]

        assert await found() == ["r1", "r2", "r3"]
        assert await found(to="bob") == ["r2"]
        assert await found(to="finance") == ["r3"]
        app._settings.people = {"finance": ["bob"]}
        assert await found(to="bob") == ["r2", "r3"]
        assert await found(older_than="30m") == ["r1", "r2"]
        assert await found(risk="external_action") == ["r3"]
        assert await found(run="r2") == ["r2"]


async def test_constraints_of_a_run_require_approval() -> None:
    """In addition to the agent's own rules."""

    @limpet.agent()
    async def plain(run: limpet.Run) -> str:
        return await run.step(refund, "a")

    async with testing.app(plain) as app:
        assert await app.run(plain) == "a: 100"
        careful = {"human_in_the_loop": {"required_for_risk_levels": ["external_action"]}}
        handle = await app.start(plain, constraints=careful)
        await app.settle()
        await app.approve((await app.inbox())[0], by="ann", args={"cents": 5})
        assert await handle.result() == "a: 5"
        with pytest.raises(limpet.ContractError):
            await app.start(plain, constraints={"human": 1})


async def test_a_second_late_or_unknown_answer_is_refused_with_the_reason() -> None:
    """Also an answer after the request was withdrawn. The first answer is final."""

    @limpet.agent()
    async def asker(run: limpet.Run) -> bool:
        return await run.ask("well?", expires="1h")

    async with testing.app(asker) as app:
        first = await app.start(asker, id="r1")
        await app.start(asker, id="r2")
        await app.start(asker, id="r3")
        await app.settle()
        one, two, three = await app.inbox()
        await app.approve(one, by="ann")
        with pytest.raises(limpet.AlreadyAnswered) as second:
            await app.reject(one, by="bob", because="no")
        assert (second.value.by, second.value.status) == ("ann", "approved")
        await app.cancel("r2", reason="enough")
        with pytest.raises((limpet.WrongState, limpet.AlreadyAnswered)):
            await app.approve(two, by="ann")
        await app.settle()
        with pytest.raises(limpet.AlreadyAnswered) as withdrawn:
            await app.approve(two, by="ann")
        assert withdrawn.value.status == "withdrawn"
        await app.advance("2h")
        with pytest.raises(limpet.Expired):
            await app.approve(three, by="ann")
        with pytest.raises(limpet.NotFound):
            await app.approve("nothing", by="ann")
        assert await first.result() is True


@contextmanager
def http_receiver(answers: list[int]) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """Run a server that responds with these status codes, then with 204. Yields its URL and the received requests."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop(0) if answers else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", got
    finally:
        server.shutdown()
        server.server_close()


async def test_channels_are_notified_of_requests(tmp_path: Path) -> None:
    """By a signed webhook with retries, and by a custom function. The run does not wait for them."""
    told: list[limpet.Request] = []
    secret = "0123456789abcdef"

    async def own(request: limpet.Request) -> None:
        told.append(request)

    with http_receiver([500]) as (address, got):
        hook = limpet.Webhook(address, secret=secret, allow_private=True)
        url = f"sqlite:///{tmp_path}/x.db"
        async with limpet.open(url, agents=[support], notify={"ops": hook, "own": own}) as app:
            handle = await app.start(support, "o-1", id="r1")
            while len(got) < 2 or not told:
                await asyncio.sleep(0.02)  # noqa: TID251 - a real server
            (headers, body), (again, same) = got
            assert body == same
            assert headers["Idempotency-Key"] == again["Idempotency-Key"]
            assert is_genuine(secret, again["Limpet-Signature"], body, now=await app.store.now())
            sent = json.loads(body)
            assert (sent["id"], sent["tool"], sent["args"]) == (told[0].id, "desk_refund", {"order": "o-1"})
            assert sent["context"]["choices"][0]["answer"] == "approve"
            await app.reject(told[0], by="ann", because="no")
            assert await handle.result(timeout="10s") == "no: no"
            runs = {info.id: info.status for info in await app.runs(agent="limpet.notify")}
            assert set(runs) == {f"notify-{told[0].id}-ops-1", f"notify-{told[0].id}-own-1"}


async def test_channels_are_notified_of_each_escalation() -> None:
    told: list[tuple[str, ...]] = []
    async with testing.app(support) as app:
        app._settings.channels = {"own": lambda request: told.append(request.to)}
        await app.crash()
        await app.start(support, "o-1", id="r1")
        await app.settle()
        await app.advance("2d")
        assert told == [("finance",), ("boss",)]
        await app.verify("r1")


@limpet.tool(effect="once", risk="external_action", name="people_valid_act")
async def act(n: int) -> str:
    return f"done {n}"


@limpet.agent(approvals=limpet.Approvals("external_action", expires="1h"))
async def careful(run: limpet.Run) -> str:
    return await run.step(act, 1)


@limpet.agent(approvals=limpet.Approvals("external_action", valid="1h"))
async def hasty(run: limpet.Run) -> str:
    return await run.step(act, 1)


@pytest.mark.parametrize("dies", [False, True])
async def test_an_approval_does_not_expire_before_it_is_used(dies: bool) -> None:
    """`expires` limits the time to answer; an approval in time can be used at any later time."""
    async with testing.app(careful) as app:
        handle = await app.start(careful)
        await app.settle()
        [request] = await app.inbox()
        await app.pause(handle.id)
        await app.approve(request, by="ann")
        await app.advance("30d")
        if dies:
            await app.crash()
        await app.resume(handle.id)
        await app.settle()
        assert await app.inbox() == []
        assert await handle.result() == "done 1"


async def test_an_approval_is_requested_again_after_its_validity() -> None:
    """`valid` limits the time to use an approval. The second request mentions the first approval."""
    async with testing.app(hasty) as app:
        handle = await app.start(hasty)
        await app.settle()
        [request] = await app.inbox()
        await app.advance("9d")  # the time to answer is unlimited
        await app.pause(handle.id)
        await app.approve(request, by="ann", args={"n": 7})
        await app.advance("61m")
        await app.resume(handle.id)
        await app.settle()
        [again] = await app.inbox()
        assert "ann approved this before, but the step did not start in time" in again.question
        assert again.args == {"n": 7}
        with pytest.raises(limpet.AlreadyAnswered):
            await app.approve(request, by="ann")
        await app.pause(handle.id)
        await app.approve(again, by="ann")
        await app.advance("59m")
        await app.crash()
        await app.resume(handle.id)
        assert await handle.result() == "done 7"


def lose_reply(app: testing.TestApp, kind: type[object], nth: int) -> None:
    """Write the n-th append of an event type, but report a lost connection; a second passes meanwhile."""
    commit, seen = app.store._writer._commit, [0]

    def lose_one_reply(batch: Any) -> Any:
        done = commit(batch)
        legs = [leg for op in batch for leg in getattr(op, "legs", ()) if isinstance(leg, Extend)]
        seen[0] += any(isinstance(sealed.body, kind) for leg in legs for sealed in leg.events)
        if seen[0] != nth:
            return done
        seen[0] = nth + 1
        app._test_settings.frozen.set(app._test_settings.frozen.now() + 1_000_000)
        return [ConnectionLost(reason="after it was written")] * len(done)

    app.store._writer._commit = lose_one_reply


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_request_whose_expiry_was_not_acknowledged_expires_once(nth: int) -> None:
    """It escalates once, with the full time for the next person, and ends once."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            await run.ask("well?", to="ann", expires="1h", escalate=["bob"])
        except limpet.Expired:
            return "late"
        return "in time"

    async with testing.app(agent) as app:
        lose_reply(app, b.RequestExpired, nth)
        handle = await app.start(agent, id="r1")
        await app.advance("3h")
        assert await handle.result() == "late"
        log = await app.log("r1")
        expired = [event for event in log if event.kind == "request.expired"]
        assert [event.body["outcome"] for event in expired] == ["escalated", "raised"]
        assert expired[1].time - log[0].time >= timedelta(hours=2)
        assert [event.kind for event in log].count("wait.ended") == 1


async def test_channels_are_notified_of_a_reopened_request() -> None:
    """A resumed run opens its request again."""
    told: list[str] = []

    @limpet.tool(effect="none", retry=1)
    async def flaky() -> int:
        raise NotImplementedError

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        return list(await asyncio.gather(run.ask("sure?"), run.step(flaky)))

    async def own(request: limpet.Request) -> None:
        told.append(request.id)

    async with testing.app(agent) as app:
        app._settings.channels = {"own": own}
        await app.crash()
        app.stub(flaky, ValueError("no"), 7)
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        await app.resume(handle.id)
        await app.settle()
        [request] = await app.inbox()
        assert told[-1] == request.id
        await app.approve(request, by="ann")
        assert await handle.result() == [True, 7]


async def test_a_channel_may_return_an_awaitable() -> None:
    """A lambda that returns a coroutine, or an object with an async `__call__`."""
    told: list[str] = []

    class Desk:
        async def __call__(self, request: limpet.Request) -> None:
            told.append(request.question)

    async def own(request: limpet.Request) -> None:
        told.append(request.question)

    @limpet.agent()
    async def agent(run: limpet.Run) -> bool:
        return await run.ask("well?")

    async with testing.app(agent) as app:
        app._settings.channels = {"desk": Desk(), "own": lambda request: own(request)}  # noqa: PLW0108
        await app.crash()
        await app.start(agent)
        await app.settle()
    assert told == ["well?", "well?"]
