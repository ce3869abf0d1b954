"""The dashboard from a real server, as a browser without scripts uses it: log in, look, decide; and who may not."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import limpet
from limpet import sync
from limpet.service.sessions import LOGIN_LASTS, SESSION_LASTS
from tests.interfaces.cli.run_cli import LIMPET, limpet_json, terminal
from tests.interfaces.cli.run_cli import limpet as limpet_command
from tests.interfaces.http_and_mcp.clients import TOKEN
from tests.interfaces.remote.remote_servers import served_app

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202e\"'{{7*7}}"
SAME = {"sec-fetch-site": "same-origin"}


@limpet.tool(effect="once", name="ui_refund", risk="external_action")
async def refund(order: str, cents: int) -> str:
    """Pay back."""
    if cents > 900:
        raise limpet.Permanent(f"{cents} is too much")
    return f"R-{order}"


@limpet.tool(effect="none", name="ui_look")
async def look(order: str) -> dict[str, str]:
    """Return something that a browser must not execute."""
    return {"order": order, "note": HOSTILE}


@limpet.agent(name="ui_support", steps=2, approvals=limpet.Approvals("external_action", to="finance"))
async def support(run: limpet.Run, cents: int) -> str:
    """Look, decide, and pay."""
    await run.patch(goal=f"settle {HOSTILE}", plan=["look", "pay"], facts={"cents": cents, "said": HOSTILE})
    async with run.scope("look"):
        await run.step(look, f"o-{cents}")
        await run.decide("refund?", choose="full", over=["none", "full"], because=HOSTILE)
    async with run.scope("pay"):
        return await run.step(refund, f"o-{cents}", cents)


@limpet.agent(name="ui_ask")
async def ask(run: limpet.Run, to: str) -> str:
    """Ask which."""
    answer: str = await run.ask(f"Which colour for {to}?", options=["red", "blue"], to="finance")
    return answer


class Browser:
    """A person at a browser without scripts."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def log_in(self, code: str) -> httpx.Response:
        """Use a login link."""
        return await self.client.post("/ui/login", data={"code": code}, headers=SAME)

    async def page(self, path: str, status: int = 200) -> str:
        """Return the text of a page."""
        found = await self.client.get(f"/ui{path}")
        assert found.status_code == status, found.text
        return found.text

    async def send(self, path: str, page: str, **fields: str) -> httpx.Response:
        """Send a form of a page."""
        [token] = set(re.findall(r'name="form_token" value="([0-9a-f]{64})"', page))
        return await self.client.post(f"/ui{path}", data={"form_token": token, **fields}, headers=SAME)


@asynccontextmanager
async def dashboard(**how: Any) -> AsyncIterator[tuple[limpet.App, str]]:
    """Yield an app with runs, and the address of a server over it."""
    async with served_app(agents=[support, ask], **how) as (app, address):
        for cents in (50, 950):
            await app.start(support, cents, id=f"ticket-{cents}")
        await app.start(ask, "ann", id="ask-1", budget={"max_steps": 5}, deadline="1h")
        while len(await app.inbox()) < 3:
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        yield app, address


@asynccontextmanager
async def browser(address: str) -> AsyncIterator[Browser]:
    """Open a browser."""
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        yield Browser(client)


@asynccontextmanager
async def logged_in(app: limpet.App, address: str, *roles: Any) -> AsyncIterator[Browser]:
    """Open a browser of ann, who is logged in."""
    made = await app.create_login("ann", roles=roles or ("operator", "approver"), groups=["finance"])
    async with browser(address) as ann:
        assert (await ann.log_in(made.code)).status_code == 303
        yield ann


