"""Verify: every change to stored data is found, and an intact store passes."""

from itertools import count
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Tampered

COPIES = count()


@limpet.tool(effect="idempotent", name="trust_act")
async def act(n: int) -> int:
    return n


@limpet.agent(name="trust_agent")
async def agent(run: limpet.Run) -> int:
    await run.patch(goal="count", facts={"a": 1})
    for n in range(4):
        await run.step(act, n)
    await run.ask("go on?")
    return 4


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A database with three runs, one of which waits, and their saved heads."""
    path = tmp_path / "x.db"
    async with limpet.open(f"sqlite:///{path}", agents=[agent]) as app:
        for number in range(3):
            await app.start(agent, id=f"r{number}")
        while len(inbox := await app.inbox()) < 3:
            await app.store.now()
        for request in sorted(inbox, key=lambda request: request.run)[:2]:
            await app.approve(request, by="ann")
            await (await app.get(request.run)).result(timeout="10s")
    async with limpet.open(f"sqlite:///{path}") as app:
        await app.save_heads(tmp_path / "heads")
    return path


async def verified(path: Path, heads: bool = False) -> str:
    """Verify a database and return the report."""
    async with limpet.open(f"sqlite:///{path}") as app:
        return str(await app.verify(heads=path.parent / "heads" if heads else None))


def changed_copy(path: Path, *statements: str) -> Path:
    """Return a copy of the database in which these statements were executed."""
    for each in path.parent.glob("changed-*"):
        each.unlink(missing_ok=True)
    copy = path.with_name(f"changed-{next(COPIES)}.db")  # the previous copy may still be open
    whole = apsw.Connection(str(path))
    whole.execute("VACUUM INTO ?", (str(copy),))
    whole.close()
    db = apsw.Connection(str(copy))
    for statement in statements:
        db.execute(statement)
    db.close()
    return copy


async def test_verify_accepts_an_intact_store(store: Path) -> None:
    """Also with saved heads, after a log has grown beyond them."""
    assert (await verified(store)).startswith("3 runs with ")
    assert (await verified(store, heads=True)).endswith("3 saved heads checked")
    async with limpet.open(f"sqlite:///{store}", agents=[agent]) as app:
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await (await app.get(request.run)).result(timeout="10s")
    assert (await verified(store, heads=True)).endswith("3 saved heads checked")


async def test_verify_finds_every_edit_of_an_event(store: Path) -> None:
    """Each event deleted, changed in body, time, kind or actor, or swapped with the next."""
    db = apsw.Connection(str(store))
    count = int(str(db.execute("SELECT max(seq) FROM limpet_events WHERE run = 1").fetchall()[0][0]))
    db.close()
    assert count > 10
    for seq in range(1, count + 1):
        here = f"WHERE run = 1 AND seq = {seq}"
        for edit in (
            [f"DELETE FROM limpet_events {here}"],
            [f"UPDATE limpet_events SET body = CAST(replace(body, 'a', 'b') || ' ' AS BLOB) {here}"],
            [f"UPDATE limpet_events SET time = time + 1 {here}"],
            [f"UPDATE limpet_events SET kind = 'risk.flagged' {here}"],
            [f"UPDATE limpet_events SET actor = 'eve' {here}"],
            [
                f"UPDATE limpet_events SET seq = 9999 {here}",
                f"UPDATE limpet_events SET seq = {seq} WHERE run = 1 AND seq = {seq + 1}",
                f"UPDATE limpet_events SET seq = {seq + 1} WHERE run = 1 AND seq = 9999",
            ],
        ):
            with pytest.raises((Tampered, limpet.NewerVersion)):
                await verified(changed_copy(store, *edit))


async def test_verify_finds_rows_that_contradict_the_log(store: Path) -> None:
    """Lists and claims read these rows."""
    for edit in (
        "UPDATE limpet_streams SET status = 'failed' WHERE number = 1",
        "UPDATE limpet_streams SET goal = 'other' WHERE number = 1",
        "UPDATE limpet_streams SET step = 99 WHERE number = 1",
        "UPDATE limpet_requests SET by = 'eve' WHERE run = 1",
        "DELETE FROM limpet_requests WHERE run = 1",
    ):
        with pytest.raises(Tampered, match=r"rows do not match the log|does not end"):
            await verified(changed_copy(store, edit))


async def test_verify_with_heads_finds_truncated_and_rewritten_logs(store: Path) -> None:
    """Each log is consistent in itself."""
    cut = (
        "DELETE FROM limpet_events WHERE run = 1 AND seq > 3",
        "DELETE FROM limpet_requests WHERE run = 1",
        """UPDATE limpet_streams SET (seq, hash, time) =
           (SELECT seq, hash, time FROM limpet_events WHERE run = 1 AND seq = 3) WHERE number = 1""",
    )
    async with limpet.open(f"sqlite:///{changed_copy(store, *cut)}") as app:
        await app.store.rebuild("r0")
        await app.verify()
        with pytest.raises(Tampered, match="truncated"):
            await app.verify(heads=store.parent / "heads")
    other = store.with_name("changed.db")
    for each in store.parent.glob("changed.db*"):
        each.unlink(missing_ok=True)
    async with limpet.open(f"sqlite:///{other}", agents=[agent]) as app:
        for number in range(3):
            await app.start(agent, id=f"r{number}")
        while len(await app.inbox()) < 3:
            await app.store.now()
    with pytest.raises(Tampered, match=r"rewritten|truncated"):
        await verified(other, heads=True)
    (store.parent / "heads").write_text("no heads\n", encoding="utf-8")
    with pytest.raises(limpet.InvalidBundle):
        await verified(store, heads=True)
