"""A store with a bit of everything: runs that ended, wait, were compensated, forked and released."""

import random  # noqa: TID251 - the same bytes each time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

from msgspec.structs import replace

import limpet
from limpet.clock import Clock, FrozenClock
from limpet.engine.replay.learned import Learned
from limpet.events import AnyBody, StatePatch, Wait, inline, seal_all
from limpet.events import bodies as b
from limpet.journal import load_whole
from limpet.journal.snapshots import save
from limpet.stores import Backend, Create, MasterKeys, Store, WorkerRow, writes
from limpet.stores.postgres import PostgresBackend
from limpet.stores.sqlite import SqliteBackend
from limpet.testing.app import TestApp, TestSettings

__all__ = ["BY_THE_CLOCK", "fill_store", "single_process"]

BY_THE_CLOCK = ("woken", "given-back")
"""Runs whose `ready_at` only the store's clock determines."""
NOISE = random.Random(1).randbytes(9_000)


@limpet.tool(effect="idempotent", name="told_look")
async def look(n: int) -> int:
    return n


@limpet.tool(effect="none", name="told_page")
async def page(n: int) -> str:
    return f"page {n} ä " * 2_000


@limpet.tool(effect="idempotent", risk="external_action", name="told_pay")
async def pay(order: str, cents: int) -> str:
    return f"{order}: {cents}"


@pay.compensate
async def pay_back(result: str | None, order: str, cents: int) -> None:
    """Do nothing."""


@limpet.agent(name="told_helper")
async def helper(run: limpet.Run, order: str) -> str:
    return await run.step(page, len(order))


APPROVALS = limpet.Approvals("external_action", to=["finance", "chäf"], expires="1d", escalate=["boss"])


@limpet.agent(name="told_clerk", approvals=APPROVALS, steps=9)
async def clerk(run: limpet.Run, order: str) -> str:
    await run.patch(goal=f"settle {order}", plan=["look", "pay"], facts={"order": order}, flags=["new"])
    async with run.scope("look"):
        await run.step(look, run.now().year)
        await run.step(page, 1)
    await run.decide("pay?", choose="all", over=["all", "none"], because="it broke", confidence=0.5)
    if run.version("noise"):
        await run.artifact(NOISE, type="bytes", summary="noise")
    async for turn in run.turns(max=2):
        await run.step(look, turn.number)
    if not await run.ask("go on?", to=["ann"]):
        raise ValueError(f"not {order}")
    async with run.scope("pay"):
        paid = [await run.step(pay, order, cents) for cents in (100, 200)]
    if order == "broken":
        raise ValueError("it broke after it was paid")
    await run.call(helper, order)
    await run.sleep("1h")
    return f"{paid} {await run.receive('paid', int, timeout='30d')}"


def single_process(url: str) -> Callable[[Clock], Backend]:
    """Return a backend that polls for no other process, so that nothing changes on its own."""

    class File(SqliteBackend):
        capabilities = replace(SqliteBackend.capabilities, processes=False)

    class Server(PostgresBackend):
        capabilities = replace(PostgresBackend.capabilities, processes=False)

    return partial(File, url[10:]) if url.startswith("sqlite:") else partial(Server, url)


def frozen_app(backend: Callable[[Clock], Backend], keys: MasterKeys | None = None) -> TestApp:
    """Return an app with a frozen clock on this backend."""
    settings = TestSettings(backend, FrozenClock())
    settings.faulty._keys = keys
    return TestApp(settings, [clerk, helper])


async def fill_store(backend: Callable[[Clock], Backend], keys: MasterKeys | None = None) -> None:
    """Fill the store."""
    with patch("limpet.stores.api.payloads.CHUNK", 4_000), patch("limpet.stores.blobs.CHUNK", 4_000):
        async with frozen_app(backend, keys) as app:
            await _clerks(app)
            await _forks(app)
            await _unserved_runs(app.store)
            await _conversations(app.store)
            await _snapshots(app.store)
            await app.create_token("ann", roles=["operator"], groups=["finance"], expires="1d")
            await app.store.take_duty("tidy", "w-1", lease=1, every=1)
            await app.store.end_duty("tidy", "w-1", is_done=False, error="no space")


