"""The remote client: the same methods, results and errors as an app with a store, over a real server."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import sync, testing
from limpet.clock import SystemClock
from limpet.remote.remote_app import OPERATIONS, RemoteApp
from limpet.remote.remote_server import RemoteServer
from limpet.service.json_values import as_json, error_json
from tests.interfaces.http_and_mcp.clients import TOKEN
from tests.interfaces.http_and_mcp.clients import fill as fill_doors
from tests.interfaces.http_and_mcp.test_same_answers import QUERIES
from tests.interfaces.remote.remote_servers import ALL, LosingProxy, listening, served_app, served_in_thread

ROOT = Path(__file__).parents[3]
WAITING = 30
"""Seconds after which a test gives up."""


@dataclass
class Parcel:
    """The agent's input and output."""

    to: str
    cents: int
    sent: datetime | None = None


@limpet.tool(effect="none", name="remote_weigh")
async def weigh(word: str) -> str:
    """Return a text."""
    return word


@limpet.agent(name="remote_pack")
async def pack(run: limpet.Run, parcel: Parcel) -> Parcel:
    """Make a step, and return the parcel with a time."""
    await run.step(weigh, parcel.to)
    return Parcel(parcel.to, parcel.cents + 1, datetime(2026, 11, 16, 12, tzinfo=UTC))


@limpet.agent(name="remote_large")
async def large(run: limpet.Run, size: int) -> list[str]:
    """Return more than fits into an event."""
    return ['"größe"\u2028' * 1_000] * size


@limpet.agent(name="remote_fail")
async def fail(run: limpet.Run, word: str) -> str:
    """Fail."""
    raise ValueError(f"{word} is broken")


@limpet.agent(name="remote_ask")
async def ask(run: limpet.Run, to: str) -> str:
    """Ask a person, then wait for signals."""
    answer: str = await run.ask(f"Which colour for {to}?", options=["red", "blue"], to="sales")
    words = [await run.receive("word", str) for _ in range(2)]
    return " ".join([answer, *words])


AGENTS: list[limpet.Agent[Any, Any]] = [pack, large, fail, ask]


@asynccontextmanager
async def remote(address: str, token: str = TOKEN, **how: Any) -> AsyncIterator[limpet.App]:
    """Open a remote app, with a limit on everything that is done with it."""
    async with asyncio.timeout(WAITING), limpet.open(address, token=token, **how) as app:
        yield app


async def raised(work: Any) -> dict[str, Any]:
    """Return the error of a call, with its class."""
    try:
        await work
    except limpet.LimpetError as error:
        return {"class": type(error), **error_json(error)}
    raise AssertionError("it did not fail")


async def test_results_have_their_types() -> None:
    """From the agent that is started, from the app's agents, from `get`; and they are JSON without the code."""
    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        assert isinstance(far, limpet.App)
        handle = await far.start(pack, Parcel("ann", 1), id="p-1", labels={"team": "a"}, deadline=timedelta(hours=1))
        found = await handle.result()
        assert found == Parcel("ann", 2, datetime(2026, 11, 16, 12, tzinfo=UTC))
        assert await far.run(pack, Parcel("ann", 1), id="p-1", labels={"team": "a"}, deadline=3600) == found
        assert await (await far.get("p-1", pack)).result() == found
        assert await (await far.get("p-1")).result() == {"to": "ann", "cents": 2, "sent": "2026-11-16T12:00:00Z"}
        async with remote(address, agents=AGENTS, worker=False) as typed:
            assert await (await typed.get("p-1")).result() == found
        assert await far.info("p-1") == await app.info("p-1")
        assert (await far.info("p-1")).labels == {"team": "a"}


async def test_a_scored_run_has_its_result() -> None:
    """Also one that was resumed, and scored after its end; the scores are those of the person with the token."""
    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        await far.start(fail, "cup", id="f-1")
        for _ in range(2):
            with pytest.raises(limpet.RunFailed):
                await (await far.get("f-1")).result()
            await far.resume("f-1")
        with pytest.raises(limpet.RunFailed):
            await (await far.get("f-1")).result()
        for number in range(3):
            given = await far.score("f-1", f"quality-{number}", number, comment="broken")
        assert [given] == await app.scores(name="quality-2") == await far.scores(name="quality-2")
        with pytest.raises(limpet.RunFailed):
            await (await far.get("f-1")).result()
        await far.unscore("f-1", "quality-2")
        assert [each.name for each in await far.scores(run="f-1")] == ["quality-1", "quality-0"]


