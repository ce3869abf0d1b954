"""Streams over HTTP, from the real server: order, cuts, rights, tenants, slow and many viewers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet import testing
from limpet.clock import SystemClock
from limpet.service import feed_reader
from limpet.service.access import LOCAL
from limpet.service.operation import operations_of
from limpet.web import event_streams
from limpet.web import server as server_module
from limpet.web.server import ServerOptions, serve
from tests.interfaces.http_and_mcp.clients import TOKEN

# A request without chunks in its reply.
ASK = f"GET /v1/streams/runs/r1 HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode()


@limpet.tool(effect="none", name="streams_look")
async def look(word: str) -> str:
    """Return a word."""
    return word


@limpet.agent(name="streams_work")
async def work(run: limpet.Run, given: dict[str, Any]) -> str:
    """Make steps, and ask a person if told to."""
    for number in range(given.get("steps", 3)):
        await run.step(look, f"{given['word']} {number}")
    if to := given.get("to"):
        await run.ask(f"Is {given['word']} right?", to=to)
    return str(given["word"])


@limpet.agent(name="streams_busy")
async def busy(run: limpet.Run, word: str) -> str:
    """Make a step for each signal, until the signal says stop."""
    while (said := await run.receive("go", str)) != "stop":
        await run.step(look, f"{word} {said}")
    return word


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition."""
    clock = SystemClock()
    async with asyncio.timeout(60):
        while not is_true():
            await clock.sleep(20_000)


class SlowModel(testing.ScriptedModel):
    """A model whose words take time."""

    async def reply(self, prompt: Any, /, *, on_text: Callable[[str], object] | None = None) -> Any:
        """Return the scripted reply, one word after the other."""
        words = list[str]()
        found = await super().reply(prompt, on_text=words.append)
        for word in words:
            if on_text is not None:
                on_text(word)
            await SystemClock().sleep(300_000)
        return found


class Message(NamedTuple):
    """A message of a stream."""

    id: str
    name: str
    data: Any


