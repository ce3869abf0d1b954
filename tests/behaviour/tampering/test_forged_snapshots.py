"""Forged snapshots: an encrypted store does not use them, and `verify` finds them in every store."""

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import limpet
from limpet import Tampered
from limpet.engine.replay.learned import _Memory
from limpet.journal.snapshots import VERSION, _Stored
from limpet.service.verify import verify_all
from limpet.stores import MasterKeys, Store
from limpet.stores.api.snapshots import DIGEST, _digest
from limpet.testing.app import TestApp, TestSettings
from tests.behaviour.tampering.conftest import KEYS, app_at
from tests.behaviour.tampering.edit_rows import PostgresRowEditor, SqliteRowEditor
from tests.behaviour.tampering.filled_store import single_process
from tests.simulation.world import simulate

DUE, FORGED = 100_100, 999_999
PAID: list[int] = []


@limpet.tool(effect="idempotent", name="trusted_pay")
async def pay(cents: int) -> int:
    """Note what is paid."""
    PAID.append(cents)
    return cents


@limpet.agent(name="trusted_clerk")
async def clerk(run: limpet.Run) -> int:
    """Record what is due, wait for a signal, and pay it."""
    await run.patch(facts={"due": DUE})
    async for turn in run.turns(max=2):
        if turn.number == 2:  # Snapshots are written between turns.
            await run.receive("go", int)
            return await run.step(pay, run.state.facts["due"])
    return 0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    found = f"sqlite:///{tmp_path / 'limpet.db'}"
    return request.getfixturevalue("postgres_schema") if request.param == "postgres" else found


def clerks(url: str, keys: MasterKeys | None) -> TestApp:
    """Return an app for the clerk agent."""
    settings = TestSettings(single_process(url))
    settings.faulty._keys = keys
    return TestApp(settings, [clerk])


async def park_run(url: str, keys: MasterKeys | None = None) -> None:
    """Park a run with a snapshot that contains what is due."""
    PAID.clear()
    with patch("limpet.journal.journal.snapshot_due", return_value=True):
        async with clerks(url, keys) as app:
            await app.start(clerk, id="r")
            await app.settle()
            assert (await app.verify()).runs == 1
            assert await app.store.snapshots("r")


def forge(url: str, change: Callable[[bytes], bytes], *, plain: bool = True) -> None:
    """Change the content of every snapshot, and recompute its digest."""
    editor = SqliteRowEditor(Path(url[10:])) if url.startswith("sqlite:") else PostgresRowEditor(url)
    for seq, hash, data in editor.run("SELECT seq, hash, data FROM {snapshots}"):
        forged = change(bytes(data)[DIGEST:]) if plain else change(b"{}")
        forged = _digest("r", seq, bytes(hash), forged) + forged
        editor.run("UPDATE {snapshots} SET data = ?, codec = '', key_id = '' WHERE seq = ?", forged, seq)
    editor.close()


async def continue_run(url: str, keys: MasterKeys | None = None) -> None:
    """Send the signal to pay."""
    async with clerks(url, keys) as app:
        await app.signal("r", "go", 1)
        await app.settle()
        assert (await app.store.get("r")).status == "completed"


def other_state(data: bytes) -> bytes:
    """Change a fact in the state."""
    stored = msgspec.json.decode(data)
    stored["state"] = msgspec.json.decode(msgspec.json.encode(stored["state"]).replace(b"100100", b"999999"))
    return msgspec.json.encode(stored)


def other_memory(data: bytes) -> bytes:
    """Change a fact in the worker's memory."""
    stored = msgspec.json.decode(data)
    if "memory" in stored:
        stored["memory"] = msgspec.json.decode(msgspec.json.encode(stored["memory"]).replace(b"100100", b"999999"))
    return msgspec.json.encode(stored)


@pytest.mark.parametrize("change", [other_state, other_memory])
async def test_verify_finds_a_forged_snapshot(url: str, change: Callable[[bytes], bytes]) -> None:
    """Its digest fits because it needs no key; only the log reveals the forgery."""
    await park_run(url)
    forge(url, change)
    async with app_at(url) as app:
        for run in (None, "r"):
            with pytest.raises(Tampered, match="the snapshot") as caught:
                await app.verify(run)
            assert caught.value.run == "r"


async def test_resume_uses_a_forged_snapshot_of_a_plain_store(tmp_path: Path) -> None:
    """As documented: anyone who can write the file can compute the digest. `verify` finds it afterwards."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    await park_run(url)
    forge(url, lambda data: other_memory(other_state(data)))
    await continue_run(url)
    assert PAID == [FORGED]
    async with app_at(url) as app:
        with pytest.raises(Tampered, match="the snapshot"):
            await app.verify()


async def test_an_encrypted_store_does_not_use_a_forged_snapshot(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot not sealed with the store's key is logged, and the state is folded from the log instead."""
    await park_run(f"sqlite:///{tmp_path}/plain.db")
    async with app_at(f"sqlite:///{tmp_path}/plain.db") as app:
        snapshot = await app.store.snapshot("r")
        assert snapshot is not None
    await park_run(url, KEYS)
    forge(url, lambda _: other_memory(other_state(snapshot.data)), plain=False)
    async with app_at(url, KEYS) as app:
        with pytest.raises(Tampered, match="the snapshot cannot be read"):
            await app.verify()
    with caplog.at_level(logging.WARNING, "limpet"):
        await continue_run(url, KEYS)
    assert PAID == [DUE]
    assert "run r: ignoring a damaged snapshot" in caplog.text


def test_verify_accepts_snapshots_of_crashing_workers(full: bool) -> None:
    """One snapshot after each flush, by workers that are killed and stall."""
    compared: list[int] = []

    async def check(world: object) -> None:
        store: Store = world.people.store  # type: ignore[attr-defined]
        await verify_all(store)
        compared.extend([len(await store.snapshots(run)) for _, run in await store.streams()])

    with patch("limpet.journal.journal.snapshot_due", lambda *, tail_events, **_: tail_events > 0):
        for seed in range(40 if full else 8):
            simulate(seed, check=check)
    assert sum(compared) > 100


def test_a_changed_snapshot_format_needs_a_new_version() -> None:
    """Otherwise `verify` would report snapshots of earlier versions as forged."""
    form = _undescribed([msgspec.json.schema(_Stored), msgspec.json.schema(_Memory)])
    digest = sha256(msgspec.json.encode(form, order="deterministic")).hexdigest()[:8]
    assert (VERSION, digest) == (6, "cf3fddad")


def _undescribed(schema: Any) -> Any:
    """Return a schema without descriptions and titles."""
    if isinstance(schema, dict):
        return {name: _undescribed(each) for name, each in schema.items() if name not in ("description", "title")}
    return [_undescribed(each) for each in schema] if isinstance(schema, list | tuple) else schema
