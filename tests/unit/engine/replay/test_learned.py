"""A worker's knowledge of a log: snapshots of it are only a cache, and a whole step is learnt like its parts."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from limpet.engine.replay.learned import Learned
from limpet.events import START, AnyBody, inline, seal_all
from limpet.events import bodies as b
from limpet.state import Fold
from tests.unit.engine.replay.histories import completed, failed, started


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


CREATED = b.RunCreated(agent="a", agent_version="1", input=inline(None))
TURN = b.TurnStarted(loop="turns#1", number=1)
BEFORE: dict[str, Sequence[AnyBody]] = {
    "at first": (),
    "in a turn": (TURN,),
    "after a step": (started("t#1"), completed("t#1")),
    "in a retry": (started("t#2", 2), failed("t#2", 2, again_at=5)),
    "beside a step": (started("t#3", 3),),
    "in a read": (msgspec.structs.replace(started("t#3", 3), kind="read"),),
}
STEPS: dict[str, tuple[AnyBody, AnyBody]] = {
    "a step": (started("t#2", 2), completed("t#2", 2)),
    "a read": (msgspec.structs.replace(started("t#2", 2), kind="read"), completed("t#2", 2)),
    "with an approval": (msgspec.structs.replace(started("t#2", 2), grant="q-1"), completed("t#2", 2)),
    "of a turn": (started("turns#1/1/t#1", 2), completed("turns#1/1/t#1", 2)),
    "of different steps": (started("t#2", 2), completed("t#3", 3)),
}


LOGS = [
    (before, step)
    for before in BEFORE
    for step in STEPS
    if step != "of different steps" or before in ("beside a step", "in a read")
]


@pytest.mark.parametrize("is_handed_over", [False, True])
@pytest.mark.parametrize(("before", "step"), LOGS)
def test_a_whole_step_is_learnt_like_its_start_and_its_end(before: str, step: str, is_handed_over: bool) -> None:
    known = [CREATED, *BEFORE[before]]
    log = seal_all(START, "r1", [*known, *STEPS[step]], time=7, fence=1, actor="w1")
    first, last = log[-2:]
    found = []
    for together in (False, True):
        memory, fold = Learned(), Fold()
        for sealed in log[: len(known)]:
            fold.add(sealed.event, sealed.body)
            memory.learn(sealed.event, sealed.body, fold)
        if is_handed_over:
            memory.history.hand_over(STEPS[step][1].name)  # type: ignore[union-attr, arg-type]
        if together:
            memory.learn_step(first.event, first.body, last.event, last.body, fold)  # type: ignore[arg-type]
        else:
            memory.learn(first.event, first.body, fold)
            memory.learn(last.event, last.body, fold)
        found.append(_all_of(memory))
    assert found[0] == found[1]


def _all_of(memory: Learned) -> dict[str, Any]:
    """Return everything that it knows."""
    history = {name: getattr(memory.history, name) for name in _fields_of(memory.history)}
    history["_scopes"] = {scope: names for scope, names in history["_scopes"].items() if names}
    return {name: getattr(memory, name) for name in _fields_of(memory)} | {"history": history}


def _fields_of(known: object) -> list[str]:
    slots = [name for each in type(known).__mro__ for name in getattr(each, "__slots__", ())]
    return [*slots, *getattr(known, "__dict__", {})]