async def test_a_login_link_works_once_and_only_by_its_button() -> None:
    """Opening it decides nothing, so a program that previews links does no harm."""
    async with dashboard() as (app, address), browser(address) as ann:
        first = await ann.client.get("/ui/runs")
        assert (first.status_code, first.headers["location"]) == (303, "/ui/login")
        made = await app.create_login("ann", roles=["viewer"])
        for _ in range(3):
            assert "Log in as ann" in (await ann.client.get("/ui/login", params={"code": made.code})).text
        reply = await ann.log_in(made.code)
        assert (reply.status_code, reply.headers["location"]) == (303, "/ui/runs")
        cookie = reply.headers["set-cookie"]
        assert re.match(r"limpet-[0-9a-f]{8}=lp_main_", cookie)
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "ticket-50" in await ann.page("/runs")
        async with browser(address) as eve:
            assert (await eve.log_in(made.code)).status_code == 403
            assert "used before, or has expired" in (await eve.log_in(made.code)).text
            assert (await eve.client.get("/ui/runs")).status_code == 303


async def test_of_many_who_use_a_link_one_is_logged_in() -> None:
    """At the same time."""
    async with dashboard() as (app, address), browser(address) as ann:
        made = await app.create_login("ann", roles=["viewer"])
        replies = await asyncio.gather(*(ann.log_in(made.code) for _ in range(8)))
        assert sorted(each.status_code for each in replies) == [303, *[403] * 7]


async def test_a_code_is_no_token_and_a_session_is_no_token() -> None:
    """Each opens only its own door: the API takes tokens, and pages take sessions."""
    async with dashboard() as (app, address):
        made = await app.create_login("ann", roles=["operator"])
        async with browser(address) as ann:
            for text in (made.code, TOKEN):
                bearer = {"authorization": f"Bearer {text}"}
                expected = 200 if text == TOKEN else 401
                assert (await ann.client.get("/v1/runs", headers=bearer)).status_code == expected
                assert (await ann.client.get("/ui/runs", headers=bearer)).status_code == 303
            await ann.log_in(made.code)
            [session] = ann.client.cookies.values()
            assert (await ann.client.get("/v1/runs")).status_code == 401
            assert (await ann.client.get("/v1/runs", headers={"authorization": f"Bearer {session}"})).status_code == 401
            assert "ticket-50" in await ann.page("/runs")
        assert [each.name for each in await app.tokens()] == ["ann"]


async def test_a_session_ends_with_the_token_of_its_person_or_when_she_logs_out() -> None:
    async with dashboard() as (app, address):
        async with logged_in(app, address, "viewer") as ann:
            page = await ann.page("/runs")
            await ann.send("/logout", page)
            assert (await ann.client.get("/ui/runs")).status_code in (200, 303)
            while (await ann.client.get("/ui/runs")).status_code == 200:
                await asyncio.sleep(0)  # noqa: TID251 - within a second
        async with logged_in(app, address, "viewer") as ann:
            await ann.page("/runs")
            for token in await app.tokens():
                await app.revoke_token(token.id)
            while (await ann.client.get("/ui/runs")).status_code == 200:
                await asyncio.sleep(0)  # noqa: TID251 - within a second
    assert LOGIN_LASTS < SESSION_LASTS


async def test_a_form_of_another_page_is_refused() -> None:
    """Without the header of its own page, from another origin, without the session's token, or with that of another."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        page = await ann.page("/runs/ticket-50")
        [token] = set(re.findall(r'name="form_token" value="([0-9a-f]{64})"', page))
        good = {"form_token": token, "do": "pause"}
        for headers, fields in (
            ({}, good),
            ({"sec-fetch-site": "cross-site"}, good),
            ({"sec-fetch-site": "same-site"}, good),
            ({"sec-fetch-site": "none"}, good),
            ({"origin": "https://evil.example"}, good),
            ({"origin": "null"}, good),
            (SAME, {"do": "pause"}),
            (SAME, {**good, "form_token": "0" * 64}),
        ):
            reply = await ann.client.post("/ui/runs/ticket-50", data=fields, headers=headers)
            assert reply.status_code == 403, (headers, fields)
        assert not [each for each in await app.log("ticket-50") if each.kind == "pause.requested"]
        reply = await ann.client.post("/ui/runs/ticket-50", data=good, headers={"origin": address})
        assert reply.status_code == 303
        [paused] = [each for each in await app.log("ticket-50") if each.kind == "pause.requested"]
        assert (paused.body["by"], paused.body["via"]) == ("ann", "ui")


async def test_replies_forbid_scripts_frames_and_caches() -> None:
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        for path in ("/runs", "/runs/ticket-50", "/inbox", "/runs/nothing", "/nothing", "/login"):
            headers = (await ann.client.get(f"/ui{path}")).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe-inline" not in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "same-origin"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/runs", "/runs/ticket-50", "/runs/ticket-50?step=1", "/runs/ticket-50/log", "/inbox"]
)
async def test_values_are_text(path: str) -> None:
    """Whatever an agent or a person wrote."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        page = await ann.page(path)
        assert html.escape(HOSTILE).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page
        assert re.findall("<script[^>]*>", page) == ['<script type="module" src="/ui/static/main.js">']
        assert "<img" not in page
        assert "style=" not in page