class Viewer:
    """Reads streams of a server, with the token of a caller."""

    def __init__(self, client: httpx.AsyncClient, token: str) -> None:
        self._client, self._headers = client, {"authorization": f"Bearer {token}"}

    async def read(self, path: str, after: str | None = None) -> AsyncIterator[Message]:
        """Yield the messages of a stream; the last one of a complete stream has a name."""
        headers = self._headers if after is None else {**self._headers, "last-event-id": after}
        async with self._client.stream("GET", f"/v1/streams/{path}", headers=headers) as reply:
            assert reply.status_code == 200, await reply.aread()
            assert reply.headers["content-type"] == "text/event-stream"
            fields: dict[str, str] = {}
            async for line in reply.aiter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                else:
                    if "data" in fields:  # else it only says where the stream begins
                        yield Message(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
                    fields = {}

    async def take(self, path: str, count: int, after: str | None = None) -> list[Message]:
        """Return this many messages of a stream, and cut it."""
        found: list[Message] = []
        async with aclosing(self.read(path, after)) as messages:  # type: ignore[type-var]
            async for message in messages:
                found.append(message)
                if len(found) == count:
                    break
        return found

    async def whole(self, path: str, after: str | None = None) -> list[Message]:
        """Return all messages of a stream that ends."""
        return [message async for message in self.read(path, after)]

    async def refused(self, path: str, **headers: str) -> tuple[int, str]:
        """Return the status and the code of a stream that is refused."""
        reply = await self._client.get(f"/v1/streams/{path}", headers={**self._headers, **headers})
        return reply.status_code, reply.json()["code"]


class Served(NamedTuple):
    """A server in this process, with an app for each tenant."""

    apps: Mapping[str, limpet.App]
    client: httpx.AsyncClient

    @property
    def app(self) -> limpet.App:
        """The app of the default tenant."""
        return self.apps["main"]

    async def watched(self, count: int, tenant: str = "main") -> None:
        """Wait until an app has this many viewers."""
        viewers = self.apps[tenant]._feed._viewers
        await until(lambda: sum(map(len, viewers.values())) >= count)

    @property
    def viewer(self) -> Viewer:
        """A viewer with the server's own token."""
        return Viewer(self.client, TOKEN)

    async def viewer_of(self, name: str, *roles: Any, tenant: str = "main", groups: tuple[str, ...] = ()) -> Viewer:
        """Return a viewer with a new token."""
        made = await self.apps[tenant].create_token(name, roles=roles, tenant=tenant, groups=groups)
        return Viewer(self.client, made.token)


@asynccontextmanager
async def served(folder: Path | None = None, *tenants: str) -> AsyncIterator[Served]:
    """Serve a new store, and one for each further tenant."""
    async with AsyncExitStack() as stack:
        apps = {}
        for name in ("main", *tenants):
            url = "memory:" if folder is None else f"sqlite:///{folder}/{name}.db"
            apps[name] = await stack.enter_async_context(limpet.open(url, agents=[work, busy]))
        where = asyncio.get_running_loop().create_future()
        options = ServerOptions(host="127.0.0.1", port=0, token=TOKEN, also={})
        serving = asyncio.ensure_future(serve(apps, options, where.set_result))
        limits = httpx.Limits(max_connections=None)
        client = httpx.AsyncClient(base_url=await where, timeout=60, limits=limits)
        try:
            yield Served(apps, await stack.enter_async_context(client))
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """Return what was received before the connection was dropped."""
    found = b""
    with suppress(ConnectionError):
        while more := await reader.read(1 << 20):
            found += more
    return found


async def asked(app: limpet.App, run: str) -> str:
    """Return the request of a run, once it has asked. The viewer of its events is gone then."""
    async with aclosing((await app.get(run)).events()) as events:  # type: ignore[type-var]
        async for event in events:
            if event.kind == "request.opened":
                return str(event.body["request"])
    raise AssertionError


async def test_a_run_is_watched_to_its_end() -> None:
    """Each event is a message, with its sequence as id; the log says the same."""
    async with served() as server:
        await server.app.start(work, {"word": "hake", "to": "ann"}, id="r1")
        watching = asyncio.ensure_future(server.viewer.whole("runs/r1"))
        await server.app.answer(await asked(server.app, "r1"), True, by="ann")
        found = await watching
        log = await server.app.log("r1", limit=100)
        assert [message.id for message in found[:-1]] == [str(event.seq) for event in log]
        assert [message.data["kind"] for message in found[:-1]] == [event.kind for event in log]
        assert found[-1] == Message("", "end", {})
        assert await server.viewer.whole("runs/r1", after=str(log[-1].seq)) == [Message("", "end", {})]


async def test_a_stream_that_is_cut_anywhere_goes_on_without_a_gap_or_a_repeat(tmp_path: Path) -> None:
    """Of a run, of all runs, and of the inbox. Everything is cut after each message."""
    async with served(tmp_path) as server:
        start = (await server.app.store.feed_end()) or "0"
        for number in range(3):
            await server.app.start(work, {"word": "hake", "to": "ann"}, id=f"r{number}")
            await server.app.answer(await asked(server.app, f"r{number}"), True, by="ann")
            await (await server.app.get(f"r{number}")).result()
        whole = await server.viewer.whole("runs/r1")
        for place in range(1, len(whole) - 1):
            begun = await server.viewer.take("runs/r1", place)
            rest = await server.viewer.whole("runs/r1", after=begun[-1].id)
            assert begun + rest == whole
        for path in ("runs", "inbox"):
            whole = await server.viewer.take(path, {"runs": 3, "inbox": 6}[path], after=start)
            cut = [*await server.viewer.take(path, 1, after=start)]
            while cut[-1].id != whole[-1].id:
                cut += await server.viewer.take(path, 1, after=cut[-1].id)
            assert cut == whole


async def test_changes_of_runs_and_requests_arrive_as_they_happen() -> None:
    """By filter; runs of built-in agents are left out."""
    async with served() as server:
        runs: list[Any] = []
        requests: list[Any] = []
        failed: list[Any] = []

        async def gather(path: str, found: list[Any]) -> None:
            async for message in server.viewer.read(path):
                found += [message.data]

        watching = [
            asyncio.ensure_future(gather(*each))
            for each in (("runs", runs), ("inbox?to=ann", requests), ("runs?labels=of=no", failed))
        ]
        await server.watched(3)
        await server.app.batch("pause", status="failed")
        for name in ("ann", "bob"):
            await server.app.start(work, {"word": "hake", "to": name}, id=f"of-{name}")
            request = await asked(server.app, f"of-{name}")
            await until(lambda: bool(requests))
            await server.app.answer(request, True, by=name)
            await (await server.app.get(f"of-{name}")).result()
        await until(lambda: sum(each["run"]["status"] == "completed" for each in runs) >= 2 and len(requests) >= 2)
        for task in watching:
            task.cancel()
        assert {each["run"]["id"] for each in runs} == {"of-ann", "of-bob"}
        assert [(each["run"], each["status"]) for each in requests] == [("of-ann", "open"), ("of-ann", "answered")]
        assert (requests[0]["request"]["question"], requests[1]["request"]) == ("Is hake right?", None)
        assert failed == []


async def test_requests_of_a_run_that_ends_are_withdrawn() -> None:
    async with served() as server:
        await server.app.start(work, {"word": "hake", "to": "ann"}, id="r1")
        request = await asked(server.app, "r1")
        watching = asyncio.ensure_future(server.viewer.take("inbox", 1))
        await server.watched(1)
        await server.app.cancel("r1", reason="late")
        [message] = await watching
        assert (message.data["id"], message.data["status"]) == (request, "withdrawn")


async def test_the_replies_of_a_model_arrive_in_pieces() -> None:
    """A stream that is cut goes on in the middle of a reply."""
    talk = limpet.llm_agent("streams_talk", model=SlowModel("The hake swims by the harbour."), instructions="Talk.")
    async with limpet.open("memory:", agents=[talk]) as app:
        await app.run(talk, "Where?", id="r1")
        pieces = [piece async for piece in app.watch_replies("r1")]
        text = "".join(piece.text for piece in pieces)
        assert text == "The hake swims by the harbour."
        assert len(pieces) > 1
        for place, piece in enumerate(pieces):
            rest = [each.text async for each in app.watch_replies("r1", after=piece.cursor)]
            assert "".join(each.text for each in pieces[: place + 1]) + "".join(rest) == text


async def test_a_bad_request_is_refused_with_its_status() -> None:
    """Nothing is streamed."""
    async with served() as server:
        assert await server.viewer.refused("runs/none") == (404, "not_found")
        assert await server.viewer.refused("runs/none/replies") == (404, "not_found")
        assert await server.viewer.refused("runs?after=x") == (422, "invalid_argument")
        assert await server.viewer.refused("runs?status=lost") == (422, "invalid_argument")
        assert await server.viewer.refused("runs?first=1") == (422, "invalid_argument")
        await server.app.run(work, {"word": "hake"}, id="r1")
        for cursor in ("x", "-1", "1.2", "9" * 30, "acme~1"):
            assert await server.viewer.refused("runs/r1", **{"last-event-id": cursor}) == (422, "invalid_argument")
        assert (await server.client.get("/v1/streams/runs")).status_code == 401
        head = await server.client.head("/v1/streams/runs", headers={"authorization": f"Bearer {TOKEN}"})
        assert (head.status_code, head.content) == (200, b"")


async def test_each_role_sees_its_streams() -> None:
    """A viewer sees no data, and an approver only what they are asked."""
    async with served() as server:
        for name in ("finance", "legal"):
            await server.app.start(work, {"word": f"hake of {name}", "to": name}, id=f"of-{name}")
            await asked(server.app, f"of-{name}")
        may = {
            "viewer": {"runs"},
            "operator": {"runs", "runs/of-legal", "inbox"},
            "approver": {"inbox"},
            "worker": set(),
        }
        for role, paths in may.items():
            viewer = await server.viewer_of(role, role, groups=("finance",))
            for path in ("runs", "runs/of-legal", "inbox"):
                if path not in paths:
                    assert await viewer.refused(path) == (403, "not_permitted"), (role, path)
        viewer = await server.viewer_of("fay", "approver", groups=("finance",))
        [message] = await viewer.take("inbox", 1, after="0")
        assert message.data["run"] == "of-finance"
        actions = {each.action for each in await server.app.audit(who="fay")}
        assert "watch_inbox" in actions


async def test_the_stream_of_a_revoked_token_ends() -> None:
    """The client is told to reconnect, and is then refused."""
    async with served() as server:
        made = await server.app.create_token("ann", roles=["operator"])
        viewer = Viewer(server.client, made.token)
        watching = asyncio.ensure_future(viewer.whole("runs"))
        await server.watched(1)
        await server.app.revoke_token(made.info.id, by="root")
        assert await watching == [Message("", "resume", {})]
        assert await viewer.refused("runs") == (401, "not_authenticated")


class Client:
    """A client of a stream, without a socket: it takes messages only while it is told to."""

    def __init__(self, app: limpet.App, run: str, **more: str) -> None:
        self.takes, self.sent, self.is_dropped = asyncio.Event(), list[Any](), False
        self.stopping = asyncio.Event()
        items = operations_of(limpet.App)["watch_run"].stream(app, {"run": run, **more}, who=LOCAL)
        self._stream = event_streams.EventStream(items, LOCAL, event_streams.StreamLimits(), self.stopping)
        self.takes.set()

    async def run(self) -> bytes:
        """Be served to the end, and return the last body."""
        await self._stream({"method": "GET", event_streams.ABORT: self._drop}, self._receive, self._send)
        return bytes(self.sent[-1]["body"])

    @property
    def last_seq(self) -> int:
        """Sequence of the last event that was sent."""
        ids = [each["body"].split()[1] for each in self.sent[1:] if each["body"].startswith(b"id: ")]
        return int(ids[-1]) if ids else 0

    def _drop(self) -> None:
        self.is_dropped = True

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, message: Any) -> None:
        await self.takes.wait()
        self.sent.append(message)


