"""The audit log records the actions of callers over HTTP before they get their replies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import limpet
from limpet.clock import FrozenClock
from limpet.service.audit import AuditEvent, AuditLog
from limpet.service.audit_trail import AuditTrail
from limpet.stores import Store
from limpet.web import asgi

TOKENS = {
    role: limpet.Principal(name=role, roles=(role,)) for role in ("viewer", "operator", "approver", "auditor", "admin")
}


def whose(token: str) -> limpet.Principal | None:
    return TOKENS.get(token)


@limpet.agent(name="audited_echo")
async def echo(run: limpet.Run, text: str) -> str:
    return text


@asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[limpet.App, httpx.AsyncClient]]:
    """Yield an app, and a client whose tokens are roles."""
    async with limpet.open(url, agents=[echo]) as app:
        inside = asgi(app, auth=whose)
        transport = httpx.ASGITransport(inside, client=("10.0.0.9", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield app, client


async def ask(client: httpx.AsyncClient, role: str, method: str, path: str, **more: Any) -> int:
    return (await client.request(method, path, headers={"authorization": f"Bearer {role}"}, **more)).status_code


async def test_commands_payload_reads_logins_and_refusals_are_recorded(tmp_path: Path) -> None:
    """With who, what, from where and how it ended. Looking at lists is not recorded, and no data is."""
    async with served(f"sqlite:///{tmp_path}/limpet.db") as (app, client):
        started = {"agent": "audited_echo", "input": "a secret letter", "id": "r"}
        assert await ask(client, "operator", "POST", "/v1/runs", json=started) == 201
        await (await app.get("r")).result()
        for _ in range(3):
            assert await ask(client, "operator", "GET", "/v1/runs/r") == 200
        assert await ask(client, "operator", "POST", "/v1/runs/r/cancel", json={"reason": "late"}) == 409
        assert await ask(client, "viewer", "GET", "/v1/runs") == 200
        assert await ask(client, "viewer", "GET", "/v1/runs/r") == 403
        assert await ask(client, "stranger", "GET", "/v1/runs") == 401
        assert await ask(client, "stranger", "GET", "/v1/runs/r") == 401
        assert await ask(client, "viewer", "GET", "/v1/audit") == 403
        assert await ask(client, "auditor", "GET", "/v1/audit") == 200
        await app.audit_log.drain()
        found = [*await app.audit()]
        told = {(each.who, each.action, each.subject, each.outcome) for each in found}
        assert told == {
            ("operator", "login", "", "done"),
            ("operator", "start", "r", "done"),
            ("operator", "show", "r", "done"),
            ("operator", "cancel", "r", "wrong_state"),
            ("viewer", "login", "", "done"),
            ("viewer", "show", "r", "not_permitted"),
            ("viewer", "audit", "", "not_permitted"),
            ("", "refusal", "", "not_authenticated"),
            ("auditor", "login", "", "done"),
            ("auditor", "audit", "", "done"),
        }
        assert len(found) == len(told), "an equal read or refusal was recorded twice"
        assert {(each.address, each.door) for each in found} == {("10.0.0.9", "http")}
        assert "letter" not in str(found)
        await app.verify()


async def test_nothing_is_shown_or_done_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the audit log cannot be written, a read of payloads is refused. Then everything goes on."""
    async with served(f"sqlite:///{tmp_path}/limpet.db") as (app, client):
        await app.run(echo, "x", id="r")
        record = AuditLog.record

        async def broken(self: AuditLog, event: AuditEvent) -> None:
            raise limpet.StoreUnavailable(reason="the disk is full")

        monkeypatch.setattr(AuditLog, "record", broken)
        assert await ask(client, "operator", "GET", "/v1/runs/r") == 503
        assert await ask(client, "operator", "GET", "/v1/runs") == 200
        monkeypatch.setattr(AuditLog, "record", record)
        assert await ask(client, "operator", "GET", "/v1/runs/r") == 200


async def test_equal_reads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a minute, only the first is recorded; the next one has the number since then."""
    written: list[tuple[str, str, int]] = []

    async def record(self: AuditLog, event: AuditEvent) -> None:
        written.append((event.action, event.subject, event.count))

    monkeypatch.setattr(AuditLog, "record", record)
    clock = FrozenClock()
    async with limpet.open("memory:", worker=False) as app:
        trail = AuditTrail(app.audit_log, app.store, clock)
        for subject in ("r", "r", "r", "s"):
            await trail.record_use(AuditEvent(action="show", who=TOKENS["operator"], subject=subject), is_command=False)
        clock.advance("60s")
        await trail.record_use(AuditEvent(action="show", who=TOKENS["operator"], subject="r"), is_command=False)
        for _ in range(2):
            await trail.record_use(AuditEvent(action="cancel", who=TOKENS["operator"], subject="r"), is_command=True)
    assert written == [("show", "r", 1), ("show", "s", 1), ("show", "r", 3), ("cancel", "r", 1), ("cancel", "r", 1)]


async def test_a_store_that_can_only_be_read_has_no_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with limpet.open("memory:", worker=False) as app:
        monkeypatch.setattr(Store, "read_only", limpet.ReadOnlyStore(reason="a snapshot"))
        event = AuditEvent(action="show", who=TOKENS["operator"], subject="r")
        await app.audit_trail.record_use(event, is_command=False)
        app.audit_trail.record_login(TOKENS["operator"])
        app.audit_trail.record_refusal("not_authenticated", "10.0.0.1")
        await app.audit_log.drain()
        assert [*await app.audit()] == []
