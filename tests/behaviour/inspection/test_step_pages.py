"""A page of steps is read without the log before it, on both databases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from limpet.compose import open_store
from limpet.events import AnyBody, Failure, Head, inline, seal_all
from limpet.events import bodies as b
from limpet.journal import load_step, load_steps
from limpet.journal.snapshots import save
from limpet.service.diffs import diff, of_step
from limpet.service.moments import Point, state_at
from limpet.state import Fold
from limpet.stores import Create, Extend, Store
from limpet.stores.fork_reads import StepRange
from limpet.stores.rows import WorkerRow
from limpet.stores.sql_reads import SqlReads

BATCH = 10_000
PAGE = 50
# Events between two snapshots of a run of this length.
SNAPSHOTS = 800


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_schema"))
    return f"sqlite:///{tmp_path}/limpet.db"


async def test_a_page_reads_few_rows_wherever_it_is(url: str, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """A page of 50 steps of 100,000 reads two rows a step; a step that was retried at the end has all its events.

    Without --full, the run has 10,000 steps.
    """
    steps = 100_000 if full else 10_000
    rows = rows_read(monkeypatch)
    async with open_store(url) as store:
        await write_steps(store, steps)
        for first in (0, 17, steps // 2 - 10, steps - PAGE):
            rows.clear()
            page = await load_steps(store, "r1", StepRange(after=first, limit=PAGE))
            assert [step.number for step in page] == list(range(first + 1, first + PAGE + 1))
            assert sum(rows) <= 2 * PAGE + 10
        rows.clear()
        newest = await load_steps(store, "r1", StepRange(limit=PAGE, backwards=True))
        assert [step.number for step in newest] == list(range(steps, steps - PAGE, -1))
        step = await load_step(store, "r1", 7)
        assert [attempt.status for attempt in step.attempts] == ["failed", "completed"]
        assert step.end == 2 * steps + 4
        assert sum(rows) <= 2 * PAGE + 20
        await write_snapshots(store)
        for number in (3, steps // 2 - 10, steps - 1):
            rows.clear()
            moment = await state_at(store, "r1", Point(before=number))
            assert moment.step == number - 1
            assert [each.number for each in moment.steps] == list(range(number - 1, max(number - 11, 0), -1))
            assert sum(rows) <= SNAPSHOTS + 50
            rows.clear()
            found = await diff(store, "r1", *await of_step(store, "r1", number))
            assert [each.number for each in found.steps] == [number]
            assert sum(rows) <= 2 * SNAPSHOTS + 200


def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows of each query from now on."""
    rows: list[int] = []
    asked = SqlReads._all

    def counted(self: SqlReads, name: str, *values: Any) -> Sequence[Sequence[Any]]:
        found = asked(self, name, *values)
        rows.append(len(found))
        return found

    monkeypatch.setattr(SqlReads, "_all", counted)
    return rows


async def write_snapshots(store: Store) -> None:
    """Save the state of the run as often as a long run keeps snapshots."""
    folding = Fold()
    async for event in store.log("r1"):
        folding.add(event, store.decode(event))
        if event.seq % SNAPSHOTS == 0:
            await save(store, event.head, folding.freeze())


async def write_steps(store: Store, steps: int) -> None:
    """Write a run of many steps; the seventh fails first, and is retried last."""
    await store.register(WorkerRow(id="w1", host="", agents={"a": ("1",)}, started=0, lease_until=0), lease=10**12)
    await store.append(
        Create(run="r1", bodies=(b.RunCreated(agent="a", agent_version="1", input=inline(None)),), actor="app")
    )
    [claimed] = await store.claim("w1", limit=1)
    head = claimed.row.head
    for first in range(1, steps + 1, BATCH):
        bodies = [body for number in range(first, first + BATCH) for body in one_step(number)]
        head = await write(store, head, claimed.row.fence, bodies)
    await write(store, head, claimed.row.fence, [started(7, 2), b.StepCompleted(name="t#7", number=7, attempt=2)])


async def write(store: Store, head: Head, fence: int, bodies: Sequence[AnyBody]) -> Head:
    """Append events; return the new head."""
    events = seal_all(head, "r1", bodies, time=1, fence=fence, actor="w1", codec=store.codec)
    await store.append(Extend(run="r1", after=head, fence=fence, events=events))
    return events[-1].event.head


def one_step(number: int) -> Sequence[AnyBody]:
    """Return the events of a step."""
    if number == 7:
        busy = Failure(type="builtins.OSError", message="busy")
        return started(7), b.StepFailed(name="t#7", number=7, attempt=1, failure=busy, retry_at=9)
    return started(number), b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=inline("ok"))


def started(number: int, attempt: int = 1) -> b.StepStarted:
    """Return the start of an attempt."""
    return b.StepStarted(
        name=f"t#{number}", tool="t", number=number, attempt=attempt, asked="", args=inline([number]), effect="none"
    )