async def test_a_server_that_stops_tells_its_viewers_to_resume() -> None:
    async with limpet.open("memory:", agents=[busy]) as app:
        await app.start(busy, "hake", id="r1")
        client = Client(app, "r1")
        serving = asyncio.ensure_future(client.run())
        await until(lambda: len(client.sent) > 1)
        client.stopping.set()
        assert await serving == event_streams.RESUME


async def test_a_slow_viewer_is_told_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few events wait for it. Another viewer gets all of them meanwhile."""
    monkeypatch.setattr(feed_reader, "MOST_WAITING", 30)
    async with limpet.open("memory:", agents=[busy]) as app:
        await app.start(busy, "hake", id="r1")
        slow, quick = Client(app, "r1"), Client(app, "r1")
        serving = [asyncio.ensure_future(each.run()) for each in (slow, quick)]
        await until(lambda: len(slow.sent) > 1)
        slow.takes.clear()
        for number in range(20):
            await app.signal("r1", "go", str(number))
            end = (await app.store.get("r1")).seq
            await until(lambda: quick.last_seq >= end)  # noqa: B023 - called before the next round
        [viewer] = [each for each in app._feed._viewers["r1"] if each.is_behind]
        assert not viewer._waiting
        await app.signal("r1", "go", "stop")
        assert await serving[1] == event_streams.END
        slow.takes.set()
        assert await serving[0] == event_streams.RESUME
        seqs = [message["body"].split()[1] for message in slow.sent[1:-1]]
        assert seqs == [message["body"].split()[1] for message in quick.sent[1:-1]][: len(seqs)]


async def test_a_viewer_that_is_behind_before_its_first_message_is_told_to_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_reader, "MOST_WAITING", 0)
    async with limpet.open("memory:", agents=[busy]) as app:
        await app.start(busy, "hake", id="r1")
        [*_, last] = await app.log("r1")
        client = Client(app, "r1", after=str(last.seq))
        serving = asyncio.ensure_future(client.run())
        await until(lambda: "r1" in app._feed._viewers)
        await app.signal("r1", "go", "x")
        assert await serving == event_streams.RESUME
        assert client.sent[0]["status"] == 200


async def test_a_viewer_in_python_that_falls_behind_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the log: it misses nothing, and needs no cursor."""
    monkeypatch.setattr(feed_reader, "MOST_WAITING", 5)
    async with limpet.open("memory:", agents=[busy]) as app:
        handle = await app.start(busy, "hake", id="r1")
        events, changes = handle.events(), app.watch_runs()
        found, change = [await anext(events)], asyncio.ensure_future(anext(changes))
        await until(lambda: None in app._feed._viewers)
        for number in range(20):
            await app.signal("r1", "go", str(number))
        await app.signal("r1", "go", "stop")
        await handle.result()
        found += [event async for event in events]
        assert [event.seq for event in found] == [event.seq for event in await app.log("r1", limit=1000)]
        last = await change
        while last.run.status != "completed":
            last = await anext(changes)