async def test_a_large_result_arrives_whole() -> None:
    """In pieces, whatever it contains."""
    async with served_app(agents=AGENTS) as (_, address), remote(address) as far:
        assert await far.run(large, 400) == ['"größe"\u2028' * 1_000] * 400


async def test_errors_are_those_of_the_store() -> None:
    """The same class, code, facts and hint, with notes; and the recorded traceback of a failed run."""
    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        await far.start(fail, "the lid", id="f-1")
        with pytest.raises(limpet.RunFailed) as caught:
            await (await far.get("f-1")).result()
        with pytest.raises(limpet.RunFailed) as wanted:
            await (await app.get("f-1")).result()
        assert error_json(caught.value)["facts"] == error_json(wanted.value)["facts"]
        assert "ValueError: the lid is broken" in "".join(caught.value.__notes__)
        calls: list[Callable[[limpet.App], Any]] = [
            lambda each: each.info("nothing"),
            lambda each: each.start("remote_pakc", 1),
            lambda each: each.start(pack.name, {"to": 1}),
            lambda each: each.start(fail, "another lid", id="f-1"),
            lambda each: each.extend("f-1", budget={"max_steps": 1, "max_stops": 2}),
            lambda each: each.state("f-1", before=1, after=1),
            lambda each: each.resume("nothing"),
            lambda each: each.signal("f-1", "go", {1: 2}),
            lambda each: each.runs(last=0),
            lambda each: each.runs(since=datetime(2026, 1, 1)),  # noqa: DTZ001 - without a time zone on purpose
        ]
        for call in calls:
            assert await raised(call(far)) == await raised(call(app))


async def test_a_run_that_waits_is_decided_and_watched(capsys: pytest.CaptureFixture[str]) -> None:
    """`result` says why it waits, and returns when the run has ended; streams and handles are those of an app."""
    async with served_app(agents=AGENTS) as (app, address):
        made = await app.create_token("ann", roles=ALL, groups=["sales"])
        async with remote(address, made.token) as far:
            handle = await far.start(ask, "bob", id="a-1")
            with pytest.raises(limpet.NotDone) as early:
                await handle.result(timeout=0.5)
            assert early.value.run == "a-1"
            waiting = asyncio.ensure_future(handle.result())
            [request] = await far.inbox()
            changes = aiter(far.watch_inbox())
            closed = asyncio.ensure_future(anext(changes))
            await until(lambda: app._feed._viewers.get(None))
            assert (await far.answer(request.id, "red", by="ann")).by == "ann"
            assert ((await closed).id, (await closed).status) == (request.id, "answered")
            for word in ("big", "box"):
                await far.signal("a-1", "word", word)
            assert await waiting == "red big box"
            assert [each.seq async for each in handle.events()] == [each.seq for each in await app.log("a-1")]
            assert [each.kind async for each in handle.events(after=3, follow=False)][-1] == "run.completed"
        assert capsys.readouterr().err.count("a-1 asks") == 1


async def test_waiting_for_a_result_does_not_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, and however many events are written meanwhile: one stream."""
    calls: list[str] = []
    call = RemoteServer.call

    async def counted(self: RemoteServer, operation: Any, *args: Any, **more: Any) -> bytes:
        calls.append(operation.name)
        return await call(self, operation, *args, **more)

    async with served_app(agents=AGENTS) as (app, address), remote(address) as far:
        handle = await far.start(ask, "bob", id="a-1")
        monkeypatch.setattr(RemoteServer, "call", counted)
        waiting = asyncio.ensure_future(handle.result(quiet=True))
        async for event in (await app.get("a-1")).events():
            if event.kind == "run.waiting":
                break
        [request] = await app.inbox()
        await app.answer(request.id, "blue", by="sales")
        await app.patch("a-1", goal="more events")
        await SystemClock().sleep(1_500_000)
        for word in ("big", "box"):
            await app.signal("a-1", "word", word)
        assert await waiting == "blue big box"
        assert calls == ["info"]


async def test_a_model_is_heard_while_it_writes() -> None:
    """In pieces, through the handle."""
    model = testing.ScriptedModel("The harbour is closed today.")
    chat = limpet.llm_agent("remote_chat", model=model, instructions="Talk of harbours.")
    async with served_app(agents=[chat]) as (_, address), remote(address) as far:
        handle = await far.start(chat, "Is it open?", id="t-1", conversation="c-1")
        assert "".join([piece async for piece in handle.tokens()]) == "The harbour is closed today."
        assert await far.say("c-1", "And tomorrow?") is None
        assert [each.text for each in await far.messages("c-1")][-1] == "And tomorrow?"


async def test_all_queries_return_the_same_objects(tmp_path: Path) -> None:
    """Of the same types, and equal."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    await fill_doors(url)
    async with served_app(url, worker=False) as (app, address), remote(address) as far:
        for name, (ask_app, _, _) in QUERIES.items():
            wanted, found = await ask_app(app), await ask_app(far)
            assert isinstance(found, type(wanted)), name
            if name == "state":
                assert (str(found), as_json(found)) == (str(wanted), as_json(wanted))
                assert (found.goal, found.steps, found.decisions) == (wanted.goal, wanted.steps, wanted.decisions)
                assert (found.spent, found.next, found.failure) == (wanted.spent, wanted.next, wanted.failure)
            else:
                assert found == wanted, name
        [item] = (await app.state("refund-50")).artifacts
        assert await far.artifact("refund-50", item.artifact_id) == await app.artifact("refund-50", item.artifact_id)
        assert await far.find("run", "refund-5") == "refund-50"
        assert await far.find("conversation", "chat") == "chat-7"
        assert (await raised(far.find("run", "refund")))["class"] is limpet.NotFound
        assert abs(await far.now() - await app.now()) < timedelta(minutes=1)


