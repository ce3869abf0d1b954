"""Extensions, signals and patches whose processes are killed at every place: each takes effect once."""

from collections import Counter
from pathlib import Path

import pytest

import limpet
from tests.crash.control import COUNT, drive, drive_batch, extend, listener, sender, thrifty
from tests.crash.test_requests import KILLED, Process


def places(store: str, last: int, *, full: bool) -> tuple[str, range]:
    """Return the unit in which places are counted, and the places at which a process is killed."""
    if store == "sqlite":
        return "statements", range(1, last, 1 if full else 16)
    return "queries", range(1, last, 2 if full else 19)


async def kinds(app: limpet.App, run: str) -> Counter[str]:
    return Counter(event.kind for event in await app.log(run))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_an_extension_that_was_killed_at_any_place_is_completed_by_repeating_it(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, *, full: bool
) -> None:
    """The same command ids have one effect; then the run goes on by itself."""
    unit, found = places(store, 60, full=full)
    shared, kills = request.getfixturevalue("postgres_schema") if store == "postgres" else "", 0
    for place in found:
        url = shared or f"sqlite:///{tmp_path}/{place}.db"
        async with limpet.open(url, agents=[thrifty]) as app:
            handle = await app.start(thrifty, id=f"r-{place}")
            with pytest.raises(limpet.RunFailed):
                await handle.result()
        kills += await Process(extend, url, f"r-{place}", f"{unit}:{place}").ended() == KILLED
        assert await Process(extend, url, f"r-{place}", "").ended() == 0
        async with limpet.open(url, agents=[thrifty]) as app:
            assert await (await app.get(f"r-{place}", thrifty)).result() == [*range(COUNT)]
            events = await kinds(app, f"r-{place}")
            assert (events["budget.extended"], events["deadline.extended"], events["resume.requested"]) == (1, 1, 1)
            assert events["step.completed"] == COUNT
            await app.verify(f"r-{place}")
    assert kills > 1


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_signals_of_a_run_that_was_killed_at_any_place_arrive_once(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, *, full: bool
) -> None:
    """The next worker goes on; each signal and patch is in the other log once, in order."""
    unit, found = places(store, 140, full=full)
    shared, kills = request.getfixturevalue("postgres_schema") if store == "postgres" else "", 0
    for place in found:
        url = shared or f"sqlite:///{tmp_path}/{place}.db"
        async with limpet.open(url, agents=[listener, sender], worker=False) as app:
            await app.start(listener, id=f"l-{place}")
            await app.start(sender, f"l-{place}", id=f"s-{place}")
            kills += await Process(drive, url, f"s-{place}", f"{unit}:{place}").ended() == KILLED
        async with limpet.open(url, agents=[listener, sender]) as app:
            assert await (await app.get(f"s-{place}", sender)).result() == "sent"
            assert await (await app.get(f"l-{place}", listener)).result() == [*range(COUNT)]
            events = await kinds(app, f"l-{place}")
            assert (events["signal.received"], events["patch.received"]) == (COUNT, 1)
            await app.verify(f"l-{place}")
    assert kills > 1


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_batch_that_was_killed_at_any_place_sends_each_command_once(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, *, full: bool
) -> None:
    """The next worker goes on with the batch."""
    unit, found = places(store, 120, full=full)
    shared, kills = request.getfixturevalue("postgres_schema") if store == "postgres" else "", 0
    for place in found:
        url = shared or f"sqlite:///{tmp_path}/{place}.db"
        async with limpet.open(url, agents=[listener], worker=False) as app:
            for number in range(COUNT):
                await app.start(listener, id=f"l-{place}-{number}", user=f"ann-{place}")
            await app.batch("cancel", user=f"ann-{place}", reason="closing", id=f"b-{place}")
            kills += await Process(drive_batch, url, f"b-{place}", f"{unit}:{place}").ended() == KILLED
        async with limpet.open(url, agents=[listener]) as app:
            assert (await (await app.get(f"b-{place}")).result())["matched"] == COUNT
            for number in range(COUNT):
                with pytest.raises(limpet.RunCancelled):
                    await (await app.get(f"l-{place}-{number}")).result()
                assert (await kinds(app, f"l-{place}-{number}"))["cancel.requested"] == 1
            await app.verify(f"b-{place}")
    assert kills > 1
