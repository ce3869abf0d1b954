"""The audit log: who did what, in a log that several processes write, and that shows every change."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import apsw
import pytest
from msgspec.structs import replace

import limpet
from limpet import testing
from limpet.clock import FrozenClock, SystemClock, microseconds
from limpet.engine.execution.principal import Principal
from limpet.errors import FileFailed, InvalidArgument, InvalidBundle, NotFound, StoreBusy, StoreUnavailable, Tampered
from limpet.events import bodies as b
from limpet.ids import RandomIds, SeededIds
from limpet.service import audit
from limpet.service.audit import AuditEvent, AuditFilter, AuditLog, audit_page, export_audit, verify_audit
from limpet.service.verify import verify_all
from limpet.stores import MasterKeys, Store
from limpet.stores.memory import MemoryBackend
from limpet.stores.sqlite.backend import SqliteBackend

ANN = Principal(name="ann", kind="person", roles=("operator",), door="http", tenant="main")
ALL = AuditFilter()
KEYS = MasterKeys(lambda: bytes(range(32)))
NOVEMBER = "limpet.audit.2026-11"
DAY = microseconds("1d")


@limpet.agent(name="audit_exported")
async def audit_exported(run: limpet.Run, number: int) -> int:
    return number


@pytest.fixture
def clock() -> FrozenClock:
    """The clock of a store, in the last hour of a month."""
    return FrozenClock(1_796_079_600_000_000)  # 2026-11-30 23:00


def log_of(store: Store, seed: int = 1) -> AuditLog:
    """Return a writer of the audit log."""
    return AuditLog(store, SeededIds(seed))


async def actions(store: Store, where: AuditFilter = ALL) -> list[str]:
    """Return the recorded actions, newest first."""
    return [each.action for each in await audit_page(store, where, limit=1_000)]


async def test_an_event_has_who_what_from_where_and_how_it_ended(clock: FrozenClock) -> None:
    """With the store's time, in the log of its month."""
    async with Store(MemoryBackend(clock)) as store:
        event = AuditEvent(
            action="cancel",
            who=replace(ANN, address="10.0.0.7"),
            subject="r1",
            outcome="wrong_state",
            request="k-1",
            count=3,
        )
        await log_of(store).record(event)
        [found] = await audit_page(store, ALL, limit=5)
        assert (found.log, found.seq, found.time.timestamp() * 10**6) == (NOVEMBER, 2, clock.now())
        assert (found.who, found.kind, found.tenant, found.door) == ("ann", "person", "main", "http")
        assert (found.action, found.subject, found.outcome) == ("cancel", "r1", "wrong_state")
        assert (found.address, found.request, found.count) == ("10.0.0.7", "k-1", 3)


async def test_an_unknown_caller_has_no_kind() -> None:
    async with Store(MemoryBackend()) as store:
        stranger = limpet.Principal(name="", address="::1")
        await log_of(store).record(AuditEvent(action="refusal", outcome="not_authenticated", who=stranger))
        [found] = await audit_page(store, ALL, limit=5)
        assert (found.who, found.kind, found.outcome) == ("", "", "not_authenticated")


async def test_each_month_has_a_log_of_its_own(clock: FrozenClock) -> None:
    """A page continues from one to the one before."""
    async with Store(MemoryBackend(clock)) as store:
        log = log_of(store)
        for place in range(6):
            await log.record(AuditEvent(action=f"a{place}", who=ANN))
            clock.advance("30m")
        assert [row.id for row in (await store.runs(audit.LOGS)).rows] == ["limpet.audit.2026-12", NOVEMBER]
        first = await audit_page(store, ALL, limit=4)
        rest = await audit_page(store, ALL, limit=4, cursor=first.next)
        assert [each.action for each in (*first, *rest)] == ["a5", "a4", "a3", "a2", "a1", "a0"]
        assert rest.next is None


async def test_events_are_filtered(clock: FrozenClock) -> None:
    async with Store(MemoryBackend(clock)) as store:
        log, bob = log_of(store), Principal(name="bob", kind="service")
        await log.record(AuditEvent(action="old", who=ANN))
        clock.advance("2d")
        await log.record(AuditEvent(action="start", who=bob))
        await log.record(AuditEvent(action="prune", who=ANN, outcome="not_permitted"))
        assert await actions(store, AuditFilter(who="ann")) == ["prune", "old"]
        assert await actions(store, AuditFilter(action="start")) == ["start"]
        assert await actions(store, AuditFilter(outcome="done")) == ["start", "old"]
        assert await actions(store, AuditFilter(who="ann", since=clock.now() - DAY)) == ["prune"]
        assert await actions(store, AuditFilter(who="an")) == []


