"""Processes that write the audit log are killed: every acknowledged event is in the chain, once."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from limpet import open_store
from limpet.events import bodies as b
from limpet.service.audit import LOGS
from limpet.service.verify import verify_all
from tests.crash.audit import record_until_killed
from tests.crash.processes import Child
from tests.servers.postgres import drop_schema

ROUNDS, ALL_ROUNDS = 3, 60
ENOUGH = 40


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/a.db"
        return
    server = request.getfixturevalue("postgres")
    yield f"{server}?schema=audit_kills"
    drop_schema(server, "audit_kills")


async def test_an_acknowledged_audit_event_survives_a_kill(url: str, full: bool) -> None:
    """Two processes write; one is killed in each round, and another one starts."""
    acknowledged: list[str] = []
    other = Child(record_until_killed, url, "other")
    for number in range(ALL_ROUNDS if full else ROUNDS):
        child = Child(record_until_killed, url, f"p{number}")
        acknowledged += [child.receive() for _ in range(ENOUGH)]
        child.kill()
        acknowledged += received(child)
    other.kill()
    acknowledged += received(other)
    async with open_store(url) as store:
        [log] = (await store.runs(LOGS)).rows
        bodies = [store.decode(event) async for event in store.log(log.id)]
        written = [body.action for body in bodies if isinstance(body, b.AuditRecorded)]
        assert len(written) == len(set(written))
        assert set(acknowledged) <= set(written)
        found = await verify_all(store)
        assert (found.audits, found.events) == (1, len(written) + 1)


def received(child: Child) -> list[str]:
    """Return the events that a killed process had acknowledged, and that were not received yet."""
    found: list[str] = []
    with suppress(EOFError, OSError):
        while True:
            found.append(child.receive())
    return found