async def test_a_request_is_approved_rejected_and_answered() -> None:
    """With the exact call and what each choice causes; an error stays at its form, and a lost race names the winner."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        by_run = {each.run: each.id for each in await app.inbox()}
        page = await ann.page("/inbox")
        assert "ui_refund" in page
        fault = await ann.send(f"/inbox/{by_run['ticket-950']}", page, decision="reject", because="")
        assert (fault.status_code, 'class="err"' in fault.text) == (422, True)
        wrong = await ann.send(f"/inbox/{by_run['ticket-950']}", page, decision="edit", args='{"cents": "many"}')
        assert (wrong.status_code, "cents" in wrong.text) == (422, True)
        done = await ann.send(f"/inbox/{by_run['ticket-50']}", page, decision="approve")
        assert done.headers["location"] == f"/ui/inbox?decided={by_run['ticket-50']}"
        assert "Approved by ann" in await ann.page(done.headers["location"].removeprefix("/ui"))
        await ann.send(f"/inbox/{by_run['ask-1']}", page, decision="answer", option='"blue"')
        assert await (await app.get("ask-1")).result() == "blue"
        assert await (await app.get("ticket-50")).result() == "R-o-50"
        await app.reject(by_run["ticket-950"], by="bob", because="too much")
        late = await ann.send(f"/inbox/{by_run['ticket-950']}", page, decision="approve")
        assert (late.status_code, "bob decided this before you" in late.text) == (409, True)


async def test_a_run_shows_its_steps_and_its_state_at_each() -> None:
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        first = await ann.page("/runs/ticket-50?step=1")
        assert "Step 1, ui_look" in first
        assert "event" in first
        assert 'href="/ui/runs/ticket-50?step=1" aria-current="true"' in first
        for path, status in (("/runs/nothing", 404), ("/runs/ticket-50?step=x", 422), ("/nothing", 404)):
            assert "limpet" in (await ann.page(path, status)).lower()
        listed = await ann.page("/runs?text=ticket")
        assert ("ticket-50" in listed, "ask-1" in listed) == (True, False)


async def test_a_run_is_forked_extended_and_signalled() -> None:
    """From its page; a fault is a page of its own, and changes nothing."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        page = await ann.page("/runs/ticket-950")
        made = await ann.send("/runs/ticket-950", page, do="fork", at="2", facts='{"cents": 5}', effects="stub")
        fork = made.headers["location"].removeprefix("/ui/runs/")
        assert (await app.info(fork)).fork_of == "ticket-950"
        assert (await app.state(fork)).facts["cents"] == 5
        before = (await app.info("ask-1")).deadline
        assert (await ann.send("/runs/ask-1", page, do="extend", max_steps="9", deadline="2h")).status_code == 303
        assert before < (await app.info("ask-1")).deadline  # type: ignore[operator]
        await ann.send("/runs/ask-1", page, do="signal", name="go", value='{"a": 1}')
        [sent] = [each.body for each in await app.log("ask-1") if each.kind == "signal.received"]
        assert (sent["signal"], sent["value"], sent["by"]) == ("go", {"json": {"a": 1}}, "ann")
        for fields in ({"do": "fork", "facts": "{"}, {"do": "extend", "max_steps": "many"}, {"do": "explode"}, {}):
            assert (await ann.send("/runs/ask-1", page, **fields)).status_code == 422
        assert len(await app.runs()) == 4