async def test_a_client_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that dead clients hold no connection."""
    monkeypatch.setattr(event_streams, "STALLED", 0.1)
    monkeypatch.setattr(event_streams, "RECHECKED", 0.1)
    async with limpet.open("memory:", agents=[busy]) as app:
        await app.start(busy, "hake", id="r1")
        client = Client(app, "r1")
        serving = asyncio.ensure_future(client.run())
        await until(lambda: len(client.sent) > 1)
        client.takes.clear()
        await app.signal("r1", "go", "x")
        await serving
        assert client.is_dropped


async def test_streams_do_not_count_as_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a limit of their own, for each caller."""
    monkeypatch.setattr(server_module, "MOST", 5)
    monkeypatch.setattr(event_streams, "OF_ONE_CALLER", 20)
    async with served() as server:
        watching = list[asyncio.Future[Any]]()
        for number in range(20):
            watching.append(asyncio.ensure_future(server.viewer.whole("runs")))
            await server.watched(number + 1)
        reply = await server.client.get("/v1/stats", headers={"authorization": f"Bearer {TOKEN}"})
        assert reply.status_code == 200
        assert not any(task.done() for task in watching)
        assert await server.viewer.refused("runs") == (429, "too_many_requests")
        for task in watching:
            task.cancel()


async def test_nothing_of_another_tenant_appears(tmp_path: Path) -> None:
    """In any stream, with any cursor; a cursor of another tenant is refused."""
    words = {"main": "pelican", "acme": "walrus"}
    async with served(tmp_path, "acme") as server:
        viewers = {name: await server.viewer_of("ann", "operator", tenant=name) for name in words}
        heard: dict[str, list[Message]] = {name: [] for name in words}

        async def listen(name: str, path: str) -> None:
            async for message in viewers[name].read(path):
                heard[name].append(message)

        watching = [asyncio.ensure_future(listen(name, path)) for name in words for path in ("runs", "inbox")]
        for name in words:
            await server.watched(2, name)
        for number in range(6):
            for name, word in words.items():
                run = f"{word}-{number}"
                await server.apps[name].start(work, {"word": word, "to": "ann"}, id=run)
                await server.apps[name].answer(await asked(server.apps[name], run), True, by="ann")
                heard[name] += await viewers[name].whole(f"runs/{run}")
        for task in watching:
            task.cancel()
        for name, other in (("main", "acme"), ("acme", "main")):
            text = json.dumps(heard[name])
            assert text.count(words[name]) > 50
            assert words[other] not in text
            cursor = next(each.id for each in heard[other] if each.id and "run" in each.data)
            assert await viewers[name].refused("runs", **{"last-event-id": cursor}) == (422, "invalid_argument")
            assert await viewers[name].refused(f"runs/{words[other]}-1") == (404, "not_found")


