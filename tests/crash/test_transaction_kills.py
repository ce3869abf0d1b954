"""A caller's row and its event are both stored or both not, wherever the process dies."""

from itertools import count
from pathlib import Path

import pytest

from limpet import open_store
from limpet.events import bodies as b
from limpet.journal import verify_run
from tests.crash.jobs import own, transact_and_die
from tests.crash.load import make_rows, rows
from tests.crash.processes import Child


@pytest.mark.parametrize(("how", "step"), [("statements", 4), ("files", 5), ("queries", 4)])
async def test_a_process_killed_in_a_transaction_leaves_row_and_event_or_neither(
    how: str, step: int, tmp_path: Path, request: pytest.FixtureRequest, full: bool
) -> None:
    """It dies before each statement, write and sync of SQLite, or after each statement sent to PostgreSQL."""
    postgres = how == "queries"
    url = request.getfixturevalue("postgres_schema") if postgres else f"sqlite:///{tmp_path / 'limpet.db'}"
    async with open_store(url) as store:
        await own(store, "r1")
    make_rows(url)
    outcomes = []
    for place in count(1, 1 if full else step):
        child = Child(transact_and_die, url, how, place)
        ended = child.end()
        assert ended in (0, -9)
        events = await recorded_in(url)
        assert sorted(events) == sorted(rows(url))
        outcomes.append(str(place) in events)
        if ended == 0:
            break
    print(f"{how}: died at {len(outcomes) - 1} places, in {sum(outcomes) - 1} of them after the commit")
    assert len(outcomes) > 2
    assert outcomes[-1]
    assert not outcomes[0]


async def recorded_in(url: str) -> list[str]:
    """Return the names recorded in the run's events after checking its log and rows."""
    async with open_store(url) as store:
        await verify_run(store, "r1")
        assert await store.check_rows("r1") == []
        bodies = [store.decode(event) async for event in store.log("r1")]
    return [body.name for body in bodies if isinstance(body, b.ValueRecorded)]
