"""The decision page behind one link: who may decide with it, and every way in which a link can be wrong."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import limpet
from limpet.errors import InvalidLinkKey
from limpet.service.decision_links import LinkKeys
from limpet.service.notices import Notice, NoticeChannel, RequestNotice, link_in
from tests.interfaces.dashboard.test_dashboard import SAME, ask, browser, support
from tests.interfaces.remote.remote_servers import listening

KEY, OTHER = "7b" * 32, "5f" * 32
PUBLIC = "https://runs.example.com"


class Kept(NoticeChannel):
    """Keeps the links that it gets. A server that refuses a message may repeat it: its first error does."""

    def __init__(self, *, person: str = "", fails: int = 0) -> None:
        super().__init__(["asks"], person=person)
        self.links: dict[str, str] = {}
        self._fails = fails

    def send(self, notice: Notice, *, key: str, now: int) -> None:  # noqa: ARG002 - it has no use for them
        """Keep the path of a link, by the run that asks."""
        link = link_in(notice)
        assert link is not None
        assert link.startswith(f"{PUBLIC}/ui/decide/lpd_")
        self._fails -= 1
        if self._fails >= 0:
            raise ConnectionError(f"550 the address {link} is blocked") from ValueError(link)
        self.links[notice.run] = link.removeprefix(PUBLIC)


@asynccontextmanager
async def asking(
    monkeypatch: pytest.MonkeyPatch, url: str = "memory:", *, alone: bool = False, fails: int = 0, **how: Any
) -> AsyncIterator[tuple[limpet.App, str, dict[str, str]]]:
    """Yield an app with two runs that ask, a server's address, and the links of bob's channel by run."""
    monkeypatch.setenv("LIMPET_LINK_KEY", KEY)
    monkeypatch.setenv("LIMPET_PUBLIC_URL", PUBLIC)
    kept = Kept(person="bob", fails=fails)
    async with (
        limpet.open(url, agents=[support, ask], notify={"bob": kept}, **how) as app,
        listening({"main": app}, link_alone=("bob",) if alone else ()) as address,
    ):
        await app.start(support, 50, id="ticket-50", by="ann")
        await app.start(ask, "ann", id="ask-1", by="ann")
        async with asyncio.timeout(30):
            while len(kept.links) < 2:
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        yield app, address, kept.links


def form_of(page: str, **fields: str) -> dict[str, str]:
    """Return the fields of the form on a page."""
    [token] = re.findall(r'name="form_token" value="([0-9a-f]{64})"', page)
    return {"form_token": token, **fields}


async def decided(app: limpet.App, run: str) -> list[dict[str, Any]]:
    """Return the decisions in the log of a run."""
    return [dict(each.body) for each in await app.log(run) if each.kind == "request.answered"]


async def refusals(app: limpet.App, *codes: str) -> None:
    """Wait until the audit log has refusals with these codes."""
    async with asyncio.timeout(10):
        while not set(codes) <= {each.outcome for each in await app.audit(limit=1000)}:
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop


async def test_the_person_logs_in_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a token or by a login link; the decision is theirs, and programs that preview links decide nothing."""
    async with asking(monkeypatch) as (app, address, links):
        for run, how in (("ticket-50", "code"), ("ask-1", "token")):
            async with browser(address) as ann:
                for _ in range(5):
                    first = await ann.client.get(links[run])
                    assert (first.status_code, "Log in to decide" in first.text) == (401, True)
                    assert run not in first.text
                    assert (await ann.client.head(links[run])).status_code == 401
                if how == "code":
                    given = (await app.create_login("carol", roles=["approver"], groups=["finance"])).code
                else:
                    given = (await app.create_token("carol", roles=["approver"], groups=["finance"])).token
                reply = await ann.client.post("/ui/login", data={how: given}, headers=SAME)
                assert reply.headers["location"] == links[run]
                assert len(ann.client.cookies) == 1
                page = (await ann.client.get(links[run])).text
                assert "What you decide" in page
                fields = {"decision": "approve"} if how == "code" else {"decision": "answer", "option": '"red"'}
                assert await decided(app, run) == []
                done = await ann.client.post(links[run], data=form_of(page, **fields), headers=SAME)
                assert (done.status_code, done.headers["location"]) == (303, links[run])
                after = await ann.client.get(links[run])
                assert (after.status_code, "by you" in after.text) == (200, True)
        for run in ("ticket-50", "ask-1"):
            [made] = await decided(app, run)
            assert (made["by"], made["via"]) == ("carol", "ui")
        assert await (await app.get("ask-1")).result() == "red"


