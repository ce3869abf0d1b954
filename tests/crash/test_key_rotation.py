"""Key rotation while writers are killed: the newest master key alone decrypts everything."""

import os
import random  # noqa: TID251 - where each process dies
from pathlib import Path

import pytest

from limpet import open_store
from limpet.errors import WrongKeys
from limpet.events import bodies as b
from limpet.journal import verify_run
from limpet.stores import Store
from limpet.stores.cipher import MasterKeys
from tests.crash.jobs import rotate_and_die, write_and_die
from tests.crash.processes import Child

RUNS = ("r1", "r2", "r3")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_events_of_all_keys_are_readable_after_rotations_and_kills(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, full: bool
) -> None:
    """30 rounds with --full, otherwise 2: in each, three writers and the rotating process die somewhere."""
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_schema")
    chance, file, masters = random.Random(7), tmp_path / "keys", [os.urandom(32).hex()]
    write_keys(file, masters)
    acknowledged: dict[str, tuple[int, bytes]] = {}
    for number in range(30 if full else 2):
        writers = {run: Child(write_and_die, url, str(file), run, chance.randint(1, 400)) for run in RUNS}
        rotating = Child(rotate_and_die, url, str(file), chance.randint(1, 60))
        if number % 2:
            masters.insert(0, os.urandom(32).hex())
            write_keys(file, masters)
        for run, writer in writers.items():
            assert writer.end() == -9
            for said in received(writer):
                acknowledged[run] = said
        assert rotating.end() == -9

    async with open_store(url, keys=MasterKeys.from_file(file)) as store:
        await store.rotate_keys()
    if len(masters) > 1:
        with pytest.raises(WrongKeys):
            await open_store(url, keys=MasterKeys.from_text(masters[-1])).open()
    async with open_store(url, keys=MasterKeys.from_text(masters[0])) as store:
        for run, (seq, digest) in acknowledged.items():
            [event] = await store.read(run, after=seq - 1, limit=1)
            assert event.hash == digest
        print(f"{sum([await outputs(store, run) for run in acknowledged])} outputs, {len(masters)} master keys")


def write_keys(file: Path, masters: list[str]) -> None:
    """Write the master keys atomically, the newest first."""
    new = file.with_suffix(".new")
    new.write_text("\n".join(masters))
    new.rename(file)


def received(child: Child) -> list[tuple[int, bytes]]:
    """Return all messages of a process that died; the last may be incomplete."""
    said = []
    try:
        while True:
            said.append(child.receive())
    except (EOFError, OSError):
        return said


async def outputs(store: Store, run: str) -> int:
    """Check the outputs of a run, and return their number."""
    await verify_run(store, run)
    assert await store.check_rows(run) == []
    found = 0
    async for event in store.log(run):
        body = store.decode(event)
        if isinstance(body, b.StepCompleted):
            assert body.output is not None
            assert (await store.unpack(body.output)).startswith(f"{run} {event.seq - 1} ")
            found += 1
    return found