class Mixture(NamedTuple):
    """Something that happens in one of two stores."""

    tenant: str
    what: str
    cut_after: int
    """Messages after which each stream of the tenant is cut, and goes on."""


MIXTURES = st.lists(
    st.builds(
        Mixture,
        st.sampled_from(["main", "acme"]),
        st.sampled_from(["start", "ask", "answer", "cancel"]),
        st.integers(1, 5),
    ),
    min_size=2,
    max_size=8,
)


class MixedTenant:
    """A tenant in a mixture: what its streams send, and what happens in its store."""

    def __init__(self, app: limpet.App, viewer: Viewer, word: str) -> None:
        self.app, self.viewer, self.word = app, viewer, word
        self.heard: list[Message] = []
        self.runs: list[str] = []
        self.requests: list[str] = []
        self.cut_after = 1

    async def listen(self, path: str) -> None:
        """Read a stream, in pieces: after each cut, it goes on."""
        after = None
        while True:
            async with aclosing(self.viewer.read(path, after)) as messages:  # type: ignore[type-var]
                count = 0
                async for message in messages:
                    self.heard.append(message)
                    after, count = message.id, count + 1
                    if count >= self.cut_after:
                        break

    async def do(self, what: str) -> None:
        """Do something that the streams tell."""
        if what in ("start", "ask"):
            run = f"{self.word}-{len(self.runs)}"
            self.runs.append(run)
            await self.app.start(work, {"word": self.word, **({"to": "ann"} if what == "ask" else {})}, id=run)
            if what == "ask":
                self.requests.append(await asked(self.app, run))
        elif what == "answer" and self.requests:
            with suppress(limpet.AlreadyAnswered, limpet.WrongState):
                await self.app.answer(self.requests[-1], True, by="ann")
        elif what == "cancel" and self.runs:
            with suppress(limpet.WrongState):
                await self.app.cancel(self.runs[-1], reason=self.word)

    @property
    def told(self) -> set[str]:
        """Ids of runs and requests that were heard."""
        ids = {each.data.get("id") for each in self.heard}
        return ids | {each.data["run"]["id"] for each in self.heard if isinstance(each.data.get("run"), dict)}


