"""Attacks on people who are logged in to the dashboard: forged forms, fixed sessions, frames, and other servers."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest

import limpet
from limpet.main import _agents
from limpet.web.ui.site import PAGES, STATIC
from tests.interfaces.dashboard.test_dashboard import SAME, Browser, ask, browser, dashboard, logged_in
from tests.interfaces.remote.remote_servers import listening

ROUTES = [(method, "/ui/" + "/".join(path).replace("*", "ticket-50")) for method, path in PAGES]
FORMS = [path for method, path in ROUTES if method == "POST"]
FOREIGN: list[dict[str, str]] = [
    {},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "cross-site", "origin": "{own}"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": ""},
    {"origin": "null"},
    {"origin": "https://evil.example"},
    {"origin": "{own}.evil.example"},
    {"origin": "{own}/"},
    {"origin": "https://{host}"},
]


async def form_token(ann: Browser) -> str:
    """Return the form token of a session."""
    [token] = set(re.findall(r'name="form_token" value="([0-9a-f]{64})"', await ann.page("/runs")))
    return str(token)


async def commands(app: limpet.App) -> list[str]:
    """Return the commands in the audit log that were not refused."""
    reads = {"login", "refusal", "login.created", "token.created"}
    return [each.action for each in await app.audit(limit=1000) if each.outcome == "done" and each.action not in reads]


async def test_no_form_of_another_page_is_accepted() -> None:
    """Every form, from every wrong source, and with every wrong token; the session stays."""
    assert {"/ui/logout", "/ui/runs/ticket-50", "/ui/inbox/ticket-50"} <= set(FORMS)
    async with dashboard() as (app, address), logged_in(app, address) as ann, logged_in(app, address) as eve:
        token, other = await form_token(ann), await form_token(eve)
        before = await commands(app)
        fields = {"do": "cancel", "decision": "approve", "reason": "x", "because": "x"}
        own = {"own": address, "host": address.removeprefix("http://")}
        for path in FORMS:
            for headers in FOREIGN:
                filled = {name: value.format(**own) for name, value in headers.items()}
                reply = await ann.client.post(path, data={**fields, "form_token": token}, headers=filled)
                assert reply.status_code == 403, (path, filled)
            for wrong in ({}, {"form_token": ""}, {"form_token": "0" * 64}, {"form_token": other}):
                reply = await ann.client.post(path, data={**fields, **wrong}, headers=SAME)
                assert reply.status_code == 403, (path, wrong)
            # Forms that a page of another site can send without a preflight, and a token that is given twice.
            plain = {**SAME, "content-type": "text/plain"}
            assert (await ann.client.post(path, content=f"form_token={token}", headers=plain)).status_code == 422
            twice = {**SAME, "content-type": "application/x-www-form-urlencoded"}
            body = f"form_token={token}&form_token={token}&do=cancel"
            assert (await ann.client.post(path, content=body, headers=twice)).status_code == 422
            for method in ("PUT", "PATCH", "DELETE"):
                assert (await ann.client.request(method, path, headers=SAME)).status_code == 404
        assert await commands(app) == before
        assert "Log out" in await ann.page("/runs")
        made = await app.create_login("eve", roles=["viewer"])
        for headers in FOREIGN:  # to log a person in as another one
            filled = {name: value.format(**own) for name, value in headers.items()}
            reply = await ann.client.post("/ui/login", data={"code": made.code}, headers=filled)
            assert (reply.status_code, "set-cookie" in reply.headers) == (403, False)


async def test_a_session_that_was_set_before_a_login_is_not_the_one_after() -> None:
    """Neither one of the attacker, nor one that the server never made."""
    async with dashboard() as (app, address), browser(address) as eve, browser(address) as ann:
        await eve.log_in((await app.create_login("eve", roles=["viewer"])).code)
        [(name, planted)] = eve.client.cookies.items()
        for value in (planted, f"{planted[:-1]}0", "chosen", ""):
            made = await app.create_login("ann", roles=["operator"])
            ann.client.cookies.clear()
            cookie = {"cookie": f"{name}={value}"}
            reply = await ann.client.post("/ui/login", data={"code": made.code}, headers={**SAME, **cookie})
            assert reply.status_code == 303
            got = SimpleCookie(reply.headers.get_list("set-cookie")[0])[name].value
            assert got not in (value, planted)
            page = await ann.client.get("/ui/runs", headers={"cookie": f"{name}={value}"})
            assert '<span class="who">ann</span>' not in page.text
        assert '<span class="who">eve</span>' in await eve.page("/runs")


async def test_every_reply_forbids_frames() -> None:
    """Pages, forms, redirects, errors, files and streams."""
    async with dashboard() as (app, address), logged_in(app, address) as ann, browser(address) as stranger:
        pages = [path for _, path in ROUTES]
        more = ["/ui", "/ui/", "/ui/login", "/ui/login?code=x", "/ui/nothing", "/ui/decide/lpd_x", "/ui/static/nothing"]
        for path in [*pages, *more, *(f"/ui/static/{each}" for each in STATIC)]:
            for client, method in ((ann.client, "GET"), (ann.client, "POST"), (stranger.client, "GET")):
                headers = (await client.request(method, path)).headers
                assert headers["x-frame-options"] == "DENY", path
                assert "frame-ancestors 'none'" in headers["content-security-policy"], path
                assert "unsafe" not in headers["content-security-policy"], path
                assert headers["x-content-type-options"] == "nosniff", path
                assert headers["cross-origin-opener-policy"] == "same-origin", path
        async with ann.client.stream("GET", "/ui/stream") as stream:
            assert stream.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in (await ann.client.get("/v1/runs")).headers["content-security-policy"]


async def test_a_preview_does_not_use_a_login_link() -> None:
    """Neither programs that fetch links, nor browsers that load pages ahead."""
    async with dashboard() as (app, address), browser(address) as robot, browser(address) as ann:
        made = await app.create_login("ann", roles=["viewer"])
        for method in ("GET", "HEAD", "GET"):
            for headers in ({}, {"sec-purpose": "prefetch;prerender"}, {"user-agent": "Slackbot-LinkExpanding 1.0"}):
                reply = await robot.client.request(method, f"/ui/login?code={made.code}", headers=headers)
                assert (reply.status_code, "set-cookie" in reply.headers) == (200, False)
        assert (await ann.log_in(made.code)).status_code == 303


async def test_two_servers_on_one_host_do_not_share_cookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one browser: cookies know no ports. Also with a file of the same name in two folders, and without files."""
    async with httpx.AsyncClient(headers=SAME) as client:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / "a")
        async with limpet.open("sqlite:///limpet.db", agents=[ask]) as first, listening({"main": first}) as one:
            await _logged_in(client, first, one, "pelican")
            monkeypatch.chdir(tmp_path / "b")
            async with (
                limpet.open("sqlite:///limpet.db", agents=[ask]) as second,
                listening({"main": second}) as two,
                limpet.open("memory:") as third,
                listening({"main": third}) as three,
                limpet.open("memory:") as fourth,
                listening({"main": fourth}) as four,
            ):
                await _logged_in(client, second, two, "walrus")
                await _logged_in(client, third, three, "heron")
                await _logged_in(client, fourth, four, "otter")
                assert len(client.cookies) == 4
                people = {one: "pelican", two: "walrus", three: "heron", four: "otter"}
                for address, name in people.items():
                    assert f'<span class="who">{name}</span>' in (await client.get(f"{address}/ui/runs")).text
                page = (await client.get(f"{two}/ui/runs")).text
                [token] = set(re.findall(r'name="form_token" value="([0-9a-f]{64})"', page))
                assert (await client.post(f"{one}/ui/logout", data={"form_token": token})).status_code == 403
                await client.post(f"{two}/ui/logout", data={"form_token": token})
                assert (await client.get(f"{two}/ui/runs")).status_code == 303
                assert "pelican" in (await client.get(f"{one}/ui/runs")).text