async def test_a_page_examines_a_limited_number_of_events(clock: FrozenClock) -> None:
    """It may be empty, and its cursor leads on."""
    async with Store(MemoryBackend(clock)) as store:
        log = log_of(store)
        await log.record(AuditEvent(action="wanted", who=ANN))
        await asyncio.gather(*(log.record(AuditEvent(action="other", who=ANN)) for _ in range(25)))
        with patch.object(audit, "MOST_EXAMINED", 10):
            cursor, pages, found = None, 0, list[str]()
            while pages == 0 or cursor is not None:
                page = await audit_page(store, AuditFilter(action="wanted"), limit=5, cursor=cursor)
                found += [each.action for each in page]
                cursor, pages = page.next, pages + 1
        assert (found, pages) == (["wanted"], 3)


@pytest.mark.parametrize("cursor", ["", "x", "1", "1.", ".1", "-1.2", "1.2.3", "²5.1", f"{10**20}.1"])
async def test_a_wrong_cursor_is_refused(cursor: str) -> None:
    async with Store(MemoryBackend()) as store:
        with pytest.raises(InvalidArgument, match="cursor"):
            await audit_page(store, ALL, limit=5, cursor=cursor)


async def test_concurrent_callers_share_an_append() -> None:
    """All are acknowledged, and there are far fewer writes than events."""
    async with Store(MemoryBackend()) as store:
        log, sent = log_of(store), []
        real = store.send_commands

        async def counted(*args: object, **more: object) -> object:
            sent.append(len(args) - 1)
            return await real(*args, **more)  # type: ignore[arg-type]

        with patch.object(store, "send_commands", counted):
            await asyncio.gather(*(log.record(AuditEvent(action=f"a{each}", who=ANN)) for each in range(500)))
        assert len(await actions(store)) == 500
        assert len(sent) <= 5


async def test_two_processes_write_one_log(tmp_path: Path) -> None:
    """Each event is there once, and the chain is intact."""
    url = f"sqlite:///{tmp_path}/a.db"
    async with limpet.open_store(url) as one, limpet.open_store(url) as other:
        logs = [AuditLog(store, RandomIds(SystemClock())) for store in (one, other)]
        names = [f"{place}-{each}" for place in range(2) for each in range(50)]
        await asyncio.gather(
            *(
                logs[place].record(AuditEvent(action=f"{place}-{each}", who=ANN))
                for place in range(2)
                for each in range(50)
            )
        )
        assert sorted(await actions(one)) == sorted(names)
        found = await verify_all(one)
        assert (found.audits, found.events, found.runs) == (1, 101, 0)


@contextmanager
def refusing(store: Store, error: Exception) -> Iterator[None]:
    """Make the store refuse every append."""

    async def refuse(*_: object, **__: object) -> None:
        raise error

    with patch.object(store, "append", refuse):
        yield


async def test_the_error_of_the_store_reaches_every_caller() -> None:
    """The next event is written when the store works again."""
    async with Store(MemoryBackend()) as store:
        log = log_of(store)
        with refusing(store, StoreUnavailable(reason="the disk failed")):
            done = await asyncio.gather(
                *(log.record(AuditEvent(action="lost", who=ANN)) for _ in range(5)), return_exceptions=True
            )
        assert [type(each) for each in done] == [StoreUnavailable] * 5
        assert len({id(each) for each in done}) == 5
        await log.record(AuditEvent(action="kept", who=ANN))
        assert await actions(store) == ["kept"]


async def test_too_many_waiting_events_are_refused() -> None:
    async with Store(MemoryBackend()) as store:
        log = log_of(store)
        with patch.object(audit, "MOST_WAITING", 3):
            done = await asyncio.gather(
                *(log.record(AuditEvent(action="a", who=ANN)) for _ in range(5)), return_exceptions=True
            )
        assert [type(each) for each in done if each is not None] == [StoreBusy] * 2
        assert len(await actions(store)) == 3


async def test_an_event_that_cannot_be_stored_is_refused_alone() -> None:
    """Long text is cut, since names and paths come from callers."""
    async with Store(MemoryBackend()) as store:
        log = log_of(store)
        bad, good = AuditEvent(action="a", subject="\ud800"), AuditEvent(action="b" * 10_000, who=ANN)
        done = await asyncio.gather(log.record(bad), log.record(good), return_exceptions=True)
        assert [type(each) for each in done] == [InvalidArgument, type(None)]
        [found] = await actions(store)
        assert len(found) == audit.LONGEST


async def test_an_event_is_written_even_if_its_caller_is_gone() -> None:
    async with Store(MemoryBackend()) as store:
        log, started, real = log_of(store), asyncio.Event(), store.now

        async def noted() -> int:
            started.set()
            return await real()

        with patch.object(store, "now", noted):
            caller = asyncio.ensure_future(log.record(AuditEvent(action="a", who=ANN)))
            await started.wait()
            caller.cancel()
            await log.drain()
        assert await actions(store) == ["a"]


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
async def test_a_changed_event_is_found(tmp_path: Path, keys: MasterKeys | None) -> None:
    """In an encrypted store, no text of an event can be read."""
    path = tmp_path / "a.db"
    async with Store(SqliteBackend(str(path)), keys=keys) as store:
        await log_of(store).record(AuditEvent(action="cancel", who=ANN, subject="secret-run"))
        assert (await verify_all(store)).audits == 1
    content = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.name.startswith("a.db"))
    assert (b"secret-run" in content) == (keys is None)
    db = apsw.Connection(str(path))
    db.execute("UPDATE limpet_events SET body = CAST(replace(body, 'ann', 'bob') AS BLOB), actor = 'x' WHERE seq = 2")
    db.close()
    async with Store(SqliteBackend(str(path)), keys=keys) as store:
        with pytest.raises(Tampered) as error:
            await verify_all(store)
        assert (error.value.run[:13], error.value.seq) == ("limpet.audit.", 2)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