async def test_a_repeated_command_has_one_effect() -> None:
    """The reply of each is lost once: it is sent again, and the run gets it once."""
    async with served_app(agents=AGENTS) as (app, address):
        proxy = LosingProxy(int(address.rpartition(":")[2]))
        async with proxy.listening() as through, remote(through) as far:
            proxy.lose |= {b"POST /v1/runs ", b"POST /v1/runs/a-1/signals", b"GET /v1/runs/a-1/info"}
            await far.start(ask, "bob")
            await far.start(ask, "bob", id="a-1")
            await far.signal("a-1", "word", "big")
            await far.info("a-1")
            assert not proxy.lose
            assert len(await app.runs()) == 2
            assert [each.kind for each in await app.log("a-1")].count("signal.received") == 1
            posts = [line.split()[1] for line in proxy.requests if line.startswith(b"POST")]
            assert posts.count(b"/v1/runs") == 3
            assert posts.count(b"/v1/runs/a-1/signals/word") == 2
            proxy.lose.add(b"POST /v1/runs/a-1/fork")
            told = await raised(far.fork("a-1", seq=1))
            assert (told["class"], "may have been done" in told["message"]) == (limpet.StoreUnavailable, True)
            assert len(await app.runs()) == 3
            proxy.lose.add(b"POST /v1/runs/a-1/fork")
            assert (await far.fork("a-1", seq=1, id="a-2")).id == "a-2"
            assert len(await app.runs()) == 4


async def test_clients_go_on_when_the_server_comes_back(tmp_path: Path) -> None:
    """A call waits for it, and streams go on from the last item."""
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=AGENTS) as app:
        async with listening({"main": app}) as address:
            far = await limpet.open(address, token=TOKEN)
            handle = await far.start(ask, "bob", id="a-1")
            ended = asyncio.ensure_future(handle.result(quiet=True))
            changes: list[str] = []

            async def watch() -> None:
                async for change in far.watch_runs():
                    changes.append(f"{change.run.id} {change.run.status}")  # noqa: PERF401 - it never ends

            watching = asyncio.ensure_future(watch())
            async for event in handle.events():
                if event.kind == "run.waiting":
                    break
            await until(lambda: "a-1 waiting" in changes)
        asking = asyncio.ensure_future(far.info("a-1"))
        await app.start(pack, Parcel("ann", 1), id="p-1")
        await (await app.get("p-1")).result()
        async with listening({"main": app}, port=int(address.rpartition(":")[2])):
            assert (await asking).id == "a-1"
            await until(lambda: "p-1 completed" in changes)
            [request] = await app.inbox()
            await app.answer(request.id, "red", by="sales")
            for word in ("big", "box"):
                await far.signal("a-1", "word", word)
            async with asyncio.timeout(WAITING):
                assert await ended == "red big box"
            watching.cancel()
            await far.close()


async def until(is_true: Any) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(WAITING):
        while not is_true():
            await SystemClock().sleep(20_000)


