"""Blobs are collected while eight processes use them again and again: no event refers to what is not there."""

from pathlib import Path

import pytest

from limpet import open_store
from limpet.events import bodies as b
from limpet.journal import verify_run
from limpet.stores import Store
from tests.crash.jobs import collect, reuse
from tests.crash.processes import begin_all

WRITERS = 8


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_is_referred_to_is_never_collected(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, full: bool
) -> None:
    """20,000 events with --full, else 400, on contents that all share; the collector leaves no time at all."""
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_schema")
    count = (20_000 if full else 400) // WRITERS
    collector, *writers = begin_all([(collect, url), *((reuse, url, f"run-{n}", count) for n in range(WRITERS))])
    for writer in writers:
        writer.tell("go")
    assert [writer.hear() for writer in writers] == ["done"] * WRITERS
    collector.tell("stop")
    collected = collector.hear()

    assert [each.end() for each in (collector, *writers)] == [0] * (WRITERS + 1)
    print(f"collected {collected} blobs meanwhile")
    async with open_store(url) as store:
        for place in range(WRITERS):
            assert await outputs(store, f"run-{place}") == count


async def outputs(store: Store, run: str) -> int:
    """How many outputs a run has; all are there and are what they were."""
    await verify_run(store, run)
    assert await store.check_rows(run) == []
    found, seen = 0, {}
    async for event in store.log(run):
        body = store.decode(event)
        if isinstance(body, b.StepCompleted):
            assert body.output is not None
            assert isinstance(body.output.blob, str)
            seen[body.output.blob] = body.output
            found += 1
    for payload in seen.values():
        await store.unpack(payload)  # it raises unless the content is the one that the name says
    return found