async def _logged_in(client: httpx.AsyncClient, app: limpet.App, address: str, name: str) -> None:
    made = await app.create_login(name, roles=["viewer"])
    assert (await client.post(f"{address}/ui/login", data={"code": made.code})).status_code == 303


async def test_the_api_and_mcp_ignore_cookies() -> None:
    """So a page of another site can do nothing there, whatever its browser sends along."""
    async with limpet.open("memory:", agents=[ask]) as app:
        also = _agents({"main": app})
        async with listening({"main": app}, also=also) as address, logged_in(app, address) as ann:
            before = await commands(app)
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            for headers in ({}, SAME, {"origin": address}):
                assert (await ann.client.get("/v1/runs", headers=headers)).status_code == 401
                body = {"agent": "ui_ask", "input": "x"}
                assert (await ann.client.post("/v1/runs", json=body, headers=headers)).status_code == 401
                assert (await ann.client.get("/v1/streams/runs", headers=headers)).status_code == 401
                assert (await ann.client.post("/mcp", json=call, headers=headers)).status_code == 401
                assert (await ann.client.get("/openapi.json", headers=headers)).status_code == 401
            assert await commands(app) == before
            assert not await app.runs()


@asynccontextmanager
async def following(ann: Browser) -> AsyncIterator[asyncio.Task[str]]:
    """Open the stream of a browser, and yield a task that ends with it."""
    async with ann.client.stream("GET", "/ui/stream") as stream:
        assert stream.status_code == 200

        async def read() -> str:
            return "".join([each async for each in stream.aiter_text()])

        reading = asyncio.ensure_future(read())
        try:
            yield reading
        finally:
            reading.cancel()