async def test_a_revoked_token_ends_the_wait() -> None:
    """The next request of the stream is refused."""
    async with served_app(agents=AGENTS) as (app, address):
        made = await app.create_token("ann", roles=ALL)
        async with remote(address, made.token) as far:
            waiting = asyncio.ensure_future((await far.start(ask, "bob")).result(quiet=True))
            await until(lambda: app._feed._viewers)
            await app.revoke_token(made.info.id)
            with pytest.raises(limpet.NotAuthenticated):
                await waiting


async def test_commands_are_sent_in_the_name_of_the_token() -> None:
    """Another name is refused before anything is sent."""
    async with served_app(agents=AGENTS) as (app, address):
        made = await app.create_token("ann", roles=ALL, groups=["sales"])
        async with remote(address, made.token) as far:
            assert (await far.whoami()).name == "ann"
            await far.start(ask, "bob", id="a-1", by="ann")
            for by in ("ben", limpet.Principal(name="ben")):
                told = await raised(far.pause("a-1", by=by))
                assert (told["code"], told["facts"]["path"]) == ("invalid_argument", "by")
            await far.cancel("a-1", reason="enough", command_id="c-1")
            await far.cancel("a-1", reason="enough", command_id="c-1")
            sent = [each.body for each in await app.log("a-1") if each.kind == "cancel.requested"]
            assert [(each["by"], each["via"]) for each in sent] == [("ann", "http")]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com", "unencrypted"),
        ("http://10.0.0.7:8700", "unencrypted"),
        ("http://127.0.0.1.example.com", "unencrypted"),
        ("https://ann:secret@example.com", "has a user or password"),
        ("https://example.com/?a=1", "query"),
        ("https://", "no host"),
        ("https://[::1", "Invalid IPv6 URL"),
    ],
)
def test_an_address_is_checked_before_anything_is_sent(url: str, reason: str) -> None:
    """A token never leaves the machine unencrypted."""
    with pytest.raises(limpet.InvalidArgument, match=re.escape(reason)) as caught:
        limpet.open(url, token=TOKEN)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://localhost:8700", "http://[::1]:8700/", "https://example.com/limpet/"])
def test_a_token_is_not_shown(url: str) -> None:
    app = limpet.open(url, token=TOKEN)
    assert TOKEN not in f"{app!r} {vars(app)!r}"
    assert url.rstrip("/") in repr(app)


def test_a_token_is_only_for_servers() -> None:
    """And has the characters of one."""
    with pytest.raises(limpet.DefinitionError, match="only a server takes a token"):
        limpet.open("memory:", token=TOKEN)
    for token in ("", "two words", "ü", "x" * 10_000, "line\nfeed"):
        with pytest.raises(limpet.InvalidArgument) as caught:
            limpet.open("https://example.com", token=token)
        assert not token or token not in str(caught.value)


def test_what_belongs_to_the_store_is_refused() -> None:
    """With what to do."""
    for how, reason in (
        ({"agents": AGENTS}, "a worker is not possible through a server"),
        ({"people": {}}, "open(people=…)"),
        ({"notify": {}}, "open(notify=…)"),
        ({"redact": True}, "open(redact=…)"),
    ):
        with pytest.raises(limpet.NotRemote, match=re.escape(reason)):
            limpet.open("https://example.com", token=TOKEN, **how)


