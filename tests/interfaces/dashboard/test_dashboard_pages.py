"""Pages of the dashboard over HTTP, as a browser without scripts uses them: start, compare, batches, talks, agents."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal
from urllib.parse import quote
from zipfile import ZipFile

import limpet
from limpet.testing import ScriptedModel, calls
from tests.interfaces.dashboard.test_dashboard import Browser, browser, dashboard, logged_in
from tests.interfaces.remote.remote_servers import served_app


@limpet.tool(effect="none", name="pages_read")
async def read(name: str) -> dict[str, Any]:
    """Read something."""
    return {"name": name, "big": "x" * 2_000_000 if name == "big-0" else ""}


@limpet.tool(effect="idempotent", name="pages_price", retry=limpet.Retry(1))
async def price(name: str) -> int:
    """Cost something, or fail."""
    if name == "bad":
        raise limpet.Permanent("no price for <bad>")
    limpet.current().spent(cost=0.25)
    return 5


@dataclass(kw_only=True)
class Order:
    """An order."""

    id: str
    count: int = 1
    how: Literal["card", "cash"] = "card"
    note: str | None = None


@limpet.agent(name="pages_buyer", version="4")
async def buyer(run: limpet.Run, order: Order) -> str:
    """Buy things."""
    await run.patch(facts={"order": order.id, "count": order.count, "tags": ["a", "b"]})
    for place in range(order.count):
        await run.step(read, f"{order.id}-{place}")
    cents = await run.step(price, order.id)
    await run.patch(facts={"cents": cents}, derived_from=["order"])
    return await run.receive("paid", str) if order.how == "cash" else f"{order.how} {cents}"


@limpet.agent(name="pages_asker", exclusive="user")
async def asker(run: limpet.Run, to: str) -> Order:
    """Ask for a value with a type."""
    return await run.ask(f"Which order, {to}?", answer=Order, to="finance")


HELD: dict[str, asyncio.Event] = {}


@limpet.tool(effect="none", name="pages_hold")
async def hold() -> None:
    """Wait for the test."""
    await HELD["until"].wait()


@limpet.agent(name="pages_holder")
async def holder(run: limpet.Run) -> None:
    """Hold a worker."""
    await run.step(hold)


talker = limpet.llm_agent(
    "pages_talker",
    model=ScriptedModel(calls("pages_read", name="kettle"), "It is broken."),
    instructions="Be kind to <everyone>.",
    tools=[read],
)


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[limpet.App, Browser]]:
    """Yield an app with agents, and a browser of ann."""
    async with (
        served_app(agents=[buyer, asker, holder, talker]) as (app, address),
        logged_in(app, address, "operator", "approver", "admin") as ann,
    ):
        yield app, ann


async def until(condition: Any) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(60):
        await _turns(condition)


async def _turns(condition: Any) -> None:
    while not await condition():
        await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop


async def test_a_run_names_the_one_that_has_its_slot() -> None:
    """The list and the page of the run do; the list can be filtered by it."""
    async with shop() as (app, ann):
        for run in ("first", "second"):
            await app.start(asker, "bob", id=run, user="ann")
        await until(lambda: _is_waiting(app, "first"))
        for path in ("/runs?waits_for=slot", "/runs/second"):
            page = await ann.page(path)
            assert "<b>a slot</b> that run <code>first</code> has" in page, path
        assert "/runs/first" not in await ann.page("/runs?waits_for=slot")


async def _is_waiting(app: limpet.App, run: str) -> bool:
    return (await app.info(run)).status == "waiting"


async def test_a_run_is_started_by_a_form_and_again_with_another_input() -> None:
    """The form is made from the contract, keeps what was typed if it is refused, and starts one run if sent twice."""
    async with shop() as (app, ann):
        page = await ann.page("/start?agent=pages_buyer")
        assert re.findall(r'<label class="form" for="input\.(\w+)"', page) == ["id", "count", "how", "note"]
        [id] = re.findall(r'name="new_id" value="(\w+)"', page)
        form = {"agent": "pages_buyer", "new_id": id, "from": "", "input.how": "card", "input.note": ""}
        for typed, expected in (("two", "&#39;two&#39; is not a whole number"), ("[1]", "is not a number")):
            refused = await ann.send("/start", page, **form, **{"input.id": "o-1", "input.count": typed})
            assert refused.status_code == 422
            assert expected in refused.text
            assert f'value="{typed}"' in refused.text
        for _ in range(2):
            sent = await ann.send("/start", page, **form, **{"input.id": "o-1", "input.count": "2"})
            assert (sent.status_code, sent.headers["location"]) == (303, f"/ui/runs/{id}")
        assert await (await app.get(id)).result() == "card 5"
        assert [run.id for run in await app.runs()] == [id]
        again = await ann.page(f"/start?from={id}")
        assert 'value="o-1"' in again
        assert f"Run {id} again" in again
        form |= {"from": id, "id": "again-1"}
        sent = await ann.send("/start", again, **form, **{"input.id": "o-2", "input.count": "1"})
        assert sent.headers["location"] == "/ui/runs/again-1"
        assert (await app.input("again-1")).input == {"id": "o-2", "count": 1, "how": "card"}
        wrong = await ann.send("/start", again, **form | {"input.how": "gold", "id": "x"}, **{"input.id": "o"})
        assert wrong.status_code == 422
        assert (await ann.send("/start", again, agent="nothing")).status_code == 404


async def test_selected_runs_and_all_that_match_get_a_command_after_a_confirmation() -> None:
    """Nothing happens before it; then a batch runs, and its page is shown."""
    async with shop() as (app, ann):
        for place in range(3):
            await app.start(buyer, Order(id=f"o-{place}", how="cash"), id=f"b-{place}", user="mia")
        await until(lambda: _all(app, "waiting", 3))
        page = await ann.page("/runs")
        asked = await ann.send("/runs", page, do="pause", **{"run.b-0": "on", "run.b-1": "on"})
        assert asked.status_code == 200
        assert "Pause 2 runs?" in asked.text
        assert (await app.info("b-0")).waits_text == "signal:paid"
        hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', asked.text))
        del hidden["form_token"]
        sent = await ann.send("/batches", asked.text, **hidden, reason="lunch")
        assert sent.headers["location"] == f"/ui/runs/{hidden['id']}"
        done = await (await app.get(hidden["id"])).result()
        assert (done["matched"], done["sent"]) == (2, 2)
        assert [(await app.info(f"b-{place}")).waits_text for place in range(3)] == [
            *["operator:paused"] * 2,
            "signal:paid",
        ]
        assert "Paused" in await ann.page("/runs")
        all_of = await ann.page("/batches?do=cancel&status=waiting&user=mia")
        assert "Cancel all runs that match?" in all_of
        hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', all_of))
        del hidden["form_token"]
        assert (await ann.send("/batches", all_of, **hidden)).status_code == 422, "a reason is needed"
        sent = await ann.send("/batches", all_of, **hidden, reason="closing")
        assert (await (await app.get(hidden["id"])).result())["sent"] == 3
        await until(lambda: _all(app, "cancelled", 3))
        for path, status in (
            ("/batches?do=eat", 422),
            ("/batches?do=cancel&parent=b-0", 422),
            ("/batches?do=cancel", 200),
        ):
            await ann.page(path, status)
        assert (await ann.send("/runs", page, do="cancel")).status_code == 422, "none is selected"


async def _all(app: limpet.App, status: str, count: int) -> bool:
    return len(await app.runs(status=status, agent="pages_buyer")) == count


async def test_a_fork_with_an_edited_fact_is_compared_with_its_origin() -> None:
    """Only what was changed in the form is changed; the page shows the first difference."""
    async with shop() as (app, ann):
        await app.run(buyer, Order(id="o-1", count=2), id="r")
        page = await ann.page("/runs/r?step=2")
        assert 'name="fact.count" value="2"' in page
        kept = {"fact.order": "o-1", "fact.count": "7", "fact.tags": '["a", "b"]'}
        sent = await ann.send("/runs/r", page, do="fork", at="2", effects="live", facts="", **kept)
        assert sent.headers["location"] == "/ui/runs/r.1"
        await (await app.get("r.1")).result()
        facts = (await app.state("r.1")).facts
        assert (facts["count"], facts["order"], facts["tags"]) == (7, "o-1", ["a", "b"])
        await app.start(buyer, Order(id="bad"), id="other")
        await until(lambda: _all(app, "failed", 1))
        same = await ann.page("/runs/r/compare?with=r.1")
        assert "They did the same. What else differs is below." in same
        compared = await ann.page("/runs/r/compare?with=other")
        assert "First difference: event" in compared
        assert "no price for &lt;bad&gt;" in compared
        assert "Which other run?" in await ann.page("/runs/r/compare")
        await ann.page("/runs/r/compare?with=none", 404)
        refused = await ann.send("/runs/r", page, do="fork", at="2", **kept | {"fact.count": "x"})
        assert refused.status_code == 422


async def test_a_conversation_shows_what_the_model_saw() -> None:
    """Before each of its replies, and a person can say something."""
    async with shop() as (app, ann):
        await app.run(talker, "My kettle <b>", id="t", session="s-1", user="mia")
        talk = await ann.page("/runs/t/conversation")
        assert "My kettle &lt;b&gt;" in talk
        assert "What the model saw" in talk
        saw = await ann.page("/runs/t/conversation?saw=1")
        assert "Exactly this prompt was sent" in saw
        assert "Be kind to &lt;everyone&gt;." in saw
        assert "/ui/runs/t/conversation?saw=1" in await ann.page("/runs/t?step=1")
        await ann.page("/runs/t/conversation?saw=2", 404)
        listed = await ann.page("/conversations?session=s-1")
        assert "t.chat" in listed
        whole = await ann.page("/conversations/t.chat")
        assert "It is broken." in whole
        sent = await ann.send("/conversations/t.chat", whole, text="And the <lid>?")
        assert sent.status_code == 303
        assert "And the &lt;lid&gt;?" in await ann.page("/conversations/t.chat")
        await ann.page("/conversations/none", 404)


async def test_agents_show_their_contracts_and_how_their_runs_went() -> None:
    async with shop() as (app, ann):
        for id in ("o-1", "o-2", "bad"):
            await app.start(buyer, Order(id=id), id=id)
        await until(lambda: _all(app, "failed", 1))
        await (await app.get("o-2")).result()
        listed = await ann.page("/agents")
        assert "66.7 %" in listed
        assert ">0.25<" in listed
        one = await ann.page("/agents/pages_buyer")
        assert "Version 4" in one
        assert "no price for &lt;bad&gt;" in one
        assert "agent pages_buyer has no deadline" in one
        assert "&#34;enum&#34;" in one
        await ann.page("/agents/none", 404)
        runs = await ann.page("/runs")
        assert "of the last 3 runs ended" in runs
        assert "33.3 %" in runs


async def test_an_answer_of_a_type_is_given_by_a_form_made_from_it() -> None:
    """A fault stands at the form, on the page where it was sent."""
    async with shop() as (app, ann):
        run = await app.start(asker, "ann", id="a", user="ann")
        await until(app.inbox)
        [asked] = await app.inbox()
        page = await ann.page(f"/inbox/{asked.id}")
        given = {"decision": "answer", "alone": "on", "answer.id": "o-1", "answer.how": "cash"}
        fault = await ann.send(f"/inbox/{asked.id}", page, **given, **{"answer.count": "many"})
        assert fault.status_code == 422
        assert 'value="many"' in fault.text
        done = await ann.send(f"/inbox/{asked.id}", page, **given, **{"answer.count": "3"})
        assert done.status_code == 303
        assert await run.result() == Order(id="o-1", count=3, how="cash")
        assert "Answered by ann" in await ann.page(f"/inbox/{asked.id}")


async def test_arguments_are_edited_in_a_form_and_a_standing_approval_is_revoked() -> None:
    """The request shows what followed the same call in other runs."""
    async with dashboard() as (app, address), logged_in(app, address, "operator", "approver", "admin") as ann:
        [first] = await app.inbox(run="ticket-50")
        page = await ann.page(f"/inbox/{first.id}")
        assert 'name="args.cents" value="50"' in page
        sent = await ann.send(f"/inbox/{first.id}", page, decision="edit", **{"args.order": "o-50", "args.cents": "40"})
        assert sent.status_code == 303
        assert await (await app.get("ticket-50")).result() == "R-o-50"
        assert (await app.step("ticket-50", 2)).args == {"order": "o-50", "cents": 40}
        assert "with other arguments" in await ann.page("/runs/ticket-50?step=2")
        [second] = await app.inbox(run="ticket-950")
        page = await ann.page(f"/inbox/{second.id}")
        assert "1 completed, 0 failed later." in page
        assert re.search(r"key <code>ticket-950:step_2:ui_refund:[0-9a-f]{16}<", page)
        assert "It declares no way to undo it." in page
        assert "Then, by its plan" not in page  # nothing follows
        await app.grant("ticket-950", tool="ui_refund", by="ann")
        assert "every further <code>ui_refund</code> is allowed, by <strong>ann</strong>" in await ann.page("/inbox")
        page = await ann.page("/runs/ticket-950")
        [grant] = re.findall(r'name="grant" value="([^"]+)"', page)
        assert (await ann.send("/runs/ticket-950", page, do="revoke", grant=grant)).status_code == 303
        assert await app.grants("ticket-950") == []


async def test_a_large_value_is_shown_in_pieces() -> None:
    """The page of the step has only its size."""
    async with shop() as (app, ann):
        await app.run(buyer, Order(id="big"), id="r")
        blob = (await app.step("r", 1)).result["blob"]
        page = await ann.page("/runs/r?step=1")
        assert f"/ui/runs/r/values/{blob}" in page
        assert len(page) < 60_000
        piece = await ann.page(f"/runs/r/values/{blob}?start=1000")
        assert "bytes 1000 to 101000" in piece
        assert 100_000 < len(piece) < 130_000
        for find, said in (("&#34;name&#34;", "is at byte 2000010"), ("<b>", "“&lt;b&gt;” does not follow byte 7.")):
            page = await ann.page(f"/runs/r/values/{blob}?start=7&find={quote(html.unescape(find))}")
            assert said in page


async def test_the_log_says_whether_it_is_what_was_written() -> None:
    async with shop() as (app, ann):
        await app.run(buyer, Order(id="o-1"), id="r")
        assert "events verified" in await ann.page("/runs/r/log")


async def test_a_run_is_exported_by_a_person_with_the_right() -> None:
    """The audit log says so."""
    async with shop() as (app, ann):
        await app.run(buyer, Order(id="o-1"), id="r")
        refused = await ann.page("/runs/r/export", 403)
        assert "the right `raw`" in refused
        await app.create_token("eve", roles=["operator"], rights=["raw"])
        made = await app.create_login("eve")
        async with browser(str(ann.client.base_url)) as eve:
            await eve.log_in(made.code)
            assert "/ui/runs/r/export" in await eve.page("/runs/r")
            sent = await eve.client.get("/ui/runs/r/export")
            assert (sent.status_code, sent.headers["content-disposition"]) == (200, 'attachment; filename="r.zip"')
            assert "log.jsonl" in ZipFile(BytesIO(sent.content)).namelist()
            await eve.page("/runs/none/export", 404)
        [exported] = await app.audit(action="run.exported")
        assert (exported.who, exported.subject, exported.door) == ("eve", "r", "ui")


async def test_workers_show_how_many_runs_they_drive() -> None:
    async with shop() as (app, ann):
        HELD["until"] = asyncio.Event()
        await app.start(holder, id="h")
        await until(lambda: _drives_one(app))
        assert '<td class="num">1</td>' in await ann.page("/operations")
        page = await ann.page("/runs/h")
        await ann.send("/runs/h", page, do="pause", reason="wait <b>")
        page = await ann.page("/runs/h")
        assert re.search(r"ann asked it to pause, .*ago\.</strong> It pauses after the step", page)
        assert 'value="pause"' not in page
        await ann.send("/runs/h", page, do="resume")
        assert "asked it to pause" not in await ann.page("/runs/h")
        HELD["until"].set()
        await (await app.get("h")).result()
        assert [each.runs for each in await app.workers()] == [0]


async def _drives_one(app: limpet.App) -> bool:
    return [each.runs for each in await app.workers()] == [1]


async def test_a_person_who_only_decides_sees_the_inbox() -> None:
    """With all of a request that the decision needs, and no page of runs."""
    async with dashboard() as (app, address), logged_in(app, address, "approver") as ann:
        first = await ann.client.get("/ui/runs")
        assert (first.status_code, first.headers["location"]) == (303, "/ui/inbox")
        page = await ann.page("/inbox")
        assert "ticket-50" in page
        assert ">Runs</a>" not in page
        [asked] = await app.inbox(run="ticket-50")
        alone = await ann.page(f"/inbox/{asked.id}")
        assert (await ann.send(f"/inbox/{asked.id}", alone, decision="approve")).status_code == 303
        assert await (await app.get("ticket-50")).result() == "R-o-50"
        await ann.page("/runs/ticket-50", 403)


async def test_a_call_that_was_rejected_before_says_so_and_so_does_a_cancelled_run() -> None:
    """With who and why; the failed run is shown at its last step."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        [asked] = await app.inbox(run="ticket-50")
        await app.reject(asked, by="bob", because="the photo shows <another> cup")
        await until(lambda: _has(app, "ticket-50", "failed"))
        assert "Step 1, ui_look" in await ann.page("/runs/ticket-50")
        await app.resume("ticket-50", by="ann")
        await until(lambda: app.inbox(run="ticket-50"))
        [again] = await app.inbox(run="ticket-50")
        page = await ann.page(f"/inbox/{again.id}")
        assert "This call was refused before" in page
        assert "the photo shows &lt;another&gt; cup" in page
        await app.cancel("ticket-50", reason="a <mistake>", by="eve")
        await until(lambda: _has(app, "ticket-50", "cancelled"))
        page = await ann.page("/runs/ticket-50")
        assert re.search(r"Cancelled by eve, .* a &lt;mistake&gt;", page, re.DOTALL)


async def _has(app: limpet.App, run: str, status: str) -> bool:
    return (await app.info(run)).status == status


async def test_a_person_who_may_not_decide_is_told_at_the_inbox() -> None:
    """Who started a run does not approve its steps."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        await app.start("ui_support", 70, id="own", by="ann")
        await until(lambda: app.inbox(run="own"))
        [asked] = await app.inbox(run="own")
        refused = await ann.send(f"/inbox/{asked.id}", await ann.page("/inbox"), decision="approve")
        assert refused.status_code == 403
        assert "does not approve its steps" in refused.text
        assert "ticket-50" in refused.text, "the inbox is still there"
        bad = await ann.client.post(
            "/ui/runs/own",
            data={"form_token": re.findall(r'form_token" value="(\w+)"', refused.text)[0], "do": "fork", "at": "x"},
            headers={"sec-fetch-site": "same-origin", "referer": f"{address}/ui/runs/own?step=1"},
        )
        assert bad.status_code == 422
        assert 'href="/ui/runs/own?step=1">Back</a>' in bad.text