async def test_an_export_can_be_checked(tmp_path: Path, clock: FrozenClock, keys: MasterKeys | None) -> None:
    """Also without the store: a changed, missing or swapped line is found."""
    path = tmp_path / "audit.jsonl"
    async with Store(MemoryBackend(clock), keys=keys) as store:
        log = log_of(store)
        for place in range(5):
            await log.record(AuditEvent(action=f"a{place}", who=ANN))
            clock.advance("30m")
        assert (await export_audit(store, path)).events == 7
    found = verify_audit(path)
    assert (found.audits, found.events, str(found)) == (2, 7, "2 audit logs with 7 events verified")
    lines = path.read_bytes().splitlines(keepends=True)
    wrong = [
        [line.replace(b"ann", b"bob") for line in lines],
        [lines[0], *lines[2:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        lines[1:],
    ]
    for each in wrong:
        path.write_bytes(b"".join(each))
        with pytest.raises(Tampered):
            verify_audit(path)
    path.write_bytes(b"".join(lines)[:-20])
    with pytest.raises(InvalidBundle, match="line 7"):
        verify_audit(path)
    assert [each.name for each in tmp_path.iterdir()] == ["audit.jsonl"]


async def test_exports_are_recorded_before_their_file_is_there(tmp_path: Path) -> None:
    """With who and the run. An export that fails leaves neither a file nor an event."""
    async with testing.app(audit_exported) as app:
        await app.run(audit_exported, 1, id="r1")
        await app.export("r1", tmp_path / "r1.zip", by="ann")
        await app.export_audit(tmp_path / "audit.jsonl", by=ANN)
        await app.prune(older_than=0, dry_run=True, archive=tmp_path / "archive")
        for path in (tmp_path / "none" / "x.zip", tmp_path):
            with pytest.raises(FileFailed):
                await app.export("r1", path)
        with pytest.raises(NotFound):
            await app.export("r2", tmp_path / "r2.zip")
        await app.prune(older_than=0, dry_run=False, archive=tmp_path / "archive")
        found = [(each.action, each.subject, each.who, each.door) for each in await app.audit()]
        assert found == [
            ("runs.archived", "", "", "python"),
            ("audit.exported", "", "ann", "http"),
            ("run.exported", "r1", "ann", "python"),
        ]
        assert sorted(each.name for each in tmp_path.iterdir()) == ["archive", "audit.jsonl", "r1.zip"]


async def test_an_export_that_cannot_be_recorded_does_not_happen(tmp_path: Path) -> None:
    """The file stays as it was."""
    kept = tmp_path / "r1.zip"
    kept.write_bytes(b"before")
    async with testing.app(audit_exported) as app:
        await app.run(audit_exported, 1, id="r1")
        with (
            patch.object(AuditLog, "record", side_effect=StoreBusy(reason="too many")),
            pytest.raises(StoreBusy),
        ):
            await app.export("r1", kept)
    assert kept.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["r1.zip"]


async def test_changes_of_tokens_are_recorded() -> None:
    """With the interface through which they came, and without the token."""
    async with testing.app() as app:
        made = await app.create_token("eve", roles=["viewer"], by="root")
        await app.revoke_token(made.info.id, by=ANN)
        found = await app.audit()
        assert [(each.action, each.subject, each.who, each.door) for each in found] == [
            ("token.revoked", made.info.id, "ann", "http"),
            ("token.created", made.info.id, "root", "python"),
        ]
        log = await app.store.read(found[0].log)
        assert made.token.split("_")[3] not in str([app.store.decode(event) for event in log])


async def test_the_audit_log_is_not_shown_by_other_operations() -> None:
    """It is no run, and a search does not find it, since other roles may search."""
    async with testing.app() as app:
        await app.create_token("eve", roles=["viewer"], by="root")
        [found] = await app.audit()
        for ask in (app.log, app.show, app.state, app.info, app.steps, app.resume):
            with pytest.raises(InvalidArgument, match="use `audit`"):
                await ask(found.log)
        assert await app.search("token.created") == []
        with pytest.raises(InvalidArgument, match="kind"):
            await app.search("token", kind="audit.recorded")
        with pytest.raises(InvalidArgument):
            await app.say(found.log, "hello")
        assert [*await app.runs(), *await app.conversations()] == []
        assert (await app.prune(older_than=0, dry_run=False)).runs == []
        assert isinstance(app.store.decode((await app.store.read(found.log))[0]), b.AuditStarted)