async def replied(reply: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Open an app on a server that always sends this; return the error, and the requests that arrived."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        told = await raised(limpet.open(f"http://127.0.0.1:{port}", token=TOKEN).open())
    return told, requests


async def test_another_server_is_not_followed_or_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirects are not followed, pages of proxies are no results, and none of them shows the token."""
    monkeypatch.setenv("LIMPET_PATIENCE", "100ms")
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://example.com/v1/whoami\r\ncontent-length: 0\r\n\r\n"
    told, requests = await replied(moved)
    assert (told["class"], told["facts"]["status"], len(requests)) == (limpet.InvalidReply, 307, 1)
    assert "redirects to http://example.com" in told["message"]
    page = b"<html>"
    told, _ = await replied(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page))
    assert told["class"] is limpet.InvalidReply
    told, _ = await replied(b"HTTP/1.1 404 Gone\r\ncontent-length: 0\r\n\r\n")
    assert told["class"] is limpet.InvalidReply
    told, requests = await replied(b"HTTP/1.1 502 Bad\r\ncontent-length: 0\r\n\r\n")
    assert told["class"] is limpet.ConnectionLost
    assert len(requests) > 1
    problem = b'{"code":"from_the_future","detail":"Later.","facts":{},"hint":"Wait."}'
    kind = b"content-type: application/problem+json\r\n"
    told, _ = await replied(b"HTTP/1.1 409 C\r\n%scontent-length: %d\r\n\r\n%s" % (kind, len(problem), problem))
    assert (told["class"], told["facts"]["error_type"]) == (limpet.Unexpected, "from_the_future")


async def test_a_server_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience, with the address."""
    monkeypatch.setenv("LIMPET_PATIENCE", "100ms")
    told = await raised(limpet.open("http://127.0.0.1:9", token=TOKEN).open())
    assert told["class"] is limpet.StoreUnavailable
    assert "http://127.0.0.1:9" in told["message"]
    assert "Start `limpet serve`" in told["hint"]


async def test_a_wrong_token_is_refused_when_the_app_opens() -> None:
    async with served_app() as (_, address):
        assert (await raised(limpet.open(address, token="wrong").open()))["class"] is limpet.NotAuthenticated


async def test_an_app_that_is_not_open_says_so() -> None:
    async with served_app() as (_, address):
        far = limpet.open(address, token=TOKEN)
        assert (await raised(far.runs()))["class"] is limpet.StoreUnavailable
        async with far:
            assert far.is_open
            other = await asyncio.to_thread(lambda: asyncio.run(raised(far.runs())))
            assert other["class"] is limpet.WrongCall
        assert not far.is_open


def members() -> Iterator[str]:
    """Yield the public names of an app."""
    for name in dir(limpet.App):
        if not name.startswith("_") and name != "topic":
            yield name


REFUSED = {
    *("store", "once", "replay", "replay_all", "save_heads", "export", "load", "import_tasks", "export_audit"),
    "create_login",
    "with_engine",
    *("audit_log", "audit_trail"),
}
"""Members that only an app with a store has."""
OWN = {
    *(
        "open",
        "close",
        "is_open",
        "replace",
        "serves",
        "worker",
        "engine",
        "run",
        "get",
        "result",
        "events",
        "replies",
        "value",
    ),
    *("artifact", "now", "find", "address"),
}
"""Members that a remote app makes of operations."""


def test_every_method_is_sent_or_refused() -> None:
    """A method that is neither would use a store that does not exist."""
    sent = {each.function.__name__ for each in OPERATIONS.values()}
    assert {*members()} == (sent | REFUSED | OWN) - {"audit_log", "audit_trail"}
    for name in sent:
        assert name in vars(RemoteApp), name
        assert inspect.signature(getattr(RemoteApp, name)) == inspect.signature(getattr(limpet.App, name))
    for each in OPERATIONS.values():
        assert "http" in each.doors, each.name


async def used(app: limpet.App, name: str) -> None:
    """Use something of an app, with some arguments."""
    found = getattr(app, name)
    if name == "replay_all":
        await anext(found())
    elif name == "import_tasks":
        await found("tasks.json", agent="x")
    elif name == "once":
        await found("key", members)
    else:
        await found("x", *["y"] * (name == "export"))


async def test_what_needs_the_store_is_refused() -> None:
    """Each says so, and the page lists it."""
    page = (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")
    async with served_app(agents=AGENTS) as (_, address), remote(address) as far:
        for name in REFUSED:
            assert f"`app.{name}`" in page, name
            with pytest.raises(limpet.NotRemote, match=rf"app\.{name} is not possible through a server"):
                await used(far, name)
        for work in (
            far.verify(None),
            far.verify("p-1", heads="file"),
            far.prune(older_than="1d", archive="folder"),
            far.fork("p-1", input=1),
            far.compact("c-1", lambda _: "short"),
            far.value({"blob": "x", "bytes": 1}),
            far.create_token("ann", roles=["viewer"], tenant="acme"),
        ):
            assert (await raised(work))["class"] is limpet.NotRemote


def test_blocking_code_uses_the_same_client(tmp_path: Path) -> None:
    """Handles, iterators and errors."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    with (
        sync.open(url, agents=AGENTS),
        served_in_thread(url, "ann") as (address, token),
        sync.open(address, token=token) as far,
    ):
        handle = far.start(pack, Parcel("ann", 1), id="p-1")
        assert handle.result(timeout=WAITING) == Parcel("ann", 2, datetime(2026, 11, 16, 12, tzinfo=UTC))
        assert [each.kind for each in handle.events()][-1] == "run.completed"
        assert [each.id for each in far.runs(status="completed", labels={})] == ["p-1"]
        with pytest.raises(limpet.NotFound):
            far.get("nothing")
        with pytest.raises(limpet.RunFailed):
            far.run(fail, "it")
        assert next(iter(far.watch_run("p-1"))).kind == "run.created"