async def test_the_page_shows_the_three_things_above_the_buttons(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(monkeypatch, alone=True) as (app, address, links), browser(address) as bob:
        await app.create_token("bob", roles=["approver"], groups=["finance"])
        page = await bob.client.get(links["ticket-50"])
        order = ["ui_refund", "o-50", "What came in", "What was done", "What you decide", "Approve</dt>", "<button"]
        places = [page.text.index(each) for each in order]
        assert places == sorted(places)
        assert "<script" not in page.text
        assert "style=" not in page.text
        assert "Approve ui_refund" in page.text
        policy = page.headers["content-security-policy"]
        assert ("frame-ancestors 'none'" in policy, page.headers["referrer-policy"]) == (True, "same-origin")


async def test_a_link_alone_decides_only_for_a_named_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """With approve or reject, from the page itself, once, and recorded as such."""
    async with asking(monkeypatch, alone=True) as (app, address, links), browser(address) as bob:
        link = links["ticket-50"]
        assert (await bob.client.get(link)).status_code == 401  # bob has no token: he is not known
        token = await app.create_token("bob", roles=["approver", "operator"], rights=["raw"], groups=["finance"])
        page = (await bob.client.get(link)).text
        good = form_of(page, decision="approve")
        for headers, fields, status in (
            ({}, good, 403),
            ({"sec-fetch-site": "cross-site"}, good, 403),
            ({"sec-fetch-site": "same-site"}, good, 403),
            ({"sec-fetch-site": "none"}, good, 403),
            ({"origin": "null"}, good, 403),
            ({"origin": "https://evil.example"}, good, 403),
            (SAME, {"decision": "approve"}, 403),
            (SAME, {**good, "form_token": "0" * 64}, 403),
            (SAME, {**good, "decision": "answer", "answer": "1"}, 422),
            (SAME, {**good, "decision": "edit", "args": "{}"}, 422),
            (SAME, {**good, "decision": "reject", "because": " "}, 422),
        ):
            reply = await bob.client.post(link, data=fields, headers=headers)
            assert reply.status_code == status, (headers, fields)
        assert await decided(app, "ticket-50") == []
        answer = await bob.client.get(links["ask-1"])
        assert "Log in to answer" in answer.text
        # Extra fields have no effect: neither arguments nor a standing approval.
        extra = {**good, "standing": "on", "args": '{"cents": 1}'}
        assert (await bob.client.post(link, data=extra, headers={"origin": address})).status_code == 303
        [made] = await decided(app, "ticket-50")
        assert (made["by"], made["via"], made["decision"]) == ("bob", "link", "approved")
        assert not await app.grants("ticket-50")
        for _ in range(2):
            again = await bob.client.post(link, data=good, headers=SAME)
            assert (again.status_code, "was not recorded" in again.text) == (409, True)
        await refusals(app, "already_answered")
        assert "by a link" in (await bob.client.get(link)).text
        assert len(await decided(app, "ticket-50")) == 1
        await app.revoke_token(token.info.id)
        assert (await bob.client.get(link)).status_code == 401
        assert not bob.client.cookies.get(f"{next(iter(bob.client.cookies))}".removesuffix("-next"))


async def test_a_link_alone_needs_the_usual_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who is not asked is refused, and so is one without a role for it."""
    async with asking(monkeypatch, alone=True, people={"finance": ["carol"]}) as (app, address, links):
        async with browser(address) as bob:
            made = await app.create_token("bob", roles=["approver"])
            reply = await bob.client.get(links["ticket-50"])
            assert (reply.status_code, "not_allowed" in reply.text) == (403, True)
            await app.revoke_token(made.info.id)
            await app.create_token("bob", roles=["operator"], groups=["finance"])
            assert (await bob.client.get(links["ticket-50"])).status_code == 401
        await refusals(app, "not_allowed")


async def test_a_link_alone_does_not_approve_ones_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPET_LINK_KEY", KEY)
    monkeypatch.setenv("LIMPET_PUBLIC_URL", PUBLIC)
    kept = Kept(person="bob")
    async with (
        limpet.open("memory:", agents=[support], notify={"bob": kept}) as app,
        listening({"main": app}, link_alone=("bob",)) as address,
        browser(address) as bob,
    ):
        await app.create_token("bob", roles=["approver"], groups=["finance"])
        await app.start(support, 50, id="own", by="bob")
        async with asyncio.timeout(30):
            while not kept.links:
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        page = (await bob.client.get(kept.links["own"])).text
        reply = await bob.client.post(kept.links["own"], data=form_of(page, decision="approve"), headers=SAME)
        assert (reply.status_code, "started a run" in reply.text) == (403, True)
        assert await decided(app, "own") == []


async def test_every_wrong_link_is_a_page_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forged, of another key, expired, of other arguments, of another tenant, of a request that does not exist."""
    async with asking(monkeypatch, alone=True) as (app, address, links), browser(address) as bob:
        await app.create_token("bob", roles=["approver"], groups=["finance"])
        [request] = await app.inbox(run="ticket-50")
        keys, now = LinkKeys.from_text(KEY), await app.store.now()
        whole: dict[str, Any] = {"tenant": "main", "request": request.id, "digest": request.digest, "person": "bob"}
        whole["expires"] = now + 10**9
        good = keys.sign(**whole)
        page = (await bob.client.get(f"/ui/decide/{good}")).text
        wrong = {
            f"{good[:-1]}{'A' if good[-1] != 'A' else 'B'}": (403, "invalid_link"),
            LinkKeys.from_text(OTHER).sign(**whole): (403, "invalid_link"),
            "lpd_nothing": (403, "invalid_link"),
            "%2e%2e": (403, "invalid_link"),
            keys.sign(**{**whole, "tenant": "acme"}): (403, "invalid_link"),
            keys.sign(**{**whole, "expires": now - 1}): (410, "link_expired"),
            keys.sign(**{**whole, "digest": "0" * 64}): (409, "link_outdated"),
            keys.sign(**{**whole, "request": "nothing"}): (404, "not_found"),
        }
        for text, (status, code) in wrong.items():
            for reply in (
                await bob.client.get(f"/ui/decide/{text}"),
                await bob.client.post(f"/ui/decide/{text}", data=form_of(page, decision="approve"), headers=SAME),
            ):
                is_form = reply.request.method == "POST" and status != 403
                expected = (403, "wrong_origin") if is_form else (status, code)
                assert (reply.status_code, expected[1] in reply.text) == (expected[0], True), text
                assert "Nothing was decided" in reply.text
                assert 'class="phone"' in reply.text
        await refusals(app, "invalid_link", "link_expired", "link_outdated", "wrong_origin")
        assert await decided(app, "ticket-50") == []
        assert (await bob.client.get("/ui/decide")).status_code == 404
        assert (await bob.client.delete(f"/ui/decide/{good}", headers=SAME)).status_code == 404
        assert "ticket-50" in (await bob.client.get(links["ticket-50"])).text


async def test_guessing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the address; a valid link still works."""
    async with asking(monkeypatch) as (_, address, links), browser(address) as eve:
        replies = [await eve.client.get(f"/ui/decide/lpd_{place}") for place in range(80)]
        limited = [each for each in replies if each.status_code == 429]
        assert limited
        assert all(int(each.headers["retry-after"]) >= 1 for each in limited)
        assert {each.status_code for each in replies} == {403, 429}
        assert (await eve.client.get(links["ask-1"])).status_code == 401


async def test_a_request_that_was_decided_or_withdrawn_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whom, also to a person who is logged in; of two tabs, one decides."""
    async with asking(monkeypatch) as (app, address, links), browser(address) as ann:
        made = await app.create_login("ann2", roles=["approver"], groups=["finance"])
        await ann.log_in(made.code)
        page = (await ann.client.get(links["ticket-50"])).text
        tabs = [form_of(page, decision="approve"), form_of(page, decision="reject", because="no")]
        replies = await asyncio.gather(*(ann.client.post(links["ticket-50"], data=each, headers=SAME) for each in tabs))
        assert sorted(each.status_code for each in replies) == [303, 409]
        assert len(await decided(app, "ticket-50")) == 1
        async with browser(address) as dan:
            made = await app.create_login("dan", roles=["approver"], groups=["finance"])
            await dan.log_in(made.code)
            late = await dan.client.get(links["ticket-50"])
            assert (late.status_code, "by ann2" in late.text) == (409, True)
        await app.cancel("ask-1", reason="not needed")
        async with asyncio.timeout(30):
            while (await app.info("ask-1")).status != "cancelled":
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        gone = await ann.client.get(links["ask-1"])
        assert (gone.status_code, "withdrew this request" in gone.text) == (410, True)


async def test_a_session_of_another_tenant_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The link names the tenant of its store, which LIMPET_TENANT gives to the worker."""
    monkeypatch.setenv("LIMPET_LINK_KEY", KEY)
    monkeypatch.setenv("LIMPET_PUBLIC_URL", PUBLIC)
    monkeypatch.setenv("LIMPET_TENANT", "acme")
    kept = Kept()
    async with (
        limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[ask]) as main,
        limpet.open(f"sqlite:///{tmp_path}/b.db", agents=[ask], notify={"x": kept}) as acme,
        listening({"main": main, "acme": acme}) as address,
        browser(address) as ann,
    ):
        await acme.start(ask, "x", id="walrus-1")
        async with asyncio.timeout(30):
            while not kept.links:
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        await ann.log_in((await main.create_login("ann", roles=["approver", "operator"], groups=["finance"])).code)
        reply = await ann.client.get(kept.links["walrus-1"])
        assert (reply.status_code, "another tenant" in reply.text, "walrus" in reply.text) == (403, True, False)
        made = await acme.create_login("ann", roles=["approver"], groups=["finance"], tenant="acme")
        await ann.log_in(made.code)
        assert "Which colour" in (await ann.client.get(kept.links["walrus-1"])).text


async def test_a_link_is_stored_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the database, also after a failed delivery that repeats it, nor in a line of a log, nor in a view."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "limpet")  # another test may have set it
    seen: list[str] = []

    async def function(request: limpet.Request) -> None:
        assert isinstance(request, RequestNotice)
        seen.append(request.link.reveal())
        assert seen[-1] not in repr(request)
        if len(seen) == 1:
            raise RuntimeError(f"cannot send {seen[-1]}")

    monkeypatch.setenv("LIMPET_LINK_KEY", KEY)
    monkeypatch.setenv("LIMPET_PUBLIC_URL", PUBLIC)
    kept = Kept(person="bob", fails=1)
    url = f"sqlite:///{tmp_path}/limpet.db"
    views: list[str] = []
    async with (
        limpet.open(url, agents=[ask], notify={"bob": kept, "own": function}) as app,
        listening({"main": app}, link_alone=("bob",)) as address,
        browser(address) as bob,
    ):
        await app.create_token("bob", roles=["approver"], groups=["finance"])
        await app.start(ask, "ann", id="ask-1", by="ann")
        async with asyncio.timeout(60):
            while not kept.links or len(seen) < 2:
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        assert (await bob.client.get(kept.links["ask-1"])).status_code == 200
        assert (await bob.client.get(f"{kept.links['ask-1']}x")).status_code == 403
        assert (await bob.client.get("/ui/login")).status_code == 200
        for run in [*await app.runs(agent="limpet.notify"), await app.info("ask-1")]:
            views += [repr(await app.log(run.id)), repr(await app.show(run.id)), repr(await app.steps(run.id))]
        assert "is blocked" in "".join(views)  # the failure itself is recorded
        views += [repr(await app.audit(limit=1000)), repr(await app.inbox())]
    said = "".join(repr(vars(each)) for each in caplog.records if not each.name.startswith("http"))
    secret = [each.rpartition("/")[2] for each in (kept.links["ask-1"], *seen)]
    for each in secret:
        for form in (each, each.partition(".")[0], each.partition(".")[2]):
            for file in tmp_path.iterdir():
                assert form.encode() not in file.read_bytes(), file
            assert form not in said
            assert form not in "".join(views)
    assert "limpet link" in said  # the access log has a line, without the link
    assert KEY not in said


async def test_without_a_key_notices_have_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything else is as before; a malformed key is an error at start."""
    got: list[object] = []
    monkeypatch.delenv("LIMPET_LINK_KEY", raising=False)
    async with (
        limpet.open("memory:", agents=[ask], notify={"x": got.append}) as app,
        listening({"main": app}) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        await app.start(ask, "ann", id="ask-1")
        async with asyncio.timeout(30):
            while not got:
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
        assert not isinstance(got[0], RequestNotice)
        assert (await client.get("/ui/decide/lpd_x")).status_code == 404
    with pytest.raises(InvalidLinkKey):
        async with limpet.open("memory:") as app, listening({"main": app}, link_alone=("bob",)):
            pass
    monkeypatch.setenv("LIMPET_LINK_KEY", "short")
    with pytest.raises(InvalidLinkKey):
        limpet.open("memory:")


async def test_a_login_leads_only_to_pages_of_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a cookie that someone else has set."""
    async with asking(monkeypatch) as (app, address, _), browser(address) as ann:
        await ann.client.get("/ui/inbox?to=ann")
        [name] = ann.client.cookies
        assert name.endswith("-next")
        token = (await app.create_token("ann", roles=["viewer"])).token
        for path, expected in {
            "/inbox?to=ann": "/ui/inbox?to=ann",
            "/..": "/ui/runs",
            "/../v1/runs": "/ui/runs",
            "/%2e%2E/x": "/ui/runs",
            "//evil.example": "/ui//evil.example",  # a path of this server
            "/\\evil.example": "/ui/runs",
            "/%5cevil.example": "/ui/runs",
            "https://evil.example": "/ui/runs",
            ".evil.example": "/ui/runs",
            "@evil.example": "/ui/runs",
            "/a\r\nset-cookie: x=1": "/ui/runs",
        }.items():
            quoted = "".join(f"%{each:02x}" for each in path.encode())
            cookie = {"cookie": f"{name}={quoted}"}
            reply = await ann.client.post("/ui/login", data={"token": token}, headers={**SAME, **cookie})
            assert reply.headers["location"] == expected