async def mixed(folder: Path, steps: Sequence[Mixture]) -> None:
    """Let things happen in two stores of one server, and look at what the streams of each send."""
    async with served(folder, "acme") as server:
        tenants = {
            name: MixedTenant(server.apps[name], await server.viewer_of("ann", "operator", tenant=name), word)
            for name, word in (("main", "pelican"), ("acme", "walrus"))
        }
        watching = [asyncio.ensure_future(each.listen(path)) for each in tenants.values() for path in ("runs", "inbox")]
        for name in tenants:
            await server.watched(2, name)
        for step in steps:
            tenants[step.tenant].cut_after = step.cut_after
            await tenants[step.tenant].do(step.what)
        for one, other in ((tenants["main"], tenants["acme"]), (tenants["acme"], tenants["main"])):
            await until(lambda one=one: one.told >= {*one.runs, *one.requests})  # type: ignore[misc]
            for run in one.runs:
                one.heard += await one.viewer.take(f"runs/{run}", 3)
            assert other.word not in json.dumps(one.heard)
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)


@given(steps=MIXTURES)
@settings(deadline=None, derandomize=True, max_examples=100 if settings.get_current_profile_name() == "full" else 8)
def test_streams_of_tenants_never_mix(steps: list[Mixture], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever happens in both at the same time, and wherever connections are cut: each gets all of its own."""
    asyncio.run(mixed(tmp_path_factory.mktemp("mixed"), steps))


async def test_many_viewers_cost_one_read_of_the_feed_for_each_change(
    full: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A tenth of them takes nothing: little waits for them, and the others get everything."""
    many = 2_000 if full else 200
    async with served(tmp_path) as server:
        await server.app.start(busy, "hake", id="r1")
        reads, feed = Counter[str](), server.app.store.feed

        async def reading(*args: Any, **options: Any) -> Any:
            found = await feed(*args, **options)
            reads["with events" if found.events else "without"] += 1
            return found

        monkeypatch.setattr(server.app.store, "feed", reading)
        streams = []
        for number in range(many):
            streams.append(await asyncio.open_connection("127.0.0.1", server.client.base_url.port))
            streams[-1][1].write(ASK)
            if number % 50 == 49:  # more connections without a token would be dropped
                await server.watched(number + 1)
        quick = streams[many // 10 :]

        async def whole(reader: asyncio.StreamReader) -> list[bytes]:
            text = await reader.read()
            return [line for line in text.splitlines() if line.startswith((b"id:", b"event:"))]

        await server.watched(many)
        reading_all = asyncio.gather(*(whole(reader) for reader, _ in quick))
        reads.clear()
        for number in range(20):
            await server.app.signal("r1", "go", str(number))
        await server.app.signal("r1", "go", "stop")
        found = await reading_all
        log = await server.app.log("r1", limit=1000)
        wanted = [*(b"id: %d" % event.seq for event in log), b"event: end"]
        assert all(each == wanted for each in found)
        assert reads["with events"] <= len(log)
        for _, writer in streams:
            writer.close()
