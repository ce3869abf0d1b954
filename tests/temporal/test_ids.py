"""Temporal remembers workflows for days. A new run with the id of an old one is driven all the same."""

from pathlib import Path

import pytest

from tests.temporal.agents import many_steps
from tests.temporal.temporal_world import TemporalWorld


@pytest.mark.long
async def test_a_run_with_the_id_of_another_stores_run_is_driven(world: TemporalWorld, tmp_path: Path) -> None:
    async with world.app([many_steps]) as app:
        assert await app.run(many_steps, 2, id="twin") == 2
    other = TemporalWorld(world.server, f"sqlite:///{tmp_path}/limpet.db", tmp_path)
    async with other.app([many_steps]) as app:
        handle = await app.start(many_steps, 3, id="twin")
        assert await handle.result(timeout="20s") == 3
        assert len(await world.until_closed("twin")) == 2


@pytest.mark.long
async def test_a_run_with_the_id_of_a_deleted_run_is_driven(world: TemporalWorld) -> None:
    """The first call may be a late one. The sweep repeats it only if the run is ready."""
    async with world.app([many_steps]) as app:
        assert await app.run(many_steps, 2, id="again") == 2
        await world.until_closed("again")
        assert (await app.prune(older_than="0s", dry_run=False)).runs == ["again"]
        handle = await app.start(many_steps, 3, id="again")
        assert await handle.result(timeout="20s") == 3
        assert len(await world.until_closed("again")) == 2
