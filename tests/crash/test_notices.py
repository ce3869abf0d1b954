"""Webhooks under kills: each end of a run is told at least once, with the same id, and no notice causes another one."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

import limpet
from tests.crash.counting_service import Service
from tests.crash.notices import ENDINGS, end_and_die
from tests.crash.processes import Child
from tests.servers.postgres import drop_schema

PATH = "/keyed/notices"


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_every_end_of_a_run_is_told_despite_kills(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, full: bool
) -> None:
    """The process is killed after each commit and each delivery, of which every seventh is tried without --full."""
    died = 0
    with Service() as service:
        address = f"http://127.0.0.1:{service.server_port}{PATH}"
        for place in count(1, 1 if full else 7):
            if store == "sqlite":
                url = f"sqlite:///{tmp_path}/{place}.db"
            else:
                server = request.getfixturevalue("postgres")
                url = f"{server}?schema=notices_{place}"
            service.forget()
            first = Child(end_and_die, url, address, place)
            was_killed = await asyncio.to_thread(first.end) != 0
            if was_killed:
                died += 1
                again = Child(end_and_die, url, address, 0)
                assert await asyncio.to_thread(again.end) == 0
            assert service.applied[PATH] == len(ENDINGS), place
            assert service.arrived[PATH] >= len(ENDINGS)
            async with limpet.open(url, worker=False) as app:
                notices = await app.runs(agent="limpet.notify")
                assert sorted(each.parent or "" for each in notices) == sorted(ENDINGS)
                await app.verify()
            if store == "postgres":
                drop_schema(server, f"notices_{place}")
            if not was_killed:
                break
    print(f"killed at {died} places")
    assert died >= 3
