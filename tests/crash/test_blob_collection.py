"""Blob collection while eight processes reuse content: no event refers to a missing blob."""

from pathlib import Path

import pytest

from limpet import open_store
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.journal import verify_run
from limpet.stores import Store
from tests.crash.jobs import collect, reuse
from tests.crash.processes import start_all

WRITERS = 8


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_blob_in_use_is_never_collected(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, full: bool
) -> None:
    """20,000 events with --full, otherwise 400, on shared contents. The collector has no grace period."""
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_schema")
    count = (20_000 if full else 400) // WRITERS
    collector, *writers = start_all([(collect, url), *((reuse, url, f"run-{n}", count) for n in range(WRITERS))])
    for writer in writers:
        writer.send("go")
    assert [writer.receive() for writer in writers] == ["done"] * WRITERS
    collector.send("stop")
    collected = collector.receive()

    assert [each.end() for each in (collector, *writers)] == [0] * (WRITERS + 1)
    print(f"collected {collected} blobs meanwhile")
    async with open_store(url) as store:
        found = [await outputs(store, f"run-{place}") for place in range(WRITERS)]
        assert [len(each) for each in found] == [count] * WRITERS
        for payload in {payload.blob: payload for each in found for payload in each}.values():
            await store.unpack(payload)  # raises unless the content matches its hash


async def outputs(store: Store, run: str) -> list[Payload]:
    """Return the outputs of a run after checking its log and rows."""
    await verify_run(store, run)
    assert await store.check_rows(run) == []
    bodies = [store.decode(event) async for event in store.log(run)]
    return [body.output for body in bodies if isinstance(body, b.StepCompleted) and body.output is not None]