async def _clerks(app: TestApp) -> None:
    labels = {"team": "north", "prio": "1"}
    for order in ("done", "asks", "pays", "listens", "broken", "refused", "stopped", "paused"):
        await app.start(clerk, order, id=order, user="ann", session=f"s-{order}", labels=labels, conversation="talk")
    await app.start(clerk, "later", id="later", at="90d")
    await app.settle()
    requests = {request.run: request for request in await app.inbox()}
    await app.reject(requests["refused"], by="ann", because="no")
    for run in ("done", "pays", "listens", "broken", "stopped"):
        await app.approve(requests[run], by="ann")
    await app.pause("paused")
    await app.settle()
    for request in await app.inbox(to="finance"):
        if request.run != "pays":
            await app.approve(request, by="bob", standing=True)
            await app.settle()
    for grant in await app.grants("listens"):
        await app.revoke("listens", grant.grant, by="bob", because="enough")
    await app.cancel("stopped", reason="stop")
    await app.advance("1h")
    await app.signal("done", "paid", 7)
    await app.score("done", "quality", 0.5, comment="slow", step=1, by="ann")
    await app.score("done", "verdict", "good", by="ben")
    await app.advance("1d")


async def _forks(app: TestApp) -> None:
    log = [event async for event in app.store.log("done")]
    body = b.RunForked(
        run="done",
        at=9,
        step=2,
        effects="ask",
        agent="told_nobody",
        agent_version="1",
        goal="again",
        steps=9,
        item=0,
        items=2,
        labels={"of": "done"},
    )
    assert log[8].seq == 9
    await app.store.create("done.1", body, actor="ann")


async def _unserved_runs(store: Store) -> None:
    """Runs of an agent without a worker: one is claimed, and late events of its worker are kept."""

    async def tell(run: str, *bodies: AnyBody) -> None:
        row = await store.get(run)
        sealed = seal_all(row.head, run, bodies, time=row.time, fence=row.fence, actor="w-old", codec=store.codec)
        assert isinstance(
            await store.append(writes.Extend(run=run, after=row.head, fence=row.fence, events=sealed)), writes.Appended
        )

    patch_ = StatePatch(goal="wait")
    for run in ("held", "woken", "given-back", "parked"):
        created = b.RunCreated(
            agent="told_old", agent_version="1", input=inline(run), initial=patch_, exclusive=f"x:{run}"
        )
        await store.create(run, created, actor="ann")
    await store.register(WorkerRow(id="w-old", agents={"told_old": ("1",)}), lease=10_000_000)
    await store.claim("w-old", limit=10, concurrency={"told_old": 9})
    for run in ("woken", "parked"):
        await tell(run, b.RunWaiting(waits=(Wait(what="signal", key="go"),), wake=4 * 10**15))
    await store.send_commands("woken", b.SignalReceived(command="go-1", signal="go", value=inline(1)), actor="ann")
    row = await store.get("given-back")
    await store.release("given-back", fence=row.fence, worker="w-old", reason="drain")
    held, (payload, blobs) = await store.get("held"), store.pack("late " * 3_000)
    late = b.SignalReceived(command="late", signal="late", value=payload)
    sealed = seal_all(held.head, "held", (late,), time=held.time, fence=held.fence, actor="w-old", codec=store.codec)
    await store.keep_late(sealed, blobs=blobs)
    created = b.RunCreated(agent="told_nobody", agent_version="1", input=inline(None))
    await store.create("pending", created, actor="ann")


async def _conversations(store: Store) -> None:
    """A conversation and a fork of it."""
    first = b.ConversationCreated(session="s-done", user="ann", labels={"topic": "orders"})
    said = tuple(b.MessageAdded(message=f"m{n}", role="user", content=inline(f"message {n}")) for n in range(3))
    await store.append(Create(run="talk", bodies=(first, *said), actor="ann"))
    forked = b.ConversationForked(conversation="talk", at=3)
    more = b.MessageAdded(message="m9", role="assistant", content=inline("otherwise"))
    await store.append(Create(run="talk.1", bodies=(forked, more), actor="ann"))


async def _snapshots(store: Store) -> None:
    """Snapshots of the longest run at three events, with the worker's memory."""
    for seq in (7, 15, 30):
        [event], memory = await store.read("done", after=seq - 1, limit=1), Learned()
        loaded = await load_whole(store, "done", at_most=seq, learner=memory)
        await save(store, event.head, loaded.state, memory.dump())