@pytest.mark.parametrize("how", ["logout", "revoke"])
async def test_a_stream_ends_with_its_session(how: str) -> None:
    """Within a second, and a tick of its clock."""
    async with dashboard() as (app, address), logged_in(app, address, "viewer") as ann:
        page = await ann.page("/runs")
        async with following(ann) as reading:
            if how == "logout":
                cookies = dict(ann.client.cookies)
                assert (await ann.send("/logout", page)).headers["location"] == "/ui/login"
                assert not ann.client.cookies
                kept = {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
                assert (await ann.client.get("/ui/runs", headers=kept)).status_code == 303  # at once
            else:
                for token in await app.tokens():
                    await app.revoke_token(token.id)
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(10):
                text = await reading
            assert asyncio.get_running_loop().time() - began < 1.5
            assert text.endswith("event: resume\ndata: {}\n\n")
        assert (await ann.client.get("/ui/stream")).status_code == 303


async def test_cookies_behind_a_proxy_are_bound_to_the_host() -> None:
    """Over https, as the proxy says: with `__Host-`, which no other host can set, for forms of the public origin."""
    public = "https://runs.example.com"
    front = {"host": "runs.example.com", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with (
        limpet.open("memory:", agents=[ask]) as app,
        listening({"main": app}, port=port, public_url=public, proxies=("127.0.0.1",)),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=front) as client,
    ):
        made = await app.create_login("ann", roles=["viewer"])
        first = await client.get("/ui/runs")
        wrong = await client.post("/ui/login", data={"code": made.code}, headers={"origin": "http://runs.example.com"})
        assert wrong.status_code == 403
        reply = await client.post("/ui/login", data={"code": made.code}, headers={"origin": public})
        cookies = [*first.headers.get_list("set-cookie"), *reply.headers.get_list("set-cookie")]
        assert len(cookies) == 3  # where to return, the session, and where to return no more
        for each in cookies:
            assert re.match(r"__Host-limpet-[0-9a-f]{8}(-next)?=", each)
            assert {"secure", "httponly", "path=/", "samesite=lax"} <= set(each.lower().split("; "))
            assert "domain" not in each.lower()
        session = cookies[1].partition(";")[0]
        assert (await client.get("/ui/runs", headers={"cookie": session})).status_code == 200
        plain = session.removeprefix("__Host-")  # a cookie that a page without encryption could have set
        assert (await client.get("/ui/runs", headers={"cookie": plain})).status_code == 303


async def test_without_encryption_only_this_machine_can_log_in() -> None:
    """A header of a client that is not the proxy changes nothing."""
    front = {"host": "runs.example.com", "x-forwarded-proto": "https"}
    async with (
        limpet.open("memory:", agents=[ask]) as app,
        listening({"main": app}, hosts=("runs.example.com",)) as address,
        logged_in(app, address) as ann,
    ):
        made = await app.create_login("ann", roles=["viewer"])
        [(name, session)] = ann.client.cookies.items()
        async with httpx.AsyncClient(base_url=address) as client:
            for headers in (front, {"host": "runs.example.com"}, {"host": "runs.example.com:80"}):
                assert (await client.get("/ui/login", headers=headers)).status_code == 403
                assert (await client.get("/ui/decide/lpd_x", headers=headers)).status_code == 403
                reply = await client.post("/ui/login", data={"code": made.code}, headers={**headers, **SAME})
                assert (reply.status_code, "set-cookie" in reply.headers) == (403, False)
                sent = {**headers, "cookie": f"{name}={session}; __Host-{name}={session}"}
                assert (await client.get("/ui/runs", headers=sent)).status_code == 303
            assert (await client.get("/ui/login", headers={"host": "evil.example"})).status_code == 421
            for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:80"):
                assert (await client.get("/ui/login", headers={"host": host})).status_code == 200
        assert (await ann.log_in(made.code)).status_code == 303
