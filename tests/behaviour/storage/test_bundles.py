"""Bundles: runs exported from one store and loaded into another."""

import zipfile
from pathlib import Path

import pytest

import limpet
from limpet import testing
from limpet.service.bundles import verify_bundle
from limpet.stores.cipher import MasterKeys


@limpet.tool(effect="once", name="bundle_act")
async def bundle_act(what: str) -> str:
    return what * 5000


@limpet.agent(name="bundled")
async def bundled(run: limpet.Run, what: str) -> int:
    text = await run.step(bundle_act, what)
    await run.ask("go on?")
    return len(text + await run.step(bundle_act, what))


async def test_a_run_moves_to_another_store(tmp_path: Path, postgres_schema: str) -> None:
    """With its blobs, waits and hashes. After a resume it continues there without repeating an effect."""
    path = tmp_path / "run.zip"
    async with testing.app(bundled) as app:
        await app.start(bundled, "ab", id="r1")
        await app.settle()
        await app.export("r1", path)
        before = await app.log("r1")
    with zipfile.ZipFile(path) as bundle:
        assert bundle.read("log.jsonl").count(b"\n") == len(before)
    for url in (f"sqlite:///{tmp_path}/other.db", postgres_schema):
        async with limpet.open(url, agents=[bundled]) as other:
            handle = await other.load(path)
            assert (await handle.info()).waits_text == "operator:paused"
            assert (await other.log("r1"))[: len(before)] == before
            await other.verify("r1")
            assert await other.store.check_rows("r1") == []
            assert (await other.load(path)).id == "r1"  # loading the same run again is accepted
            await other.approve((await other.inbox())[0], by="ann")
            await other.resume("r1")
            assert await handle.result(timeout="30s") == 20_000
            steps = [event for event in await other.log("r1") if event.kind == "step.started"]
            assert [event.body["number"] for event in steps] == [1, 2]


async def test_a_changed_bundle_is_refused(tmp_path: Path) -> None:
    """Its hashes are checked before anything is stored. A file that is no bundle is refused, too."""
    path = tmp_path / "run.zip"
    async with testing.app(bundled) as app:
        await app.start(bundled, "ab", id="r1")
        await app.settle()
        await app.export("r1", path)
    with zipfile.ZipFile(path) as bundle:
        parts = {name: bundle.read(name) for name in bundle.namelist()}
    parts["log.jsonl"] = parts["log.jsonl"].replace(b"go on?", b"go ON?")
    with zipfile.ZipFile(path, "w") as bundle:
        for name, data in parts.items():
            bundle.writestr(name, data)
    async with testing.app(bundled) as app:
        with pytest.raises(limpet.Tampered):
            await app.load(path)
        path.write_bytes(b"nothing")
        with pytest.raises(limpet.InvalidBundle):
            await app.load(path)
        assert await app.runs() == []


async def test_a_failed_export_leaves_no_partial_file(tmp_path: Path) -> None:

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        pass

    (tmp_path / "run.zip").mkdir()
    async with testing.app(agent) as app:
        await app.run(agent, id="r1")
        with pytest.raises(limpet.FileFailed, match=r"run\.zip"):
            await app.export("r1", tmp_path / "run.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["run.zip"]


async def test_a_bundle_from_an_encrypted_store_can_be_loaded_anywhere(tmp_path: Path) -> None:
    """The bundle is plain text with new hashes; plain stores and stores with other keys accept it."""

    @limpet.tool(effect="none", name="regress_big")
    async def big() -> str:
        return "x" * 20_000

    @limpet.agent(name="regress_secret")
    async def secret(run: limpet.Run) -> int:
        return len(await run.step(big))

    path = tmp_path / "f.zip"
    store = limpet.open_store(f"sqlite:///{tmp_path}/a.db", keys=MasterKeys(lambda: bytes(32)))
    async with limpet.open(agents=[secret]).replace(store=store) as app:
        await app.run(secret, id="r")
        fork = await app.fork("r", at=2)
        await fork.result()
        await app.export(fork.id, path)
        pruned = await app.prune(older_than=0, dry_run=False, archive=tmp_path / "old")
        assert sorted(pruned.runs) == ["r", "r.1"]
    for keys in (None, MasterKeys(lambda: bytes(32)), MasterKeys(lambda: b"k" * 32)):
        target = limpet.open_store(f"sqlite:///{tmp_path}/{id(keys)}.db", keys=keys)
        async with limpet.open(agents=[secret], worker=False).replace(store=target) as other:
            handle = await other.load(path)
            assert await handle.result() == 20_000
            assert (await other.verify()).runs == 2
            assert (await other.replay(handle.id)).value == 20_000
            assert (await other.load(path)).id == handle.id


@limpet.tool(name="bundle_pay", effect="once")
async def pay(cents: int) -> str:
    return "x" * cents


@limpet.agent(name="bundle_payer")
async def payer(run: limpet.Run, cents: int) -> str:
    """Pay, and ask."""
    await run.step(pay, cents)
    await run.ask("paid?")
    return "paid"


@limpet.agent(name="bundle_middle")
async def middle(run: limpet.Run, cents: int) -> str:
    return await run.call(payer, cents)


@limpet.agent(name="bundle_top")
async def top(run: limpet.Run, cents: int) -> str:
    return await run.call(middle, cents)


@pytest.mark.parametrize("is_private", [False, True])
async def test_a_run_moves_with_the_runs_that_it_called(tmp_path: Path, is_private: bool) -> None:
    """Also runs that these called; the whole tree continues in the other store."""
    keys = MasterKeys(lambda: bytes(32)) if is_private else None
    store = limpet.open_store(f"sqlite:///{tmp_path}/one.db", keys=keys)
    path, agents = tmp_path / "run.zip", [top, middle, payer]
    async with limpet.open(agents=agents).replace(store=store) as app:
        await app.start(top, 10_000, id="r1")
        while not await app.inbox():
            await app.store.now()
        await app.export("r1", path, with_handoffs=True)
    assert str(await verify_bundle(path)).startswith("3 runs with ")
    async with limpet.open(f"sqlite:///{tmp_path}/two.db", agents=agents) as other:
        handle = await other.load(path)
        runs = sorted(run.id for run in await other.runs())
        assert len(runs) == 3
        await other.verify()
        await other.approve((await other.inbox())[0], by="ann")
        for run in runs:
            await other.resume(run)
        assert await handle.result(timeout="30s") == "paid"


async def test_a_changed_run_in_a_bundle_of_several_is_refused(tmp_path: Path) -> None:
    """Nothing is stored, also not the runs that are intact."""
    path = tmp_path / "run.zip"
    async with testing.app(top, middle, payer) as app:
        await app.start(top, 5, id="r1")
        await app.settle()
        await app.export("r1", path, with_handoffs=True)
    with zipfile.ZipFile(path) as bundle:
        parts = {name: bundle.read(name) for name in bundle.namelist()}
    [log] = [name for name in parts if name.startswith("called/") and b"paid?" in parts[name]]
    parts[log] = parts[log].replace(b"paid?", b"Paid?")
    with zipfile.ZipFile(path, "w") as bundle:
        for name, data in parts.items():
            bundle.writestr(name, data)
    async with testing.app(top, middle, payer) as app:
        with pytest.raises(limpet.Tampered):
            await app.load(path)
        assert await app.runs() == []