async def test_the_log_is_shown_in_pages() -> None:
    """The newest first; a wrong cursor is refused."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        last = (await app.log("ticket-50"))[-1]
        page = await ann.page("/runs/ticket-50/log")
        assert f">{last.seq}</td>" in page
        assert "run.created" in page
        assert "run.created" not in await ann.page("/runs/ticket-50/log?cursor=1")
        await ann.page("/runs/ticket-50/log?cursor=x", 422)
        await ann.page("/runs/nothing/log", 404)


async def test_operators_see_what_needs_them() -> None:
    """With the reason and the button that helps."""
    async with dashboard() as (app, address), logged_in(app, address) as ann:
        await app.pause("ask-1", reason=HOSTILE)
        async with asyncio.timeout(30):
            while "Waiting for an operator: 1. Agents without a worker: 0." not in (
                page := await ann.page("/operations")
            ):
                pass
        assert html.escape(HOSTILE).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page
        assert "<img" not in page
        assert "ui_support 1" in page
        await ann.send("/runs/ask-1", page, do="resume")
        async with asyncio.timeout(30):
            while "Nothing needs an operator." not in await ann.page("/operations"):
                pass


async def test_a_viewer_sees_no_data_and_changes_nothing() -> None:
    """Roles are those of the API."""
    async with dashboard() as (app, address), logged_in(app, address, "viewer") as ben:
        page = await ben.page("/runs")
        assert "ticket-50" in page
        assert (await ben.client.get("/ui/runs/ticket-50")).status_code == 403
        assert (await ben.client.get("/ui/inbox")).status_code == 403
        assert (await ben.send("/runs/ticket-50", page, do="cancel", reason="x")).status_code == 403


async def test_a_session_of_a_tenant_sees_its_own_runs(tmp_path: Any) -> None:
    """The cookie names the tenant; its code was made beside the tenant's store."""
    from tests.interfaces.remote.remote_servers import listening  # noqa: PLC0415

    async with (
        limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[ask]) as main,
        limpet.open(f"sqlite:///{tmp_path}/b.db", agents=[ask]) as acme,
        listening({"main": main, "acme": acme}) as address,
        browser(address) as ann,
    ):
        await main.start(ask, "x", id="pelican-1")
        await acme.start(ask, "x", id="walrus-1")
        made = await acme.create_login("ann", roles=["operator"], tenant="acme")
        await ann.log_in(made.code)
        page = await ann.page("/runs")
        assert ("walrus-1" in page, "pelican" in page) == (True, False)
        await ann.page("/runs/pelican-1", 404)


def test_serve_prints_a_login_link_on_a_terminal(tmp_path: Path) -> None:
    """It logs the person at the terminal in, as a command does for anyone."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    with sync.open(url, agents=[ask]) as app:
        app.start(ask, "ann", id="ask-1")
    with terminal(LIMPET, "serve", "--port", "0", columns=300, LIMPET_URL=url, LOGNAME="ann") as view:
        shown = view.until("code=") + view.until("\n")
        [address, code] = re.findall(r"(http://[0-9.:]+)/ui/login\?code=(\S+)", shown)[0]
        with httpx.Client(base_url=address, headers=SAME) as browser:
            assert browser.post("/ui/login", data={"code": code}).status_code == 303
            assert "ask-1" in browser.get("/ui/runs").text
            link = limpet_json("login", "ann", "--server", address, LIMPET_URL=url)["link"]
            assert "Log in as ann" in browser.get(link).text
            browser.cookies.clear()
            assert browser.post("/ui/login", data={"code": link.rpartition("=")[2]}).status_code == 303
        view.type("\x03")
        view.end()
    unknown = limpet_command("login", "eve", LIMPET_URL=url)
    assert (unknown.exit_code, "--role" in unknown.stderr) == (1, True)
