"""Replay data in snapshots is only a cache."""

import msgspec
import pytest

from limpet.engine.replay.learned import Learned
from limpet.events import bodies as b
from limpet.events import inline


def kept() -> bytes:
    """Return the stored replay data of a run in its first turn."""
    memory = Learned()
    memory._created = b.RunCreated(agent="a", agent_version="1", input=inline(None))
    memory.history.turns = {"turns#1": 1}
    memory.history.flags = [(3, "old news", "")]
    data = memory.dump()
    assert data is not None
    return data


@pytest.mark.parametrize("created", [["run.created", 9, {}], ["run.dreamt", 1, {}], ["run.created", 1, {}], 5])
def test_unreadable_replay_data_is_not_used(created: object) -> None:
    """Data of a newer version, or damaged data, leaves nothing behind; the log is read instead."""
    plain = msgspec.json.decode(kept())
    assert Learned().restore(msgspec.json.encode(plain))
    memory = Learned()
    assert not memory.restore(msgspec.json.encode({**plain, "created": created}))
    assert (memory.history.turns, memory.history.flags) == ({}, [])
